//! Time of typical regions of a decoder layer, by rows: `cargo bench --bench regions`.
#![allow(
    clippy::print_stdout,
    unsafe_code,
    reason = "a benchmark prints, and runs on raw addresses"
)]

use piecewise_ir::dim::SymbolDecl;
use piecewise_ir::dtype::DType::{BF16, F32};
use piecewise_ir::entity::Value;
use piecewise_ir::graph::{Graph, Loc};
use piecewise_ir::literal::Literal;
use piecewise_ir::op::{BinaryOp, Op, ReduceOp, UnaryOp};
use piecewise_ir::region::{ParamMode, Region};
use piecewise_ir::types::TensorType;
use piecewise_kernels::cpu::rows::{RowArg, RowCall, run_rows};
use piecewise_kernels::lower::{ArgKind, RowProgram, lower_region};
use std::time::{Duration, Instant};

const HIDDEN: u64 = 1024;
const GATED: u64 = 3072;
const HEADS: u64 = 16;
const HEAD: u64 = 128;

fn push(g: &mut Graph, op: Op, operands: Vec<Value>, ty: TensorType) -> Value {
    g.push(op, operands, ty, Loc::default())
}

fn lowered(params: &[(ParamMode, TensorType)], make: impl Fn(&mut Graph, &[Value])) -> RowProgram {
    let mut graph = Graph::new("bench");
    let decl = SymbolDecl { name: "T".into(), min: 1, max: 4096, role: None };
    let over = graph.add_symbol(decl);
    let mut body = Graph::with_symbols_of("body", &graph);
    let values: Vec<Value> = params
        .iter()
        .enumerate()
        .map(|(i, (_, ty))| body.add_input(format!("p{i}"), ty.clone(), None, None))
        .collect();
    make(&mut body, &values);
    let states = vec![false; params.len()];
    let params = params.iter().map(|(mode, _)| *mode).collect();
    match lower_region(&Region { over, params, body }, &states) {
        Ok(program) => program,
        Err(error) => panic!("{error}"),
    }
}

fn norm(g: &mut Graph, x: Value, w: Value, wide: &TensorType, narrow: &TensorType) -> Value {
    let last = wide.rank() - 1;
    let mut one = wide.clone();
    one.shape[last] = 1u64.into();
    let f = push(g, Op::Cast, vec![x], wide.clone());
    let sq = push(g, Op::Binary(BinaryOp::Mul), vec![f, f], wide.clone());
    let mean = Op::Reduce { op: ReduceOp::Mean, axes: vec![last] };
    let mean = push(g, mean, vec![sq], one.clone());
    let eps = push(g, Op::Literal(Literal::new(F32, [1e-6])), vec![], TensorType::scalar(F32));
    let eps = push(g, Op::Broadcast, vec![eps], one.clone());
    let sum = push(g, Op::Binary(BinaryOp::Add), vec![mean, eps], one.clone());
    let r = push(g, Op::Unary(UnaryOp::Rsqrt), vec![sum], one);
    let r = push(g, Op::Broadcast, vec![r], wide.clone());
    let y = push(g, Op::Binary(BinaryOp::Mul), vec![f, r], wide.clone());
    let y = push(g, Op::Cast, vec![y], narrow.clone());
    let w = push(g, Op::Broadcast, vec![w], narrow.clone());
    push(g, Op::Binary(BinaryOp::Mul), vec![y, w], narrow.clone())
}

fn residual_norm() -> RowProgram {
    let (wide, narrow) = (TensorType::new(F32, [HIDDEN]), TensorType::new(BF16, [HIDDEN]));
    let row = (ParamMode::Row, narrow.clone());
    lowered(&[row.clone(), row, (ParamMode::Whole, narrow.clone())], |g, v| {
        let sum = push(g, Op::Binary(BinaryOp::Add), vec![v[0], v[1]], narrow.clone());
        let y = norm(g, sum, v[2], &wide, &narrow);
        g.set_outputs(vec![sum, y]);
    })
}

fn gate() -> RowProgram {
    let (both, narrow) = (TensorType::new(BF16, [2 * GATED]), TensorType::new(BF16, [GATED]));
    let wide = TensorType::new(F32, [GATED]);
    lowered(&[(ParamMode::Row, both)], |g, v| {
        let a = push(g, Op::Slice { axis: 0, start: 0 }, vec![v[0]], narrow.clone());
        let b = push(g, Op::Slice { axis: 0, start: GATED }, vec![v[0]], narrow.clone());
        let f = push(g, Op::Cast, vec![a], wide.clone());
        let n = push(g, Op::Unary(UnaryOp::Neg), vec![f], wide.clone());
        let e = push(g, Op::Unary(UnaryOp::Exp), vec![n], wide.clone());
        let one = Op::Literal(Literal::new(F32, [1.0]));
        let one = push(g, one, vec![], TensorType::scalar(F32));
        let one = push(g, Op::Broadcast, vec![one], wide.clone());
        let s = push(g, Op::Binary(BinaryOp::Add), vec![e, one], wide.clone());
        let y = push(g, Op::Binary(BinaryOp::Div), vec![f, s], wide.clone());
        let y = push(g, Op::Cast, vec![y], narrow.clone());
        let y = push(g, Op::Binary(BinaryOp::Mul), vec![y, b], narrow.clone());
        g.set_outputs(vec![y]);
    })
}

/// The norm of each head, then rotation by halves.
fn norm_rope() -> RowProgram {
    let (wide, narrow) =
        (TensorType::new(F32, [HEADS, HEAD]), TensorType::new(BF16, [HEADS, HEAD]));
    let (half, row) = (TensorType::new(F32, [HEADS, HEAD / 2]), TensorType::new(F32, [HEAD / 2]));
    let params = [
        (ParamMode::Row, narrow.clone()),
        (ParamMode::Whole, TensorType::new(BF16, [HEAD])),
        (ParamMode::Row, row.clone()),
        (ParamMode::Row, row),
    ];
    lowered(&params, |g, v| {
        let y = norm(g, v[0], v[1], &wide, &narrow);
        let f = push(g, Op::Cast, vec![y], wide.clone());
        let a = push(g, Op::Slice { axis: 1, start: 0 }, vec![f], half.clone());
        let b = push(g, Op::Slice { axis: 1, start: HEAD / 2 }, vec![f], half.clone());
        let cos = push(g, Op::Broadcast, vec![v[2]], half.clone());
        let sin = push(g, Op::Broadcast, vec![v[3]], half.clone());
        let mut product = |x, y| push(g, Op::Binary(BinaryOp::Mul), vec![x, y], half.clone());
        let (ac, bs, bc, as_) =
            (product(a, cos), product(b, sin), product(b, cos), product(a, sin));
        let x = push(g, Op::Binary(BinaryOp::Sub), vec![ac, bs], half.clone());
        let y = push(g, Op::Binary(BinaryOp::Add), vec![bc, as_], half.clone());
        let r = push(g, Op::Concat { axis: 1 }, vec![x, y], wide.clone());
        let r = push(g, Op::Cast, vec![r], narrow.clone());
        g.set_outputs(vec![r]);
    })
}

fn measure(name: &str, program: &RowProgram, rows: u64) {
    let mut memory: Vec<Vec<u64>> = program
        .args
        .iter()
        .map(|arg| {
            let rows = if arg.kind == ArgKind::Row { rows } else { 1 };
            vec![
                0x3f80_3f80_3f80_3f80;
                (rows * arg.elements * arg.dtype.size() as u64 / 8) as usize + 1
            ]
        })
        .collect();
    let args: Vec<RowArg> = memory
        .iter_mut()
        .map(|m| RowArg { address: m.as_mut_ptr().expose_provenance(), extent: 0 })
        .collect();
    let threads = rayon::current_num_threads() as u64;
    let scratch_bytes = program.scratch_bytes(rows, threads);
    let mut scratch = vec![0u64; scratch_bytes as usize / 8 + 8];
    let at = scratch.as_mut_ptr().expose_provenance().next_multiple_of(64);
    let call = RowCall { program, args: &args, rows, scratch: at, scratch_bytes };
    let mut best = Duration::MAX;
    for _ in 0..30 {
        let repeats = (2048 / rows).max(1) as u32;
        let start = Instant::now();
        for _ in 0..repeats {
            // SAFETY: every argument has memory of its own for `rows` rows, and so has the scratch.
            unsafe { run_rows(&call) };
        }
        best = best.min(start.elapsed() / repeats);
    }
    let each = best.as_nanos() as f64 / (rows * program.work.elements_per_row) as f64;
    println!("{name:>14} {rows:>5} rows: {best:>10.1?}, {each:.3} ns an element and step");
}

fn main() {
    let regions =
        [("residual norm", residual_norm()), ("gate", gate()), ("norm rope", norm_rope())];
    for (name, program) in &regions {
        for rows in [1, 16, 512] {
            measure(name, program, rows);
        }
    }
}
