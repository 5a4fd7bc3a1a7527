//! The host's time: the system's, unless a test says how it passes. It is the clock of the drivers and
//! devices here.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

thread_local! {
    static HELD: RefCell<Option<Clock>> = const { RefCell::new(None) };
}

/// The time of a thread that holds it, for others that work for that thread. Clones are the same.
#[derive(Clone, Debug)]
pub struct Clock(Arc<Mutex<Instant>>);

impl Clock {
    fn now(&self) -> Instant {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// So much time passes for the thread that holds it.
    pub fn pass(&self, time: Duration) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) += time;
    }
}

/// What time it is on this thread.
pub fn now() -> Instant {
    HELD.with_borrow(|held| held.as_ref().map_or_else(Instant::now, Clock::now))
}

/// From now on no time passes on this thread but what it is told to.
pub fn hold() -> Clock {
    let clock = Clock(Arc::new(Mutex::new(now())));
    HELD.set(Some(clock.clone()));
    clock
}

/// So much time passes: at once where it is held, or else as it does.
pub fn pass(time: Duration) {
    HELD.with_borrow(|held| match held {
        Some(clock) => clock.pass(time),
        None => std::thread::sleep(time),
    });
}
