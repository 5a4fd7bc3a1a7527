//! Rates of attention on the head sizes of a 0.6B model, and the time to sample a row.
//!
//! `cargo bench -p piecewise-kernels --bench attention [-- THREADS [ROUNDS]]`.
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark prints, and stops where it fails"
)]

use std::time::Instant;

use half::bf16;
use piecewise_kernels::cpu::attention::{
    Attention, AttentionShape, Keys, PAGE_ROWS, attention_scratch_bytes,
};
use piecewise_kernels::cpu::sampling::{SampleArgs, sample, sample_scratch_bytes};
use piecewise_kernels::cpu::{self, FloatSlice, FloatSliceMut, Isa};

const SHAPE: AttentionShape =
    AttentionShape { q_heads: 16, kv_heads: 8, head_dim: 128, value_dim: 128 };
const VOCABULARY: usize = 151_936;

fn main() {
    let mut numbers = std::env::args().skip(1).filter_map(|a| a.parse::<usize>().ok());
    let threads = numbers.next().unwrap_or(4);
    let rounds = numbers.next().unwrap_or(10);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    pool.install(|| {
        println!("isa {}, {threads} threads", Isa::detected());
        for (sequences, queries, length) in
            [(1, 1, 4096), (8, 1, 2048), (32, 1, 512), (1, 512, 512), (1, 2048, 2048)]
        {
            attention(sequences, queries, length, threads, rounds);
        }
        for (name, temperature, top_k, top_p) in [
            ("greedy", 0.0, 0, 1.0),
            ("temperature", 1.0, 0, 1.0),
            ("top-k 50", 1.0, 50, 1.0),
            ("top-p 0.95", 1.0, 0, 0.95),
        ] {
            sampling(name, temperature, top_k, top_p, rounds);
        }
    });
}

fn attention(sequences: usize, queries: usize, length: usize, threads: usize, rounds: usize) {
    let blocks = length.div_ceil(PAGE_ROWS);
    let row = SHAPE.kv_heads * SHAPE.head_dim;
    let value = |i: usize| bf16::from_f32((i % 61) as f32 / 61.0 - 0.5);
    let pool: Vec<bf16> = (0..sequences * blocks * PAGE_ROWS * row).map(value).collect();
    let values = pool.clone();
    let wide = SHAPE.q_heads * SHAPE.head_dim;
    let q: Vec<bf16> = (0..sequences * queries * wide).map(value).collect();
    let mut out = vec![bf16::ZERO; q.len()];
    let table: Vec<i32> = (0..(sequences * blocks) as i32).rev().collect();
    let seq_lens = vec![length as i32; sequences];
    let query_start: Vec<i32> = (0..=sequences).map(|s| (s * queries) as i32).collect();
    let mut scratch = scratch(attention_scratch_bytes(SHAPE, threads));
    let seconds = best(rounds, || {
        let call = Attention {
            shape: SHAPE,
            q: FloatSlice::Bf16(&q),
            k: FloatSlice::Bf16(&pool),
            v: FloatSlice::Bf16(&values),
            query_start: &query_start,
            keys: Keys::Paged { block_table: &table, max_blocks: blocks, lengths: &seq_lens },
            scale: 0.088,
            causal: true,
            window: None,
            softcap: None,
            sinks: None,
        };
        let out = FloatSliceMut::Bf16(&mut out);
        cpu::attention::attention(Isa::detected(), &call, out, aligned(&mut scratch)).unwrap();
    });
    let seen: usize = (0..queries).map(|j| length - queries + j + 1).sum::<usize>() * sequences;
    let flops = (4 * seen * SHAPE.q_heads * SHAPE.head_dim) as f64;
    let bytes = (2 * 2 * sequences * length * row) as f64;
    println!(
        "{sequences:>3} sequences of {queries:>4} queries and {length:>4} positions: {:>8.0} us, {:>6.1} GFLOP/s, {:>5.1} GB/s",
        seconds * 1e6,
        flops / seconds / 1e9,
        bytes / seconds / 1e9
    );
}

fn sampling(name: &str, temperature: f32, top_k: i32, top_p: f32, rounds: usize) {
    let logits: Vec<f32> =
        (0..VOCABULARY).map(|i| ((i * 7919) % 10_007) as f32 / 10_007.0 * 20.0).collect();
    let mut scratch = scratch(sample_scratch_bytes(VOCABULARY, false, 1));
    let seconds = best(rounds, || {
        let args = SampleArgs {
            logits: &logits,
            vocabulary: VOCABULARY,
            temperature: &[temperature],
            top_k: &[top_k],
            top_p: &[top_p],
            seed: &[1],
            position: &[1],
            controls: None,
            out: &mut [0],
            scratch: aligned(&mut scratch),
        };
        sample(Isa::detected(), args).unwrap();
    });
    println!("sample {name:>12}: {:>8.0} us a row of {VOCABULARY}", seconds * 1e6);
}

fn scratch(bytes: usize) -> Vec<u8> {
    vec![0; bytes + 64]
}

fn aligned(scratch: &mut [u8]) -> &mut [u8] {
    let start = scratch.as_ptr().align_offset(64);
    &mut scratch[start..]
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
