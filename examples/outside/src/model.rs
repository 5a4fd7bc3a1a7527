//! A decoder of no known family: of three layers, two of gated linear attention and one of paged
//! attention.

use crate::gated::GatedLinearAttention;
use piecewise::models::ConfigError;
use piecewise::prelude::*;

/// What `config.json` says.
#[derive(Debug)]
pub struct Outside {
    vocab: u64,
    layers: usize,
    heads: u64,
    dim: u64,
}

impl Outside {
    /// By the fields of `config.json`.
    pub fn read(config: &Fields<'_>) -> Result<Self, ConfigError> {
        let heads = config.required_count("num_attention_heads", 1..=1 << 10)?;
        let hidden = config.required_count("hidden_size", 1..=1 << 20)?;
        if hidden % heads != 0 || hidden / heads > 1024 {
            return Err(config.bad_value("hidden_size", "heads have up to 1024 elements each"));
        }
        Ok(Self {
            vocab: config.required_count("vocab_size", 1..=1 << 24)? as u64,
            layers: config.required_count("num_hidden_layers", 1..=1 << 10)?,
            heads: heads as u64,
            dim: (hidden / heads) as u64,
        })
    }
}

impl DecoderModel for Outside {
    fn graph(&self, bounds: &DecoderBounds, stored: StoredDTypes) -> Result<Graph, BuildErrors> {
        let Self { vocab, layers, heads, dim } = *self;
        let (hidden, dtype) = (heads * dim, bounds.activations);
        let b = Builder::new("outside").weight_dtypes(stored);
        let step = StepInputs::declare(&b, &bounds.step());
        let spans = step.input(&b, "spans", &GatedLinearAttention::spans());
        let embedding = b.weight("embedding", [vocab, hidden]);
        let mut x = embedding.gather(step.ids).cast(dtype);
        for layer in 0..layers {
            let _scope = b.scope(format!("layers.{layer}"));
            let h = x.rms_norm(b.weight("norm", [hidden]), 1e-6);
            let project = |name| h.linear(b.weight(name, [hidden, hidden])).heads(dim);
            let (q, k, v) = (project("q"), project("k"), project("v"));
            let mixed = if layer % 3 == 2 {
                let kv = b.kv_state(step.kv_rows, heads, dim, dtype);
                kv.write(step.kv_slots, k, v);
                let scale = (dim as f64).powf(-0.5);
                q.paged_attention(kv, &step.attention, AttentionSpec { scale, causal: true })
            } else {
                let state = step.slot_state(&b, "memory", DType::F32, [heads, dim, dim]);
                // A gate between 0 and 1.
                let gate = (project("gate").tanh() + 1.0) * 0.5;
                let [q, k, v, gate] = [q, k, v, gate].map(|x| x.cast(DType::F32));
                let operands = [q, k, v, gate, state, spans];
                let mixed = b.custom_one(&GatedLinearAttention, &operands, Attrs::new());
                mixed.merge_heads().cast(dtype)
            };
            x = x + mixed.linear(b.weight("out", [hidden, hidden]));
            let h = x.rms_norm(b.weight("mlp_norm", [hidden]), 1e-6);
            let inner = h.linear(b.weight("up", [2 * hidden, hidden])).silu() * 2.0;
            x = x + inner.linear(b.weight("down", [hidden, 2 * hidden]));
        }
        let last = x.gather(step.logit_rows).rms_norm(b.weight("norm", [hidden]), 1e-6);
        let logits = last.matmul_transposed(embedding, DType::F32);
        b.finish(step.outputs(&b, logits, bounds.sampling_controls))
    }
}
