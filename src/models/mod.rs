//! Ready model families, and reading them from Hugging Face model folders.
//!
//! A folder holds `config.json` (and maybe `generation_config.json`), the weights as safetensors
//! (one file, or shards with an index) and `tokenizer.json`. Each is read by one module here, and
//! whatever is wrong with it is an error that names the file and the field:
//!
//! - [`config`]: what the decoder is, as a typed [`DecoderConfig`];
//! - [`checkpoint`]: the weights, memory-mapped, as a [`Checkpoint`];
//! - [`ModelRegistry`]: which `model_type` is read by whom, models of one's own among them;
//! - [`presets`]: published models whose shapes are known without a folder;
//! - [`mod@decoder`]: the graph of a decoder, written with the builder, around the layers of its family;
//! - [`encoder`]: the graphs of encoders of texts and images;
//! - [`vision_language`]: images in the prompt of a decoder;
//! - [`files`]: small files of a folder, with a bound on their size;
//! - [`tokenizer`]: text to token ids and back, as a [`TextTokenizer`].
//!
//! [`Assembly::folder`](crate::assembly::Assembly::folder) puts them together.

pub mod checkpoint;
pub mod config;
pub mod decoder;
mod decoder_model;
mod dtype_names;
pub mod encoder;
mod experts;
mod families;
pub(crate) mod few_bits;
pub mod files;
mod layers;
pub mod op_builders;
pub mod presets;
mod registry;
mod step_inputs;
pub mod tokenizer;
pub mod vision_language;
pub mod weights;

pub use checkpoint::{Checkpoint, CheckpointError, TensorView};
pub use config::fields::Fields;
pub use config::{
    Activation, ConfigError, DecoderConfig, ExpertsConfig, Family, LayerAttention, LayerRope,
    Multipliers, Quantization, RopeConfig, RopeScaling, RopeTable,
};
pub use decoder::{DecoderBounds, decoder};
pub use decoder_model::{DecoderFacts, DecoderModel, StoredDTypes};
pub use presets::{Preset, UnknownPreset};
pub use registry::ModelRegistry;
pub use step_inputs::{StepBounds, StepInputs};
pub use tokenizer::{FirstOfPairs, TextStream, TextTokenizer, TokenizerError, Vocabulary};
pub use vision_language::{ImagePrompts, PlaceError, PlacedImages};
pub use weights::{UndeclaredDType, check_weights, unused_tensors};
