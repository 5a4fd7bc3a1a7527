//! Requests on their way to the engine, which a drain waits for.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Counts requests whose replies' constraints are being made.
#[derive(Debug, Default)]
pub(crate) struct Preparing {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    count: usize,
    is_leaving: bool,
}

impl Preparing {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more, unless the worker takes no more.
    pub(crate) fn begin(&self) -> bool {
        let mut inner = self.lock();
        inner.count += usize::from(!inner.is_leaving);
        !inner.is_leaving
    }

    /// One less; returns whether the engine is to drain now.
    pub(crate) fn end(&self) -> bool {
        let mut inner = self.lock();
        inner.count -= 1;
        inner.is_leaving && inner.count == 0
    }

    /// There will be no more; returns whether the engine is to drain now.
    pub(crate) fn leave(&self) -> bool {
        let mut inner = self.lock();
        inner.is_leaving = true;
        inner.count == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_engine_drains_once_what_was_being_prepared_has_come_to_it() {
        let preparing = Preparing::default();
        assert!(preparing.begin() && preparing.begin());
        assert!(!preparing.end());
        assert!(!preparing.leave(), "one is still on its way");
        assert!(!preparing.begin(), "it takes no more");
        assert!(preparing.end());
        assert!(preparing.leave(), "a second signal finds nobody");
    }
}
