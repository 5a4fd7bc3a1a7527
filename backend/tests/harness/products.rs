//! A product alone, with a sum after it, and with a gate of its halves: the kernels that take in
//! what follows against the general one.

use super::layer::silu_gate;
use super::target::Target;
use super::{
    BenchOn, CANARY, compile_on, decode, encode, norm_error, pattern, registry, sizes_of, unique,
};
use piecewise_backend::artifact::{Artifact, PieceSize};
use piecewise_backend::device::Device;
use piecewise_ir::dim::{Dim, SymbolDecl};
use piecewise_ir::dtype::DType::{self, BF16, F16, F32};
use piecewise_ir::entity::Value;
use piecewise_ir::graph::{Graph, Loc};
use piecewise_ir::literal::Literal;
use piecewise_ir::module::UniquePiece;
use piecewise_ir::op::{BinaryOp, Op, UnaryOp};
use piecewise_ir::region::{ParamMode, Region};
use piecewise_ir::types::TensorType;
use piecewise_ir::weight::Recipe;
use piecewise_testing::artifacts::{last_ways, narrowed};

/// Enough for tiles to be preferred; no whole tiles of columns, no whole slices of k.
const ROWS: u64 = 2112;
const COLUMNS: u64 = 2096;
const DEPTH: u64 = 200;
/// Slices of k for a ring, of which the last slot has one; a depth that makes slots shorter.
const RING_DEPTH: u64 = 576;
const LONG_DEPTH: u64 = 4160;

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum After {
    Nothing,
    Sum,
    Gate,
    /// A gate that is computed in f32.
    WideGate,
}

/// `silu(a) * b` of the halves of a row, with `silu` in f32.
fn wide_gate(body: &mut Graph, row: Value, dtype: DType) -> Value {
    let n = COLUMNS / 2;
    let [narrow, wide] = [dtype, F32].map(|dtype| TensorType::new(dtype, [n]));
    let mut push =
        |op: Op, of: Vec<Value>, ty: &TensorType| body.push(op, of, ty.clone(), Loc::default());
    let [gate, up] = [0, n].map(|start| push(Op::Slice { axis: 0, start }, vec![row], &narrow));
    let x = push(Op::Cast, vec![gate], &wide);
    let negative = push(Op::Unary(UnaryOp::Neg), vec![x], &wide);
    let exp = push(Op::Unary(UnaryOp::Exp), vec![negative], &wide);
    let one = push(Op::Literal(Literal::new(F32, [1.0])), vec![], &TensorType::scalar(F32));
    let one = push(Op::Broadcast, vec![one], &wide);
    let divisor = push(Op::Binary(BinaryOp::Add), vec![exp, one], &wide);
    let silu = push(Op::Binary(BinaryOp::Div), vec![x, divisor], &wide);
    let silu = push(Op::Cast, vec![silu], &narrow);
    push(Op::Binary(BinaryOp::Mul), vec![silu, up], &narrow)
}

struct Product {
    piece: UniquePiece,
    rows: u64,
    x: Value,
    others: Vec<Value>,
    /// What the others hold, made once: a weight has millions of elements.
    filled: Vec<Vec<u8>>,
}

fn product(dtype: DType, after: After, [row_count, depth]: [u64; 2]) -> Product {
    let mut g = Graph::new("product");
    let t = g.add_symbol(SymbolDecl { name: "T".into(), min: 1, max: row_count, role: None });
    let rows = |n: u64| TensorType::new(dtype, [Dim::from(t), n.into()]);
    let row = |n: u64| TensorType::new(dtype, [n]);
    let x = g.add_input("x", rows(depth), None, None);
    let ty = TensorType::new(dtype, [COLUMNS, depth]);
    let w = g.add_weight(ty.clone(), Recipe::Checkpoint { name: "w".into(), ty });
    let mut others = vec![w];
    let mut operands = Vec::new();
    if after == After::Sum {
        others.push(g.add_input("residual", rows(COLUMNS), None, None));
        operands.push(others[1]);
    }
    let op = Op::MatMul { transpose_lhs: false, transpose_rhs: true };
    let mut y = g.push(op, vec![x, w], rows(COLUMNS), Loc::default());
    if after != After::Nothing {
        operands.push(y);
        let mut body = Graph::with_symbols_of("body", &g);
        let add = |i| body.add_input(format!("p{i}"), row(COLUMNS), None, None);
        let params: Vec<Value> = (0..operands.len()).map(add).collect();
        let (made, n) = match after {
            After::Gate => {
                let n = COLUMNS / 2;
                (silu_gate(&mut body, params[0], &[], n, dtype), n)
            }
            After::WideGate => (wide_gate(&mut body, params[0], dtype), COLUMNS / 2),
            _ => {
                let sum = Op::Binary(BinaryOp::Add);
                (body.push(sum, params, row(COLUMNS), Loc::default()), COLUMNS)
            }
        };
        body.set_outputs(vec![made]);
        let modes = vec![ParamMode::Row; operands.len()];
        let region = Op::Region(Box::new(Region { over: t, params: modes, body }));
        y = g.push(region, operands, rows(n), Loc::default());
    }
    g.set_outputs(vec![y]);
    let piece = unique(g, Some(t));
    let filled = (0..).zip(&others).map(|(seed, &value)| {
        let dims = piece.graph.ty(value).dims(&[row_count]);
        let mut array = pattern(dtype, &dims, seed);
        if seed == 0 {
            // A gate of deep sums as they would be is more than an f16 holds.
            array.data.iter_mut().for_each(|x| *x *= 0.25);
        }
        encode(&array)
    });
    let filled = filled.collect();
    Product { piece, rows: row_count, x, others, filled }
}

fn write<T: Target>(product: &Product, bench: &mut BenchOn<T>, real: u64) {
    let bounds = bench.bounds.clone();
    let dims = |v: Value| product.piece.graph.ty(v).dims(&bounds);
    let dtype = product.piece.graph.ty(product.x).dtype;
    for (&value, bytes) in product.others.iter().zip(&product.filled) {
        let address = bench.address(value);
        bench.device.write(address, bytes).unwrap();
    }
    let mut x = pattern(dtype, &dims(product.x), 7);
    let depth = x.data.len() as u64 / product.rows;
    x.data[(real * depth) as usize..].fill(f64::NAN);
    bench.write(product.x, &x);
}

/// What is left of the output by a launch, or by a replay once all that made it is gone.
fn run<T: Target>(product: &Product, artifact: Artifact, real: u64, replayed: bool) -> Vec<u8> {
    let mut bench = BenchOn::<T>::new(product.piece.clone(), registry(), 1);
    write(product, &mut bench, real);
    let program = bench.bind(&artifact).unwrap();
    let (sizes, counts) = (sizes_of(&product.piece, product.rows), sizes_of(&product.piece, real));
    let bounds = bench.bounds.clone();
    if replayed {
        let graph = bench.device.capture("all", &[&program], &sizes).unwrap();
        drop((artifact, program));
        bench.clear_results();
        bench.set_counts(&counts);
        bench.device.replay(&graph).unwrap();
        return bench.outputs(&bounds).swap_remove(0);
    }
    bench.launch(&program, &sizes, &counts);
    bench.outputs(&bounds).swap_remove(0)
}

/// The first alternative takes in what follows, and computes what the last one does, at these true
/// rows; at the middle one also replayed.
fn agrees<T: Target>(product: &Product, after: After, dtype: DType, reals: [u64; 3]) {
    let rows = product.rows;
    let first = compile_on::<T>(&product.piece, PieceSize::Exact(rows), &[rows]);
    assert_eq!(first.first_launches().count(), 1, "{after:?}");
    let general = narrowed(&first, &last_ways(&first, usize::MAX)).unwrap();
    for real in reals {
        let got = run::<T>(product, first.clone(), real, false);
        let want = run::<T>(product, general.clone(), real, false);
        let end = got.len() / rows as usize * real as usize;
        assert!(got[end..].iter().all(|&b| b == CANARY), "{after:?} wrote padding");
        let error = norm_error(&decode(dtype, &got[..end]), &decode(dtype, &want[..end]));
        let tolerance = if dtype == F16 { 1e-3 } else { 5e-3 };
        assert!(error <= tolerance, "{dtype} {after:?} at {real} of {rows} rows: {error}");
        if real == reals[1] {
            assert!(run::<T>(product, first.clone(), real, true) == got, "{after:?}");
        }
    }
}

const AFTER: [After; 4] = [After::Nothing, After::Sum, After::Gate, After::WideGate];

/// Products of many rows in tiles.
pub fn agree_with_the_general_kernel<T: Target>() {
    for dtype in [BF16, F16] {
        for after in AFTER {
            agrees::<T>(&product(dtype, after, [ROWS, DEPTH]), after, dtype, [65, 1300, ROWS]);
        }
    }
}

/// Products of few rows through a ring.
pub fn rings_agree_with_the_general_kernel<T: Target>() {
    for (i, after) in AFTER.into_iter().enumerate() {
        let dtype = [BF16, F16][i % 2];
        let few = [8, 16, 24, 32, 48, 64, 128].map(|rows| [rows, RING_DEPTH]);
        for shape in few.into_iter().chain([8, 32, 80, 128].map(|rows| [rows, LONG_DEPTH])) {
            let rows = shape[0];
            let product = product(dtype, after, shape);
            agrees::<T>(&product, after, dtype, [1, rows - 3, rows]);
        }
    }
}

/// Values of each row of x, and the column of x that is 1.
const VALUES: u64 = 32;

/// A gate of every finite value of 16 bits is the same by every bit, of either width.
pub fn gates_of_every_value_agree<T: Target>() {
    for dtype in [BF16, F16] {
        for after in [After::Gate, After::WideGate] {
            let product = product(dtype, after, [ROWS, DEPTH]);
            let (real, inner) = ((1 << 16) / VALUES, COLUMNS / 2);
            let tiles = compile_on::<T>(&product.piece, PieceSize::Exact(ROWS), &[ROWS]);
            let general = narrowed(&tiles, &last_ways(&tiles, usize::MAX)).unwrap();
            let fill = |bench: &mut BenchOn<T>| {
                let mut x = pattern(dtype, &[ROWS, DEPTH], 0);
                let mut w = pattern(dtype, &[COLUMNS, DEPTH], 0);
                x.data.fill(0.0);
                w.data.fill(0.0);
                for row in 0..real {
                    for column in 0..VALUES {
                        let bits = (row * VALUES + column) as u16;
                        let value = decode(dtype, &bits.to_ne_bytes())[0];
                        let finite = if value.is_finite() { value } else { 0.0 };
                        x.data[(row * DEPTH + column) as usize] = finite;
                    }
                    x.data[(row * DEPTH + VALUES) as usize] = 1.0;
                }
                for column in 0..inner {
                    w.data[(column * DEPTH + column % VALUES) as usize] = 1.0;
                    w.data[((inner + column) * DEPTH + VALUES) as usize] = 1.0;
                }
                bench.write(product.x, &x);
                bench.write(product.others[0], &w);
            };
            let made = [&tiles, &general].map(|artifact| {
                let mut bench = BenchOn::<T>::new(product.piece.clone(), registry(), 1);
                fill(&mut bench);
                let program = bench.bind(artifact).unwrap();
                let bounds = bench.bounds.clone();
                bench.launch(&program, &[ROWS], &[real]);
                bench.outputs(&bounds).swap_remove(0)
            });
            let row = made[0].len() / ROWS as usize;
            for (at, (a, b)) in made[0].chunks(2).zip(made[1].chunks(2)).enumerate() {
                let (m, n) = (2 * at / row, at % (row / 2));
                assert!(a == b, "{dtype} {after:?}, value {:#x}: {a:?} and {b:?}", m * 32 + n % 32);
            }
        }
    }
}
