//! Bandwidth of few-row products against the read bandwidth of the machine, and the rate of
//! many-row products. (Beside another library: `benches/candle`.)
//!
//! `cargo bench -p piecewise-kernels --bench gemv [-- THREADS [ROUNDS]]`. Weights rotate through
//! more copies than caches hold, as the layers of a model do.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark prints, and may stop")]

use std::hint::black_box;
use std::time::Instant;

use half::bf16;
use piecewise_ir::dtype::DType;
use piecewise_kernels::cpu::matmul::{MatmulArgs, MatmulProblem, matmul, matmul_scratch_bytes};
use piecewise_kernels::cpu::{FloatSlice, FloatSliceMut, Isa};
use rayon::prelude::*;

/// Bytes that weights rotate through: well past the last-level cache's share.
const POOL_BYTES: usize = 1 << 30;

fn main() {
    let mut numbers = std::env::args().skip(1).filter_map(|a| a.parse::<usize>().ok());
    let threads = numbers.next().unwrap_or(4);
    let rounds = numbers.next().unwrap_or(5);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    pool.install(|| run(threads, rounds));
}

fn run(threads: usize, rounds: usize) {
    let isa = Isa::detected();
    let weights: Vec<bf16> =
        (0..POOL_BYTES / 2).map(|i| bf16::from_f32((i % 251) as f32 / 251.0 - 0.5)).collect();
    println!("isa {isa}, {threads} threads; read bandwidth measured in turn with each case");

    println!("{:>8} {:>6} {:>3} {:>9} {:>9} {:>7}", "n", "k", "m", "GB/s", "read", "share");
    for (n, k) in [(4096, 1024), (1024, 2048), (6144, 1024), (1024, 3072), (151_936, 1024)] {
        for m in [1, 2, 4, 8] {
            let problem = MatmulProblem::linear(m, n, k, DType::BF16, DType::BF16, DType::BF16);
            let mut call = Call::new(isa, problem, threads);
            let layers = weights.len() / (n * k);
            let (mut read, mut ours) = (f64::INFINITY, f64::INFINITY);
            for _ in 0..rounds {
                read = read.min(best(1, || read_all(&weights)));
                ours = ours.min(best(1, || {
                    for layer in 0..layers {
                        call.run(&weights[layer * n * k..][..n * k]);
                    }
                }));
            }
            let read = POOL_BYTES as f64 / read / 1e9;
            let rate = (layers * n * k * 2) as f64 / ours / 1e9;
            let share = 100.0 * rate / read;
            println!("{n:>8} {k:>6} {m:>3} {rate:>9.1} {read:>9.1} {share:>6.0}%");
        }
    }

    println!("{:>8} {:>6} {:>5} {:>9}", "n", "k", "m", "GFLOP/s");
    for (n, k) in [(4096, 1024), (1024, 3072)] {
        for m in [16, 32, 64, 256, 1024] {
            let problem = MatmulProblem::linear(m, n, k, DType::BF16, DType::BF16, DType::BF16);
            let mut call = Call::new(isa, problem, threads);
            let flops = (2 * m * n * k) as f64 / 1e9;
            let ours = flops / best(rounds, || call.run(&weights[..n * k]));
            println!("{n:>8} {k:>6} {m:>5} {ours:>9.1}");
        }
    }
}

struct Call {
    isa: Isa,
    problem: MatmulProblem,
    x: Vec<bf16>,
    y: Vec<bf16>,
    scratch: Vec<[u64; 8]>,
}

impl Call {
    fn new(isa: Isa, problem: MatmulProblem, threads: usize) -> Call {
        let bytes = matmul_scratch_bytes(&problem, threads);
        Call {
            isa,
            problem,
            x: vec![bf16::from_f32(0.25); problem.m * problem.k],
            y: vec![bf16::ZERO; problem.m * problem.n],
            scratch: vec![[0; 8]; bytes.div_ceil(64) + 1],
        }
    }

    fn run(&mut self, w: &[bf16]) {
        let scratch: &mut [u8] = bytemuck::cast_slice_mut(&mut self.scratch);
        let start = scratch.as_ptr().align_offset(64);
        let args = MatmulArgs {
            problem: self.problem,
            rows: self.problem.m,
            a: FloatSlice::Bf16(&self.x),
            b: FloatSlice::Bf16(w),
            out: FloatSliceMut::Bf16(&mut self.y),
            scratch: &mut scratch[start..],
        };
        matmul(self.isa, args).unwrap();
    }
}

/// Reads every byte with eight independent sums, which the compiler keeps in vector registers.
fn read_all(data: &[bf16]) {
    let words: &[u64] = bytemuck::cast_slice(data);
    let sums = words.par_chunks(1 << 15).map(|chunk| {
        let mut sums = [0u64; 32];
        for words in chunk.chunks_exact(32) {
            for (sum, word) in sums.iter_mut().zip(words) {
                *sum ^= *word;
            }
        }
        sums.iter().fold(0, |a, b| a ^ b)
    });
    black_box(sums.reduce(|| 0, |a, b| a ^ b));
}

fn best(rounds: usize, mut work: impl FnMut()) -> f64 {
    (0..rounds)
        .map(|_| {
            let start = Instant::now();
            work();
            start.elapsed().as_secs_f64()
        })
        .fold(f64::INFINITY, f64::min)
}
