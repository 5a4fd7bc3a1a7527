//! Sampling on the CPU.

use super::Sample;
use crate::cpu::Isa;
use crate::cpu::sampling::{SampleArgs, sample, sample_scratch_bytes};
use crate::op::{CpuOp, CpuOpArgs, OpError};
use piecewise_ir::custom::Attrs;
use piecewise_ir::types::TensorType;

/// [`Sample`] on the CPU; can be captured in every batch.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuSample;

const LOGITS: usize = 0;
const OUT: usize = 6;

impl CpuOp for CpuSample {
    fn name(&self) -> &str {
        Sample::NAME
    }

    fn scratch_bytes(
        &self,
        operands: &[TensorType],
        _results: &[TensorType],
        _attrs: &Attrs,
        sizes: &[u64],
        threads: usize,
    ) -> u64 {
        let vocabulary = operands[LOGITS].shape[1].eval(sizes) as usize;
        sample_scratch_bytes(vocabulary, threads) as u64
    }

    fn run(&self, args: &CpuOpArgs<'_>) -> Result<(), OpError> {
        let rows = args.true_dim(OUT, 0).min(args.dim(OUT, 0));
        let call = SampleArgs {
            logits: args.read(LOGITS)?,
            vocabulary: args.dim(LOGITS, 1),
            temperature: args.read(1)?,
            top_k: args.read(2)?,
            top_p: args.read(3)?,
            seed: args.read(4)?,
            position: args.read(5)?,
            out: &mut args.write(OUT)?[..rows],
            scratch: args.scratch()?,
        };
        sample(Isa::detected(), call).map_err(|error| args.error(error.to_string()))
    }
}
