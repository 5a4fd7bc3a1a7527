//! Spreading blocks over the team that the thread leads, or the current rayon pool.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::team;
use rayon::iter::{IndexedParallelIterator, IntoParallelIterator, ParallelIterator};

/// Threads of the pool that a parallel call made here would use.
pub(crate) fn pool_threads() -> usize {
    rayon::current_num_threads().max(1)
}

/// Calls `work(worker, block)` once for each block in `0..blocks`.
///
/// At most `workers` calls run at once, each with its own worker number in `0..workers`, which
/// names the part of the scratch it may use. One worker runs on the calling thread, without rayon.
pub(crate) fn for_each_block(workers: usize, blocks: usize, work: impl Fn(usize, usize) + Sync) {
    let workers = workers.min(blocks);
    if workers <= 1 {
        for block in 0..blocks {
            work(0, block);
        }
        return;
    }
    if team::run_led(workers, blocks, &work) {
        return;
    }
    let next = AtomicUsize::new(0);
    (0..workers).into_par_iter().with_max_len(1).for_each(|worker| {
        loop {
            let block = next.fetch_add(1, Ordering::Relaxed);
            if block >= blocks {
                break;
            }
            work(worker, block);
        }
    });
}
