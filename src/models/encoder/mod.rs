//! Encoders: networks that read items whole, many of them packed into one step.
//!
//! The rows of all items of a step lie one after the other; where each begins and how long it is
//! are inputs, so that one graph serves any mix that it has room for.

mod bert;
mod images;
mod inputs;
mod layers;
mod modality;
mod modernbert;
mod pixels;
mod pooling;
mod preprocess;
mod qwen3;
mod qwen_vl;
mod scores;
mod sentence;
mod text;
mod vision;
mod vit;

pub use bert::BertConfig;
pub use images::ImageItem;
pub use inputs::{EncoderBounds, OutputRows, Values};
pub use layers::Activation;
pub use modality::{Modality, is_encoder};
pub use modernbert::ModernBertConfig;
pub use pooling::Pooling;
pub use preprocess::{ImageError, ImageProcessor, MOST_PIXELS};
pub use qwen_vl::{QwenVlConfig, QwenVlKind};
pub use scores::ScoreActivation;
pub use text::{EncoderError, TextArchitecture, TextEncoderConfig, TextOutput};
pub use vision::VisionConfig;
pub use vit::{VitConfig, VitFamily};
