//! Replay-compare on every backend: it finds nothing where replays do what launches do, and an op
//! that does something else each time it runs.

use crate::any_graph::{RandomWeights, build_checked};
use crate::like_first::LikeFirst;
use crate::random_steps::steps_alone;
use crate::small_decoder::Setup;
use crate::target::Target;
use piecewise_ir::builder::Builder;
use piecewise_ir::custom::Attrs;
use piecewise_ir::dtype::DType::F32;
use piecewise_kernels::op::cuda::{CudaImplementation, CudaOp, CudaOpCall};
use piecewise_kernels::op::{CpuOp, CpuOpArgs, OpError, OpRegistry};
use piecewise_runtime::pipeline::plan;
use piecewise_runtime::words::{Checks, CompileLevel, GraphMode, ModelError, StepData};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

const WIDTH: u64 = 16;

/// `y = x + n` at its `n`th run.
#[derive(Debug, Default)]
struct Counting {
    runs: AtomicU32,
}

impl Counting {
    const OP: LikeFirst = LikeFirst { name: "test.counting", splits: false };
    const SOURCE: &'static str = r#"
        __device__ unsigned runs;
        extern "C" __global__ void counting(const float *x, float *y, const int *counts,
                                            unsigned symbol) {
          const unsigned n = runs, width = blockDim.x;
          for (int row = 0; row < counts[symbol]; ++row) {
            y[row * width + threadIdx.x] = x[row * width + threadIdx.x] + n;
          }
          __syncthreads();
          if (threadIdx.x == 0) runs = n + 1;
        }
    "#;
}

impl CpuOp for Counting {
    fn name(&self) -> &str {
        Self::OP.name
    }

    fn run(&self, args: &CpuOpArgs<'_>) -> Result<(), OpError> {
        let (x, y) = (args.read::<f32>(0)?, args.write::<f32>(1)?);
        let n = self.runs.fetch_add(1, Ordering::Relaxed) as f32;
        let real = args.true_dim(0, 0) * WIDTH as usize;
        y[..real].iter_mut().zip(&x[..real]).for_each(|(y, x)| *y = x + n);
        Ok(())
    }
}

impl CudaOp for Counting {
    fn name(&self) -> &str {
        Self::OP.name
    }

    fn implementation(&self, call: &CudaOpCall<'_>) -> Result<CudaImplementation, OpError> {
        let kernel = (Self::SOURCE, "counting");
        Self::OP.one_block(call, kernel, [2, WIDTH as u32], |_| Vec::new())
    }
}

/// Random steps, each launched again from the same states.
pub(crate) fn finds_nothing_in_random_steps<T: Target>() {
    let checks = Checks { poison: true, addresses: true, compare: true };
    for mode in [GraphMode::Piecewise, GraphMode::Full] {
        steps_alone::<T>(&Setup { mode, checks, ..Setup::default() }, 100);
    }
}

pub(crate) fn finds_an_op_that_counts_its_runs<T: Target>() {
    let b = Builder::new("counts").weight_dtype(F32);
    let t = b.symbol("T", 1, 8);
    let x = b.input("x", F32, (t, WIDTH));
    let counted = b.custom_one(&Counting::OP, &[x.silu()], Attrs::new());
    let graph = b.finish([counted.linear(b.weight("w", [WIDTH, WIDTH]))]).unwrap();
    let mut registry = OpRegistry::new();
    registry.define(Arc::new(Counting::OP));
    registry.implement_cpu(Arc::new(Counting::default()));
    registry.implement_cuda(Arc::new(Counting::default()));
    let registry = Arc::new(registry);
    let module = Arc::new(plan(graph, CompileLevel::Piecewise, None, Vec::new()).unwrap().0);
    let ones: Vec<u8> = (0..3 * WIDTH).flat_map(|_| 1f32.to_le_bytes()).collect();
    let inputs = [&ones[..]];
    let step = StepData { counts: &[3], inputs: &inputs, ..StepData::default() };
    for mode in [GraphMode::Piecewise, GraphMode::Full] {
        for compare in [false, true] {
            let checks = Checks { poison: false, addresses: true, compare };
            let weights = RandomWeights(3);
            let mut model = build_checked::<T>(&module, &registry, mode, &[4], 8, weights, checks);
            match (model.submit(&step), compare) {
                (Ok(_), false) | (Err(ModelError::ReplayDiffers { .. }), true) => {}
                (found, _) => panic!("{} {mode:?}, compare {compare}: {found:?}", T::NAME),
            }
        }
    }
}
