//! A decoder of a common shape, written with primitives.

use super::Builder;
use piecewise_ir::dtype::DType::{self, BF16, F32, I32};
use piecewise_ir::entity::Value;
use piecewise_ir::module::Module;
use piecewise_ir::types::TensorType;

pub const HIDDEN: u64 = 16;
pub const HEADS: u64 = 4;
pub const KV_HEADS: u64 = 2;
pub const DIM: u64 = 4;
pub const FFN: u64 = 24;
pub const VOCAB: u64 = 32;
pub const SLOTS: u64 = 64;
pub const POSITIONS: u64 = 64;

/// What layers look like beyond attention and a gated feed-forward block.
#[derive(Clone, Copy, Debug)]
pub struct Layers {
    pub count: usize,
    pub kv_heads: u64,
    /// Norms on queries and keys.
    pub qk_norm: bool,
    /// Biases of queries, keys and values.
    pub bias: bool,
    /// Norms after attention and after the feed-forward block, too.
    pub sandwich: bool,
    /// Attention and the feed-forward block both read the layer's input.
    pub parallel: bool,
}

impl Layers {
    pub fn of(count: usize) -> Self {
        let (qk_norm, bias, sandwich, parallel) = (true, false, false, false);
        Self { count, kv_heads: KV_HEADS, qk_norm, bias, sandwich, parallel }
    }
}

/// A decoder with grouped-query attention, norms on queries and keys, rotary positions and a
/// gated feed-forward block, in `dtype`.
pub fn decoder(layers: usize, dtype: DType) -> Module {
    build(Layers::of(layers), dtype)
}

/// A decoder of such layers in `dtype`.
pub fn build(layers: Layers, dtype: DType) -> Module {
    let kv_heads = layers.kv_heads;
    let mut b = Builder::new();
    let (t, r) = (b.symbol("T"), b.symbol("R"));
    let ids = b.input("ids", I32, dims![t]);
    let positions = b.input("positions", I32, dims![t]);
    let slots = b.input("slots", I32, dims![t]);
    let logit_rows = b.input("logit_rows", I32, dims![r]);
    let cos = b.weight("cos", F32, &[POSITIONS, DIM / 2]);
    let sin = b.weight("sin", F32, &[POSITIONS, DIM / 2]);
    let embedding = b.weight("embedding", dtype, &[VOCAB, HIDDEN]);
    let mut x = b.gather(embedding, ids);
    for layer in 0..layers.count {
        let name = |part: &str| format!("layers.{layer}.{part}");
        b.scope(name("attn"));
        let norm = b.weight(&name("norm"), dtype, &[HIDDEN]);
        let h = b.rms_norm(x, norm);
        let mut project = |part: &str, heads: u64| {
            let weight = b.weight(&name(part), dtype, &[heads * DIM, HIDDEN]);
            let mut y = b.linear(h, weight);
            if layers.bias {
                let bias = b.weight(&name(&format!("{part}_bias")), dtype, &[heads * DIM]);
                let bias = b.broadcast_like(bias, y);
                y = b.add(y, bias);
            }
            b.reshape(y, dims![t, heads, DIM])
        };
        let (q, k, v) = (project("q", HEADS), project("k", kv_heads), project("v", kv_heads));
        let mut turn = |part: &str, x: Value| {
            let mut x = x;
            if layers.qk_norm {
                let weight = b.weight(&name(part), dtype, &[DIM]);
                x = b.rms_norm(x, weight);
            }
            let (c, s) = (b.gather(cos, positions), b.gather(sin, positions));
            b.rope(x, c, s)
        };
        let (q, k) = (turn("q_norm", q), turn("k_norm", k));
        let keys = b.state(&name("k"), dtype, &[SLOTS, kv_heads, DIM]);
        let values = b.state(&name("v"), dtype, &[SLOTS, kv_heads, DIM]);
        b.scatter(keys, slots, k);
        b.scatter(values, slots, v);
        let ty = TensorType::new(dtype, dims![t, HEADS * DIM]);
        let attn = b.custom("test.attention", &[q, keys, values, positions], &[], ty);
        let weight = b.weight(&name("o"), dtype, &[HIDDEN, HEADS * DIM]);
        let mut o = b.linear(attn, weight);
        if layers.sandwich {
            let norm = b.weight(&name("after_attn"), dtype, &[HIDDEN]);
            o = b.rms_norm(o, norm);
        }
        let input = x;
        x = b.add(x, o);
        b.scope(name("mlp"));
        let norm = b.weight(&name("mlp_norm"), dtype, &[HIDDEN]);
        let h = b.rms_norm(if layers.parallel { input } else { x }, norm);
        let gate = b.weight(&name("gate"), dtype, &[FFN, HIDDEN]);
        let gate = b.linear(h, gate);
        let up = b.weight(&name("up"), dtype, &[FFN, HIDDEN]);
        let up = b.linear(h, up);
        let gate = b.silu(gate);
        let h = b.mul(gate, up);
        let down = b.weight(&name("down"), dtype, &[HIDDEN, FFN]);
        let mut down = b.linear(h, down);
        if layers.sandwich {
            let norm = b.weight(&name("after_mlp"), dtype, &[HIDDEN]);
            down = b.rms_norm(down, norm);
        }
        x = b.add(x, down);
    }
    b.scope("head");
    let rows = b.gather(x, logit_rows);
    let norm = b.weight("norm", dtype, &[HIDDEN]);
    let rows = b.rms_norm(rows, norm);
    let logits = b.linear(rows, embedding);
    let logits = if dtype == F32 { logits } else { b.cast(logits, F32) };
    b.finish(&[logits])
}

/// The decoder in bf16.
pub fn bf16(layers: usize) -> Module {
    decoder(layers, BF16)
}
