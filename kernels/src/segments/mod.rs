//! Segments: runs of packed rows that belong together, such as the tokens of a text or the patches
//! of an image. Attention and means within them, as custom ops.
//!
//! Where segments begin and how long they are is data of the step, so that nothing about lengths
//! is compiled or captured. A segment of no rows is allowed anywhere.

mod attention;
mod check;
mod cpu;
mod cuda;
mod mean;
mod reference;

pub use attention::SegmentAttention;
pub use cuda::{segment_attention_kernels, segment_mean_kernels};
pub use mean::SegmentMean;
