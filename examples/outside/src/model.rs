//! A decoder of no known family: two layers of gated linear attention, then one of paged
//! attention, and again.

use crate::gated::GatedLinearAttention;
use piecewise::prelude::*;

/// Ids are below this.
pub const VOCAB: u64 = 256;
/// Each doubles its MLP once.
pub const LAYERS: usize = 6;
const HEADS: u64 = 4;
const DIM: u64 = 16;
const HIDDEN: u64 = HEADS * DIM;

/// How large steps and sequences may be: prompts above 32 tokens come in chunks.
pub const BOUNDS: StepBounds = StepBounds {
    max_tokens: 32,
    max_rows: 8,
    max_sequences: 8,
    max_length: 256,
    kv_rows: 2048,
    // Two conversations may be kept while eight sequences run.
    state_slots: 10,
};

/// From the inputs of a step to logits and sampled ids.
pub fn graph() -> Result<Graph, BuildErrors> {
    let b = Builder::new("outside").weight_dtype(DType::F32);
    let step = StepInputs::declare(&b, &BOUNDS);
    let spans = step.input(&b, "spans", &GatedLinearAttention::spans());
    let embedding = b.weight("embedding", [VOCAB, HIDDEN]);
    let mut x = embedding.gather(step.ids);
    for layer in 0..LAYERS {
        let _scope = b.scope(format!("layers.{layer}"));
        let h = x.rms_norm(b.weight("norm", [HIDDEN]), 1e-6);
        let project = |name| h.linear(b.weight(name, [HIDDEN, HIDDEN])).heads(DIM);
        let (q, k, v) = (project("q"), project("k"), project("v"));
        let mixed = if layer % 3 == 2 {
            let kv = b.kv_state(step.kv_rows, HEADS, DIM, DType::F32);
            kv.write(step.kv_slots, k, v);
            let spec = AttentionSpec { scale: 0.25, causal: true };
            q.paged_attention(kv, &step.attention, spec)
        } else {
            let state = step.slot_state(&b, "memory", DType::F32, [HEADS, DIM, DIM]);
            // A gate between 0 and 1.
            let gate = (project("gate").tanh() + 1.0) * 0.5;
            let operands = [q, k, v, gate, state, spans];
            b.custom_one(&GatedLinearAttention, &operands, Attrs::new()).merge_heads()
        };
        x = x + mixed.linear(b.weight("out", [HIDDEN, HIDDEN]));
        let h = x.rms_norm(b.weight("mlp_norm", [HIDDEN]), 1e-6);
        let inner = h.linear(b.weight("up", [2 * HIDDEN, HIDDEN])).silu() * 2.0;
        x = x + inner.linear(b.weight("down", [HIDDEN, 2 * HIDDEN]));
    }
    let last = x.gather(step.logit_rows).rms_norm(b.weight("norm", [HIDDEN]), 1e-6);
    let logits = last.matmul_transposed(embedding, DType::F32);
    b.finish([logits, step.sample(logits)])
}
