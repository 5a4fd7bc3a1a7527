//! Encoders at work: items of mixed sizes, packed into steps whose graphs are captured at token
//! budgets.

pub mod packing;
mod protocol;
mod runner;
mod text;
mod vision;

pub use protocol::{ItemEncoder, ItemError, OutputRows, Values};
pub use runner::{Encoder, ItemOutputs, default_budgets};
pub use text::{LoadError, TextEncoder, TextItem, TextModel};
pub use vision::{ImageItem, VisionEncoder, VisionModel};
