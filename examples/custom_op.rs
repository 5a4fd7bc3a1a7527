//! An op of one's own: a running sum over the rows of a step that goes on in the next step.
//!
//! It mixes rows and mutates a state. By its definition the graph is split at it: it runs eagerly
//! between two captured pieces. Because it masks padding rows and reads no host values, it can
//! also run inside a piece; both give the same numbers.

#![allow(clippy::print_stdout, reason = "an example shows what it did")]

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

fn halved_running_sum_of_squares() -> Result<Graph, BuildErrors> {
    let b = Builder::new("running_sum");
    let rows = b.symbol("T", 1, 16, None);
    let x = b.input("x", DType::F32, [rows.into(), WIDTH.into()], None, None);
    let carry = b.state("carry", DType::F32, [1.into(), WIDTH.into()], None);
    let sum = b.custom_one(&RunningSum, &[x * x, carry], Attrs::new());
    b.finish([sum * 0.5])
}

fn with_running_sum() -> OpRegistry {
    let mut registry = OpRegistry::builtin();
    registry.define(Arc::new(RunningSum)).implement_cpu(Arc::new(RunningSum));
    registry
}

fn describe(name: &str, session: &Session) {
    if let Some(stitch) = session.module().stitch() {
        let (pieces, split_ops) = (stitch.piece_count(), stitch.split_op_count());
        println!("{name}: {pieces} captured pieces, {split_ops} split ops");
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let session = || {
        let graph = halved_running_sum_of_squares()?;
        let builder = Session::cpu(graph).registry(with_running_sum()).capture_sizes([1, 4, 16]);
        Ok::<_, BuildErrors>(builder)
    };
    let mut between_pieces = session()?.build()?;
    let mut inside_a_piece = session()?.split_ops([""; 0]).build()?;
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
