//! ModernBERT: rope, gated gelus, norms before each block, and layers that see a window.

use super::super::config::fields::Fields;
use super::super::config::options::sort_keys_beside;
use super::super::config::{ConfigError, RopeConfig, read_dtype};
use super::super::op_builders::{AttentionSpec, KernelOps};
use super::inputs::{IDS, POSITIONS, PackedRows};
use super::layers::{Activation, NormNames, layer_norm};
use piecewise_ir::builder::{Builder, Tensor};
use piecewise_ir::dtype::DType;

/// The sizes and options of a ModernBERT.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct ModernBertConfig {
    /// Width of the residual stream, a multiple of `num_heads`.
    pub hidden_size: usize,
    /// Width of the feed-forward behind its gate.
    pub intermediate_size: usize,
    /// Number of heads, of an even width.
    pub num_heads: usize,
    /// Rows of the table of words.
    pub vocab_size: usize,
    /// The longest text, in tokens.
    pub positions: usize,
    /// Added to the variance in every norm.
    pub norm_eps: f64,
    /// The activation before the gate.
    pub activation: Activation,
    /// Whether each layer sees a window, or all of its text.
    pub is_local: Vec<bool>,
    /// How far a row of a layer with a window sees to either side.
    pub window: u32,
    /// The base of the rope frequencies of layers that see all, and of those with a window.
    pub rope_thetas: [f64; 2],
    /// What the configuration says that weights are stored as.
    pub dtype: Option<DType>,
}

const READ: &[&str] = &[
    "norm_eps",
    "norm_bias",
    "hidden_activation",
    "attention_bias",
    "mlp_bias",
    "layer_types",
    "global_attn_every_n_layers",
    "local_attention",
    "rope_parameters",
    "global_rope_theta",
    "local_rope_theta",
    "cls_token_id",
    "classifier_activation",
    "classifier_bias",
    "classifier_pooling",
    "decoder_bias",
    "embedding_dropout",
    "layer_norm_eps",
    "mlp_dropout",
    "sparse_pred_ignore_index",
    "sparse_prediction",
];
const THETA: std::ops::RangeInclusive<f64> = 1.0..=1e15;

impl ModernBertConfig {
    pub(super) fn read(root: &Fields<'_>) -> Result<Self, ConfigError> {
        sort_keys_beside(root, READ)?;
        for key in ["norm_bias", "attention_bias", "mlp_bias"] {
            if root.boolean(key)? == Some(true) {
                return Err(root.unsupported(key, "ModernBERT has it false"));
            }
        }
        let hidden_size = root.required_count("hidden_size", 1..=1 << 20)?;
        let num_heads = root.required_count("num_attention_heads", 1..=1 << 14)?;
        if !hidden_size.is_multiple_of(2 * num_heads) {
            let reason = format!("makes no even width of each of {num_heads} heads");
            return Err(root.bad_value("hidden_size", reason));
        }
        let layers = root.required_count("num_hidden_layers", 1..=1 << 12)?;
        let window = root.count("local_attention", 2..=1 << 24)?.unwrap_or(128);
        Ok(Self {
            hidden_size,
            intermediate_size: root.required_count("intermediate_size", 1..=1 << 22)?,
            num_heads,
            vocab_size: root.required_count("vocab_size", 1..=1 << 24)?,
            positions: root.count("max_position_embeddings", 1..=1 << 20)?.unwrap_or(8192),
            norm_eps: root.number("norm_eps", 1e-30..=1.0)?.unwrap_or(1e-5),
            activation: Activation::read(root, "hidden_activation", Activation::Gelu)?,
            is_local: is_local(root, layers)?,
            window: (window / 2) as u32,
            rope_thetas: rope_thetas(root)?,
            dtype: read_dtype(root)?,
        })
    }
}

/// From `layer_types`, or from `global_attn_every_n_layers` of older files.
fn is_local(root: &Fields<'_>, layers: usize) -> Result<Vec<bool>, ConfigError> {
    let Some(types) = root.strings("layer_types")? else {
        let every = root.count("global_attn_every_n_layers", 1..=1 << 12)?.unwrap_or(3);
        return Ok((0..layers).map(|layer| layer % every != 0).collect());
    };
    if types.len() != layers {
        let reason = format!("has {} entries for {layers} layers", types.len());
        return Err(root.bad_value("layer_types", reason));
    }
    let local = types.iter().map(|kind| match *kind {
        "full_attention" => Some(false),
        "sliding_attention" => Some(true),
        _ => None,
    });
    local
        .collect::<Option<_>>()
        .ok_or_else(|| root.unsupported("layer_types", "full_attention and sliding_attention are"))
}

/// From `rope_parameters`, or from the two fields of older files.
fn rope_thetas(root: &Fields<'_>) -> Result<[f64; 2], ConfigError> {
    let kinds = [
        ("full_attention", "global_rope_theta", 160_000.0),
        ("sliding_attention", "local_rope_theta", 10_000.0),
    ];
    let mut thetas = kinds.map(|(_, _, default)| default);
    for (theta, (kind, older, _)) in thetas.iter_mut().zip(kinds) {
        let rope = root.child("rope_parameters")?;
        let rope = rope.map(|rope| rope.child(kind)).transpose()?.flatten();
        if let Some(rope) = &rope
            && !matches!(rope.string("rope_type")?, None | Some("default"))
        {
            return Err(rope.unsupported("rope_type", "only default is"));
        }
        let newer = rope.map(|rope| rope.number("rope_theta", THETA)).transpose()?.flatten();
        *theta = newer.or(root.number(older, THETA)?).unwrap_or(*theta);
    }
    Ok(thetas)
}

/// The rows after the last norm, `[T, hidden]`.
pub(super) fn rows<'b>(
    b: &'b Builder,
    config: &ModernBertConfig,
    activations: DType,
    packed: &PackedRows<'b>,
) -> Tensor<'b> {
    let hidden = config.hidden_size as u64;
    let dim = hidden / config.num_heads as u64;
    let norm = |name: &str, x: Tensor<'b>| {
        layer_norm(b, name, x, hidden, config.norm_eps, NormNames::WeightAlone)
    };
    let positions = packed.row_input(POSITIONS);
    let ropes = config.rope_thetas.map(|theta| {
        let rope = RopeConfig::plain(theta);
        let positions = config.positions as u64;
        b.rope_table(&rope.table(dim as usize, positions).frequencies, positions)
    });
    let table = b.weight("embeddings.tok_embeddings.weight", [config.vocab_size as u64, hidden]);
    let words = table.gather(packed.row_input(IDS)).cast(DType::F32);
    let mut x = norm("embeddings.norm", words).cast(activations);
    for (layer, &local) in config.is_local.iter().enumerate() {
        let _scope = b.scope(format!("layers.{layer}"));
        // The first layer follows the norm of the table.
        let h = if layer == 0 { x } else { norm("attn_norm", x) };
        let qkv = h.linear(b.weight("attn.Wqkv.weight", [3 * hidden, hidden]));
        let part = |n: u64| qkv.slice(1, n * hidden..(n + 1) * hidden).heads(dim);
        let rope = ropes[usize::from(local)];
        let (q, k) = (part(0).rope(positions, rope), part(1).rope(positions, rope));
        let spec = AttentionSpec { scale: (dim as f64).powf(-0.5), causal: false };
        let window = local.then_some(config.window);
        let mixed = q.segment_attention(k, part(2), [packed.items; 2], spec.window(window));
        x = x + mixed.linear(b.weight("attn.Wo.weight", [hidden, hidden]));
        x = x + feed_forward(b, config, norm("mlp_norm", x));
    }
    norm("final_norm", x)
}

fn feed_forward<'b>(b: &'b Builder, config: &ModernBertConfig, h: Tensor<'b>) -> Tensor<'b> {
    let _scope = b.scope("mlp");
    let (hidden, inner) = (config.hidden_size as u64, config.intermediate_size as u64);
    let both = h.linear(b.weight("Wi.weight", [2 * inner, hidden]));
    let gated = config.activation.of(both.slice(1, 0..inner)) * both.slice(1, inner..2 * inner);
    gated.linear(b.weight("Wo.weight", [hidden, inner]))
}
