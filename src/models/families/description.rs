//! What a family of decoders is described by.

use super::super::config::fields::Fields;
use super::super::config::rope::RopeForm;
use super::super::config::{Activation, ConfigError, DecoderConfig, ExpertsConfig};
use super::super::layers::{self, Mix, Norm};
use piecewise_ir::builder::{Builder, Tensor};

/// A layer under the current scope, from rows `[T, hidden]` to such.
pub(super) type Layer =
    for<'b> fn(&'b Builder, &DecoderConfig, Tensor<'b>, &Mix<'_, 'b>) -> Tensor<'b>;

/// The same of a layer with experts.
pub(super) type SparseLayer =
    for<'b> fn(&'b Builder, &DecoderConfig, &ExpertsConfig, Tensor<'b>, &Mix<'_, 'b>) -> Tensor<'b>;

/// Rows of one kind changed by what a configuration says.
pub(super) type Change = for<'b> fn(&DecoderConfig, Tensor<'b>) -> Tensor<'b>;

/// What a family differs in from others.
pub(in crate::models) struct Description {
    pub(super) defaults: Defaults,
    /// Keys that it reads besides those of every decoder.
    pub(super) keys: &'static [&'static str],
    pub(super) rope: RopeForm,
    pub(super) activation: Activation,
    /// Fills in what only this family reads.
    pub(super) read: fn(&mut DecoderConfig, &Fields<'_>) -> Result<(), ConfigError>,
    /// Whether several projections stand in one tensor, which is split at load, as floats alone.
    pub(in crate::models) is_fused: bool,
    /// What becomes of the rows of the embedding.
    pub(in crate::models) embed: Change,
    pub(in crate::models) layer: Layer,
    /// A layer with experts; no configuration of other families has such.
    pub(in crate::models) sparse_layer: SparseLayer,
    /// The norm before the head.
    pub(in crate::models) norm: Norm,
    /// What becomes of what the head gives.
    pub(in crate::models) logits: Change,
}

/// What fields mean that a configuration does not state, as in the family's code in transformers.
/// Of `None` a field must be there.
pub(super) struct Defaults {
    pub(super) vocab_size: Option<usize>,
    pub(super) hidden_size: Option<usize>,
    pub(super) intermediate_size: Option<usize>,
    pub(super) layers: Option<usize>,
    pub(super) heads: Option<usize>,
    /// `None` of as many as heads.
    pub(super) kv_heads: Option<usize>,
    /// `None` of `hidden_size` over the heads.
    pub(super) head_dim: Option<usize>,
    pub(super) positions: usize,
    pub(super) eps: f64,
    pub(super) is_tied: bool,
    pub(super) bos: Option<u32>,
    pub(super) eos: Option<u32>,
}

impl Defaults {
    /// Of a family whose sizes must be stated.
    pub(super) const STATED: Self = Self {
        vocab_size: None,
        hidden_size: None,
        intermediate_size: None,
        layers: None,
        heads: None,
        kv_heads: None,
        head_dim: None,
        positions: 2048,
        eps: 1e-6,
        is_tied: false,
        bos: None,
        eos: None,
    };
}

/// What every family here has unless it says otherwise.
pub(super) const PLAIN: Description = Description {
    defaults: Defaults::STATED,
    keys: &[],
    rope: RopeForm { theta: 10_000.0, is_partial: false, is_by_kind: false },
    activation: Activation::Silu,
    read: |_, _| Ok(()),
    is_fused: false,
    embed: |_, rows| rows,
    layer: layers::plain_layer,
    sparse_layer: |b, config, _, x, mix| layers::plain_layer(b, config, x, mix),
    norm: Norm::Rounded,
    logits: |_, logits| logits,
};
