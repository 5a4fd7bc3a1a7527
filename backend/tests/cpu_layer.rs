//! A small layer, unfused and fused: norm, matmul, gate, row gather and state scatter.
#![allow(clippy::unwrap_used, reason = "what fails here fails a test")]

mod harness;

use harness::{Bench, CANARY, compile, compile_with, pattern, registry, sizes_of, unique};
use piecewise_backend::artifact::PieceSize;
use piecewise_backend::cpu::AbsorbingCompiler;
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

fn silu_gate(g: &mut Graph, both: Value, outer: &[Dim], n: u64, dtype: DType) -> Value {
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

struct Layer {
    piece: UniquePiece,
    inputs: Vec<Value>,
    state: Value,
}

const N: u64 = 48;
const M: u64 = 20;

fn layer(dtype: DType, fused: bool) -> Layer {
    let mut g = Graph::new("layer");
    let decl = |name: &str, max| SymbolDecl { name: name.into(), min: 1, max, role: None };
    let t = g.add_symbol(decl("T", 40));
    let p = g.add_symbol(decl("P", 64));
    let dims = |d: &[u64]| -> Vec<Dim> {
        [Dim::from(t)].into_iter().chain(d.iter().map(|&d| d.into())).collect()
    };
    let x = g.add_input("x", ty(dtype, &dims(&[N])), None, None);
    let slots = g.add_input("slots", ty(I32, &dims(&[])), None, None);
    let recipe = |shape: &[u64]| Recipe::Checkpoint {
        name: "w".into(),
        ty: TensorType::new(dtype, shape.iter().copied()),
    };
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
fn bench(layer: &Layer, threads: usize) -> Bench {
    let mut bench = Bench::new(layer.piece.clone(), registry(), threads);
    write_inputs(layer, &mut bench);
    bench
}

fn write_inputs(layer: &Layer, bench: &mut Bench) {
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

fn run(layer: &Layer, threads: usize, size: PieceSize, rows: u64) -> (Vec<Vec<u8>>, Vec<u8>) {
    let mut bench = bench(layer, threads);
    let bounds = bench.bounds.clone();
    let artifact = compile(&layer.piece, size, &bounds);
    let program = bench.bind(&artifact).unwrap();
    let sizes = sizes_of(&layer.piece, size.rows());
    let counts = sizes_of(&layer.piece, rows);
    bench.launch(&program, &sizes, &counts);
    let outputs = bench.outputs(&bounds);
    (outputs, bench.read_bytes(layer.state, &bounds))
}

#[test]
fn unfused_fused_padded_and_parallel_layers_have_the_same_bits() {
    for dtype in [F32, BF16, F16] {
        let (reference, state) = run(&layer(dtype, false), 1, PieceSize::Exact(40), 37);
        let row = (M as usize) * dtype.size();
        assert!(reference[0][..37 * row].chunks(row).any(|r| r.iter().any(|&b| b != CANARY)));
        assert!(reference[0][37 * row..].iter().all(|&b| b == CANARY), "rows past the count");
        // Slot -1 writes nowhere; row 0 goes to slot 63.
        assert_eq!(state[63 * row..64 * row], reference[0][..row]);
        assert!(state[62 * row..63 * row].iter().all(|&b| b == CANARY));
        for fused in [false, true] {
            for threads in [1, 4] {
                for size in [PieceSize::Exact(40), PieceSize::Exact(37), PieceSize::General(40)] {
                    let got = run(&layer(dtype, fused), threads, size, 37);
                    assert_eq!(got.0, reference, "{dtype} fused {fused} {threads} {size:?}");
                    assert_eq!(got.1, state, "{dtype} fused {fused} {threads} {size:?}");
                }
            }
        }
        let (few, _) = run(&layer(dtype, true), 4, PieceSize::Exact(5), 3);
        assert_eq!(few[0][..3 * row], reference[0][..3 * row], "a prefix at another size");
    }
}

#[test]
fn replay_equals_launch_after_everything_else_is_gone() {
    let layer = layer(BF16, true);
    let (reference, state) = run(&layer, 4, PieceSize::Exact(40), 37);
    let mut bench = bench(&layer, 4);
    let bounds = bench.bounds.clone();
    let sizes = sizes_of(&layer.piece, 40);
    let artifact = compile(&layer.piece, PieceSize::Exact(40), &bounds);
    let program = bench.bind(&artifact).unwrap();
    let graph = bench.device.capture("all", &[&program], &sizes).unwrap();
    drop((artifact, program));
    bench.set_counts(&sizes_of(&layer.piece, 37));
    let before = bench.outputs(&bounds);
    assert!(before[0].iter().all(|&b| b == CANARY), "a capture runs no kernel");
    bench.device.replay(&graph).unwrap();
    assert_eq!(bench.outputs(&bounds), reference);
    assert_eq!(bench.read_bytes(layer.state, &bounds), state);
}

/// Runs the fused layer by the absorbing lowering, with `out` at the address of another operand.
fn absorb(layer: &Layer, out_at: Option<Value>) -> (Bench, Vec<Vec<u8>>) {
    let mut bench = bench(layer, 4);
    let bounds = bench.bounds.clone();
    if let Some(other) = out_at {
        let out = bench.position(layer.piece.graph.outputs()[0]);
        bench.operands[out] = Some(bench.address(other));
    }
    let compiler = AbsorbingCompiler::new(registry(), 4);
    let artifact = compile_with(&compiler, &layer.piece, PieceSize::Exact(40), &bounds);
    assert_eq!(artifact.alternatives[0].launches.len(), 1, "one launch for three nodes");
    assert_eq!(artifact.alternatives[0].launches[0].nodes, [0, 1, 2]);
    let program = bench.bind(&artifact).unwrap();
    bench.launch(&program, &sizes_of(&layer.piece, 40), &sizes_of(&layer.piece, 37));
    let outputs = bench.outputs(&bounds);
    (bench, outputs)
}

#[test]
fn an_absorbing_lowering_has_the_same_bits_and_writes_no_locals() {
    for dtype in [F32, BF16, F16] {
        let layer = layer(dtype, true);
        let (reference, state) = run(&layer, 1, PieceSize::Exact(40), 37);
        let (mut bench, outputs) = absorb(&layer, None);
        let real = 37 * M as usize * dtype.size();
        assert_eq!(outputs[0][..real], reference[0][..real]);
        let bounds = bench.bounds.clone();
        assert_eq!(bench.read_bytes(layer.state, &bounds), state);
        let graph = &layer.piece.graph;
        let locals: Vec<Value> = graph.nodes().take(2).map(|n| graph.result(n)).collect();
        for local in locals {
            assert!(bench.read_bytes(local, &bounds).iter().all(|&b| b == CANARY), "{local}");
        }
    }
}

#[test]
fn node_granular_lifetimes_corrupt_under_absorption_and_only_there() {
    let layer = layer(F32, true);
    let (reference, _) = run(&layer, 1, PieceSize::Exact(40), 37);
    let real = 37 * M as usize * 4;
    // By nodes, the input is dead once the norm has run, so the output could take its bytes.
    let input = layer.inputs[0];
    let (_, outputs) = absorb(&layer, Some(input));
    assert_ne!(outputs[0][..real], reference[0][..real]);
    let mut plain = bench(&layer, 1);
    let bounds = plain.bounds.clone();
    let out = plain.position(layer.piece.graph.outputs()[0]);
    plain.operands[out] = Some(plain.address(input));
    let artifact = compile(&layer.piece, PieceSize::Exact(40), &bounds);
    let program = plain.bind(&artifact).unwrap();
    plain.launch(&program, &sizes_of(&layer.piece, 40), &sizes_of(&layer.piece, 37));
    assert_eq!(plain.outputs(&bounds)[0][..real], reference[0][..real]);
}
