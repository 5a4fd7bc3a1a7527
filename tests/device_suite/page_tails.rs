//! An op that reads rows of a page past what its sequence has written: poison makes it visible.

use crate::any_graph::{RandomWeights, build_of, elements, options};
use crate::like_first::LikeFirst;
use crate::sequences::{Sequences, Turn, step};
use crate::target::Target;
use piecewise::models::{StepBounds, StepInputs};
use piecewise_ir::builder::Builder;
use piecewise_ir::custom::Attrs;
use piecewise_ir::dim::Dim;
use piecewise_ir::dtype::DType::F32;
use piecewise_ir::graph::Graph;
use piecewise_kernels::attention::PAGE_ROWS;
use piecewise_kernels::op::cuda::{CudaImplementation, CudaOp, CudaOpCall, Param, Scalar};
use piecewise_kernels::op::{CpuOp, CpuOpArgs, OpError, OpRegistry};
use piecewise_runtime::batch::ChunkRows;
use piecewise_runtime::memory::KvPoison;
use piecewise_runtime::pipeline::plan;
use piecewise_runtime::steps::BuildOptions;
use piecewise_runtime::words::{Checks, CompileLevel, GraphMode, StepMode, roles};
use piecewise_testing::Rng;
use std::sync::Arc;

const WIDTH: u64 = 16;

/// `y[t] = x[t] + cache[slots[t]]`, or, where it reads tails, `cache` at the last row of that page.
#[derive(Clone, Copy, Debug)]
struct Recall {
    reads_tails: bool,
}

impl Recall {
    const OP: LikeFirst = LikeFirst { name: "test.recall", splits: true };
    const SOURCE: &'static str = r#"
        extern "C" __global__ void recall(const float *x, const float *cache, const int *slots,
                                          float *y, const int *counts, unsigned symbol,
                                          unsigned tails) {
          const unsigned width = blockDim.x;
          for (int row = 0; row < counts[symbol]; ++row) {
            const int page = slots[row] / 16 * 16, from = tails ? page + 15 : slots[row];
            const float kept = slots[row] < 0 ? 0.f : cache[from * width + threadIdx.x];
            y[row * width + threadIdx.x] = x[row * width + threadIdx.x] + kept;
          }
        }
    "#;
}

impl CpuOp for Recall {
    fn name(&self) -> &str {
        Self::OP.name
    }

    fn run(&self, args: &CpuOpArgs<'_>) -> Result<(), OpError> {
        let (x, cache, slots) = (args.read::<f32>(0)?, args.read::<f32>(1)?, args.read::<i32>(2)?);
        let y = args.write::<f32>(3)?;
        let (width, page) = (WIDTH as usize, PAGE_ROWS as usize);
        for (row, slot) in slots[..args.true_dim(0, 0)].iter().enumerate() {
            let at = row * width..(row + 1) * width;
            y[at.clone()].copy_from_slice(&x[at.clone()]);
            let Ok(slot) = usize::try_from(*slot) else { continue };
            let from = if self.reads_tails { slot / page * page + page - 1 } else { slot };
            let kept = &cache[from * width..(from + 1) * width];
            y[at].iter_mut().zip(kept).for_each(|(y, kept)| *y += kept);
        }
        Ok(())
    }
}

impl CudaOp for Recall {
    fn name(&self) -> &str {
        Self::OP.name
    }

    fn implementation(&self, call: &CudaOpCall<'_>) -> Result<CudaImplementation, OpError> {
        let tails = Param::Scalar(Scalar::U32(Dim::constant(self.reads_tails.into())));
        let kernel = (Self::SOURCE, "recall");
        Self::OP.one_block(call, kernel, [4, WIDTH as u32], |_| vec![tails])
    }
}

fn graph() -> Graph {
    let b = Builder::new("tails").weight_dtype(F32);
    let bounds = StepBounds {
        max_tokens: 8,
        max_rows: 1,
        max_sequences: 1,
        max_length: 64,
        kv_rows: 64,
        state_slots: 0,
    };
    let inputs = StepInputs::declare(&b, &bounds);
    let cache = b.state("cache", F32, [Dim::from(inputs.kv_rows), Dim::constant(WIDTH)]);
    let cache = cache.role(roles::KV_CACHE);
    let embedding = b.weight("embedding", [61, WIDTH]);
    let x = embedding.gather(inputs.ids).silu();
    cache.scatter(inputs.kv_slots, x);
    let x = b.custom_one(&Recall::OP, &[x, cache, inputs.kv_slots], Attrs::new());
    let x = x.linear(b.weight("out", [WIDTH, WIDTH]));
    let logits = x.gather(inputs.logit_rows).matmul_transposed(embedding, F32);
    b.finish([logits, inputs.sample(logits)]).unwrap()
}

pub(crate) fn a_reader_is_shown<T: Target>() {
    for (mode, step_mode) in
        [(GraphMode::Piecewise, StepMode::Piecewise), (GraphMode::Full, StepMode::Full)]
    {
        for reads_tails in [false, true] {
            let op = Recall { reads_tails };
            let (module, _) = plan(graph(), CompileLevel::Piecewise, None, Vec::new()).unwrap();
            let module = Arc::new(module);
            let mut ops = OpRegistry::builtin();
            ops.define(Arc::new(Recall::OP))
                .implement_cpu(Arc::new(op))
                .implement_cuda(Arc::new(op));
            let checks = Checks { poison: true, addresses: true, compare: false };
            let options = BuildOptions { checks, ..options(&module, mode, &[1, 4, 8], 8) };
            let weights = RandomWeights(3);
            let mut model = build_of::<T>(&module, &Arc::new(ops), options, weights).unwrap();
            let mut sequences = Sequences::of(&model);
            let poison = KvPoison::new(model.module().graph(), model.memory());
            let mut rng = Rng::new(2);
            // A page is not full before its sixteenth token.
            for tokens in [3, 1, 5, 1] {
                let live = sequences.list.iter().map(|s| (&s.table, s.length));
                poison.fill(model.device_mut(), &sequences.pool, live).unwrap();
                let turn = Turn { sequence: 0, tokens, rows: ChunkRows::Last, feedback: false };
                let left = step(&mut model, &sequences.fill(&[turn], &mut rng));
                assert_eq!(left.report.mode, step_mode);
                let shows = elements(F32, &left.outputs[0]).iter().any(|x| x.is_nan());
                assert_eq!(shows, reads_tails, "{mode:?}, {tokens} tokens");
            }
        }
    }
}
