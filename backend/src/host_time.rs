//! The host's time, as steps and captures are timed by it: the system's, unless a test says how it passes.

use std::time::{Duration, Instant};

/// What time it is.
#[cfg(not(piecewise_testing))]
pub fn now() -> Instant {
    Instant::now()
}

/// So much time passes.
#[cfg(not(piecewise_testing))]
pub(crate) fn pass(time: Duration) {
    std::thread::sleep(time);
}

#[cfg(piecewise_testing)]
pub use held::{hold, now, pass};

/// The time since `start`.
pub fn since(start: Instant) -> Duration {
    now().saturating_duration_since(start)
}

#[cfg(piecewise_testing)]
mod held {
    use std::cell::Cell;
    use std::time::{Duration, Instant};

    thread_local! {
        static HELD: Cell<Option<Instant>> = const { Cell::new(None) };
    }

    /// What time it is on this thread.
    pub fn now() -> Instant {
        HELD.get().unwrap_or_else(Instant::now)
    }

    /// From now on no time passes on this thread but what it is told to.
    pub fn hold() {
        HELD.set(Some(now()));
    }

    /// So much time passes: at once where it is held, or else as it does.
    pub fn pass(time: Duration) {
        match HELD.get() {
            Some(now) => HELD.set(Some(now + time)),
            None => std::thread::sleep(time),
        }
    }
}
