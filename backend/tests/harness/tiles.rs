//! A product of many rows alone, with a sum after it, and with a gate of its halves: the kernel
//! that works in tiles against the general one.

use super::layer::silu_gate;
use super::target::Target;
use super::{BenchOn, CANARY, compile_on, decode, pattern, registry, sizes_of, unique};
use piecewise_backend::artifact::{Artifact, PieceSize};
use piecewise_backend::device::Device;
use piecewise_ir::dim::{Dim, SymbolDecl};
use piecewise_ir::dtype::DType::{self, BF16, F16};
use piecewise_ir::entity::Value;
use piecewise_ir::graph::{Graph, Loc};
use piecewise_ir::module::UniquePiece;
use piecewise_ir::op::{BinaryOp, Op};
use piecewise_ir::region::{ParamMode, Region};
use piecewise_ir::types::TensorType;
use piecewise_ir::weight::Recipe;

/// Enough for tiles to be preferred; no whole tiles of columns, no whole slices of k.
const ROWS: u64 = 2112;
const COLUMNS: u64 = 2096;
const DEPTH: u64 = 200;

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum After {
    Nothing,
    Sum,
    Gate,
}

struct Product {
    piece: UniquePiece,
    x: Value,
    others: Vec<Value>,
}

fn product(dtype: DType, after: After) -> Product {
    let mut g = Graph::new("product");
    let t = g.add_symbol(SymbolDecl { name: "T".into(), min: 1, max: ROWS, role: None });
    let rows = |n: u64| TensorType::new(dtype, [Dim::from(t), n.into()]);
    let row = |n: u64| TensorType::new(dtype, [n]);
    let x = g.add_input("x", rows(DEPTH), None, None);
    let ty = TensorType::new(dtype, [COLUMNS, DEPTH]);
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
    Product { piece: unique(g, Some(t)), x, others }
}

fn write<T: Target>(product: &Product, bench: &mut BenchOn<T>, real: u64) {
    let bounds = bench.bounds.clone();
    let dims = |v: Value| product.piece.graph.ty(v).dims(&bounds);
    let dtype = product.piece.graph.ty(product.x).dtype;
    for (seed, &value) in product.others.iter().enumerate() {
        bench.write(value, &pattern(dtype, &dims(value), seed as u64));
    }
    let mut x = pattern(dtype, &dims(product.x), 7);
    x.data[(real * DEPTH) as usize..].fill(f64::NAN);
    bench.write(product.x, &x);
}

/// What is left of the output by a launch, or by a replay once all that made it is gone.
fn run<T: Target>(product: &Product, artifact: Artifact, real: u64, replayed: bool) -> Vec<u8> {
    let mut bench = BenchOn::<T>::new(product.piece.clone(), registry(), 1);
    write(product, &mut bench, real);
    let program = bench.bind(&artifact).unwrap();
    let (sizes, counts) = (sizes_of(&product.piece, ROWS), sizes_of(&product.piece, real));
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

/// The first alternative takes in what follows, and computes what the last one does.
pub fn agree_with_the_general_kernel<T: Target>() {
    for (dtype, tolerance) in [(BF16, 5e-3), (F16, 1e-3)] {
        for after in [After::Nothing, After::Sum, After::Gate] {
            let product = product(dtype, after);
            let bounds = [ROWS];
            let tiles = compile_on::<T>(&product.piece, PieceSize::Exact(ROWS), &bounds);
            assert_eq!(tiles.alternatives[0].launches.len(), 1, "{after:?}");
            let mut general = tiles.clone();
            general.alternatives = vec![tiles.alternatives.last().unwrap().clone()];
            for real in [65, 1300, ROWS] {
                let got = run::<T>(&product, tiles.clone(), real, false);
                let want = run::<T>(&product, general.clone(), real, false);
                let end = got.len() / ROWS as usize * real as usize;
                assert!(got[end..].iter().all(|&b| b == CANARY), "{after:?} wrote padding");
                let (found, due) = (decode(dtype, &got[..end]), decode(dtype, &want[..end]));
                let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
                let difference = norm(&mut found.iter().zip(&due).map(|(a, b)| a - b));
                let error = difference / norm(&mut due.iter().copied());
                assert!(error <= tolerance, "{dtype} {after:?} at {real} rows: {error}");
                if real == 1300 {
                    assert!(run::<T>(&product, tiles.clone(), real, true) == got, "{after:?}");
                }
            }
        }
    }
}
