//! Checkpoints whose linear layers are kept in 8 or 4 bits.
//!
//! [`Quantization`] is what `quantization_config` of a `config.json` says: which linear layers are
//! kept how. [`Stored`] is one such way, and knows the tensors of a layer and the recipes that make
//! of them what every packing comes to here: codes `[out, in]` of a narrow dtype, scales in f32, and
//! zero points for some. So a graph does not know where its weights came from.

mod compressed_tensors;
mod kept;
mod keys;
mod loaded;
mod modules;
mod read;
mod stored;

pub use kept::Quantization;
pub(in crate::models) use loaded::group_when_loaded;
pub(in crate::models) use stored::Stored;

#[cfg(test)]
mod tests;
