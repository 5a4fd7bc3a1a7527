//! The vision towers of SigLIP, CLIP and ViT: patches with learned positions, layer norms before
//! each block, biases.

use super::super::config::fields::Fields;
use super::super::config::options::sort_keys_beside;
use super::super::config::{ConfigError, read_dtype};
use super::super::op_builders::{AttentionSpec, KernelOps, Segments};
use super::inputs::PackedRows;
use super::layers::{Activation, NormNames, layer_norm, linear, patch_rows};
use piecewise_ir::builder::{Builder, Tensor};
use piecewise_ir::dim::Dim;
use piecewise_ir::dtype::DType;

/// The rows of images, `f32 [T, channels * patch * patch]`: channel, then y, then x; a class row is
/// all zeros.
pub(super) const PATCHES: &str = "patches";
const POSITIONS: &str = "positions";

/// Whose tower it is, which decides about class rows, norms and pooling.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VitFamily {
    /// Pooled by attention with one learned query, where it has the head for it.
    Siglip,
    /// A class row before the patches, a norm before the layers, one after them on the class row.
    Clip,
    /// A class row before the patches, which a dense layer with tanh pools, where it has one.
    Vit,
}

/// What such a tower is.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct VitConfig {
    /// Whose weights it has, by which names and norms differ.
    pub family: VitFamily,
    /// Width of the residual stream, a multiple of `num_heads`.
    pub hidden_size: usize,
    /// Width between the two products of a layer's feed-forward.
    pub intermediate_size: usize,
    /// How many layers there are, each of attention and a feed-forward.
    pub num_layers: usize,
    /// Heads of attention; each has `hidden_size / num_heads` elements.
    pub num_heads: usize,
    /// Channels of an image: 3 of one in colors.
    pub channels: usize,
    /// Pixels of a square image's side, at least `patch_size`.
    pub image_size: usize,
    /// Pixels of a patch's side.
    pub patch_size: usize,
    /// Added to the variance in every norm.
    pub norm_eps: f64,
    /// Between the two products of a layer's feed-forward.
    pub activation: Activation,
    /// Whether it pools the rows of an image.
    pub has_pooled: bool,
    /// What the configuration says that weights are stored as.
    pub dtype: Option<DType>,
}

const READ: &[&str] = &[
    "num_channels",
    "image_size",
    "patch_size",
    "layer_norm_eps",
    "hidden_act",
    "vision_use_head",
    "qkv_bias",
    "pooler_act",
    "pooler_output_size",
    "projector_hidden_act",
    "attention_probs_dropout_prob",
    "hidden_dropout_prob",
    "dropout",
    "encoder_stride",
    "initializer_factor",
    "projection_dim",
];

impl VitConfig {
    pub(super) fn read(root: &Fields<'_>, family: VitFamily) -> Result<Self, ConfigError> {
        sort_keys_beside(root, READ)?;
        if !matches!(root.string("pooler_act")?, None | Some("tanh")) {
            return Err(root.unsupported("pooler_act", "only tanh is"));
        }
        let count = |key, most, default| Ok(root.count(key, 1..=most)?.unwrap_or(default));
        let (activation, norm_eps, patch_size) = match family {
            VitFamily::Siglip => (Activation::GeluTanh, 1e-6, 16),
            VitFamily::Clip => (Activation::QuickGelu, 1e-5, 32),
            VitFamily::Vit => (Activation::Gelu, 1e-12, 16),
        };
        let config = Self {
            family,
            hidden_size: count("hidden_size", 1 << 20, 768)?,
            intermediate_size: count("intermediate_size", 1 << 22, 3072)?,
            num_layers: count("num_hidden_layers", 1 << 12, 12)?,
            num_heads: count("num_attention_heads", 1 << 14, 12)?,
            channels: count("num_channels", 16, 3)?,
            image_size: count("image_size", 1 << 14, 224)?,
            patch_size: count("patch_size", 1 << 10, patch_size)?,
            norm_eps: root.number("layer_norm_eps", 1e-30..=1.0)?.unwrap_or(norm_eps),
            activation: Activation::read(root, "hidden_act", activation)?,
            has_pooled: family != VitFamily::Siglip
                || root.boolean("vision_use_head")?.unwrap_or(true),
            dtype: read_dtype(root)?,
        };
        if !config.hidden_size.is_multiple_of(config.num_heads) {
            let reason = format!("not a multiple of `num_attention_heads` ({})", config.num_heads);
            return Err(root.bad_value("hidden_size", reason));
        }
        let pooled = root.count("pooler_output_size", 1..=1 << 20)?;
        if pooled.is_some_and(|width| width != config.hidden_size) {
            return Err(root.unsupported("pooler_output_size", "only `hidden_size` is"));
        }
        if config.image_size < config.patch_size {
            let reason = format!("less than `patch_size` ({})", config.patch_size);
            return Err(root.bad_value("image_size", reason));
        }
        if family == VitFamily::Vit && root.boolean("qkv_bias")? == Some(false) {
            return Err(root.unsupported("qkv_bias", "a tower that has it true is"));
        }
        Ok(config)
    }

    /// Patches of a side of an image; what is left of its pixels is not read.
    pub fn side(&self) -> usize {
        self.image_size / self.patch_size
    }

    /// Whether a class row stands before the patches of an image.
    pub fn has_class_row(&self) -> bool {
        match self.family {
            VitFamily::Siglip => false,
            VitFamily::Clip | VitFamily::Vit => true,
        }
    }

    /// Rows of an image: its patches, and the class row where there is one.
    pub fn rows(&self) -> usize {
        self.side() * self.side() + usize::from(self.has_class_row())
    }

    /// Elements of a patch: channels times pixels.
    pub fn patch_width(&self) -> usize {
        self.channels * self.patch_size * self.patch_size
    }
}

/// How a family calls the tensors of a layer.
struct LayerNames {
    layer: &'static str,
    norms: [&'static str; 2],
    qkv: [&'static str; 3],
    out: &'static str,
    feed_forward: [&'static str; 2],
}

impl LayerNames {
    fn of(family: VitFamily) -> Self {
        match family {
            VitFamily::Siglip | VitFamily::Clip => Self {
                layer: "encoder.layers",
                norms: ["layer_norm1", "layer_norm2"],
                qkv: ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
                out: "self_attn.out_proj",
                feed_forward: ["mlp.fc1", "mlp.fc2"],
            },
            VitFamily::Vit => Self {
                layer: "encoder.layer",
                norms: ["layernorm_before", "layernorm_after"],
                qkv: [
                    "attention.attention.query",
                    "attention.attention.key",
                    "attention.attention.value",
                ],
                out: "attention.output.dense",
                feed_forward: ["intermediate.dense", "output.dense"],
            },
        }
    }
}

struct Tower<'b, 'c> {
    b: &'b Builder,
    config: &'c VitConfig,
    hidden: u64,
    dim: u64,
}

/// `[T, hidden]` after the last layer, normed where the family does so, and, where the tower pools
/// them, `[items, hidden]`.
pub(super) fn rows_and_pooled<'b>(
    b: &'b Builder,
    config: &VitConfig,
    activations: DType,
    packed: &PackedRows<'b>,
    prefix: &str,
) -> Vec<Tensor<'b>> {
    let hidden = config.hidden_size as u64;
    let tower = Tower { b, config, hidden, dim: hidden / config.num_heads as u64 };
    let patches = b.input(PATCHES, DType::F32, (packed.rows, config.patch_width() as u64));
    let (patches, positions) = (patches.padding(0.0), packed.row_input(POSITIONS));
    let _scope = (!prefix.is_empty()).then(|| b.scope(prefix));
    let mut x = tower.embed(patches.cast(activations), positions).cast(activations);
    if config.family == VitFamily::Clip {
        x = tower.norm("pre_layrnorm", x);
    }
    let names = LayerNames::of(config.family);
    for layer in 0..config.num_layers {
        let _scope = b.scope(format!("{}.{layer}", names.layer));
        x = tower.layer(x, &names, packed.items);
    }
    let rows = match config.family {
        VitFamily::Siglip => tower.norm("post_layernorm", x),
        VitFamily::Clip => x,
        VitFamily::Vit => tower.norm("layernorm", x),
    };
    let class = || rows.gather(packed.items.starts);
    let pooled = config.has_pooled.then(|| match config.family {
        VitFamily::Siglip => {
            let _scope = b.scope("head");
            tower.attention_pool(rows, packed)
        }
        VitFamily::Clip => tower.norm("post_layernorm", class()),
        VitFamily::Vit => linear(b, "pooler.dense", class(), [hidden, hidden]).tanh(),
    });
    std::iter::once(rows).chain(pooled).collect()
}

impl<'b> Tower<'b, '_> {
    fn norm(&self, name: &str, x: Tensor<'b>) -> Tensor<'b> {
        let eps = self.config.norm_eps;
        layer_norm(self.b, name, x, self.hidden, eps, NormNames::WeightAndBias)
    }

    /// `f32 [T, hidden]`
    fn embed(&self, patches: Tensor<'b>, positions: Tensor<'b>) -> Tensor<'b> {
        let Self { b, config, hidden, .. } = *self;
        let _scope = b.scope("embeddings");
        let patch = config.patch_size as u64;
        let kernel = [hidden, config.channels as u64, patch, patch];
        let places = config.rows() as u64;
        let wide = |name: &str| b.weight(name, [hidden]).cast(DType::F32);
        let seen =
            |name: &str| patch_rows(b, &format!("{name}.weight"), patches, kernel).cast(DType::F32);
        let is_class = || positions.equal(0.0).reshape((self.rows_of(positions), 1));
        let (rows, table) = match config.family {
            VitFamily::Siglip => (
                seen("patch_embedding") + wide("patch_embedding.bias"),
                b.weight("position_embedding.weight", [places, hidden]),
            ),
            VitFamily::Clip => {
                let class = wide("class_embedding").reshape([1, hidden]);
                let table = b.weight("position_embedding.weight", [places, hidden]);
                (is_class().select(class, seen("patch_embedding")), table)
            }
            VitFamily::Vit => {
                let class = b.weight("cls_token", [1, 1, hidden]).reshape([1, hidden]);
                let table = b.weight("position_embeddings", [1, places, hidden]);
                let rows = seen("patch_embeddings.projection");
                let rows = rows + wide("patch_embeddings.projection.bias");
                let rows = is_class().select(class.cast(DType::F32), rows);
                (rows, table.reshape([places, hidden]))
            }
        };
        rows + table.gather(positions).cast(DType::F32)
    }

    fn rows_of(&self, x: Tensor<'b>) -> Dim {
        x.shape().first().cloned().unwrap_or_else(|| Dim::constant(0))
    }

    fn layer(&self, x: Tensor<'b>, names: &LayerNames, items: Segments<'b>) -> Tensor<'b> {
        let square = [self.hidden, self.hidden];
        let h = self.norm(names.norms[0], x);
        let [q, k, v] = names.qkv.map(|name| linear(self.b, name, h, square).heads(self.dim));
        let mixed = q.segment_attention(k, v, [items; 2], self.spec());
        let x = x + linear(self.b, names.out, mixed, square);
        x + self.feed_forward(self.norm(names.norms[1], x), names.feed_forward)
    }

    fn spec(&self) -> AttentionSpec {
        AttentionSpec { scale: (self.dim as f64).powf(-0.5), causal: false }
    }

    fn feed_forward(&self, h: Tensor<'b>, [into, back]: [&str; 2]) -> Tensor<'b> {
        let inner = self.config.intermediate_size as u64;
        let wide = self.config.activation.of(linear(self.b, into, h, [inner, self.hidden]));
        linear(self.b, back, wide, [self.hidden, inner])
    }

    /// The probe, a learned row, as the one query of each item.
    fn attention_pool(&self, rows: Tensor<'b>, packed: &PackedRows<'b>) -> Tensor<'b> {
        let Self { b, hidden, dim, .. } = *self;
        let probe = b.weight("probe", [1, 1, hidden]).reshape([1, hidden]).cast(rows.dtype());
        let mixed = {
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
            let mixed = query.segment_attention(k, v, [one_each, items], self.spec());
            linear(b, "out_proj", mixed, [hidden, hidden])
        };
        mixed + self.feed_forward(self.norm("layernorm", mixed), ["mlp.fc1", "mlp.fc2"])
    }
}
