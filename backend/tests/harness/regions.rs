//! Random regions: fused, op by op and evaluated.

use super::random::{Kind, Program, ROWS, STATE, program};
use super::target::Target;
use super::{BenchOn, CANARY, compile_on, decode, pattern, registry, sizes_of, unique};
use piecewise_backend::artifact::PieceSize;
use piecewise_ir::custom::OpDefs;
use piecewise_ir::dtype::DType;
use piecewise_ir::eval::{Array, Evaluator, Rounding};
use piecewise_ir::graph::{Graph, ValueDef};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

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

/// What a launch of a program leaves.
struct Run {
    outputs: Vec<Vec<u8>>,
    values: Vec<Vec<f64>>,
    state: Vec<f64>,
}

fn run<T: Target>(graph: &Graph, p: &Program, seed: u64, threads: usize, size: PieceSize) -> Run {
    let piece = unique(graph.clone(), Some(p.over));
    let mut bench = BenchOn::<T>::new(piece.clone(), registry(), threads);
    let artifact = compile_on::<T>(&piece, size, &[ROWS]);
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
        if matches!(graph.def(v), ValueDef::Result { .. }) {
            let row = graph.ty(v).row().bytes(&[]) as usize;
            let past = &bytes[TRUE_ROWS as usize * row..];
            assert!(past.iter().all(|&b| b == CANARY), "rows past the count of {v}");
        }
    }
    let values = graph
        .outputs()
        .iter()
        .zip(&outputs)
        .map(|(&v, bytes)| decode(graph.ty(v).dtype, bytes))
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

/// Calls `case` with every seed below `seeds`, on every processor.
fn each_seed(seeds: u64, case: impl Fn(u64) + Sync) {
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    match next.fetch_add(1, Ordering::Relaxed) {
                        seed if seed < seeds => case(seed),
                        _ => break,
                    }
                }
            });
        }
    });
}

/// Bit for bit, rows written to states included.
pub fn exact_ones_equal_the_evaluator<T: Target>() {
    each_seed(300, |seed| {
        let p = program(seed, Kind::Exact);
        let fused = run::<T>(&p.fused, &p, seed, 1, PieceSize::Exact(ROWS));
        let (want, state) = evaluate(&p.fused, seed, Rounding::Typed);
        for (i, (got, want)) in fused.values.iter().zip(&want).enumerate() {
            let difference = same(got, &want.data);
            assert_eq!(difference, None, "seed {seed} output {i}: {:#?}", p.fused);
        }
        assert_eq!(same(&fused.state, &state.data), None, "seed {seed} state");
    });
}

/// The same bits at every size and, where sums have one order, fused and unfused; elsewhere
/// fused and unfused are as near as two orders of sums are.
pub fn fused_and_unfused_agree<T: Target>() {
    each_seed(120, |n| {
        let (seed, kind) = (n % 60, if n < 60 { Kind::Exact } else { Kind::Smooth });
        let p = program(seed, kind);
        let fused = run::<T>(&p.fused, &p, seed, 1, PieceSize::Exact(ROWS));
        let unfused = run::<T>(&p.unfused, &p, seed, 1, PieceSize::Exact(ROWS));
        for (i, (a, b)) in fused.values.iter().zip(&unfused.values).enumerate() {
            let real = |v: &[f64]| v.len() / ROWS as usize * TRUE_ROWS as usize;
            let (a, b) = (&a[..real(a)], &b[..real(b)]);
            if T::FIXED_SUMS || kind == Kind::Exact {
                assert_eq!(same(a, b), None, "seed {seed} {kind:?} output {i}: {:#?}", p.fused);
            } else {
                let worst = a.iter().zip(b).map(relative_error).fold(0.0, f64::max);
                assert!(worst <= 2.0 * FLIP, "seed {seed} {kind:?} output {i}: {worst}");
            }
        }
        for size in [PieceSize::Exact(TRUE_ROWS), PieceSize::General(ROWS)] {
            let again = run::<T>(&p.fused, &p, seed, 4, size);
            assert!(again.outputs == fused.outputs, "seed {seed} {kind:?} {size:?}");
        }
    });
}

/// A value of bf16 and its neighbour.
const FLIP: f64 = 0.007_812_5;

/// Rounded where the types say so, a region differs from the evaluator by the error of f32
/// functions alone: a few units in the last place. Only where that error falls on the boundary of
/// a rounding to a half float does the value flip to its neighbour, so most regions of half
/// floats are held as tightly, and no value may move by more than a flip or two.
pub fn smooth_ones_are_rounded_where_their_types_say_so<T: Target>(most_flipped: usize) {
    let flipped = AtomicUsize::new(0);
    each_seed(300, |seed| {
        let p = program(seed, Kind::Smooth);
        let fused = run::<T>(&p.fused, &p, seed, 4, PieceSize::Exact(ROWS));
        let (want, _) = evaluate(&p.fused, seed, Rounding::Typed);
        let worst = worst_error(&fused, &want);
        flipped.fetch_add(usize::from(worst > 1e-6), Ordering::Relaxed);
        assert!(worst <= 2.0 * FLIP, "seed {seed}: {worst}");
    });
    let flipped = flipped.into_inner();
    assert!(flipped <= most_flipped, "{flipped} of 300 regions have flipped values");
}

/// Without half floats a region is also near the value without any rounding.
pub fn smooth_ones_of_f32_are_near_the_exact_value<T: Target>() {
    each_seed(300, |seed| {
        let p = program(seed, Kind::SmoothF32);
        let fused = run::<T>(&p.fused, &p, seed, 4, PieceSize::Exact(ROWS));
        let (want, _) = evaluate(&p.fused, seed, Rounding::Exact);
        let worst = worst_error(&fused, &want);
        assert!(worst <= 1e-5, "seed {seed}: {worst}");
    });
}

/// `|a - b| / (1 + |b|)`; infinite for what is no number on one side alone.
fn relative_error((a, b): (&f64, &f64)) -> f64 {
    let error = (a - b).abs() / (1.0 + b.abs());
    if error.is_nan() { f64::INFINITY } else { error }
}

/// The largest error over every element of every output.
fn worst_error(got: &Run, want: &[Array]) -> f64 {
    let pairs = got.values.iter().zip(want).flat_map(|(got, want)| got.iter().zip(&want.data));
    pairs.map(relative_error).fold(0.0, f64::max)
}
