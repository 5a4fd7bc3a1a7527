//! SigLIP's vision tower: patches with learned positions, and a head that attends with one query.

use super::super::config::fields::Fields;
use super::super::config::{ConfigError, read_dtype};
use super::super::op_builders::{AttentionSpec, KernelOps, Segments};
use super::inputs::PackedRows;
use super::layers::{Activation, NormNames, layer_norm, linear};
use piecewise_ir::builder::{Builder, Tensor};
use piecewise_ir::dtype::DType;

/// The rows of images, `f32 [T, channels * patch * patch]`: channel, then y, then x.
pub(super) const PATCHES: &str = "patches";
const POSITIONS: &str = "positions";

/// What a SigLIP vision tower is.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct SiglipConfig {
    /// Width of the residual stream, a multiple of `num_heads`.
    pub hidden_size: usize,
    /// Width of the feed-forward.
    pub intermediate_size: usize,
    /// Number of layers.
    pub num_layers: usize,
    /// Number of heads.
    pub num_heads: usize,
    /// Channels of an image.
    pub channels: usize,
    /// Pixels of a square image's side, a multiple of `patch_size`.
    pub image_size: usize,
    /// Pixels of a patch's side.
    pub patch_size: usize,
    /// Added to the variance in every norm.
    pub norm_eps: f64,
    /// The feed-forward's activation.
    pub activation: Activation,
    /// What the configuration says that weights are stored as.
    pub dtype: Option<DType>,
}

impl SiglipConfig {
    pub(super) fn read(root: &Fields<'_>) -> Result<Self, ConfigError> {
        let count = |key, most, default| Ok(root.count(key, 1..=most)?.unwrap_or(default));
        let config = Self {
            hidden_size: count("hidden_size", 1 << 20, 768)?,
            intermediate_size: count("intermediate_size", 1 << 22, 3072)?,
            num_layers: count("num_hidden_layers", 1 << 12, 12)?,
            num_heads: count("num_attention_heads", 1 << 14, 12)?,
            channels: count("num_channels", 16, 3)?,
            image_size: count("image_size", 1 << 14, 224)?,
            patch_size: count("patch_size", 1 << 10, 16)?,
            norm_eps: root.number("layer_norm_eps", 1e-30..=1.0)?.unwrap_or(1e-6),
            activation: Activation::read(root, "hidden_act", Activation::GeluTanh)?,
            dtype: read_dtype(root)?,
        };
        if !config.hidden_size.is_multiple_of(config.num_heads) {
            let reason = format!("not a multiple of `num_attention_heads` ({})", config.num_heads);
            return Err(root.bad_value("hidden_size", reason));
        }
        if config.image_size < config.patch_size {
            let reason = format!("less than `patch_size` ({})", config.patch_size);
            return Err(root.bad_value("image_size", reason));
        }
        if root.boolean("vision_use_head")? == Some(false) {
            return Err(root.unsupported("vision_use_head", "a tower with its head is"));
        }
        Ok(config)
    }

    /// Patches of a side of an image; what is left of its pixels is not read.
    pub fn side(&self) -> usize {
        self.image_size / self.patch_size
    }

    /// Elements of a patch.
    pub fn patch_width(&self) -> usize {
        self.channels * self.patch_size * self.patch_size
    }
}

/// `[T, hidden]` after the last norm, and one row of `[items, hidden]` of the head.
pub(super) fn rows_and_pooled<'b>(
    b: &'b Builder,
    config: &SiglipConfig,
    activations: DType,
    packed: &PackedRows<'b>,
    prefix: &str,
) -> [Tensor<'b>; 2] {
    let patch = config.patch_size as u64;
    let (width, hidden) = (config.patch_width() as u64, config.hidden_size as u64);
    let patches = b.input(PATCHES, DType::F32, (packed.rows, width)).padding(0.0);
    let positions = packed.row_input(POSITIONS);
    let _scope = (!prefix.is_empty()).then(|| b.scope(prefix));
    let norm = |name: &str, x: Tensor<'b>| {
        layer_norm(b, name, x, hidden, config.norm_eps, NormNames::WeightAndBias)
    };
    let mut x = {
        let _scope = b.scope("embeddings");
        let kernel = [hidden, config.channels as u64, patch, patch];
        let kernel = b.weight("patch_embedding.weight", kernel).reshape([hidden, width]);
        let bias = b.weight("patch_embedding.bias", [hidden]).cast(DType::F32);
        let places = (config.side() * config.side()) as u64;
        let table = b.weight("position_embedding.weight", [places, hidden]);
        let seen = patches.cast(activations).matmul_transposed(kernel, DType::F32) + bias;
        (seen + table.gather(positions).cast(DType::F32)).cast(activations)
    };
    for layer in 0..config.num_layers {
        let _scope = b.scope(format!("encoder.layers.{layer}"));
        x = x + attention(b, config, norm("layer_norm1", x), packed.items);
        x = x + feed_forward(b, config, norm("layer_norm2", x));
    }
    let rows = norm("post_layernorm", x);
    let _scope = b.scope("head");
    let pooled = attention_pool(b, config, rows, packed);
    [rows, pooled + feed_forward(b, config, norm("layernorm", pooled))]
}

fn attention<'b>(
    b: &'b Builder,
    config: &SiglipConfig,
    h: Tensor<'b>,
    items: Segments<'b>,
) -> Tensor<'b> {
    let _scope = b.scope("self_attn");
    let hidden = config.hidden_size as u64;
    let dim = hidden / config.num_heads as u64;
    let [q, k, v] =
        ["q_proj", "k_proj", "v_proj"].map(|name| linear(b, name, h, [hidden, hidden]).heads(dim));
    let mixed = q.segment_attention(k, v, [items; 2], spec(dim), None);
    linear(b, "out_proj", mixed, [hidden, hidden])
}

fn spec(dim: u64) -> AttentionSpec {
    AttentionSpec { scale: (dim as f64).powf(-0.5), causal: false }
}

/// The probe, a learned row, as the one query of each item.
fn attention_pool<'b>(
    b: &'b Builder,
    config: &SiglipConfig,
    rows: Tensor<'b>,
    packed: &PackedRows<'b>,
) -> Tensor<'b> {
    let hidden = config.hidden_size as u64;
    let dim = hidden / config.num_heads as u64;
    let probe = b.weight("probe", [1, 1, hidden]).reshape([1, hidden]).cast(rows.dtype());
    let _scope = b.scope("attention");
    let weight = b.weight("in_proj_weight", [3 * hidden, hidden]);
    let bias = b.weight("in_proj_bias", [3 * hidden]);
    let project = |x: Tensor<'b>, part: u64| {
        let range = part * hidden..(part + 1) * hidden;
        x.linear(weight.slice(0, range.clone())) + bias.slice(0, range).cast(x.dtype())
    };
    let items = packed.items;
    let one_each = Segments {
        starts: b.iota(DType::I32, [packed.items_symbol], 0),
        lengths: items.lengths.minimum(1.0),
    };
    let query = project(probe, 0).broadcast_to((packed.items_symbol, hidden)).heads(dim);
    let [k, v] = [1, 2].map(|part| project(rows, part).heads(dim));
    let mixed = query.segment_attention(k, v, [one_each, items], spec(dim), None);
    linear(b, "out_proj", mixed, [hidden, hidden])
}

fn feed_forward<'b>(b: &'b Builder, config: &SiglipConfig, h: Tensor<'b>) -> Tensor<'b> {
    let _scope = b.scope("mlp");
    let (hidden, inner) = (config.hidden_size as u64, config.intermediate_size as u64);
    let wide = config.activation.of(linear(b, "fc1", h, [inner, hidden]));
    linear(b, "fc2", wide, [hidden, inner])
}
