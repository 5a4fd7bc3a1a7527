//! Paged attention on the CPU.

use super::PagedAttention;
use crate::cpu::attention::{self, AttentionShape, attention_scratch_bytes};
use crate::cpu::{Isa, SCRATCH_ALIGN};
use crate::op::{CpuOp, CpuOpArgs, OpError};
use piecewise_ir::custom::{Attr, Attrs};
use piecewise_ir::dim::Dim;
use piecewise_ir::types::TensorType;

/// [`PagedAttention`] on the CPU; can be captured in every batch.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuPagedAttention;

const Q: usize = 0;
const KEYS: usize = 1;
const VALUES: usize = 2;
const BLOCK_TABLE: usize = 3;
const LENGTHS: usize = 4;
const QUERY_STARTS: usize = 5;
const QUERY_LENGTHS: usize = 6;
const OUT: usize = 7;

/// Bytes of the cumulative query starts of `sequences`, rounded up so that what follows stays
/// aligned.
fn starts_bytes(sequences: usize) -> usize {
    ((sequences + 1) * size_of::<i32>()).next_multiple_of(SCRATCH_ALIGN)
}

impl CpuOp for CpuPagedAttention {
    fn name(&self) -> &str {
        PagedAttention::NAME
    }

    fn scratch_bytes(
        &self,
        operands: &[TensorType],
        _results: &[TensorType],
        _attrs: &Attrs,
        sizes: &[u64],
        threads: usize,
    ) -> u64 {
        let extent = |position: usize, axis: usize| {
            operands[position].shape.get(axis).map_or(0, |dim: &Dim| dim.eval(sizes) as usize)
        };
        let shape = AttentionShape {
            q_heads: extent(Q, 1),
            kv_heads: extent(KEYS, 1),
            head_dim: extent(Q, 2),
            value_dim: extent(VALUES, 2),
        };
        (starts_bytes(extent(LENGTHS, 0)) + attention_scratch_bytes(shape, threads)) as u64
    }

    fn run(&self, args: &CpuOpArgs<'_>) -> Result<(), OpError> {
        let (Some(Attr::Float(scale)), Some(Attr::Bool(causal))) =
            (args.attrs().get("scale"), args.attrs().get("causal"))
        else {
            return Err(args.error("needs the attributes scale and causal"));
        };
        let sequences = args.true_dim(LENGTHS, 0);
        let starts = &args.read::<i32>(QUERY_STARTS)?[..sequences];
        let lengths = &args.read::<i32>(QUERY_LENGTHS)?[..sequences];
        let (head, scratch) = args.scratch()?.split_at_mut(starts_bytes(args.dim(LENGTHS, 0)));
        let query_start: &mut [i32] =
            bytemuck::cast_slice_mut(&mut head[..(sequences + 1) * size_of::<i32>()]);
        query_start[0] = 0;
        for sequence in 0..sequences {
            if starts[sequence] != query_start[sequence] {
                return Err(args.error(format!(
                    "sequence {sequence} starts at row {}, but the one before ends at {}",
                    starts[sequence], query_start[sequence]
                )));
            }
            query_start[sequence + 1] = starts[sequence].saturating_add(lengths[sequence]);
        }
        let call = attention::PagedAttention {
            shape: AttentionShape {
                q_heads: args.dim(Q, 1),
                kv_heads: args.dim(KEYS, 1),
                head_dim: args.dim(Q, 2),
                value_dim: args.dim(VALUES, 2),
            },
            q: args.read_floats(Q)?,
            k: args.read_floats(KEYS)?,
            v: args.read_floats(VALUES)?,
            block_table: args.read(BLOCK_TABLE)?,
            max_blocks: args.dim(BLOCK_TABLE, 1),
            seq_lens: &args.read::<i32>(LENGTHS)?[..sequences],
            query_start,
            scale: *scale as f32,
            causal: *causal,
            out: args.write_floats(OUT)?,
            scratch,
        };
        attention::paged_attention(Isa::detected(), call).map_err(|e| args.error(e.to_string()))
    }
}
