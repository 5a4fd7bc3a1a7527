//! Parts that layers of decoders are built of.

use super::config::quantization::Stored;
use super::config::{Activation, DecoderConfig};
use piecewise_ir::builder::{Builder, Tensor};
use piecewise_ir::dtype::DType;
use piecewise_ir::weight::Recipe;
use std::ops::Range;

/// Takes q `[T, heads, dim]`, and k and v `[T, kv_heads, dim]`, not yet rotated, to `[T, heads * dim]`.
pub(super) type Mix<'a, 'b> = dyn Fn([Tensor<'b>; 3]) -> Tensor<'b> + 'a;

/// The kinds of RMS norms, which all make rows in f32 and round once, but for where.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Norm {
    /// Rounded to the rows' dtype, then times the weight.
    Rounded,
    /// Times the weight in f32, then rounded.
    Wide,
    /// Times one more than the weight in f32, then rounded.
    OnePlus,
}

/// The norm of rows by the weight `name.weight` under the current scope.
pub(super) fn norm<'b>(
    b: &'b Builder,
    config: &DecoderConfig,
    kind: Norm,
    name: &str,
    x: Tensor<'b>,
) -> Tensor<'b> {
    norm_of(b, config, kind, &format!("{name}.weight"), x)
}

/// The norm of rows over their innermost axis by the weight of a path under the current scope.
pub(super) fn norm_of<'b>(
    b: &'b Builder,
    config: &DecoderConfig,
    kind: Norm,
    path: &str,
    x: Tensor<'b>,
) -> Tensor<'b> {
    let shape = x.shape();
    let width = shape.last().and_then(piecewise_ir::dim::Dim::as_constant).unwrap_or(0);
    let weight = b.weight(path, [width]);
    match kind {
        Norm::Rounded => x.rms_norm(weight, config.rms_norm_eps),
        Norm::Wide => x.rms_norm_wide(weight.cast(DType::F32), config.rms_norm_eps),
        Norm::OnePlus => x.rms_norm_wide(weight.cast(DType::F32) + 1.0, config.rms_norm_eps),
    }
}

/// `cap * tanh(x / cap)`, of f32.
pub(super) fn capped(x: Tensor<'_>, cap: Option<f64>) -> Tensor<'_> {
    match cap {
        Some(cap) => (x * (1.0 / cap)).tanh() * cap,
        None => x,
    }
}

/// `x` times a factor that is not rounded to its dtype; `x` itself where that is 1.
pub(super) fn scaled(x: Tensor<'_>, by: f64) -> Tensor<'_> {
    if by == 1.0 { x } else { (x.cast(DType::F32) * by).cast(x.dtype()) }
}

/// Attention of `h [T, hidden]` by projections of their own, maybe with norms of each head of q and k.
pub(super) fn attention<'b>(
    b: &'b Builder,
    config: &DecoderConfig,
    h: Tensor<'b>,
    of_heads: Option<Norm>,
    mix: &Mix<'_, 'b>,
) -> Tensor<'b> {
    let _scope = b.scope("self_attn");
    let hidden = config.hidden_size as u64;
    let dim = config.head_dim as u64;
    let (heads, kv_heads) = (config.num_heads as u64, config.num_kv_heads as u64);
    let project = |name: &str, heads: u64| {
        config.linear(b, name, h, [heads * dim, hidden], config.qkv_bias).heads(dim)
    };
    let (mut q, mut k) = (project("q_proj", heads), project("k_proj", kv_heads));
    let v = project("v_proj", kv_heads);
    if let Some(kind) = of_heads {
        q = norm(b, config, kind, "q_norm", q);
        k = norm(b, config, kind, "k_norm", k);
    }
    config.linear(b, "o_proj", mix([q, k, v]), [hidden, heads * dim], config.output_bias)
}

/// A layer under the current scope, from rows `[T, hidden]` to such: a norm before what is attention and
/// before what is the feed-forward, each of which is added.
pub(super) fn layer_of<'b>(
    b: &'b Builder,
    config: &DecoderConfig,
    x: Tensor<'b>,
    attention: impl FnOnce(Tensor<'b>) -> Tensor<'b>,
    feed_forward: impl FnOnce(Tensor<'b>) -> Tensor<'b>,
) -> Tensor<'b> {
    let normed = |name, x| norm(b, config, Norm::Rounded, name, x);
    let x = x + attention(normed("input_layernorm", x));
    x + feed_forward(normed("post_attention_layernorm", x))
}

/// The same of attention and a feed-forward as they are here.
pub(super) fn plain_layer<'b>(
    b: &'b Builder,
    config: &DecoderConfig,
    x: Tensor<'b>,
    mix: &Mix<'_, 'b>,
) -> Tensor<'b> {
    let of_heads = config.qk_norm.then_some(Norm::Rounded);
    let attended = |h| attention(b, config, h, of_heads, mix);
    layer_of(b, config, x, attended, |h| feed_forward(b, config, h))
}

/// The gated feed-forward of `h [T, hidden]`.
pub(super) fn feed_forward<'b>(
    b: &'b Builder,
    config: &DecoderConfig,
    h: Tensor<'b>,
) -> Tensor<'b> {
    let _scope = b.scope("mlp");
    let (hidden, inner) = (config.hidden_size as u64, config.intermediate_size as u64);
    let gate = config.linear(b, "gate_proj", h, [inner, hidden], config.mlp_bias);
    let up = config.linear(b, "up_proj", h, [inner, hidden], config.mlp_bias);
    let gated = match config.activation {
        Activation::Silu => gate.swiglu(up),
        Activation::GeluTanh => gate.gelu_tanh() * up,
    };
    config.linear(b, "down_proj", gated, [hidden, inner], config.mlp_bias)
}

impl DecoderConfig {
    /// The linear layers `[out, in]` of each layer, by the ends of their paths.
    pub(super) fn linears(&self) -> [(&'static str, [u64; 2]); 7] {
        let (hidden, inner) = (self.hidden_size as u64, self.intermediate_size as u64);
        let [heads, kv_heads] =
            [self.num_heads, self.num_kv_heads].map(|heads| (heads * self.head_dim) as u64);
        [
            ("self_attn.q_proj", [heads, hidden]),
            ("self_attn.k_proj", [kv_heads, hidden]),
            ("self_attn.v_proj", [kv_heads, hidden]),
            ("self_attn.o_proj", [hidden, heads]),
            ("mlp.gate_proj", [inner, hidden]),
            ("mlp.up_proj", [inner, hidden]),
            ("mlp.down_proj", [hidden, inner]),
        ]
    }

    /// How the linear layer of a path is kept, where that is not as it is.
    pub(super) fn stored(&self, module: &str) -> Option<Stored> {
        self.quantization.as_ref().and_then(|quantization| quantization.stored(module))
    }

    /// A checkpoint linear as [`linear`] has it, in the form in which the checkpoint keeps it.
    pub(super) fn linear<'b>(
        &self,
        b: &'b Builder,
        name: &str,
        x: Tensor<'b>,
        shape: [u64; 2],
        bias: bool,
    ) -> Tensor<'b> {
        let Some(stored) = self.stored(&b.path(name)) else {
            return linear(b, name, x, shape, bias);
        };
        let _scope = b.scope(name);
        with_bias(b, stored.linear(b, x, shape, x.dtype()), shape[0], bias)
    }
}

/// A checkpoint linear of `shape` `[out, in]`, with its bias if it has one.
pub(super) fn linear<'b>(
    b: &'b Builder,
    name: &str,
    x: Tensor<'b>,
    shape: [u64; 2],
    bias: bool,
) -> Tensor<'b> {
    let _scope = b.scope(name);
    with_bias(b, x.linear(plain_weight(b, "weight", shape)), shape[0], bias)
}

/// A weight that is kept in floats.
#[track_caller]
pub(super) fn plain_weight<'b>(b: &'b Builder, name: &str, shape: [u64; 2]) -> Tensor<'b> {
    let weight = b.weight(name, shape);
    refuse_narrow(b, name, weight.dtype()).unwrap_or(weight)
}

/// Some rows of a checkpoint linear of `shape` `[out, in]` that a file has in one tensor with others.
pub(super) fn linear_rows<'b>(
    b: &'b Builder,
    config: &DecoderConfig,
    name: &str,
    x: Tensor<'b>,
    shape: [u64; 2],
    rows: Range<u64>,
) -> Tensor<'b> {
    let _scope = b.scope(name);
    let whole = b.tensor("weight", config.dtype.unwrap_or(DType::BF16), shape);
    if let Ok(ty) = whole.ty()
        && let Some(refused) = refuse_narrow(b, "weight", ty.dtype)
    {
        return refused;
    }
    let (start, len) = (rows.start, rows.end - rows.start);
    x.linear(b.weight_of(Recipe::Slice { axis: 0, start, len, of: Box::new(whole) }))
}

/// What takes the place of a weight in few bits of which nothing says how it is kept.
#[track_caller]
pub(super) fn refuse_narrow<'b>(b: &'b Builder, name: &str, dtype: DType) -> Option<Tensor<'b>> {
    dtype.is_narrow().then(|| {
        let path = b.path(name);
        b.fail(format!(
            "checkpoint tensor \"{path}\" is stored as {dtype}, but `quantization_config` of config.json \
             does not say how the layer is kept, so its scales would be left out"
        ))
    })
}

fn with_bias<'b>(b: &'b Builder, y: Tensor<'b>, width: u64, bias: bool) -> Tensor<'b> {
    if bias { y + b.weight("bias", [width]).cast(y.dtype()) } else { y }
}
