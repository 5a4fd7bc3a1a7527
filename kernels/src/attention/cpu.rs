//! Paged attention on the CPU.

use super::{PagedAttention, SINKS, packed};
use crate::cpu::attention::Keys;
use crate::op::{CpuOp, CpuOpArgs, CpuOpCall, OpError};

const BLOCK_TABLE: usize = 3;
const LENGTHS: usize = 4;
const QUERY_STARTS: usize = 5;
const QUERY_LENGTHS: usize = 6;

impl CpuOp for PagedAttention {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn scratch_bytes(&self, call: &CpuOpCall<'_>) -> u64 {
        packed::scratch_bytes(call, QUERY_STARTS)
    }

    fn run(&self, args: &CpuOpArgs<'_>) -> Result<(), OpError> {
        let spec = Self::spec(args.attrs()).map_err(|reason| args.error(reason))?;
        let keys = Keys::Paged {
            block_table: args.read(BLOCK_TABLE)?,
            max_blocks: args.dim(BLOCK_TABLE, 1),
            lengths: &args.read(LENGTHS)?[..args.true_dim(LENGTHS, 0)],
        };
        let sinks = (args.positions() > SINKS + 1).then_some(SINKS);
        packed::attend(args, [QUERY_STARTS, QUERY_LENGTHS], "sequence", keys, sinks, spec)
    }
}
