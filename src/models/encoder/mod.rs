//! Encoders: networks that read items whole, many of them packed into one step.
//!
//! The rows of all items of a step lie one after the other; where each begins and how long it is
//! are inputs, so that one graph serves any mix that it has room for.

mod bert;
mod inputs;
mod layers;
mod modernbert;
mod pooling;
mod qwen3;
mod sentence;
mod text;

pub use bert::BertConfig;
pub use inputs::EncoderBounds;
pub use layers::Activation;
pub use modernbert::ModernBertConfig;
pub use pooling::Pooling;
pub use text::{EncoderError, TextArchitecture, TextEncoderConfig, TextOutput};
