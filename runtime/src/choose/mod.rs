//! Building a model, and choosing as it is built: which ways of each artifact are bound, and which steps
//! are launched, measured on the device in the captured steps themselves, with the weights of every
//! layer, and remembered.

mod build;
mod descent;
mod launched;
mod measure;
mod rounds;

#[cfg(test)]
mod tests;
