//! Steps of a compiled model: dispatched, staged, replayed or launched, and read; and the graphs that they
//! replay.

mod addresses;
mod assemble;
mod audit;
mod background;
mod capture;
mod clock;
mod compare;
mod compiled;
mod footprint;
mod graphs;
mod late_sizes;
mod lifecycle;
mod limit;
mod measured;
mod options;
mod origin;
mod pace;
mod padding;
mod page_check;
mod probe;
mod ranges;
mod run;
mod specialize;
mod staging;
mod step;
mod step_launches;
mod tracer;

pub use compiled::CompiledModel;
pub use graphs::GraphSlot;
pub(crate) use measured::MeasuredStep;
pub use options::BuildOptions;
pub(crate) use padding::Staged;
pub(crate) use run::Run;
pub use step::{StepOutputs, Ticket};
pub use step_launches::StepLaunch;

#[cfg(test)]
pub(crate) mod tests;
