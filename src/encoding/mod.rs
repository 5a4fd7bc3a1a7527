//! Encoders at work: items of mixed sizes, packed into steps whose graphs are captured at token
//! budgets.

mod budgets;
mod folder;
mod join;
pub mod packing;
mod path;
mod protocol;
mod runner;
mod segments;
mod spread;
mod statistics;
mod text;
mod thread;
mod vision;

pub use crate::models::encoder::{
    EncoderBounds, ImageError, ImageItem, ImageProcessor, OutputRows, Values,
};
pub use budgets::{ItemLogError, default_budgets, planned_budgets, read_item_log};
pub use folder::{default_tokens, folder_assembly, other_assemblies, text_output};
pub use join::{JoinError, JoinedTower, tower_assembly};
pub use protocol::{ItemEncoder, ItemError, ItemOutputs, PathSize, StepError, TokenRange};
pub use runner::{Encoder, EncoderBuildError, EncoderPath};
pub use spread::{encode_on, spread};
pub use statistics::{EncoderStatistics, PathStatistics};
pub use text::{LoadError, TextEncoder, TextItem, TextModel};
pub use thread::{CallOutputs, CallSink, CallTicket, EncoderHandle, EncoderThread};
pub use vision::{VisionEncoder, VisionModel};
