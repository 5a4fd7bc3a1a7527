//! No heap allocation on the stepping thread between entry and return of launch and replay.
#![allow(clippy::unwrap_used, reason = "what fails here fails a test")]
#![allow(unsafe_code, reason = "an allocator that counts is an unsafe trait's implementation")]

mod harness;
#[path = "../../tests/support/skip.rs"]
mod skip;

use harness::random::{Kind, ROWS, program};
use harness::{Bench, compile, pattern, registry, unique};
use piecewise_backend::artifact::PieceSize;
use piecewise_backend::device::Device;
use piecewise_ir::dim::{Dim, SymbolDecl};
use piecewise_ir::dtype::DType::BF16;
use piecewise_ir::graph::{Graph, Loc};
use piecewise_ir::op::Op;
use piecewise_ir::types::TensorType;
use piecewise_kernels::step::{LaunchContext, StepContext};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call goes on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|n| n.set(n.get() + 1));
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|n| n.set(n.get() + 1));
        // SAFETY: the caller's promise.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations(run: impl FnOnce()) -> usize {
    let before = ALLOCATIONS.get();
    run();
    ALLOCATIONS.get() - before
}

#[test]
fn regions_allocate_nothing() {
    for seed in 0..40 {
        for unfused in [false, true] {
            let p = program(seed, Kind::Exact);
            let graph = if unfused { p.unfused } else { p.fused };
            let piece = unique(graph, Some(p.over));
            let mut bench = Bench::new(piece.clone(), registry(), 1);
            for input in piece.graph.inputs() {
                let ty = piece.graph.ty(input.value).clone();
                bench.write(input.value, &pattern(ty.dtype, &ty.dims(&[ROWS]), seed));
            }
            let artifact = compile(&piece, PieceSize::Exact(ROWS), &[ROWS]);
            let program = bench.bind(&artifact).unwrap();
            bench.set_counts(&[ROWS]);
            let graph = bench.device.capture("all", &[&program], &[ROWS]).unwrap();
            let step = StepContext { counts: &[ROWS], sizes: &[ROWS], inputs: &[] };
            let device = &mut bench.device;
            let launched = allocations(|| {
                device.launch(&program, LaunchContext::Step(&step)).unwrap();
            });
            let replayed = allocations(|| device.replay(&graph).unwrap());
            assert_eq!((launched, replayed), (0, 0), "seed {seed}");
        }
    }
}

/// Rayon's injector takes a block of slots at a time: what enters the pool from outside allocates
/// one block for every 63 entries (crossbeam-deque's `BLOCK_CAP`), and replay enters once.
const POOL_ENTRIES_PER_ALLOCATION: usize = 63;

#[test]
fn parallel_work_allocates_only_what_enters_the_pool() {
    let mut g = Graph::new("matmul");
    let t = g.add_symbol(SymbolDecl { name: "T".into(), min: 1, max: 64, role: None });
    let x = g.add_input("x", TensorType::new(BF16, [t.into(), Dim::from(256u64)]), None, None);
    let w = g.add_input("w", TensorType::new(BF16, [512u64, 256]), None, None);
    let out = TensorType::new(BF16, [t.into(), Dim::from(512u64)]);
    let op = Op::MatMul { transpose_lhs: false, transpose_rhs: true };
    let y = g.push(op, vec![x, w], out, Loc::default());
    g.set_outputs(vec![y]);
    let mut bench = Bench::new(unique(g, Some(t)), registry(), 4);
    bench.write(x, &pattern(BF16, &[64, 256], 1));
    bench.write(w, &pattern(BF16, &[512, 256], 2));
    let artifact = compile(&bench.piece, PieceSize::Exact(64), &[64]);
    let program = bench.bind(&artifact).unwrap();
    bench.set_counts(&[64]);
    let graph = bench.device.capture("all", &[&program], &[64]).unwrap();
    let device = &mut bench.device;
    // The first entry sets up this thread's latch.
    device.replay(&graph).unwrap();
    let replays = 10 * POOL_ENTRIES_PER_ALLOCATION;
    let counted = allocations(|| {
        for _ in 0..replays {
            device.replay(&graph).unwrap();
        }
    });
    assert!(counted <= 11, "{counted} allocations in {replays} replays");
}
