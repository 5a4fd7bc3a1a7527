//! The processor as benchmarks see it: work is done when a call returns, so that the clock of the
//! host is the device's.

use super::device::CpuDevice;
use super::memory::free_bytes;
use crate::device::measure::{GraphTimes, LaunchCounts, MeasuredDevice, ReadBandwidth, StepPart};
use crate::device::{Captured, DeviceError};
use rayon::iter::{IndexedParallelIterator, IntoParallelIterator, ParallelIterator};
use rayon::slice::ParallelSliceMut;
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const PASSES: usize = 6;

/// What a thread takes at a time, so that none waits for a slower one.
const WORDS: usize = (1 << 20) / 8;

impl MeasuredDevice for CpuDevice {
    fn cache_bytes(&self) -> u64 {
        let folder = "/sys/devices/system/cpu/cpu0/cache";
        let sizes = (0..5).filter_map(|i| {
            let text = std::fs::read_to_string(format!("{folder}/index{i}/size")).ok()?;
            parse_size(text.trim())
        });
        sizes.max().unwrap_or(0)
    }

    fn counts_free_bytes(&self) -> bool {
        false
    }

    fn launch_counts(&self) -> LaunchCounts {
        self.counts
    }

    fn block_times(&mut self, _: &Captured) -> Result<Option<GraphTimes>, DeviceError> {
        Ok(None)
    }

    fn bare_submit(
        &mut self,
        _: &[StepPart<'_>],
        _: &[u64],
    ) -> Result<Option<Duration>, DeviceError> {
        Ok(None)
    }

    fn read_bandwidth(&mut self) -> Result<ReadBandwidth, DeviceError> {
        let wanted = (4 * self.cache_bytes()).clamp(256 << 20, 4 << 30);
        let bytes = wanted.min(free_bytes() / 4).next_multiple_of(1 << 20);
        let short = |reason: String| DeviceError::OutOfMemory {
            what: "what is read to measure the bandwidth".to_owned(),
            bytes,
            reason,
        };
        let mut buffer: Vec<u64> = Vec::new();
        buffer.try_reserve_exact((bytes / 8) as usize).map_err(|e| short(e.to_string()))?;
        buffer.resize((bytes / 8) as usize, 0);
        let pool = &self.pool;
        pool.install(|| {
            let blocks = buffer.par_chunks_mut(WORDS);
            blocks.for_each(|block| {
                block.iter_mut().enumerate().for_each(|(i, x)| *x = mixed(i as u64));
            });
        });
        // The first pass warms up.
        let times = (0..=PASSES).map(|_| pass_time(pool, &buffer)).skip(1).collect();
        ReadBandwidth::of(bytes, times).ok_or_else(|| short("no pass was timed".to_owned()))
    }
}

/// `48K`, `36864K` or `32M` in bytes.
fn parse_size(text: &str) -> Option<u64> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let factor = match unit {
        "" => 1,
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(factor)
}

fn mixed(i: u64) -> u64 {
    i.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Reads the buffer once with every thread of the pool.
fn pass_time(pool: &rayon::ThreadPool, buffer: &[u64]) -> Duration {
    let blocks: Vec<&[u64]> = buffer.chunks(WORDS).collect();
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
    started.elapsed()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_caches_are_read() {
        assert_eq!(parse_size("48K"), Some(48 << 10));
        assert_eq!(parse_size("32M"), Some(32 << 20));
        assert_eq!(parse_size("512"), Some(512));
        assert_eq!((parse_size("many"), parse_size("1T")), (None, None));
    }

    #[test]
    fn a_pass_reads_every_word() {
        let block: Vec<u64> = (0..WORDS as u64).map(mixed).collect();
        assert_eq!(sum(&block), block.iter().fold(0, |a: u64, b| a.wrapping_add(*b)));
    }
}
