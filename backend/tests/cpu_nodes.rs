//! Single primitives outside regions, and what they refuse.

use crate::harness::nodes::{self, MOST, Sample, sample};
use crate::harness::target::Cpu;
use crate::harness::{registry, unique};
use piecewise_backend::artifact::PieceSize;
use piecewise_backend::compiler::{CompileError, Compiler, NoStore, PieceAt};
use piecewise_backend::cpu::CpuCompiler;
use piecewise_ir::custom::CustomCall;
use piecewise_ir::dtype::DType::F32;
use piecewise_ir::entity::Symbol;
use piecewise_ir::graph::Loc;
use piecewise_ir::op::{Op, ReduceOp, RowTreatment};
use piecewise_ir::types::TensorType;

#[test]
fn row_numbers_broadcasts_and_static_values() {
    nodes::row_numbers_broadcasts_and_static_values::<Cpu>();
}

#[test]
fn rows_gathered_from_a_table_of_another_symbol_are_clamped_to_its_true_rows() {
    nodes::rows_of_a_table_of_another_symbol_are_clamped_to_its_true_rows::<Cpu>();
}

#[test]
fn elementwise_ops_of_the_table() {
    nodes::elementwise_ops_of_the_table::<Cpu>();
}

fn refused(s: Sample, over: Symbol) -> CompileError {
    let piece = unique(s.graph, Some(over));
    let compiler = CpuCompiler::new(registry(), 1);
    compiler
        .compile(
            PieceAt { piece: &piece, size: PieceSize::Exact(4), bounds: &[MOST; 2] },
            &[],
            &NoStore,
        )
        .unwrap_err()
}

#[test]
fn what_has_no_kernel_is_named_with_its_place() {
    let mut s = sample();
    let t = s.t;
    let ty = s.ty(F32, t, &[4]);
    let x = s.graph.add_input("x", ty, None, None);
    let sum = Op::Reduce { op: ReduceOp::Sum, axes: vec![0] };
    let loc = Loc { scope: "layers.3".into(), source: "model.rs:7".into() };
    let sum = s.graph.push(sum, vec![x], TensorType::new(F32, [1u64, 4]), loc);
    s.graph.set_outputs(vec![sum]);
    let error = refused(s, t).to_string();
    assert!(error.contains("`reduce_sum v0`") && error.contains("layers.3, model.rs:7"), "{error}");

    let mut s = sample();
    let ty = s.ty(F32, t, &[4]);
    let x = s.graph.add_input("x", ty.clone(), None, None);
    let call = CustomCall {
        name: "user.mix".into(),
        attrs: Default::default(),
        mutates: vec![],
        rows: RowTreatment::Mixed,
        splits: true,
        absorbs: vec![],
        scatters: vec![],
    };
    let y = s.push(Op::Custom(Box::new(call)), vec![x], ty);
    s.graph.set_outputs(vec![y]);
    let error = refused(s, t);
    assert!(matches!(&error, CompileError::Unregistered { op, .. } if op == "user.mix"), "{error}");
}
