//! What of a model lies on its device: memory, weights, and programs, bound in the ways that were
//! chosen.

mod bind;
mod choices;
mod chosen_ways;
mod gain;
mod launches;
mod memory;
mod programs;
mod record;
mod step_end;
mod weights;

pub(crate) use bind::{BindSite, Place};
pub(crate) use choices::Choices;
pub use chosen_ways::{ChosenPart, ChosenWays};
pub use gain::{Gain, Verdict};
pub(crate) use launches::check_artifacts;
pub use memory::Memory;
pub use programs::check_layers;
pub(crate) use programs::{Member, Members, Probed};
pub use record::WaysOrigin;
pub(crate) use record::{LaunchedRecord, Record, RecordKey, TrialRecord, ways_of};
pub(crate) use step_end::StepEnd;
pub(crate) use weights::load_weights;
