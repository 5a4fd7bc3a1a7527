//! Single primitives outside regions.

use super::random::WIDE;
use super::target::Target;
use super::{BenchOn, compile_on, pattern, registry, unique};
use piecewise_backend::artifact::PieceSize;
use piecewise_ir::custom::OpDefs;
use piecewise_ir::dim::{Dim, SymbolDecl};
use piecewise_ir::dtype::DType::{self, BF16, F32, I32, I64};
use piecewise_ir::entity::{Symbol, Value};
use piecewise_ir::eval::{Array, Evaluator, Rounding};
use piecewise_ir::graph::{Graph, Loc};
use piecewise_ir::literal::Literal;
use piecewise_ir::op::{BinaryOp, CompareOp, Op, UnaryOp};
use piecewise_ir::types::TensorType;

pub const MOST: u64 = 11;
const TRUE: u64 = 7;

/// A graph under construction over two symbols.
pub struct Sample {
    pub graph: Graph,
    pub t: Symbol,
    pub r: Symbol,
}

pub fn sample() -> Sample {
    let mut graph = Graph::new("nodes");
    let mut decl = |name: &str| {
        graph.add_symbol(SymbolDecl { name: name.into(), min: 1, max: MOST, role: None })
    };
    let (t, r) = (decl("T"), decl("R"));
    Sample { graph, t, r }
}

impl Sample {
    pub fn ty(&self, dtype: DType, over: Symbol, row: &[u64]) -> TensorType {
        let row = row.iter().map(|&d| Dim::from(d));
        TensorType { dtype, shape: [Dim::from(over)].into_iter().chain(row).collect() }
    }
    pub fn push(&mut self, op: Op, operands: Vec<Value>, ty: TensorType) -> Value {
        self.graph.push(op, operands, ty, Loc::default())
    }
}

/// Runs every output at true counts below the sizes and holds the real rows to the evaluator, bit by bit.
fn equals_evaluator<T: Target>(sample: Sample, over: Symbol, inputs: &[Array]) {
    agrees_with_evaluator::<T>(sample, over, inputs, |_, got, want| assert_eq!(got, want));
}

/// The same, with one's own word on what agrees: of which output, and what it should be.
fn agrees_with_evaluator<T: Target>(
    sample: Sample,
    over: Symbol,
    inputs: &[Array],
    agree: impl Fn(usize, &[f64], &[f64]),
) {
    let Sample { graph, .. } = sample;
    let mut bench = BenchOn::<T>::new(unique(graph.clone(), Some(over)), registry(), 2);
    let bounds = bench.bounds.clone();
    for (decl, array) in graph.inputs().iter().zip(inputs) {
        bench.write(decl.value, array);
    }
    let artifact = compile_on::<T>(&bench.piece, PieceSize::Exact(MOST), &bounds);
    assert_eq!(artifact, compile_on::<T>(&bench.piece, PieceSize::Exact(MOST), &bounds));
    let program = bench.bind(&artifact).unwrap();
    bench.launch(&program, &bounds, &[TRUE; 2]);
    let mut real = inputs.to_vec();
    for (decl, array) in graph.inputs().iter().zip(&mut real) {
        if graph.ty(decl.value).outer_symbol().is_some() {
            let row = array.row_len();
            array.shape[0] = TRUE as usize;
            array.data.truncate(row * TRUE as usize);
        }
    }
    let defs = OpDefs::new();
    let evaluator = Evaluator::new(&graph, &defs).rounding(Rounding::Typed);
    let want = evaluator.run(&[TRUE; 2], &real, &[], &mut []).unwrap();
    for (i, (&output, want)) in graph.outputs().iter().zip(want).enumerate() {
        let got = bench.read(output, &bounds);
        agree(i, &got[..want.data.len()], &want.data);
    }
}

/// Numbers at which ops go wrong: signed zeros, what wraps or overflows, NaN.
fn hard_numbers(dtype: DType) -> Vec<f64> {
    let floats = [0.0, -0.0, 1.0, -1.0, 0.375, -2.25, 3.5, -20.0, 80.0, 1e-4, -1e-4];
    let numbers = match dtype {
        F32 | DType::F16 | BF16 => {
            [&floats[..], &[f64::INFINITY, f64::NEG_INFINITY, f64::NAN]].concat()
        }
        I32 => vec![0.0, 1.0, -1.0, 7.0, -13.0, 2147483647.0, -2147483648.0, 46341.0],
        I64 => vec![0.0, 1.0, -1.0, 7.0, -13.0, 4503599627370496.0, -3e9, 5.0],
        DType::U8 => vec![0.0, 1.0, 255.0, 7.0, 200.0, 16.0],
        DType::Bool => vec![0.0, 1.0],
        DType::E4M3 | DType::I4 => Vec::new(),
    };
    numbers.into_iter().map(|x| dtype.round(x)).collect()
}

/// Each elementwise op of the table, on each dtype that it takes.
pub fn elementwise_ops_of_the_table<T: Target>() {
    for dtype in WIDE {
        let numbers = hard_numbers(dtype);
        let width = numbers.len();
        let mut s = sample();
        let t = s.t;
        let ty = s.ty(dtype, t, &[width as u64]);
        let flags = s.ty(DType::Bool, t, &[width as u64]);
        let x = s.graph.add_input("x", ty.clone(), None, None);
        let y = s.graph.add_input("y", ty.clone(), None, None);
        let mut outputs = Vec::new();
        let mut ops = Vec::new();
        for &op in UnaryOp::ALL.iter().filter(|op| op.takes(dtype)) {
            ops.push((op.mnemonic(), op.is_exact()));
            outputs.push(s.push(Op::Unary(op), vec![x], ty.clone()));
        }
        for &op in BinaryOp::ALL.iter().filter(|op| op.takes(dtype)) {
            // What one rounding makes of the exact value has one answer.
            ops.push((op.mnemonic(), true));
            outputs.push(s.push(Op::Binary(op), vec![x, y], ty.clone()));
        }
        for &op in CompareOp::ALL {
            ops.push((op.mnemonic(), true));
            outputs.push(s.push(Op::Compare(op), vec![x, y], flags.clone()));
        }
        s.graph.set_outputs(outputs);
        // Row by row, each number meets another one.
        let shifted = |shift: usize| {
            let at = move |i: usize| i / width * shift + i % width;
            let numbers = &numbers;
            Array::from_fn(dtype, vec![MOST as usize, width], move |i| numbers[at(i) % width])
        };
        let (relative, absolute) = match dtype {
            F32 => (8.0 / 8_388_608.0, 1e-37),
            BF16 => (1.0 / 128.0, 1e-37),
            DType::F16 => (1.0 / 512.0, 1e-7),
            I32 | I64 | DType::U8 | DType::Bool | DType::E4M3 | DType::I4 => (0.0, 0.0),
        };
        agrees_with_evaluator::<T>(s, t, &[shifted(0), shifted(1)], |i, got, want| {
            let (op, exact) = ops[i];
            for (at, (&got, &want)) in got.iter().zip(want).enumerate() {
                let near = !exact && (got - want).abs() <= relative * want.abs() + absolute;
                let same = got == want || got.is_nan() && want.is_nan() || near;
                assert!(same, "`{op}` of {dtype} at element {at}: {got} is not {want}");
            }
        });
    }
}

pub fn row_numbers_broadcasts_and_static_values<T: Target>() {
    let mut s = sample();
    let t = s.t;
    let mut outputs = Vec::new();
    for dtype in [F32, BF16, I32, I64] {
        let ty = s.ty(dtype, t, &[3]);
        outputs.push(s.push(Op::Iota { axis: 0 }, vec![], ty.clone()));
        outputs.push(s.push(Op::Iota { axis: 1 }, vec![], ty));
        let flat = s.ty(dtype, t, &[]);
        outputs.push(s.push(Op::Iota { axis: 0 }, vec![], flat));
    }
    let fixed = TensorType::new(F32, [1u64, 3]);
    let literal = s.push(Op::Literal(Literal::new(F32, [1.5, 2.5, -1.0])), vec![], fixed.clone());
    let doubled = s.push(Op::Binary(BinaryOp::Add), vec![literal, literal], fixed);
    let wide = s.ty(F32, t, &[3]);
    outputs.push(s.push(Op::Broadcast, vec![doubled], wide.clone()));
    let scalar = s.push(Op::Literal(Literal::new(F32, [4.0])), vec![], TensorType::scalar(F32));
    outputs.push(s.push(Op::Broadcast, vec![scalar], wide));
    let long = TensorType::new(I64, [700u64]);
    outputs.push(s.push(Op::Iota { axis: 0 }, vec![], long));
    s.graph.set_outputs(outputs);
    equals_evaluator::<T>(s, t, &[]);
}

pub fn rows_of_a_table_of_another_symbol_are_clamped_to_its_true_rows<T: Target>() {
    let mut s = sample();
    let (t, r) = (s.t, s.r);
    let (table, ids) = (s.ty(BF16, t, &[4]), s.ty(I32, r, &[]));
    let x = s.graph.add_input("x", table, None, None);
    let ids = s.graph.add_input("ids", ids, None, None);
    let rows = s.ty(BF16, r, &[4]);
    let rows = s.push(Op::Gather, vec![x, ids], rows);
    s.graph.set_outputs(vec![rows]);
    let wild = [0.0, 6.0, -3.0, 8.0, 100.0, 3.0, 2.0, 0.0, 0.0, 0.0, 0.0];
    let ids = Array { dtype: I32, shape: vec![MOST as usize], data: wild.to_vec() };
    equals_evaluator::<T>(s, r, &[pattern(BF16, &[MOST, 4], 5), ids]);
}
