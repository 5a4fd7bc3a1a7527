//! Every op's semantics at the points where they could be mistaken.

use super::{Array, EvalError, Evaluator, Rounding, evaluate_constant};
use crate::builder::Builder;
use crate::custom::OpDefs;
use crate::dim::{Dim, SymbolDecl};
use crate::dtype::DType;
use crate::entity::Symbol;
use crate::graph::{Graph, Loc};
use crate::literal::Literal;
use crate::op::{BinaryOp, Op, ReduceOp, UnaryOp};
use crate::region::{ParamMode, Region};
use crate::types::TensorType;

fn array(dtype: DType, shape: &[usize], data: &[f64]) -> Array {
    assert_eq!(shape.iter().product::<usize>(), data.len());
    Array { dtype, shape: shape.to_vec(), data: data.to_vec() }
}

fn ty(array: &Array) -> TensorType {
    TensorType::new(array.dtype, &array.shape[..])
}

/// Evaluates one op on given arrays; results have the types `results`.
fn eval_as(op: Op, operands: &[Array], results: Vec<TensorType>, mode: Rounding) -> Vec<Array> {
    let mut graph = Graph::new("op");
    let values = (0..operands.len())
        .map(|i| graph.add_input(format!("a{i}"), ty(&operands[i]), None, None))
        .collect();
    let node = graph.push_node(op, values, results, Loc::default());
    graph.set_outputs(graph.node(node).results.clone());
    let ops = OpDefs::new();
    Evaluator::new(&graph, &ops).rounding(mode).run(&[], operands, &[], &mut []).unwrap()
}

fn eval(op: Op, operands: &[Array], result: TensorType) -> Vec<f64> {
    eval_as(op, operands, vec![result], Rounding::Exact).remove(0).data
}

fn binary(op: BinaryOp, dtype: DType, a: f64, b: f64) -> f64 {
    let scalar = |x| array(dtype, &[], &[x]);
    eval(Op::Binary(op), &[scalar(a), scalar(b)], TensorType::scalar(dtype))[0]
}

#[test]
fn integers_wrap_and_divide_toward_zero() {
    let min = f64::from(i32::MIN);
    assert_eq!(binary(BinaryOp::Add, DType::I32, f64::from(i32::MAX), 1.0), min);
    assert_eq!(binary(BinaryOp::Mul, DType::U8, 16.0, 17.0), 16.0);
    assert_eq!(binary(BinaryOp::Sub, DType::U8, 0.0, 1.0), 255.0);
    assert_eq!(binary(BinaryOp::Div, DType::I32, -7.0, 2.0), -3.0);
    assert_eq!(binary(BinaryOp::Div, DType::I64, 7.0, 0.0), 0.0);
    assert_eq!(binary(BinaryOp::Div, DType::I32, min, -1.0), min);
    let a = array(DType::I32, &[], &[min]);
    assert_eq!(eval(Op::Unary(UnaryOp::Neg), &[a], TensorType::scalar(DType::I32)), [min]);
}

#[test]
fn a_nan_loses_to_a_number() {
    assert_eq!(binary(BinaryOp::Max, DType::F32, f64::NAN, -3.0), -3.0);
    assert_eq!(binary(BinaryOp::Min, DType::F32, 4.0, f64::NAN), 4.0);
    let a = array(DType::F32, &[2, 2], &[f64::NAN, -1.0, f64::NAN, f64::NAN]);
    let reduce = |op| Op::Reduce { op, axes: vec![1] };
    let largest =
        eval(reduce(ReduceOp::Max), std::slice::from_ref(&a), TensorType::new(DType::F32, [2, 1]));
    assert_eq!(largest[0], -1.0);
    assert!(largest[1].is_nan());
    let index = eval(Op::ArgMax { axis: 1 }, &[a], TensorType::new(DType::I32, [2]));
    assert_eq!(index, [1.0, 0.0]);
}

#[test]
fn erf_is_accurate_to_an_ulp() {
    // Abramowitz and Stegun, table 7.1, and 16 digits from 50-digit arithmetic.
    for (x, expected) in [
        (0.0, 0.0),
        (0.5, 0.520_499_877_813_046_5),
        (1.0, 0.842_700_792_949_714_9),
        (2.0, 0.995_322_265_018_952_7),
        (-3.0, -0.999_977_909_503_001_4),
    ] {
        let a = array(DType::F32, &[], &[x]);
        let y = eval(Op::Unary(UnaryOp::Erf), &[a], TensorType::scalar(DType::F32))[0];
        assert!((y - expected).abs() <= 2e-16, "erf({x}) = {y}");
    }
}

/// `softplus` keeps what `log(1 + e^x)` loses: 16 digits from 50-digit arithmetic.
#[test]
fn softplus_neither_overflows_nor_cancels() {
    for (x, expected) in [
        (0.0, std::f64::consts::LN_2),
        (-20.0, 2.061_153_620_314_381e-9),
        (2.0, 2.126_928_011_042_972_7),
        (1000.0, 1000.0),
        (f64::NEG_INFINITY, 0.0),
    ] {
        let b = Builder::new("softplus");
        let a = b.input("a", DType::F32, [1u64]);
        let graph = b.finish([a.softplus()]).unwrap();
        let defs = OpDefs::new();
        let exact = Evaluator::new(&graph, &defs).rounding(Rounding::Exact);
        let a = array(DType::F32, &[1], &[x]);
        let y = exact.run(&[], &[a], &[], &mut []).unwrap()[0].data[0];
        assert!((y - expected).abs() <= 4e-16 * expected, "softplus({x}) = {y}");
    }
}

#[test]
fn casts_truncate_and_saturate() {
    let a = array(DType::F32, &[4], &[1.9, -1.9, 3e9, f64::NAN]);
    let ints = eval(Op::Cast, std::slice::from_ref(&a), TensorType::new(DType::I32, [4]));
    assert_eq!(ints, [1.0, -1.0, f64::from(i32::MAX), 0.0]);
    assert_eq!(eval(Op::Cast, &[a], TensorType::new(DType::U8, [4])), [1.0, 0.0, 255.0, 0.0]);
}

#[test]
fn typed_rounding_rounds_each_value_once() {
    let a = array(DType::BF16, &[3], &[256.0, 1.0, 1.0]);
    let sum = Op::Reduce { op: ReduceOp::Sum, axes: vec![0] };
    let result = vec![TensorType::new(DType::BF16, [1])];
    let typed = eval_as(sum, &[a], result, Rounding::Typed);
    // 256 + 1 rounds to 256 in bf16, but 256 + 2 is exact: the sum rounds once.
    assert_eq!(typed[0].data, [258.0]);
}

#[test]
fn layout_ops_move_elements() {
    let a = Array::from_fn(DType::F32, vec![2, 3], |i| i as f64);
    let f32s = |shape: &[usize]| TensorType::new(DType::F32, shape);
    assert_eq!(
        eval(Op::Permute { perm: vec![1, 0] }, std::slice::from_ref(&a), f32s(&[3, 2])),
        [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]
    );
    assert_eq!(
        eval(Op::Slice { axis: 1, start: 1 }, std::slice::from_ref(&a), f32s(&[2, 2])),
        [1.0, 2.0, 4.0, 5.0]
    );
    let column = array(DType::F32, &[2, 1], &[8.0, 9.0]);
    assert_eq!(
        eval(Op::Concat { axis: 1 }, &[column.clone(), a], f32s(&[2, 4])),
        [8.0, 0.0, 1.0, 2.0, 9.0, 3.0, 4.0, 5.0]
    );
    assert_eq!(
        eval(Op::Broadcast, &[column], f32s(&[2, 2, 2])),
        [8.0, 8.0, 9.0, 9.0, 8.0, 8.0, 9.0, 9.0]
    );
    assert_eq!(eval(Op::Iota { axis: 0 }, &[], f32s(&[2, 2])), [0.0, 0.0, 1.0, 1.0]);
}

#[test]
fn reductions_keep_their_axes() {
    let a = Array::from_fn(DType::F32, vec![2, 2, 2], |i| i as f64);
    let op = Op::Reduce { op: ReduceOp::Mean, axes: vec![0, 2] };
    assert_eq!(eval(op, &[a], TensorType::new(DType::F32, [1, 2, 1])), [2.5, 4.5]);
    let bytes = array(DType::U8, &[2], &[200.0, 100.0]);
    let op = Op::Reduce { op: ReduceOp::Sum, axes: vec![0] };
    assert_eq!(eval(op, &[bytes], TensorType::new(DType::U8, [1])), [44.0]);
}

#[test]
fn top_k_orders_ties_by_index_and_nans_last() {
    let a = array(DType::F32, &[1, 5], &[1.0, f64::NAN, 7.0, 7.0, f64::NEG_INFINITY]);
    let results = vec![TensorType::new(DType::F32, [1, 4]), TensorType::new(DType::I32, [1, 4])];
    let made = eval_as(Op::TopK { axis: 1 }, &[a], results, Rounding::Exact);
    assert_eq!(made[0].data, [7.0, 7.0, 1.0, f64::NEG_INFINITY]);
    assert_eq!(made[1].data, [2.0, 3.0, 0.0, 4.0]);
}

#[test]
fn gather_clamps() {
    let table = array(DType::F32, &[3, 1], &[10.0, 11.0, 12.0]);
    let indices = array(DType::I32, &[3], &[-1.0, 1.0, 99.0]);
    let rows = eval(Op::Gather, &[table, indices], TensorType::new(DType::F32, [3, 1]));
    assert_eq!(rows, [10.0, 11.0, 12.0]);
}

#[test]
fn matmul_transposes_and_batches() {
    let a = Array::from_fn(DType::F32, vec![2, 3], |i| i as f64);
    let op = |transpose_lhs, transpose_rhs| Op::MatMul { transpose_lhs, transpose_rhs };
    let square = |n: usize| TensorType::new(DType::F32, [n, n]);
    let gram = eval(op(false, true), &[a.clone(), a.clone()], square(2));
    assert_eq!(gram, [5.0, 14.0, 14.0, 50.0]);
    let covariance = eval(op(true, false), &[a.clone(), a.clone()], square(3));
    assert_eq!(covariance, [9.0, 12.0, 15.0, 12.0, 17.0, 22.0, 15.0, 22.0, 29.0]);
    let b = Array::from_fn(DType::BF16, vec![2, 1, 2], |i| i as f64);
    let c = Array::from_fn(DType::F16, vec![2, 2, 1], |i| i as f64 + 1.0);
    let batched = eval(op(false, false), &[b, c], TensorType::new(DType::F32, [2, 1, 1]));
    assert_eq!(batched, [2.0, 18.0]);
}

#[test]
fn a_product_with_scales_is_one_of_what_the_codes_stand_for() {
    let x = Array::from_fn(DType::F32, vec![2, 5], |i| i as f64 - 4.0);
    let codes = Array::from_fn(DType::I4, vec![3, 5], |i| (i as f64 * 3.0) % 16.0 - 8.0);
    let scales = Array::from_fn(DType::F32, vec![2, 3], |i| 0.5 + i as f64);
    let zeros = Array::from_fn(DType::I4, vec![2, 3], |i| i as f64 - 2.0);
    let op = Op::ScaledMatMul { block: [2, 2] };
    let ty = TensorType::new(DType::F32, [2, 3]);
    for zeros in [None, Some(zeros)] {
        let operands: Vec<Array> =
            [&x, &codes, &scales].into_iter().chain(&zeros).cloned().collect();
        let found = eval(op.clone(), &operands, ty.clone());
        for (i, j) in (0..2).flat_map(|i| (0..3).map(move |j| (i, j))) {
            let weight = |k: usize| {
                let block = j / 2 * 3 + k / 2;
                let zero = zeros.as_ref().map_or(0.0, |zeros| zeros.data[block]);
                (codes.data[j * 5 + k] - zero) * scales.data[block]
            };
            let want: f64 = (0..5).map(|k| x.data[i * 5 + k] * weight(k)).sum();
            assert_eq!(found[i * 3 + j], want);
        }
    }
}

/// A graph over `T` with a state of three rows.
fn with_state() -> (Graph, Symbol) {
    let mut graph = Graph::new("state");
    let decl = SymbolDecl { name: "T".into(), min: 1, max: 8, role: None };
    let symbol = graph.add_symbol(decl);
    (graph, symbol)
}

#[test]
fn scatter_outside_writes_nowhere_in_a_graph_and_in_a_region() {
    let (mut graph, t) = with_state();
    let slots = graph.add_input("slots", TensorType::new(DType::I32, [t]), None, None);
    let x =
        graph.add_input("x", TensorType::new(DType::F32, [Dim::from(t), Dim::from(2)]), None, None);
    let a = graph.add_state("a", TensorType::new(DType::F32, [3, 2]), None);
    let b = graph.add_state("b", TensorType::new(DType::F32, [3, 2]), None);
    graph.push_node(Op::Scatter, vec![a, slots, x], vec![], Loc::default());

    let mut body = Graph::with_symbols_of("body", &graph);
    let slot = body.add_input("slot", TensorType::scalar(DType::I32), None, None);
    let row = body.add_input("row", TensorType::new(DType::F32, [2]), None, None);
    let state = body.add_input("state", TensorType::new(DType::F32, [3, 2]), None, None);
    body.push_node(Op::Scatter, vec![state, slot, row], vec![], Loc::default());
    let doubled = body.push(
        Op::Binary(BinaryOp::Add),
        vec![row, row],
        TensorType::new(DType::F32, [2]),
        Loc::default(),
    );
    body.set_outputs(vec![doubled]);
    let params = vec![ParamMode::Row, ParamMode::Row, ParamMode::Mut];
    let region = Op::Region(Box::new(Region { over: t, params, body }));
    let rows = graph.ty(x).clone();
    let y = graph.push(region, vec![slots, x, b], rows, Loc::default());
    graph.set_outputs(vec![y]);

    let inputs = [
        array(DType::I32, &[4], &[2.0, -1.0, 3.0, 0.0]),
        Array::from_fn(DType::F32, vec![4, 2], |i| i as f64 + 1.0),
    ];
    let mut states = [0, 1].map(|_| Array::zeros(DType::F32, vec![3, 2]));
    let ops = OpDefs::new();
    let out = Evaluator::new(&graph, &ops).run(&[4], &inputs, &[], &mut states).unwrap();
    assert_eq!(states[0].data, [7.0, 8.0, 0.0, 0.0, 1.0, 2.0]);
    assert_eq!(states[1], states[0]);
    assert_eq!(out[0].data, [2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0, 16.0]);

    // Of rows with one slot one stays, here the last.
    let [slots, x] =
        [array(DType::I32, &[2], &[1.0, 1.0]), array(DType::F32, &[2, 2], &[9.0, 8.0, 7.0, 6.0])];
    Evaluator::new(&graph, &ops).run(&[2], &[slots, x], &[], &mut states).unwrap();
    assert_eq!(states[0].data, [7.0, 8.0, 7.0, 6.0, 1.0, 2.0]);
    assert_eq!(states[1], states[0]);
}

#[test]
fn what_does_not_fit_is_an_error() {
    let (mut graph, t) = with_state();
    let x = graph.add_input("x", TensorType::new(DType::F32, [t]), None, None);
    graph.set_outputs(vec![x]);
    let ops = OpDefs::new();
    let run = |sizes: &[u64], n: usize| {
        let x = Array::zeros(DType::F32, vec![n]);
        Evaluator::new(&graph, &ops).max_elements(4).run(sizes, &[x], &[], &mut [])
    };
    assert_eq!(run(&[2], 2).unwrap()[0].data, [0.0, 0.0]);
    assert_eq!(run(&[0], 0).unwrap()[0].data, [0.0; 0]);
    assert!(matches!(run(&[], 2), Err(EvalError::Count { what: "sizes", .. })));
    assert!(matches!(run(&[9], 9), Err(EvalError::Size { size: 9, max: 8, .. })));
    assert!(matches!(run(&[3], 2), Err(EvalError::Array { .. })));
    assert!(matches!(run(&[5], 5), Err(EvalError::TooLarge { elements: 5, limit: 4, .. })));
}

#[test]
fn a_table_without_rows_is_an_error() {
    let mut graph = Graph::new("empty");
    let table = graph.add_input("t", TensorType::new(DType::F32, [0, 2]), None, None);
    let index = graph.add_input("i", TensorType::new(DType::I32, [1]), None, None);
    let y = graph.push(
        Op::Gather,
        vec![table, index],
        TensorType::new(DType::F32, [1, 2]),
        Loc::default(),
    );
    graph.set_outputs(vec![y]);
    let inputs = [Array::zeros(DType::F32, vec![0, 2]), Array::zeros(DType::I32, vec![1])];
    let ops = OpDefs::new();
    let error = Evaluator::new(&graph, &ops).run(&[], &inputs, &[], &mut []).unwrap_err();
    assert!(matches!(error, EvalError::EmptyTable { .. }), "{error}");
}

#[test]
fn a_constant_graph_is_rounded_to_its_dtype() {
    let mut graph = Graph::new("table");
    let third = graph.push(
        Op::Literal(Literal::new(DType::F32, [1.0, 3.0])),
        vec![],
        TensorType::new(DType::F32, [2]),
        Loc::default(),
    );
    let y = graph.push(
        Op::Unary(UnaryOp::Exp),
        vec![third],
        TensorType::new(DType::F32, [2]),
        Loc::default(),
    );
    graph.set_outputs(vec![y]);
    let table = evaluate_constant(&graph).unwrap();
    assert_eq!(table.data, [1.0f64, 3.0].map(|x| f64::from(x.exp() as f32)));
    graph.set_outputs(vec![y, third]);
    assert!(matches!(evaluate_constant(&graph), Err(EvalError::NotConstant { .. })));
    graph.add_input("x", TensorType::scalar(DType::F32), None, None);
    assert!(matches!(evaluate_constant(&graph), Err(EvalError::NotConstant { .. })));
}
