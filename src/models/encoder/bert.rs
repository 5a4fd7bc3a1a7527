//! BERT and XLM-RoBERTa: learned positions, layer norms after each block, biases everywhere.

use super::super::config::fields::Fields;
use super::super::config::options::sort_keys_beside;
use super::super::config::{ConfigError, read_dtype};
use super::super::op_builders::{AttentionSpec, KernelOps};
use super::inputs::{IDS, POSITIONS, PackedRows, TOKEN_TYPES};
use super::layers::{Activation, NormNames, layer_norm, linear};
use piecewise_ir::builder::{Builder, Tensor};
use piecewise_ir::dtype::DType;

/// What a BERT or an XLM-RoBERTa is.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct BertConfig {
    /// Width of the residual stream, a multiple of `num_heads`.
    pub hidden_size: usize,
    /// Width between the two products of a layer's feed-forward.
    pub intermediate_size: usize,
    /// How many layers there are, each of attention and a feed-forward.
    pub num_layers: usize,
    /// Heads of attention; each has `hidden_size / num_heads` elements.
    pub num_heads: usize,
    /// Rows of the table of words.
    pub vocab_size: usize,
    /// Rows of the table of positions.
    pub positions: usize,
    /// The row of the first position: 0, or one past the padding id of an XLM-RoBERTa.
    pub first_position: usize,
    /// Rows of the table of token types.
    pub token_types: usize,
    /// Added to the variance in every norm.
    pub norm_eps: f64,
    /// Between the two products of a layer's feed-forward.
    pub activation: Activation,
    /// What the configuration says that weights are stored as.
    pub dtype: Option<DType>,
}

const READ: &[&str] = &[
    "type_vocab_size",
    "layer_norm_eps",
    "hidden_act",
    "pad_token_id",
    "position_embedding_type",
    "is_decoder",
    "add_cross_attention",
    "attention_probs_dropout_prob",
    "hidden_dropout_prob",
];

impl BertConfig {
    pub(super) fn read(root: &Fields<'_>, is_roberta: bool) -> Result<Self, ConfigError> {
        sort_keys_beside(root, READ)?;
        if !matches!(root.string("position_embedding_type")?, None | Some("absolute")) {
            return Err(root.unsupported("position_embedding_type", "only absolute is"));
        }
        for key in ["is_decoder", "add_cross_attention"] {
            if root.boolean(key)? == Some(true) {
                return Err(root.unsupported(key, "an encoder has it false"));
            }
        }
        let hidden_size = root.required_count("hidden_size", 1..=1 << 20)?;
        let num_heads = root.required_count("num_attention_heads", 1..=1 << 14)?;
        if !hidden_size.is_multiple_of(num_heads) {
            let reason = format!("not a multiple of `num_attention_heads` ({num_heads})");
            return Err(root.bad_value("hidden_size", reason));
        }
        let vocab_size = root.required_count("vocab_size", 1..=1 << 24)?;
        let padding =
            root.count("pad_token_id", 0..=vocab_size - 1)?.unwrap_or(usize::from(is_roberta));
        let first_position = if is_roberta { padding + 1 } else { 0 };
        let positions = root.required_count("max_position_embeddings", 1..=1 << 24)?;
        if positions <= first_position {
            let reason = format!("leaves no position after `pad_token_id` ({padding})");
            return Err(root.bad_value("max_position_embeddings", reason));
        }
        Ok(Self {
            hidden_size,
            intermediate_size: root.required_count("intermediate_size", 1..=1 << 22)?,
            num_layers: root.required_count("num_hidden_layers", 1..=1 << 12)?,
            num_heads,
            vocab_size,
            positions,
            first_position,
            token_types: root.count("type_vocab_size", 1..=1 << 16)?.unwrap_or(2),
            norm_eps: root.number("layer_norm_eps", 1e-30..=1.0)?.unwrap_or(1e-12),
            activation: Activation::read(root, "hidden_act", Activation::Gelu)?,
            dtype: read_dtype(root)?,
        })
    }

    /// The longest text, in tokens.
    pub(super) fn longest(&self) -> usize {
        self.positions - self.first_position
    }
}

/// The rows after the last layer, `[T, hidden]`.
pub(super) fn rows<'b>(
    b: &'b Builder,
    config: &BertConfig,
    activations: DType,
    packed: &PackedRows<'b>,
    norms: NormNames,
) -> Tensor<'b> {
    let hidden = config.hidden_size as u64;
    let norm = |name: &str, x: Tensor<'b>| layer_norm(b, name, x, hidden, config.norm_eps, norms);
    let mut x = {
        let _scope = b.scope("embeddings");
        let table = |name: &str, rows: usize, input: &str| {
            let _scope = b.scope(name);
            let table = b.weight("weight", [rows as u64, hidden]);
            table.gather(packed.row_input(input)).cast(DType::F32)
        };
        let words = table("word_embeddings", config.vocab_size, IDS);
        let positions = table("position_embeddings", config.positions, POSITIONS);
        let types = table("token_type_embeddings", config.token_types, TOKEN_TYPES);
        norm("LayerNorm", words + types + positions).cast(activations)
    };
    for layer in 0..config.num_layers {
        let _scope = b.scope(format!("encoder.layer.{layer}"));
        x = {
            let _scope = b.scope("attention");
            let mixed = attention(b, config, x, packed);
            let _scope = b.scope("output");
            norm("LayerNorm", linear(b, "dense", mixed, [hidden, hidden]) + x)
        };
        let inner = config.intermediate_size as u64;
        let wide = linear(b, "intermediate.dense", x, [inner, hidden]);
        let _scope = b.scope("output");
        let back = linear(b, "dense", config.activation.of(wide), [hidden, inner]);
        x = norm("LayerNorm", back + x);
    }
    x
}

fn attention<'b>(
    b: &'b Builder,
    config: &BertConfig,
    x: Tensor<'b>,
    packed: &PackedRows<'b>,
) -> Tensor<'b> {
    let _scope = b.scope("self");
    let (hidden, heads) = (config.hidden_size as u64, config.num_heads as u64);
    let dim = hidden / heads;
    let [q, k, v] =
        ["query", "key", "value"].map(|name| linear(b, name, x, [hidden, hidden]).heads(dim));
    let spec = AttentionSpec { scale: (dim as f64).powf(-0.5), causal: false };
    q.segment_attention(k, v, [packed.items; 2], spec)
}

/// `tanh(dense(x))` of the first row of each item, `[items, hidden]`.
pub(super) fn pooler<'b>(b: &'b Builder, hidden: usize, first: Tensor<'b>) -> Tensor<'b> {
    let hidden = hidden as u64;
    linear(b, "pooler.dense", first, [hidden, hidden]).tanh()
}
