//! Qwen3 as an encoder: the decoder's layers over packed texts, without a cache.

use super::super::config::DecoderConfig;
use super::super::decoder::decoder_layer;
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
    let rope =
        b.rope_table(&config.rope_inverse_frequencies(), config.max_position_embeddings as u64);
    let table = b.weight("embed_tokens.weight", [vocab, hidden]);
    let mut x = table.gather(packed.row_input(IDS)).cast(activations);
    let spec = AttentionSpec { scale: (config.head_dim as f64).powf(-0.5), causal: true };
    for layer in 0..config.num_layers {
        let _scope = b.scope(format!("layers.{layer}"));
        x = decoder_layer(b, config, x, |q, k, v| {
            let (q, k) = (q.rope(positions, rope), k.rope(positions, rope));
            q.segment_attention(k, v, [packed.items; 2], spec)
        });
    }
    x.rms_norm(b.weight("norm.weight", [hidden]), config.rms_norm_eps)
}
