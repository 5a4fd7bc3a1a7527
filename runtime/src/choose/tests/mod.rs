mod choices;
mod launched;
