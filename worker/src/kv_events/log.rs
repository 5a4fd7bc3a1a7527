//! What was published last, for all that read it: one ring, in which each has a place of its own.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// A batch of events with its number.
pub(super) type Batch = (u64, Arc<[u8]>);

/// A reader has so many batches in hand at most.
const HANDFUL: usize = 64;
/// And so many bytes of them, unless one alone has more: they stay for it when the log keeps them no longer.
const HANDFUL_BYTES: usize = 1 << 20;

/// The last batches.
#[derive(Debug)]
pub(super) struct EventLog {
    kept_batches: usize,
    kept_bytes: usize,
    kept: Mutex<Kept>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Kept {
    /// The number of the next batch.
    next: u64,
    /// Those before it, without a gap.
    batches: VecDeque<Arc<[u8]>>,
    bytes: usize,
}

impl Kept {
    /// Some from a number on, or from the oldest that is kept.
    fn from(&self, number: u64) -> Vec<Batch> {
        let oldest = self.next - self.batches.len() as u64;
        let skipped = number.saturating_sub(oldest) as usize;
        let mut bytes = 0;
        let numbered = (oldest..).zip(&self.batches).skip(skipped).take(HANDFUL);
        let few = numbered.take_while(|(_, batch)| {
            let is_first = bytes == 0;
            bytes += batch.len();
            is_first || bytes <= HANDFUL_BYTES
        });
        few.map(|(number, batch)| (number, Arc::clone(batch))).collect()
    }
}

impl EventLog {
    /// A log that keeps so many batches, of so many bytes in all, and one at least: that which is being sent.
    pub(super) fn new(kept_batches: usize, kept_bytes: usize) -> Self {
        Self { kept_batches, kept_bytes, kept: Mutex::default(), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn push(&self, batch: Arc<[u8]>) {
        let mut kept = self.lock();
        kept.bytes += batch.len();
        kept.batches.push_back(batch);
        kept.next += 1;
        while kept.batches.len() > 1
            && (kept.batches.len() > self.kept_batches || kept.bytes > self.kept_bytes)
        {
            let oldest = kept.batches.pop_front();
            kept.bytes -= oldest.map_or(0, |batch| batch.len());
        }
        drop(kept);
        self.wake();
    }

    /// The number of the batch that comes next.
    pub(super) fn next(&self) -> u64 {
        self.lock().next
    }

    /// Some batches from a number on; none where there is none that is kept.
    pub(super) fn from(&self, number: u64) -> Vec<Batch> {
        self.lock().from(number)
    }

    /// As [`Self::from`], once there is one. `None` where `is_over`, which is looked at whenever
    /// somebody calls [`Self::wake`].
    pub(super) fn wait(&self, number: u64, is_over: impl Fn() -> bool) -> Option<Vec<Batch>> {
        let waits = |kept: &mut Kept| kept.next <= number && !is_over();
        let kept = self.changed.wait_while(self.lock(), waits);
        let batches = kept.unwrap_or_else(PoisonError::into_inner).from(number);
        (!batches.is_empty()).then_some(batches)
    }

    pub(super) fn wake(&self) {
        // Whoever looks at what has changed holds the lock until it waits.
        drop(self.lock());
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(batches: &[Batch]) -> Vec<u64> {
        batches
            .iter()
            .map(|(number, batch)| (*number, batch[0]))
            .map(|(n, b)| {
                assert_eq!(n, u64::from(b));
                n
            })
            .collect()
    }

    #[test]
    fn who_is_too_slow_goes_on_from_the_oldest_that_is_kept() {
        let log = EventLog::new(3, usize::MAX);
        assert!(log.from(0).is_empty());
        for n in 0..5_u8 {
            log.push([n].into());
        }
        assert_eq!(numbers(&log.from(0)), [2, 3, 4]);
        assert_eq!(numbers(&log.from(4)), [4]);
        assert_eq!((log.from(5).len(), log.from(9).len(), log.next()), (0, 0, 5));
        assert_eq!(numbers(&log.wait(3, || false).unwrap()), [3, 4]);
        assert_eq!(log.wait(5, || true), None);
    }

    #[test]
    fn what_is_kept_is_bounded_by_its_bytes_too() {
        let log = EventLog::new(100, 10);
        for n in 0..5_u8 {
            log.push([n; 4].into());
        }
        assert_eq!(numbers(&log.from(0)), [3, 4]);
        // The last is kept whatever it has, and a small one does not keep it.
        log.push([5; 11].into());
        assert_eq!(numbers(&log.from(0)), [5]);
        log.push([6].into());
        assert_eq!((numbers(&log.from(0)), log.lock().bytes), (vec![6], 1));
    }

    #[test]
    fn what_a_reader_has_in_hand_is_bounded_by_its_bytes_too() {
        let log = EventLog::new(100, usize::MAX);
        for (n, bytes) in (0..).zip([HANDFUL_BYTES / 2, HANDFUL_BYTES / 2, 1, 2 * HANDFUL_BYTES, 1])
        {
            log.push(vec![n; bytes].into());
        }
        let handfuls = [0, 2, 3, 4].map(|from| numbers(&log.from(from)));
        assert_eq!(handfuls, [vec![0, 1], vec![2], vec![3], vec![4]]);
    }

    #[test]
    fn who_waits_is_woken_by_what_comes_and_by_its_end() {
        let log = EventLog::new(3, usize::MAX);
        let over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let is_over = || over.load(std::sync::atomic::Ordering::SeqCst);
                let first = log.wait(0, is_over).map(|batches| numbers(&batches));
                (first, log.wait(1, is_over))
            });
            log.push([0].into());
            over.store(true, std::sync::atomic::Ordering::SeqCst);
            log.wake();
            assert_eq!(waits.join().unwrap(), (Some(vec![0]), None));
        });
    }
}
