//! What the thread and those who ask it have in common.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};

/// How far the thread's life has come.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Phase {
    /// It takes requests.
    Serving,
    /// It ends those that are there, and takes no more.
    Draining,
    /// It is about to end.
    Stopping,
    /// It has ended.
    Stopped,
}

impl Phase {
    const ALL: [Self; 4] = [Self::Serving, Self::Draining, Self::Stopping, Self::Stopped];
}

#[derive(Debug)]
pub(super) struct Shared {
    phase: AtomicU8,
    /// Requests that are there, on their way to the thread among them.
    live: AtomicUsize,
    pub(super) bound: usize,
    next_key: AtomicU64,
}

impl Shared {
    pub(super) fn new(bound: usize) -> Self {
        Self {
            phase: AtomicU8::new(Phase::Serving as u8),
            live: AtomicUsize::new(0),
            bound,
            next_key: AtomicU64::new(0),
        }
    }

    pub(super) fn phase(&self) -> Phase {
        Phase::ALL[usize::from(self.phase.load(Ordering::Acquire))]
    }

    /// Life goes one way.
    pub(super) fn advance(&self, to: Phase) {
        self.phase.fetch_max(to as u8, Ordering::AcqRel);
    }

    pub(super) fn live(&self) -> usize {
        self.live.load(Ordering::Relaxed)
    }

    /// Places for so many more requests, or nothing where they go past the bound.
    pub(super) fn take_places(self: &Arc<Self>, count: usize) -> Option<Vec<Place>> {
        let more = |live: usize| live.checked_add(count).filter(|&live| live <= self.bound);
        self.live.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        let first = self.next_key.fetch_add(count as u64, Ordering::Relaxed);
        let place = |i| Place { key: first + i as u64, shared: Arc::clone(self) };
        Some((0..count).map(place).collect())
    }
}

/// The place of a request among those that may be there; free again when it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    /// Whose: no other request has the same.
    pub(super) key: u64,
    shared: Arc<Shared>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.shared.live.fetch_sub(1, Ordering::Relaxed);
    }
}
