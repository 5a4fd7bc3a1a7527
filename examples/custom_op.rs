//! An op of one's own: a running sum over the rows of a step that goes on in the next step.
//!
//! It mixes rows and mutates a state. By its definition the graph is split at it: it is launched
//! as itself between two captured pieces. Because it masks padding rows and reads no host values,
//! it can also run inside a piece; both give the same numbers.
//!
//! It runs on the CPU, and with `--device cuda` on a GPU, where it is CUDA source with a launch
//! recipe.

#![allow(clippy::print_stdout, reason = "an example shows what it did")]

use piecewise::kernels::op::cuda::{self, CudaImplementation, CudaOp, CudaOpCall, OpKernels};
use piecewise::prelude::*;
use std::error::Error;
use std::sync::Arc;

const WIDTH: u64 = 4;

/// `y[t] = carry + x[0] + .. + x[t]`, and the carry becomes the last row of `y`.
#[derive(Debug)]
struct RunningSum;

impl RunningSum {
    const X: usize = 0;
    const CARRY: usize = 1;
    const Y: usize = 2;
}

impl CustomOpDef for RunningSum {
    fn name(&self) -> &str {
        "example.running_sum"
    }

    fn infer(&self, operands: &[TensorType], _: &Attrs) -> Result<Vec<TensorType>, String> {
        match operands {
            [x, carry] if x.rank() == 2 && x.row() == carry.row() && x.dtype == DType::F32 => {
                Ok(vec![x.clone()])
            }
            _ => Err("wants x f32[rows, width] and a carry f32[1, width]".to_owned()),
        }
    }

    fn mutates(&self) -> Vec<usize> {
        vec![Self::CARRY]
    }

    fn rows(&self) -> RowTreatment {
        RowTreatment::Masked
    }

    fn splits(&self) -> bool {
        true
    }
}

impl CpuOp for RunningSum {
    fn name(&self) -> &str {
        CustomOpDef::name(self)
    }

    fn run(&self, args: &CpuOpArgs<'_>) -> Result<(), OpError> {
        let width = args.dim(Self::X, 1);
        let real_elements = args.true_dim(Self::X, 0) * width;
        let x = args.read::<f32>(Self::X)?;
        let carry = args.write::<f32>(Self::CARRY)?;
        let y = args.write::<f32>(Self::Y)?;
        let rows = x[..real_elements].chunks_exact(width);
        for (x_row, y_row) in rows.zip(y.chunks_exact_mut(width)) {
            for ((sum, x), y) in carry.iter_mut().zip(x_row).zip(y_row) {
                *sum += x;
                *y = *sum;
            }
        }
        Ok(())
    }
}

/// A thread for each column goes down the rows. `counts` has the true number of rows, so that
/// padding is left alone.
const KERNEL: &str = r#"
extern "C" __global__ void running_sum(const float *x, float *carry, float *y,
                                       const int *counts, unsigned width) {
    const unsigned column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= width) return;
    float sum = carry[column];
    for (int row = 0; row < counts[0]; ++row) {
        sum += x[row * width + column];
        y[row * width + column] = sum;
    }
    carry[column] = sum;
}
"#;

impl CudaOp for RunningSum {
    fn name(&self) -> &str {
        CustomOpDef::name(self)
    }

    fn implementation(&self, call: &CudaOpCall<'_>) -> Result<CudaImplementation, OpError> {
        let width = call.operands[Self::X].shape[1].clone();
        let blocks = cuda::GridAxis::of(width.clone(), 32);
        let mut params =
            [Self::X, Self::CARRY, Self::Y].map(|i| cuda::Param::Arg(i as u32)).to_vec();
        params.extend([cuda::Param::Counts, cuda::Param::Scalar(cuda::Scalar::U32(width))]);
        let launch = cuda::LaunchRecipe::new(KERNEL, "running_sum", blocks, 32, params);
        Ok(CudaImplementation::Source(OpKernels::new([launch])))
    }
}

fn halved_running_sum_of_squares() -> Result<Graph, BuildErrors> {
    let b = Builder::new("running_sum");
    let rows = b.symbol("T", 1, 16);
    let x = b.input("x", DType::F32, (rows, WIDTH));
    let carry = b.state("carry", DType::F32, (1, WIDTH));
    let sum = b.custom_one(&RunningSum, &[x * x, carry], Attrs::new());
    b.finish([sum * 0.5])
}

fn with_running_sum() -> OpRegistry {
    let mut registry = OpRegistry::builtin();
    registry.define(Arc::new(RunningSum));
    registry.implement_cpu(Arc::new(RunningSum)).implement_cuda(Arc::new(RunningSum));
    registry
}

fn describe(name: &str, session: &Session) {
    if let Some(stitch) = session.model().module().stitch() {
        let (pieces, split_ops) = (stitch.piece_count(), stitch.split_op_count());
        println!("{name}: {pieces} captured pieces, {split_ops} split ops");
    }
}

/// What follows `--device`; the CPU without it.
fn device() -> Result<DeviceSpec, String> {
    let after = std::env::args().skip_while(|arg| arg != "--device").nth(1);
    after.map_or(Ok(DeviceSpec::Cpu), |name| name.parse())
}

fn main() -> Result<(), Box<dyn Error>> {
    let device = device()?;
    let assembly = || {
        let graph = halved_running_sum_of_squares()?;
        let assembly = Assembly::graph(graph).device(device).ops(with_running_sum());
        Ok::<_, BuildErrors>(assembly.capture_sizes([1, 4, 16]))
    };
    let mut between_pieces = assembly()?.session()?;
    let mut inside_a_piece = assembly()?.never_split().session()?;
    describe("split", &between_pieces);
    describe("inside", &inside_a_piece);

    for step in [vec![1.0f32; 12], vec![2.0; 4], vec![0.0; 20]] {
        let split = between_pieces.step().input("x", &step).run()?;
        let inside = inside_a_piece.step().input("x", &step).run()?;
        let last_row = |outputs: &Outputs| {
            let values = outputs.get::<f32>(0)?;
            Ok::<_, SessionError>(values[values.len() - WIDTH as usize..].to_vec())
        };
        println!("after {} rows: {:?}", split.shape(0)?[0], last_row(&split)?);
        assert_eq!(split.get::<f32>(0)?, inside.get::<f32>(0)?);
    }
    Ok(())
}
