//! A small layer, unfused and fused: norm, matmul, gate, row gather and state scatter.

use super::target::{Cpu, Target};
use super::{BenchOn, CANARY, compile_on, decode, norm_error, pattern, registry, sizes_of, unique};
use piecewise_backend::artifact::PieceSize;
use piecewise_backend::device::Device;
use piecewise_ir::dim::{Dim, SymbolDecl};
use piecewise_ir::dtype::DType::{self, BF16, F16, F32, I32};
use piecewise_ir::entity::{Symbol, Value};
use piecewise_ir::graph::{Graph, Loc};
use piecewise_ir::literal::Literal;
use piecewise_ir::module::UniquePiece;
use piecewise_ir::op::{BinaryOp, Op, ReduceOp, UnaryOp};
use piecewise_ir::region::{ParamMode, Region};
use piecewise_ir::types::TensorType;
use piecewise_ir::weight::Recipe;

fn ty(dtype: DType, shape: &[Dim]) -> TensorType {
    TensorType { dtype, shape: shape.iter().cloned().collect() }
}

/// RMS norm over rows of `[..outer, n]` as primitives appended to a graph.
fn norm(g: &mut Graph, x: Value, w: Value, outer: &[Dim], n: u64, dtype: DType) -> Value {
    let at = |last: u64| -> Vec<Dim> { outer.iter().cloned().chain([last.into()]).collect() };
    let (wide, one) = (ty(F32, &at(n)), ty(F32, &at(1)));
    let narrow = ty(dtype, &at(n));
    let loc = Loc::default;
    let last = outer.len();
    let f = g.push(Op::Cast, vec![x], wide.clone(), loc());
    let sq = g.push(Op::Binary(BinaryOp::Mul), vec![f, f], wide.clone(), loc());
    let mean = Op::Reduce { op: ReduceOp::Mean, axes: vec![last] };
    let mean = g.push(mean, vec![sq], one.clone(), loc());
    let eps =
        g.push(Op::Literal(Literal::new(F32, [1e-6])), vec![], TensorType::scalar(F32), loc());
    let eps = g.push(Op::Broadcast, vec![eps], one.clone(), loc());
    let sum = g.push(Op::Binary(BinaryOp::Add), vec![mean, eps], one.clone(), loc());
    let r = g.push(Op::Unary(UnaryOp::Rsqrt), vec![sum], one, loc());
    let r = g.push(Op::Broadcast, vec![r], wide.clone(), loc());
    let y = g.push(Op::Binary(BinaryOp::Mul), vec![f, r], wide, loc());
    let y = g.push(Op::Cast, vec![y], narrow.clone(), loc());
    let w = g.push(Op::Broadcast, vec![w], narrow.clone(), loc());
    g.push(Op::Binary(BinaryOp::Mul), vec![y, w], narrow, loc())
}

pub fn silu_gate(g: &mut Graph, both: Value, outer: &[Dim], n: u64, dtype: DType) -> Value {
    let at: Vec<Dim> = outer.iter().cloned().chain([n.into()]).collect();
    let narrow = ty(dtype, &at);
    let axis = outer.len();
    let loc = Loc::default;
    let gate = g.push(Op::Slice { axis, start: 0 }, vec![both], narrow.clone(), loc());
    let up = g.push(Op::Slice { axis, start: n }, vec![both], narrow.clone(), loc());
    let neg = g.push(Op::Unary(UnaryOp::Neg), vec![gate], narrow.clone(), loc());
    let exp = g.push(Op::Unary(UnaryOp::Exp), vec![neg], narrow.clone(), loc());
    let one =
        g.push(Op::Literal(Literal::new(dtype, [1.0])), vec![], TensorType::scalar(dtype), loc());
    let one = g.push(Op::Broadcast, vec![one], narrow.clone(), loc());
    let sum = g.push(Op::Binary(BinaryOp::Add), vec![one, exp], narrow.clone(), loc());
    let act = g.push(Op::Binary(BinaryOp::Div), vec![gate, sum], narrow.clone(), loc());
    g.push(Op::Binary(BinaryOp::Mul), vec![act, up], narrow, loc())
}

pub struct Layer {
    pub piece: UniquePiece,
    pub inputs: Vec<Value>,
    pub state: Value,
}

pub const N: u64 = 48;
pub const M: u64 = 20;

pub fn layer(dtype: DType, fused: bool) -> Layer {
    let mut g = Graph::new("layer");
    let decl = |name: &str, max| SymbolDecl { name: name.into(), min: 1, max, role: None };
    let t = g.add_symbol(decl("T", 40));
    let p = g.add_symbol(decl("P", 64));
    let dims = |d: &[u64]| -> Vec<Dim> {
        [Dim::from(t)].into_iter().chain(d.iter().map(|&d| d.into())).collect()
    };
    let x = g.add_input("x", ty(dtype, &dims(&[N])), None, None);
    let slots = g.add_input("slots", ty(I32, &dims(&[])), None, None);
    let recipe =
        |shape: &[u64]| Recipe::Checkpoint { name: "w".into(), ty: TensorType::new(dtype, shape) };
    let w0 = g.add_weight(TensorType::new(dtype, [N]), recipe(&[N]));
    let w1 = g.add_weight(TensorType::new(dtype, [2 * M, N]), recipe(&[2 * M, N]));
    let state = g.add_state("kv", ty(dtype, &[p.into(), M.into()]), None);
    let region = |g: &Graph, over: Symbol, params: &[(ParamMode, TensorType)]| {
        let mut body = Graph::with_symbols_of("body", g);
        let values: Vec<Value> = params
            .iter()
            .enumerate()
            .map(|(i, (_, ty))| body.add_input(format!("p{i}"), ty.clone(), None, None))
            .collect();
        let params = params.iter().map(|(mode, _)| *mode).collect();
        (Region { over, params, body }, values)
    };
    let h = if fused {
        let params = [
            (ParamMode::Row, TensorType::new(dtype, [N])),
            (ParamMode::Whole, TensorType::new(dtype, [N])),
        ];
        let (mut r, v) = region(&g, t, &params);
        let y = norm(&mut r.body, v[0], v[1], &[], N, dtype);
        r.body.set_outputs(vec![y]);
        g.push(Op::Region(Box::new(r)), vec![x, w0], ty(dtype, &dims(&[N])), Loc::default())
    } else {
        norm(&mut g, x, w0, &[t.into()], N, dtype)
    };
    let mm = Op::MatMul { transpose_lhs: false, transpose_rhs: true };
    let both = g.push(mm, vec![h, w1], ty(dtype, &dims(&[2 * M])), Loc::default());
    let out = if fused {
        let params = [
            (ParamMode::Row, TensorType::new(dtype, [2 * M])),
            (ParamMode::Row, TensorType::scalar(I32)),
            (ParamMode::Mut, ty(dtype, &[p.into(), M.into()])),
        ];
        let (mut r, v) = region(&g, t, &params);
        let y = silu_gate(&mut r.body, v[0], &[], M, dtype);
        r.body.push_node(Op::Scatter, vec![v[2], v[1], y], vec![], Loc::default());
        r.body.set_outputs(vec![y]);
        let operands = vec![both, slots, state];
        g.push(Op::Region(Box::new(r)), operands, ty(dtype, &dims(&[M])), Loc::default())
    } else {
        let y = silu_gate(&mut g, both, &[t.into()], M, dtype);
        g.push_node(Op::Scatter, vec![state, slots, y], vec![], Loc::default());
        y
    };
    g.set_outputs(vec![out]);
    Layer { piece: unique(g, Some(t)), inputs: vec![x, slots, w0, w1], state }
}

/// The layer's memory with its inputs written.
pub fn bench<T: Target>(layer: &Layer, threads: usize) -> BenchOn<T> {
    let mut bench = BenchOn::new(layer.piece.clone(), registry(), threads);
    write_inputs(layer, &mut bench);
    bench
}

pub fn write_inputs<T: Target>(layer: &Layer, bench: &mut BenchOn<T>) {
    let bounds = bench.bounds.clone();
    for (i, &v) in layer.inputs.iter().enumerate() {
        let ty = layer.piece.graph.ty(v).clone();
        let mut array = pattern(ty.dtype, &ty.dims(&bounds), i as u64);
        if ty.dtype == I32 {
            array.data.iter_mut().enumerate().for_each(|(i, x)| *x = 63.0 - i as f64);
            array.data[1] = -1.0;
        }
        bench.write(v, &array);
    }
}

/// The bytes of the outputs, and of the state.
pub type Left = (Vec<Vec<u8>>, Vec<u8>);

pub fn run<T: Target>(layer: &Layer, threads: usize, size: PieceSize, rows: u64) -> Left {
    let mut bench = bench::<T>(layer, threads);
    let bounds = bench.bounds.clone();
    let artifact = compile_on::<T>(&layer.piece, size, &bounds);
    let program = bench.bind(&artifact).unwrap();
    let sizes = sizes_of(&layer.piece, size.rows());
    let counts = sizes_of(&layer.piece, rows);
    bench.launch(&program, &sizes, &counts);
    let outputs = bench.outputs(&bounds);
    (outputs, bench.read_bytes(layer.state, &bounds))
}

/// Fused and unfused layers are near what the CPU makes of them; padding and the kind of size
/// change no bit, and a replay leaves what a launch leaves.
pub fn equals_the_cpu<T: Target>() {
    for (dtype, tolerance) in [(F32, 1e-5), (BF16, 2e-2), (F16, 3e-3)] {
        let (want, want_state) = run::<Cpu>(&layer(dtype, false), 4, PieceSize::Exact(40), 37);
        let row = (M as usize) * dtype.size();
        let numbers = |bytes: &[u8]| decode(dtype, bytes);
        let near = |got: &[u8], want: &[u8]| {
            let error = norm_error(&numbers(got), &numbers(want));
            assert!(error <= tolerance, "{dtype}: {error}");
        };
        for fused in [false, true] {
            let layer = layer(dtype, fused);
            let exact = run::<T>(&layer, 1, PieceSize::Exact(40), 37);
            near(&exact.0[0][..37 * row], &want[0][..37 * row]);
            assert!(exact.0[0][40 * row..].iter().all(|&b| b == CANARY), "rows past the size");
            for slot in 0..64 {
                let at = slot * row..(slot + 1) * row;
                let (got, want) = (&exact.1[at.clone()], &want_state[at]);
                match want.iter().all(|&b| b == CANARY) {
                    true => assert_eq!(got, want, "slot {slot}, which nothing writes"),
                    false => near(got, want),
                }
            }
            let mut bench = bench::<T>(&layer, 1);
            let bounds = bench.bounds.clone();
            let artifact = compile_on::<T>(&layer.piece, PieceSize::Exact(40), &bounds);
            let program = bench.bind(&artifact).unwrap();
            let sizes = sizes_of(&layer.piece, 40);
            bench.launch(&program, &sizes, &sizes_of(&layer.piece, 40));
            write_inputs(&layer, &mut bench);
            let graph = bench.device.capture("all", &[&program], &sizes).unwrap();
            drop((artifact, program));
            bench.clear_results();
            let state = bench.address(layer.state);
            let state_bytes = layer.piece.graph.ty(layer.state).bytes(&bounds);
            bench.device.fill(state, state_bytes, &[CANARY]).unwrap();
            bench.set_counts(&sizes_of(&layer.piece, 37));
            bench.device.replay(&graph).unwrap();
            let replayed = bench.outputs(&bounds);
            assert!(replayed[0][..37 * row] == exact.0[0][..37 * row], "{dtype} fused {fused}");
            assert!(bench.read_bytes(layer.state, &bounds) == exact.1, "{dtype} fused {fused}");
        }
    }
}
