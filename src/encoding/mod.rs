//! Encoders at work: items of mixed sizes, packed into steps whose graphs are captured at token
//! budgets.

mod join;
pub mod packing;
mod protocol;
mod runner;
mod spread;
mod text;
mod vision;

pub use crate::models::encoder::{ImageError, ImageItem, ImageProcessor, OutputRows, Values};
pub use join::{JoinError, JoinedTower};
pub use protocol::{ItemEncoder, ItemError};
pub use runner::{Encoder, ItemOutputs, default_budgets};
pub use spread::{encode_on, spread};
pub use text::{LoadError, TextEncoder, TextItem, TextModel};
pub use vision::{VisionEncoder, VisionModel};
