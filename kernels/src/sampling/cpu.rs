//! Sampling on the CPU.

use super::controlled::TOKENS;
use super::{ControlledSample, Sample};
use crate::cpu::Isa;
use crate::cpu::sampling::{ControlArgs, SampleArgs, sample, sample_scratch_bytes};
use crate::inputs::DETAIL_WORDS;
use crate::op::{CpuOp, CpuOpArgs, CpuOpCall, OpError};

const LOGITS: usize = 0;

impl CpuOp for Sample {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn scratch_bytes(&self, call: &CpuOpCall<'_>) -> u64 {
        sample_scratch_bytes(call.extent(LOGITS, 1), false, call.threads) as u64
    }

    fn run(&self, args: &CpuOpArgs<'_>) -> Result<(), OpError> {
        run(args, 6, None)
    }
}

impl CpuOp for ControlledSample {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn scratch_bytes(&self, call: &CpuOpCall<'_>) -> u64 {
        sample_scratch_bytes(call.extent(LOGITS, 1), true, call.threads) as u64
    }

    fn run(&self, args: &CpuOpArgs<'_>) -> Result<(), OpError> {
        const OUT: usize = 10;
        let rows = args.true_dim(OUT, 0).min(args.dim(OUT, 0));
        let controls = ControlArgs {
            controls: args.read(6)?,
            penalties: args.read(7)?,
            masks: args.read(8)?,
            tokens: args.write(TOKENS)?,
            details: &mut args.write(OUT + 1)?[..rows * DETAIL_WORDS],
        };
        run(args, OUT, Some(controls))
    }
}

fn run(args: &CpuOpArgs<'_>, out: usize, controls: Option<ControlArgs<'_>>) -> Result<(), OpError> {
    let rows = args.true_dim(out, 0).min(args.dim(out, 0));
    let call = SampleArgs {
        logits: args.read(LOGITS)?,
        vocabulary: args.dim(LOGITS, 1),
        temperature: args.read(1)?,
        top_k: args.read(2)?,
        top_p: args.read(3)?,
        seed: args.read(4)?,
        position: args.read(5)?,
        controls,
        out: &mut args.write(out)?[..rows],
        scratch: args.scratch()?,
    };
    sample(Isa::detected(), call).map_err(|error| args.error(error.to_string()))
}
