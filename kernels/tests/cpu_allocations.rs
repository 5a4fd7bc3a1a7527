//! No CPU kernel allocates on the heap: a captured step is replayed under this rule.
//!
//! One test alone in its process, because it counts the allocations of every thread.
#![allow(
    unsafe_code,
    clippy::unwrap_used,
    reason = "a counting allocator implements an unsafe trait; a failed call fails the test"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use half::bf16;
use piecewise_ir::dtype::DType;
use piecewise_kernels::cpu::attention::{
    Attention, AttentionShape, Keys, attention, attention_scratch_bytes,
};
use piecewise_kernels::cpu::matmul::{MatmulArgs, MatmulProblem, matmul, matmul_scratch_bytes};
use piecewise_kernels::cpu::sampling::{SampleArgs, sample, sample_scratch_bytes};
use piecewise_kernels::cpu::{FloatSlice, FloatSliceMut, Isa, SCRATCH_ALIGN};

const CALLS: usize = 50;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: every call goes to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(p, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations_of(mut work: impl FnMut()) -> usize {
    work();
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    for _ in 0..CALLS {
        work();
    }
    ALLOCATIONS.load(Ordering::Relaxed) - before
}

struct Buffers {
    x: Vec<bf16>,
    w: Vec<bf16>,
    y: Vec<bf16>,
    wide: Vec<f32>,
    scratch: Vec<u8>,
}

const SHAPE: AttentionShape =
    AttentionShape { q_heads: 8, kv_heads: 4, head_dim: 64, value_dim: 64 };
const ROWS: usize = 64;

impl Buffers {
    fn scratch(&mut self) -> usize {
        self.scratch.as_ptr().align_offset(SCRATCH_ALIGN)
    }

    fn linear(&mut self, isa: Isa, rows: usize) {
        let bf16 = DType::BF16;
        let problem = MatmulProblem::linear(ROWS, 512, 512, bf16, bf16, bf16);
        let start = self.scratch();
        assert!(matmul_scratch_bytes(&problem, 4) + start <= self.scratch.len());
        let args = MatmulArgs {
            problem,
            rows,
            a: FloatSlice::Bf16(&self.x),
            b: FloatSlice::Bf16(&self.w),
            out: FloatSliceMut::Bf16(&mut self.y),
            scratch: &mut self.scratch[start..],
        };
        matmul(isa, args).unwrap();
    }

    fn attention(&mut self, isa: Isa) {
        let start = self.scratch();
        assert!(attention_scratch_bytes(SHAPE, 4) + start <= self.scratch.len());
        let paged = Attention {
            shape: SHAPE,
            q: FloatSlice::Bf16(&self.x),
            k: FloatSlice::Bf16(&self.w),
            v: FloatSlice::Bf16(&self.w),
            query_start: &[0, 30, 31],
            keys: Keys::Paged {
                block_table: &[3, 1, 2, 0, 4, 5, 6, 7],
                max_blocks: 4,
                lengths: &[64, 50],
            },
            scale: 0.125,
            causal: true,
            window: None,
            softcap: None,
            sinks: None,
        };
        let segments = Attention {
            query_start: &[0, 40, 64],
            keys: Keys::Segments { starts: &[0, 40], lengths: &[40, 24] },
            causal: false,
            window: Some(7),
            ..paged
        };
        for call in [paged, segments] {
            let out = FloatSliceMut::Bf16(&mut self.y);
            attention(isa, &call, out, &mut self.scratch[start..]).unwrap();
        }
    }

    fn sample(&mut self, isa: Isa) {
        let start = self.scratch();
        let vocabulary = self.wide.len() / 3;
        assert!(sample_scratch_bytes(vocabulary, false, 3) + start <= self.scratch.len());
        let args = SampleArgs {
            logits: &self.wide,
            vocabulary,
            temperature: &[0.0, 1.0, 1.0],
            top_k: &[0, 0, 50],
            top_p: &[1.0, 1.0, 0.9],
            seed: &[1, 2, 3],
            position: &[0, 1, 2],
            controls: None,
            out: &mut [0; 3],
            scratch: &mut self.scratch[start..],
        };
        sample(isa, args).unwrap();
    }
}

#[test]
fn no_kernel_allocates_on_any_thread() {
    let mut buffers = Buffers {
        x: vec![bf16::from_f32(0.5); ROWS * 512],
        w: vec![bf16::from_f32(0.25); 512 * 512],
        y: vec![bf16::ZERO; ROWS * 512],
        wide: (0..30_000).map(|i| (i % 97) as f32 * 0.1).collect(),
        scratch: vec![0; 4 << 20],
    };
    let probe = allocations_of(|| drop(std::hint::black_box(Box::new(1u8))));
    assert_eq!(probe, CALLS, "the counter must see allocations");
    let isa = Isa::detected();
    for threads in [1, 4] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let counts = pool.install(|| {
            [
                ("few rows", allocations_of(|| buffers.linear(isa, 3))),
                ("many rows", allocations_of(|| buffers.linear(isa, ROWS))),
                ("attention", allocations_of(|| buffers.attention(isa))),
                ("sample", allocations_of(|| buffers.sample(isa))),
            ]
        });
        // Rayon's workers each register with the epoch collector of their queues when they first
        // steal, whenever that happens; an allocation of ours would come with every call.
        let allowed = 4 * threads;
        assert!(allowed < CALLS);
        for (what, count) in counts {
            assert!(count <= allowed, "{what} made {count} allocations on {threads} threads");
        }
    }
}
