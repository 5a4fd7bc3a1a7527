//! How fast this machine reads memory.

use rayon::iter::{IndexedParallelIterator, IntoParallelIterator, ParallelIterator};
use rayon::slice::ParallelSliceMut;
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Several times any cache.
const BYTES: usize = 1 << 30;
/// What a thread takes at a time, so that none waits for a slower one.
const BLOCK: usize = 1 << 20;

/// A buffer far larger than the caches, that is read from end to end.
pub struct Bandwidth<'p> {
    buffer: Vec<u64>,
    pool: &'p rayon::ThreadPool,
    rates: Vec<f64>,
}

impl<'p> Bandwidth<'p> {
    pub fn new(pool: &'p rayon::ThreadPool) -> Self {
        let mut buffer = vec![0u64; BYTES / 8];
        pool.install(|| {
            let blocks = buffer.par_chunks_mut(BLOCK / 8);
            blocks.for_each(|block| block.iter_mut().enumerate().for_each(|(i, x)| *x = i as u64));
        });
        Self { buffer, pool, rates: Vec::new() }
    }

    /// Reads the buffer once with every thread of the pool, and notes how fast.
    pub fn pass(&mut self) {
        let Self { buffer, pool, rates } = self;
        let blocks: Vec<&[u64]> = buffer.chunks(BLOCK / 8).collect();
        let next = AtomicUsize::new(0);
        let started = Instant::now();
        let total = pool.install(|| {
            (0..pool.current_num_threads())
                .into_par_iter()
                .with_max_len(1)
                .map(|_| {
                    let mut total = 0u64;
                    while let Some(block) = blocks.get(next.fetch_add(1, Ordering::Relaxed)) {
                        total = total.wrapping_add(sum(block));
                    }
                    total
                })
                .reduce(|| 0, u64::wrapping_add)
        });
        black_box(total);
        rates.push(BYTES as f64 / started.elapsed().as_secs_f64() / 1e9);
    }

    /// Billions of bytes per second: the rate that `percent` of the passes do not exceed.
    pub fn gb_per_s(&self, percent: usize) -> f64 {
        let mut sorted = self.rates.clone();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().saturating_sub(1);
        sorted.get(last * percent / 100).copied().unwrap_or(0.0)
    }

    /// Passes so far.
    pub fn passes(&self) -> usize {
        self.rates.len()
    }
}

/// Eight streams within the block, as many as a matrix product of one row reads.
fn sum(block: &[u64]) -> u64 {
    let stream = block.len() / 8;
    let streams: [&[u64]; 8] = std::array::from_fn(|i| &block[i * stream..(i + 1) * stream]);
    let mut lanes = [[0u64; 8]; 8];
    for at in (0..stream - stream % 8).step_by(8) {
        for (lanes, stream) in lanes.iter_mut().zip(streams) {
            for (lane, x) in lanes.iter_mut().zip(&stream[at..at + 8]) {
                *lane = lane.wrapping_add(*x);
            }
        }
    }
    lanes.iter().flatten().fold(0, |a, b| a.wrapping_add(*b))
}
