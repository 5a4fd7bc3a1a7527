//! Qwen3 as an encoder: the decoder's layers over packed texts, without a cache.

use super::super::config::DecoderConfig;
use super::super::layers::plain_layer;
use super::super::op_builders::{AttentionSpec, KernelOps};
use super::inputs::{IDS, POSITIONS, PackedRows};
use piecewise_ir::builder::{Builder, Tensor};
use piecewise_ir::dtype::DType;

/// The rows after the last norm, `[T, hidden]`; each row sees itself and those before it.
pub(super) fn rows<'b>(
    b: &'b Builder,
    config: &DecoderConfig,
    activations: DType,
    packed: &PackedRows<'b>,
) -> Tensor<'b> {
    let (vocab, hidden) = (config.vocab_size as u64, config.hidden_size as u64);
    let positions = packed.row_input(POSITIONS);
    let longest = config.max_position_embeddings as u64;
    let rope = config.rope.table(config.head_dim, longest);
    let rope = b.scaled_rope_table(&rope.frequencies, longest, rope.factor);
    let table = b.weight("embed_tokens.weight", [vocab, hidden]);
    let mut x = table.gather(packed.row_input(IDS)).cast(activations);
    let spec = AttentionSpec { scale: config.score_scale(), causal: true };
    for layer in 0..config.num_layers {
        let _scope = b.scope(format!("layers.{layer}"));
        // A row sees itself and those before it, less far than so many rows.
        let window = config.attention_of(layer).window.map(|window| window - 1);
        x = plain_layer(b, config, x, &|[q, k, v]| {
            let (q, k) = (q.rope(positions, rope), k.rope(positions, rope));
            q.segment_attention(k, v, [packed.items; 2], spec.window(window))
        });
    }
    x.rms_norm(b.weight("norm.weight", [hidden]), config.rms_norm_eps)
}
