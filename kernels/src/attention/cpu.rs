//! Paged attention on the CPU.

use super::PagedAttention;
use super::packed::{self, Packed};
use crate::cpu::Isa;
use crate::cpu::attention;
use crate::op::{CpuOp, CpuOpArgs, CpuOpCall, OpError};
use piecewise_ir::custom::Attr;

/// [`PagedAttention`] on the CPU; can be captured in every batch.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuPagedAttention;

const BLOCK_TABLE: usize = 3;
const LENGTHS: usize = 4;
const QUERY_STARTS: usize = 5;
const QUERY_LENGTHS: usize = 6;
const OUT: usize = 7;

impl CpuOp for CpuPagedAttention {
    fn name(&self) -> &str {
        PagedAttention::NAME
    }

    fn scratch_bytes(&self, call: &CpuOpCall<'_>) -> u64 {
        packed::scratch_bytes(call, QUERY_STARTS)
    }

    fn run(&self, args: &CpuOpArgs<'_>) -> Result<(), OpError> {
        let (Some(Attr::Float(scale)), Some(Attr::Bool(causal))) =
            (args.attrs().get("scale"), args.attrs().get("causal"))
        else {
            return Err(args.error("needs the attributes scale and causal"));
        };
        let packed = Packed::take(args, [QUERY_STARTS, QUERY_LENGTHS], "sequence")?;
        let call = attention::PagedAttention {
            shape: packed.shape,
            q: packed.q,
            k: packed.k,
            v: packed.v,
            block_table: args.read(BLOCK_TABLE)?,
            max_blocks: args.dim(BLOCK_TABLE, 1),
            seq_lens: &args.read::<i32>(LENGTHS)?[..args.true_dim(LENGTHS, 0)],
            query_start: packed.query_start,
            scale: *scale as f32,
            causal: *causal,
            out: args.write_floats(OUT)?,
            scratch: packed.scratch,
        };
        attention::paged_attention(Isa::detected(), call).map_err(|e| args.error(e.to_string()))
    }
}
