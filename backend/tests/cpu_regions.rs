//! Random regions: fused, op by op and evaluated.
#![allow(clippy::unwrap_used, reason = "what fails here fails a test")]

mod harness;

use harness::random::{Kind, Program, ROWS, STATE, program};
use harness::{Bench, CANARY, compile, pattern, registry, sizes_of, unique};
use piecewise_backend::artifact::PieceSize;
use piecewise_ir::custom::OpDefs;
use piecewise_ir::dtype::DType;
use piecewise_ir::eval::{Array, Evaluator, Rounding};
use piecewise_ir::graph::Graph;

const TRUE_ROWS: u64 = 19;

fn inputs(graph: &Graph, seed: u64) -> Vec<Array> {
    let decls = graph.inputs().iter().enumerate();
    decls
        .map(|(i, decl)| {
            let ty = graph.ty(decl.value);
            let mut array = pattern(ty.dtype, &ty.dims(&[ROWS]), seed * 31 + i as u64);
            if ty.dtype == DType::I64 && ty.rank() == 1 && i + 1 == graph.inputs().len() {
                // Distinct slots, two of them nowhere.
                let slot = |i: usize| ((i as u64 * 5 + seed) % STATE) as f64;
                array.data.iter_mut().enumerate().for_each(|(i, x)| *x = slot(i));
                (array.data[2], array.data[7]) = (-1.0, STATE as f64);
            }
            array
        })
        .collect()
}

struct Run {
    outputs: Vec<Vec<u8>>,
    values: Vec<Vec<f64>>,
    state: Vec<f64>,
}

fn run(graph: &Graph, p: &Program, seed: u64, threads: usize, size: PieceSize) -> Run {
    let piece = unique(graph.clone(), Some(p.over));
    let mut bench = Bench::new(piece.clone(), registry(), threads);
    let artifact = compile(&piece, size, &[ROWS]);
    let program = bench.bind(&artifact).unwrap();
    for (decl, array) in graph.inputs().iter().zip(inputs(graph, seed)) {
        bench.write(decl.value, &array);
    }
    let state = graph.states()[0].value;
    let ty = graph.ty(state).clone();
    bench.write(state, &Array::zeros(ty.dtype, vec![STATE as usize, 4, 6]));
    bench.launch(&program, &sizes_of(&piece, size.rows()), &[TRUE_ROWS]);
    let outputs = bench.outputs(&[ROWS]);
    for (&v, bytes) in graph.outputs().iter().zip(&outputs) {
        if matches!(graph.def(v), piecewise_ir::graph::ValueDef::Result { .. }) {
            let row = graph.ty(v).row().bytes(&[]) as usize;
            let past = &bytes[TRUE_ROWS as usize * row..];
            assert!(past.iter().all(|&b| b == CANARY), "rows past the count of {v}");
        }
    }
    let values = graph
        .outputs()
        .iter()
        .zip(&outputs)
        .map(|(&v, bytes)| harness::decode(graph.ty(v).dtype, bytes))
        .collect();
    let state = bench.read(state, &[ROWS]);
    Run { outputs, values, state }
}

fn evaluate(graph: &Graph, seed: u64, rounding: Rounding) -> (Vec<Array>, Array) {
    let defs = OpDefs::new();
    let mut given = inputs(graph, seed);
    for (decl, array) in graph.inputs().iter().zip(&mut given) {
        if graph.ty(decl.value).outer_symbol().is_some() {
            let row = array.row_len();
            array.shape[0] = TRUE_ROWS as usize;
            array.data.truncate(row * TRUE_ROWS as usize);
        }
    }
    let ty = graph.ty(graph.states()[0].value);
    let mut states = vec![Array::zeros(ty.dtype, vec![STATE as usize, 4, 6])];
    let evaluator = Evaluator::new(graph, &defs).rounding(rounding);
    let outputs = evaluator.run(&[TRUE_ROWS], &given, &[], &mut states).unwrap();
    (outputs, states.remove(0))
}

fn same(got: &[f64], want: &[f64]) -> Option<(usize, f64, f64)> {
    let pairs = got.iter().zip(want).enumerate();
    let differs = |(_, (a, b)): &(usize, (&f64, &f64))| !(a == b || (a.is_nan() && b.is_nan()));
    pairs.filter(differs).map(|(i, (a, b))| (i, *a, *b)).next()
}

#[test]
fn regions_of_exact_ops_equal_the_evaluator() {
    for seed in 0..300 {
        let p = program(seed, Kind::Exact);
        let fused = run(&p.fused, &p, seed, 1, PieceSize::Exact(ROWS));
        let (want, state) = evaluate(&p.fused, seed, Rounding::Typed);
        for (i, (got, want)) in fused.values.iter().zip(&want).enumerate() {
            let difference = same(got, &want.data);
            assert_eq!(difference, None, "seed {seed} output {i}: {:#?}", p.fused);
        }
        assert_eq!(same(&fused.state, &state.data), None, "seed {seed} state");
    }
}

#[test]
fn fused_and_unfused_have_the_same_bits_at_every_size_and_thread_count() {
    for (seed, kind) in (0..60).map(|s| (s, Kind::Exact)).chain((0..60).map(|s| (s, Kind::Smooth)))
    {
        let p = program(seed, kind);
        let fused = run(&p.fused, &p, seed, 1, PieceSize::Exact(ROWS));
        let unfused = run(&p.unfused, &p, seed, 1, PieceSize::Exact(ROWS));
        for (i, (a, b)) in fused.values.iter().zip(&unfused.values).enumerate() {
            let real = |v: &[f64]| v.len() / ROWS as usize * TRUE_ROWS as usize;
            let (a, b) = (&a[..real(a)], &b[..real(b)]);
            assert_eq!(same(a, b), None, "seed {seed} {kind:?} output {i}: {:#?}", p.fused);
        }
        for size in [PieceSize::Exact(TRUE_ROWS), PieceSize::General(ROWS)] {
            let again = run(&p.fused, &p, seed, 4, size);
            assert!(again.outputs == fused.outputs, "seed {seed} {kind:?} {size:?}");
        }
    }
}

/// Rounded where the types say so, a region differs from the evaluator by the error of f32
/// functions alone: a few units in the last place. Only where that error falls on the boundary of
/// a rounding to a half float does the value flip to its neighbour, so most regions of half
/// floats are held as tightly, and no value may move by more than a flip or two.
#[test]
fn smooth_regions_are_rounded_where_their_types_say_so() {
    let flip = f64::from(half::bf16::EPSILON);
    let mut flipped = 0;
    for seed in 0..300 {
        let p = program(seed, Kind::Smooth);
        let fused = run(&p.fused, &p, seed, 4, PieceSize::Exact(ROWS));
        let (want, _) = evaluate(&p.fused, seed, Rounding::Typed);
        let worst = worst_error(&fused, &want);
        flipped += usize::from(worst > 1e-6);
        assert!(worst <= 2.0 * flip, "seed {seed}: {worst}");
    }
    assert!(flipped <= 6, "{flipped} of 300 regions have flipped values");
}

/// Without half floats a region is also near the value without any rounding.
#[test]
fn smooth_regions_of_f32_are_near_the_exact_value() {
    for seed in 0..300 {
        let p = program(seed, Kind::SmoothF32);
        let fused = run(&p.fused, &p, seed, 4, PieceSize::Exact(ROWS));
        let (want, _) = evaluate(&p.fused, seed, Rounding::Exact);
        let worst = worst_error(&fused, &want);
        assert!(worst <= 1e-5, "seed {seed}: {worst}");
    }
}

/// The largest `|a - b| / (1 + |b|)` over every element of every output.
fn worst_error(got: &Run, want: &[Array]) -> f64 {
    let pairs = got.values.iter().zip(want).flat_map(|(got, want)| got.iter().zip(&want.data));
    let error = |(a, b): (&f64, &f64)| {
        let error = (a - b).abs() / (1.0 + b.abs());
        if error.is_nan() { f64::INFINITY } else { error }
    };
    pairs.map(error).fold(0.0, f64::max)
}
