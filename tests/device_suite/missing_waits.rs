//! A wait for a step that does not wait: without a check what is read is not what the step left, and the
//! check names it. A CPU has none to miss: each call of its device returns when its work is done.

use crate::any_graph::{MODES, RandomWeights, build_by, options};
use crate::like_first::LikeFirst;
use crate::target::{Breakable, Cuda, SimulatedCuda};
use piecewise_ir::builder::Builder;
use piecewise_ir::custom::Attrs;
use piecewise_ir::dtype::DType::F32;
use piecewise_kernels::op::cuda::{CudaImplementation, CudaOp, CudaOpCall};
use piecewise_kernels::op::{OpError, OpRegistry};
use piecewise_runtime::pipeline::plan;
use piecewise_runtime::steps::{BuildOptions, CompiledModel};
use piecewise_runtime::words::{Checks, CompileLevel, ModelError, StepData};
use piecewise_testing::{CallFault, Faults};
use std::sync::Arc;

const WIDTH: u64 = 16;
const ROWS: u64 = 8;

/// `y = x`, later than any host reads.
#[derive(Clone, Copy, Debug)]
struct Late;

impl Late {
    const OP: LikeFirst = LikeFirst { name: "test.late", splits: false };
    /// About as many cycles as a fifth of a second has.
    const SOURCE: &'static str = r#"
        extern "C" __global__ void late(const float *x, float *y, const int *counts,
                                        unsigned symbol) {
          const long long start = clock64();
          while (clock64() - start < 400000000) {}
          for (int row = 0; row < counts[symbol]; ++row) {
            y[row * blockDim.x + threadIdx.x] = x[row * blockDim.x + threadIdx.x];
          }
        }
    "#;
}

impl CudaOp for Late {
    fn name(&self) -> &str {
        Self::OP.name
    }

    fn implementation(&self, call: &CudaOpCall<'_>) -> Result<CudaImplementation, OpError> {
        Self::OP.one_block(call, (Self::SOURCE, "late"), [2, WIDTH as u32], |_| Vec::new())
    }
}

/// Submits a step and reads it, and reads it again once the device is idle. It brings its number, which is
/// what it leaves where no kernel runs.
fn read_twice(model: &mut CompiledModel, number: u64) -> (Result<Vec<u8>, ModelError>, Vec<u8>) {
    let number = (number + 1) as f32;
    let brought: Vec<u8> = (0..ROWS * WIDTH).flat_map(|_| number.to_le_bytes()).collect();
    let graph = model.module().graph();
    let left = model.memory().address(graph, graph.outputs()[0]).unwrap();
    model.device_mut().write(left, &brought).unwrap();
    let (counts, inputs) = ([ROWS], [&brought[..]]);
    let step = StepData { counts: &counts, inputs: &inputs, ..StepData::default() };
    let ticket = model.submit(&step).unwrap();
    let read = |model: &mut CompiledModel| Ok(model.read(&ticket)?.bytes(0)?.to_vec());
    let early = read(model);
    let base = model.memory().arena.base;
    model.device_mut().read(base, &mut [0]).unwrap();
    (early, read(model).unwrap())
}

fn are_named<T: Breakable<Breaks = Faults>>() {
    if !T::is_there() {
        return;
    }
    let b = Builder::new("late").weight_dtype(F32);
    let t = b.symbol("T", 1, ROWS);
    let late = b.custom_one(&Late::OP, &[b.input("x", F32, (t, WIDTH)).silu()], Attrs::new());
    let graph = b.finish([late.linear(b.weight("w", [WIDTH, WIDTH]))]).unwrap();
    let mut ops = OpRegistry::new();
    ops.define(Arc::new(Late::OP)).implement_cuda(Arc::new(Late));
    let ops = Arc::new(ops);
    let module = Arc::new(plan(graph, CompileLevel::Piecewise, None, Vec::new()).unwrap().0);
    for (mode, step_mode) in MODES {
        for poison in [false, true] {
            let checks = Checks { poison, ..Checks::default() };
            let options = BuildOptions { checks, ..options(&module, mode, &[ROWS], ROWS) };
            let (device, compiler, faults) = T::breakable(&ops);
            let mut model =
                build_by::<T>(&module, (device, compiler), options, RandomWeights(3)).unwrap();
            for number in 0..4 {
                let waits = number % 3 == 0;
                faults.clear();
                if !waits {
                    faults.fail(CallFault::always("cuEventSynchronize", 0));
                }
                let (early, after) = read_twice(&mut model, number);
                assert_eq!(model.last_step().unwrap().mode, step_mode);
                match early {
                    Ok(early) => {
                        assert!(waits || !poison, "{mode:?}: step {number} was read early");
                        assert_eq!(early == after, waits, "{mode:?}: step {number}");
                    }
                    Err(ModelError::ReadEarly { step, output: 0 }) => {
                        assert!(!waits && poison && step == number, "{mode:?}: step {number}");
                    }
                    Err(error) => panic!("{mode:?}: step {number}: {error}"),
                }
            }
        }
    }
    println!("{}: reads that do not wait are named in {} modes", T::NAME, MODES.len());
}

#[test]
fn simulated_cuda_reads_that_do_not_wait_are_named() {
    are_named::<SimulatedCuda>();
}

#[test]
fn cuda_reads_that_do_not_wait_are_named() {
    are_named::<Cuda>();
}
