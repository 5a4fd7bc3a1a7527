//! Row treatments against what evaluation shows: one row of every op perturbed.

use super::{
    BinaryOp, CompareOp, Format, Op, ReduceOp, RowTreatment, UnaryOp, op_table, row_treatment,
};
use crate::custom::{Attr, CustomCall, CustomOpDef};
use crate::dim::{Dim, SymbolDecl};
use crate::dtype::DType;
use crate::entity::Symbol;
use crate::graph::{Graph, Loc};
use crate::literal::{Literal, Scalar};
use crate::region::{ParamMode, Region};
use crate::testing::{MixOp, mix_ops, row_probe};
use crate::types::TensorType;

const T: Symbol = Symbol(0);
const SIZE: u64 = 4;

/// A type from extents, of which 0 stands for `T`.
fn ty(dtype: DType, shape: &[usize]) -> TensorType {
    let dim = |&d: &usize| if d == 0 { Dim::from(T) } else { Dim::from(d) };
    TensorType::new(dtype, shape.iter().map(dim).collect::<Vec<_>>())
}

fn f(shape: &[usize]) -> TensorType {
    ty(DType::F32, shape)
}

fn ints(shape: &[usize]) -> TensorType {
    ty(DType::I32, shape)
}

/// A graph of one op. Operand 0 is a state where the op mutates it, and so are those of narrow dtypes,
/// which no input has.
fn graph_of(op: &Op, operands: &[TensorType], results: &[TensorType]) -> Graph {
    let mut graph = Graph::new("probe");
    let decl = SymbolDecl { name: "T".into(), min: 1, max: SIZE, role: None };
    graph.add_symbol(decl);
    let mutated = op.mutated_operands();
    let values = operands
        .iter()
        .enumerate()
        .map(|(i, ty)| match mutated.contains(&i) || ty.dtype.is_narrow() {
            true => graph.add_state(format!("s{i}"), ty.clone(), None),
            false => {
                let padding = ty.dtype.is_index().then(|| Scalar::int(ty.dtype, 0));
                graph.add_input(format!("a{i}"), ty.clone(), padding, None)
            }
        })
        .collect();
    let node = graph.push_node(op.clone(), values, results.to_vec(), Loc::default());
    graph.set_outputs(graph.node(node).results.clone());
    graph
}

/// Holds the op's treatment to be `expected`, and evaluation to agree.
#[track_caller]
fn check(op: Op, operands: &[TensorType], results: &[TensorType], expected: RowTreatment) {
    let graph = graph_of(&op, operands, results);
    crate::verify::verify_graph(&graph).unwrap();
    let treatment = row_treatment(&op, operands, results, T);
    assert_eq!(treatment, expected, "{op:?}");
    for seed in 0..4 {
        let probe = row_probe(&graph, &mix_ops(), T, &[SIZE], seed).unwrap();
        match treatment {
            RowTreatment::Independent => {
                assert!(!probe.outputs_mix && !probe.states_mix, "{op:?}: {probe:?}");
            }
            RowTreatment::SlotMapped => {
                assert!(!probe.outputs_mix && !probe.states_mix, "{op:?}: {probe:?}");
                assert!(probe.reaches, "{op:?}: {probe:?}");
            }
            RowTreatment::Mixed => {
                assert!(probe.outputs_mix || probe.states_mix, "{op:?}: {probe:?}");
            }
            RowTreatment::Masked => unreachable!("no op of the table is masked"),
        }
    }
}

fn matmul(transpose_lhs: bool, transpose_rhs: bool) -> Op {
    Op::MatMul { transpose_lhs, transpose_rhs }
}

/// `neg` of each row; with a state, scattered too.
fn region(scatters: bool) -> Op {
    let symbols = graph_of(&Op::Select, &[], &[]);
    let mut body = Graph::with_symbols_of("body", &symbols);
    let state = scatters.then(|| body.add_input("s", f(&[8, 3]), None, None));
    let row = body.add_input("x", f(&[3]), None, None);
    let y = body.push(Op::Unary(UnaryOp::Neg), vec![row], f(&[3]), Loc::default());
    let mut params = vec![ParamMode::Row];
    if let Some(state) = state {
        let slot = body.add_input("i", TensorType::scalar(DType::I32), None, None);
        body.push_node(Op::Scatter, vec![state, slot, y], vec![], Loc::default());
        params = vec![ParamMode::Mut, ParamMode::Row, ParamMode::Row];
    }
    body.set_outputs(vec![y]);
    Op::Region(Box::new(Region { over: T, params, body }))
}

fn mix() -> Op {
    Op::Custom(Box::new(CustomCall {
        name: MixOp::NAME.into(),
        attrs: [("scale".to_owned(), Attr::Float(0.5))].into(),
        mutates: vec![1],
        rows: MixOp.rows(),
        splits: true,
        absorbs: MixOp.absorbs(),
        scatters: MixOp.scatters(),
    }))
}

/// An op of each format on rows of `T`, its operands' types and its results'.
fn on_rows(format: Format) -> (Op, Vec<TensorType>, Vec<TensorType>) {
    let x = || f(&[0, 3]);
    match format {
        Format::Unary(UnaryOp::Not) => {
            let b = ty(DType::Bool, &[0, 3]);
            (Op::Unary(UnaryOp::Not), vec![b.clone()], vec![b])
        }
        Format::Unary(op) => (Op::Unary(op), vec![x()], vec![x()]),
        Format::Binary(op @ (BinaryOp::And | BinaryOp::Or)) => {
            let b = ty(DType::Bool, &[0, 3]);
            (Op::Binary(op), vec![b.clone(), b.clone()], vec![b])
        }
        Format::Binary(op) => (Op::Binary(op), vec![x(), x()], vec![x()]),
        Format::Compare(op) => (Op::Compare(op), vec![x(), x()], vec![ty(DType::Bool, &[0, 3])]),
        Format::Select => (Op::Select, vec![ty(DType::Bool, &[0, 3]), x(), x()], vec![x()]),
        Format::Cast => (Op::Cast, vec![x()], vec![ty(DType::BF16, &[0, 3])]),
        Format::Reduce(op) => (Op::Reduce { op, axes: vec![1] }, vec![x()], vec![f(&[0, 1])]),
        Format::ArgMax => (Op::ArgMax { axis: 1 }, vec![x()], vec![ints(&[0])]),
        Format::TopK => (Op::TopK { axis: 1 }, vec![x()], vec![f(&[0, 2]), ints(&[0, 2])]),
        Format::Broadcast => (Op::Broadcast, vec![f(&[0, 1])], vec![x()]),
        Format::Reshape => (Op::Reshape, vec![f(&[0, 6])], vec![f(&[0, 2, 3])]),
        Format::Permute => {
            (Op::Permute { perm: vec![0, 2, 1] }, vec![f(&[0, 2, 3])], vec![f(&[0, 3, 2])])
        }
        Format::Slice => (Op::Slice { axis: 1, start: 1 }, vec![x()], vec![f(&[0, 2])]),
        Format::Concat => (Op::Concat { axis: 1 }, vec![x(), x()], vec![f(&[0, 6])]),
        Format::Gather => (Op::Gather, vec![f(&[5, 3]), ints(&[0])], vec![x()]),
        Format::Scatter => (Op::Scatter, vec![f(&[8, 3]), ints(&[0]), x()], vec![]),
        Format::MatMul => (matmul(false, true), vec![x(), f(&[2, 3])], vec![f(&[0, 2])]),
        Format::ScaledMatMul => {
            let codes = TensorType::new(DType::E4M3, [2, 3]);
            let op = Op::ScaledMatMul { block: [1, 3] };
            (op, vec![x(), codes, f(&[2, 1])], vec![f(&[0, 2])])
        }
        Format::Iota => (Op::Iota { axis: 0 }, vec![], vec![x()]),
        Format::Literal => {
            (Op::Literal(Literal::new(DType::F32, [1.0, 2.0])), vec![], vec![f(&[2])])
        }
        Format::Region => (region(false), vec![x()], vec![x()]),
        Format::Custom => (mix(), vec![x(), f(&[8, 3]), ints(&[0])], vec![x()]),
    }
}

#[test]
fn every_op_of_the_table_treats_rows_as_it_says() {
    for info in op_table() {
        let expected = match info.format {
            Format::Scatter => RowTreatment::SlotMapped,
            Format::Custom => RowTreatment::Mixed,
            _ => RowTreatment::Independent,
        };
        let (op, operands, results) = on_rows(info.format);
        check(op, &operands, &results, expected);
    }
}

#[test]
fn a_region_that_scatters_is_slot_mapped() {
    let operands = [f(&[8, 3]), f(&[0, 3]), ints(&[0])];
    check(region(true), &operands, &[f(&[0, 3])], RowTreatment::SlotMapped);
}

#[test]
fn batched_products_are_independent() {
    let independent = RowTreatment::Independent;
    let (x, y) = (|| f(&[0, 2, 3]), || f(&[0, 2, 2]));
    check(matmul(false, true), &[x(), f(&[2, 3])], &[y()], independent);
    check(matmul(false, true), &[x(), x()], &[y()], independent);
    check(matmul(true, false), &[x(), x()], &[f(&[0, 3, 3])], independent);
}

#[test]
fn what_crosses_rows_is_mixed() {
    let mixed = RowTreatment::Mixed;
    let (x, columns) = (|| f(&[0, 3]), || f(&[3, 0]));
    for &op in ReduceOp::ALL {
        check(Op::Reduce { op, axes: vec![0] }, &[x()], &[f(&[1, 3])], mixed);
    }
    check(Op::Reduce { op: ReduceOp::Sum, axes: vec![1] }, &[columns()], &[f(&[3, 1])], mixed);
    check(Op::Permute { perm: vec![1, 0] }, &[x()], &[columns()], mixed);
    check(Op::Unary(UnaryOp::Exp), &[columns()], &[columns()], mixed);
    check(matmul(true, false), &[x(), x()], &[f(&[3, 3])], mixed);
    check(matmul(false, true), &[x(), x()], &[f(&[0, 0])], mixed);
    check(matmul(false, true), &[f(&[2, 3]), x()], &[f(&[2, 0])], mixed);
    check(matmul(false, false), &[columns(), x()], &[f(&[3, 3])], mixed);
    check(Op::Gather, &[x(), ints(&[5])], &[f(&[5, 3])], mixed);
    check(Op::Broadcast, &[f(&[0])], &[f(&[2, 0])], mixed);
    check(
        Op::Compare(CompareOp::Lt),
        &[f(&[2, 0]), f(&[2, 0])],
        &[ty(DType::Bool, &[2, 0])],
        mixed,
    );
}
