//! Products of many rows in tiles: that they compile, and what they compute, on the host and by
//! blocks that are their own neighbours.

use crate::emulate::{Case, Rng, available, emulate, fill, floats};
use crate::nvrtc::Nvrtc;
use piecewise_ir::dim::Dim;
use piecewise_ir::dtype::DType::{self, BF16, F16, F32};
use piecewise_ir::entity::{Entity, Symbol, Value};
use piecewise_ir::graph::{Graph, Loc};
use piecewise_ir::literal::Literal;
use piecewise_ir::op::{BinaryOp, Op, UnaryOp};
use piecewise_ir::region::{ParamMode, Region};
use piecewise_ir::types::TensorType;
use piecewise_kernels::cuda::{
    AfterProduct, LaunchRecipe, MatMulSpec, OperandRole, PRELUDE, Param,
};

pub(crate) fn linear(types: [DType; 3], depth: u64, columns: u64) -> MatMulSpec {
    let rows = Dim::from(Symbol::new(0));
    let x = TensorType::new(types[0], [rows.clone(), depth.into()]);
    let w = TensorType::new(types[1], [columns, depth]);
    let y = TensorType::new(types[2], [rows, columns.into()]);
    MatMulSpec::new(false, true, &x, &w, &y).unwrap().of_weight()
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum After {
    Nothing,
    /// The product and another operand.
    Sum,
    /// `a / (1 + exp(-a)) * b` of the halves of the product's row, the quotient in f32.
    Gate,
    /// The product and a number for each column.
    Bias,
    /// Halves of the product's row, each and a number for each of its columns: two results.
    Biases,
}

impl After {
    fn halves(self) -> bool {
        matches!(self, Self::Gate | Self::Biases)
    }
}

/// The region after a product of `columns` columns.
pub(crate) fn region(after: After, dtype: DType, columns: u64) -> Region {
    let mut body = Graph::new("body");
    let row = |n: u64, dtype| TensorType::new(dtype, [n]);
    let product = body.add_input("a0", row(columns, dtype), None, None);
    let mut params = vec![ParamMode::Row];
    let add = Op::Binary(BinaryOp::Add);
    if after == After::Biases {
        let half = row(columns / 2, dtype);
        let mut made = Vec::new();
        for (name, start) in [("a1", 0), ("a2", columns / 2)] {
            params.push(ParamMode::Whole);
            let bias = body.add_input(name, half.clone(), None, None);
            let slice = Op::Slice { axis: 0, start };
            let part = body.push(slice, vec![product], half.clone(), Loc::default());
            made.push(body.push(add.clone(), vec![part, bias], half.clone(), Loc::default()));
        }
        body.set_outputs(made);
        return Region { over: Symbol::new(0), params, body };
    }
    let made = if after == After::Bias {
        params.push(ParamMode::Whole);
        let bias = body.add_input("a1", row(columns, dtype), None, None);
        body.push(add, vec![product, bias], row(columns, dtype), Loc::default())
    } else if after == After::Sum {
        params.push(ParamMode::Row);
        let other = body.add_input("a1", row(columns, dtype), None, None);
        body.push(add, vec![product, other], row(columns, dtype), Loc::default())
    } else {
        let half = columns / 2;
        let (narrow, wide) = (row(half, dtype), row(half, F32));
        let mut push = |op: Op, of: &[Value], ty: &TensorType| {
            body.push(op, of.to_vec(), ty.clone(), Loc::default())
        };
        let [a, b] = [0, half].map(|start| push(Op::Slice { axis: 0, start }, &[product], &narrow));
        let x = push(Op::Cast, &[a], &wide);
        let negative = push(Op::Unary(UnaryOp::Neg), &[x], &wide);
        let exp = push(Op::Unary(UnaryOp::Exp), &[negative], &wide);
        let one = push(Op::Literal(Literal::new(F32, [1.0])), &[], &TensorType::scalar(F32));
        let one = push(Op::Broadcast, &[one], &wide);
        let divisor = push(Op::Binary(BinaryOp::Add), &[exp, one], &wide);
        let quotient = push(Op::Binary(BinaryOp::Div), &[x, divisor], &wide);
        let gate = push(Op::Cast, &[quotient], &narrow);
        push(Op::Binary(BinaryOp::Mul), &[gate, b], &narrow)
    };
    body.set_outputs(vec![made]);
    Region { over: Symbol::new(0), params, body }
}

fn kernel(after: After, dtype: DType, depth: u64, columns: u64) -> LaunchRecipe {
    let spec = linear([dtype; 3], depth, columns);
    if after == After::Nothing {
        return spec.tile_kernel(None).unwrap();
    }
    let region = region(after, dtype, columns);
    let roles = vec![OperandRole::default(); region.params.len()];
    let after = AfterProduct { region: &region, roles: &roles, product: 0 };
    spec.tile_kernel(Some(after)).unwrap()
}

#[test]
fn products_in_tiles_compile_for_hopper_and_are_one_kernel_for_all_shapes() {
    let Some(nvrtc) = Nvrtc::find() else { return };
    let tile = kernel(After::Nothing, BF16, 1024, 4096);
    let gated = kernel(After::Gate, BF16, 1024, 4096);
    let others = [(After::Nothing, F16), (After::Sum, BF16)];
    let others = others.map(|(after, dtype)| kernel(after, dtype, 1024, 4096));
    for recipe in others.iter().chain([&tile, &gated]) {
        recipe.check(4, 0).unwrap();
        for (multiprocessors, blocks) in [(1, 2), (7, 6), (132, 132)] {
            assert_eq!(recipe.grid_at(&[512], multiprocessors), Ok([blocks, 1, 1]));
        }
        let made = nvrtc.compile(&recipe.source, PRELUDE, "sm_90a", &recipe.options);
        let log = made.err();
        assert_eq!(log, None, "{}", recipe.source);
    }
    // One kernel has every shape; the gate needs no branch for its quotient.
    assert_eq!(kernel(After::Nothing, BF16, 12_288, 24_576).source, tile.source);
    assert_eq!(kernel(After::Gate, BF16, 12_288, 24_576).source, gated.source);
    assert!(gated.source.contains("quotient("));
    assert!(linear([BF16, BF16, F32], 1024, 4096).tile_kernel(None).is_err());
    assert!(linear([F32; 3], 1024, 4096).tile_kernel(None).is_err());
    assert!(linear([BF16; 3], 1020, 4096).tile_kernel(None).is_err());
}

/// The same kernel where a block is its own neighbour, and copies all rows of x itself.
fn alone(mut recipe: LaunchRecipe) -> LaunchRecipe {
    recipe.source = recipe.source.replace("#define CLUSTER 2", "#define CLUSTER 1");
    recipe.cluster = [1; 3];
    for param in &mut recipe.params {
        match param {
            Param::TensorMap(boxes) if boxes.arg == 0 => boxes.box_rows *= 2,
            _ => {}
        }
    }
    recipe
}

/// The same kernel as deep products take it.
fn finished_beside(mut recipe: LaunchRecipe) -> LaunchRecipe {
    let deep = recipe.source.replace("#define LONG_STEPS 32", "#define LONG_STEPS 1");
    assert_ne!(deep, recipe.source);
    recipe.source = deep;
    recipe
}

#[test]
fn tiles_of_every_height_hold_what_the_product_is() {
    if !available() {
        return;
    }
    const DEPTH: usize = 72;
    let mut r = Rng(5);
    // On three multiprocessors: heights of 112 twice, 160, 176, 192, 208, 224, 256 and 112 again. Up to four
    // tiles in turn, finished between products and beside them.
    let cases = [
        (After::Nothing, BF16, 1160, 60, 64),
        (After::Nothing, F16, 264, 111, 128),
        (After::Sum, F16, 392, 450, 512),
        (After::Gate, BF16, 272, 330, 330),
        (After::Sum, BF16, 264, 530, 530),
        (After::Gate, BF16, 272, 200, 256),
        (After::Nothing, BF16, 136, 215, 256),
        (After::Nothing, BF16, 136, 230, 256),
        (After::Gate, F16, 144, 1, 16),
        (After::Bias, BF16, 200, 130, 144),
        (After::Biases, F16, 256, 333, 400),
    ];
    for (at, (after, dtype, columns, real, size)) in cases.into_iter().enumerate() {
        let recipe = alone(kernel(after, dtype, DEPTH as u64, columns as u64));
        for (name, recipe) in [("between", recipe.clone()), ("beside", finished_beside(recipe))] {
            let shape = Shape { columns, real, size, depth: DEPTH };
            hold_product(
                &format!("tile_{name}_{at}"),
                recipe,
                (after, [dtype; 2]),
                shape,
                2e-2,
                &mut r,
            );
        }
    }
}

/// A cluster of two blocks, which takes several tiles in turn: with the same rows of w, since beside
/// each other the second would be idle, and with the same rows of x.
#[test]
fn neighbours_copy_for_each_other() {
    if !available() {
        return;
    }
    const DEPTH: usize = 136;
    let mut r = Rng(6);
    let cases = [
        (After::Nothing, BF16, 264, 330, 340),
        (After::Gate, F16, 272, 400, 410),
        (After::Bias, BF16, 648, 200, 200),
    ];
    for (at, (after, dtype, columns, real, size)) in cases.into_iter().enumerate() {
        let recipe = kernel(after, dtype, DEPTH as u64, columns as u64);
        assert_eq!(recipe.grid_at(&[size as u64], 3), Ok([2, 1, 1]));
        for (name, recipe) in [("between", recipe.clone()), ("beside", finished_beside(recipe))] {
            let shape = Shape { columns, real, size, depth: DEPTH };
            let name = format!("tile_neighbours_{name}_{at}");
            hold_product(&name, recipe, (after, [dtype; 2]), shape, 2e-2, &mut r);
        }
    }
}

/// Of a product whose size has `real` true rows.
pub(crate) struct Shape {
    pub(crate) columns: usize,
    pub(crate) real: usize,
    pub(crate) size: usize,
    pub(crate) depth: usize,
}

/// Holds what a kernel makes of random operands against sums in f64, relative to 1 or what is due;
/// padding is NaN and stays as it was.
pub(crate) fn hold_product(
    name: &str,
    recipe: LaunchRecipe,
    (after, [dtype, to]): (After, [DType; 2]),
    Shape { columns, real, size, depth }: Shape,
    tolerance: f64,
    r: &mut Rng,
) {
    let made = if after.halves() { columns / 2 } else { columns };
    let mut args = vec![fill(dtype, size * depth, r), fill(dtype, columns * depth, r)];
    let beside = match after {
        After::Nothing | After::Gate => vec![],
        After::Sum => vec![fill(dtype, size * made, r)],
        After::Bias => vec![fill(dtype, columns, r)],
        After::Biases => vec![fill(dtype, made, r), fill(dtype, made, r)],
    };
    let results = if after == After::Biases { 2 } else { 1 };
    args.extend(beside.iter().cloned());
    args.extend(vec![vec![0x5a; size * made * to.size()]; results]);
    // Padding that would spoil every sum.
    args[0][real * depth * 2..].fill(0xff);
    let [x, w] = [0, 1].map(|i| floats(dtype, &args[i]));
    let beside: Vec<Vec<f64>> = beside.iter().map(|other| floats(dtype, other)).collect();
    let first = args.len() - results;
    let case = Case {
        launches: vec![recipe],
        args,
        sizes: vec![size as u64],
        counts: vec![real as i32],
        scratch: 256,
    };
    let got = emulate(name, &case);
    let product = |m: usize, n: usize| -> f64 {
        to.round((0..depth).map(|k| x[m * depth + k] * w[n * depth + k]).sum())
    };
    for result in 0..results {
        let got = &got[first + result];
        assert!(got[real * made * to.size()..].iter().all(|&b| b == 0x5a), "{name} wrote padding");
        for (i, found) in floats(to, &got[..real * made * to.size()]).into_iter().enumerate() {
            let (m, n) = (i / made, i % made);
            let a = product(m, n + result * made);
            let due = match after {
                After::Nothing => a,
                After::Sum => a + beside[0][i],
                After::Bias | After::Biases => a + beside[result][n],
                After::Gate => a / (1.0 + (-a).exp()) * product(m, n + made),
            };
            let close = (found - due).abs() <= tolerance * due.abs().max(1.0);
            assert!(close, "{name}: {result}, {m}, {n}: {found}, {due}");
        }
    }
}
