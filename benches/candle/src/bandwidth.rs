//! How fast this machine reads memory.

use rayon::iter::{IntoParallelRefIterator, ParallelIterator};
use rayon::slice::ParallelSlice;
use std::hint::black_box;
use std::time::Instant;

/// Bytes read in a pass: several times any cache.
const BYTES: usize = 2 << 30;
/// Passes, of which the median counts.
pub const PASSES: usize = 7;

/// Billions of bytes per second that `threads` threads read from a buffer far larger than the
/// caches, each its own contiguous part.
pub fn read_gb_per_s(pool: &rayon::ThreadPool, threads: usize) -> f64 {
    pool.install(|| {
        let mut buffer = vec![0u64; BYTES / 8];
        let part = buffer.len().div_ceil(threads);
        rayon::iter::ParallelIterator::for_each(
            rayon::slice::ParallelSliceMut::par_chunks_mut(&mut buffer[..], part),
            |part| part.iter_mut().enumerate().for_each(|(i, x)| *x = i as u64),
        );
        let parts: Vec<&[u64]> = buffer.par_chunks(part).collect();
        let mut rates: Vec<f64> = (0..PASSES)
            .map(|_| {
                let started = Instant::now();
                let sum = parts.par_iter().map(|part| sum(part)).reduce(|| 0, u64::wrapping_add);
                black_box(sum);
                BYTES as f64 / started.elapsed().as_secs_f64() / 1e9
            })
            .collect();
        rates.sort_by(f64::total_cmp);
        rates[rates.len() / 2]
    })
}

/// Eight independent streams within the part, as many as a matrix product of one row reads.
fn sum(part: &[u64]) -> u64 {
    let stream = part.len() / 8;
    let streams: [&[u64]; 8] = std::array::from_fn(|i| &part[i * stream..(i + 1) * stream]);
    let mut total = 0u64;
    for at in (0..stream - stream % 32).step_by(32) {
        for stream in streams {
            let chunk = &stream[at..at + 32];
            let mut lanes = [0u64; 8];
            for four in chunk.chunks_exact(8) {
                for (lane, x) in lanes.iter_mut().zip(four) {
                    *lane = lane.wrapping_add(*x);
                }
            }
            total = lanes.iter().fold(total, |a, b| a.wrapping_add(*b));
        }
    }
    total
}
