//! When what failed is tried again.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The first pause.
const SHORTEST: Duration = Duration::from_secs(30);

/// No pause is longer.
const LONGEST: Duration = Duration::from_secs(10 * 60);

/// After a failure nothing is tried for 30 seconds; then one caller tries while the others go without.
/// Each further failure doubles the pause, to 10 minutes at most; a success ends it for all.
///
/// It is for what costs time or a warning at each try and may be back: a disk, a folder, a store.
#[derive(Debug)]
pub struct Pause {
    clock: fn() -> Instant,
    since: Mutex<Option<Failure>>,
}

#[derive(Clone, Copy, Debug)]
struct Failure {
    length: Duration,
    until: Instant,
    is_tried: bool,
}

impl Pause {
    /// No pause yet; `clock` tells what time it is, which is [`Instant::now`] but in tests.
    pub fn new(clock: fn() -> Instant) -> Self {
        Self { clock, since: Mutex::default() }
    }

    /// Whether nothing is tried now, without being the one who tries next.
    pub fn is_on(&self) -> bool {
        self.lock().is_some_and(|failure| failure.holds((self.clock)()))
    }

    /// The right to try; `None` during a pause, and while another caller tries after one.
    pub fn attempt(&self) -> Option<Attempt<'_>> {
        let mut since = self.lock();
        let is_first_after = match since.as_mut() {
            None => false,
            Some(failure) if failure.holds((self.clock)()) => return None,
            Some(failure) => {
                failure.is_tried = true;
                true
            }
        };
        Some(Attempt { pause: self, is_first_after })
    }

    /// Begins a pause for a failure that was no attempt's, unless one has begun.
    pub fn begin(&self) {
        self.failed(false);
    }

    fn failed(&self, is_first_after: bool) -> bool {
        let mut since = self.lock();
        let length = match *since {
            Some(_) if !is_first_after => return false,
            Some(failure) => LONGEST.min(failure.length * 2),
            None => SHORTEST,
        };
        *since = Some(Failure { length, until: (self.clock)() + length, is_tried: false });
        true
    }

    fn lock(&self) -> MutexGuard<'_, Option<Failure>> {
        self.since.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Failure {
    fn holds(self, now: Instant) -> bool {
        self.is_tried || now < self.until
    }
}

/// The right to try what may fail. Dropped without an outcome, it leaves the try to the next caller.
#[derive(Debug)]
#[must_use]
pub struct Attempt<'a> {
    pause: &'a Pause,
    /// Whether a pause is over and nobody else tries.
    is_first_after: bool,
}

impl Attempt<'_> {
    /// It works again, for all.
    pub fn succeeded(mut self) {
        if std::mem::take(&mut self.is_first_after) {
            *self.pause.lock() = None;
        }
    }

    /// It failed, and a pause begins. `false` if one has begun meanwhile: of several callers that fail
    /// at once, one is to report.
    pub fn failed(mut self) -> bool {
        self.pause.failed(std::mem::take(&mut self.is_first_after))
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if self.is_first_after
            && let Some(failure) = self.pause.lock().as_mut()
        {
            failure.is_tried = false;
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "what fails here fails a test")]
mod tests {
    use super::*;
    use std::cell::Cell;

    thread_local! {
        static NOW: Cell<Option<Instant>> = const { Cell::new(None) };
    }

    fn now() -> Instant {
        NOW.get().unwrap_or_else(|| {
            NOW.set(Some(Instant::now()));
            now()
        })
    }

    fn pass(seconds: u64) {
        NOW.set(Some(now() + Duration::from_secs(seconds)));
    }

    #[test]
    fn pauses_double_to_ten_minutes_and_a_success_ends_them() {
        let pause = Pause::new(now);
        pause.attempt().unwrap().succeeded();
        for round in 0..2 {
            assert!(pause.attempt().unwrap().failed());
            for seconds in [30, 60, 120, 240, 480, 600, 600] {
                assert!(pause.is_on() && pause.attempt().is_none());
                pass(seconds - 1);
                assert!(pause.is_on() && pause.attempt().is_none(), "{seconds} in round {round}");
                pass(1);
                assert!(!pause.is_on());
                assert!(pause.attempt().unwrap().failed());
            }
            pass(600);
            pause.attempt().unwrap().succeeded();
            assert!(!pause.is_on());
        }
    }

    #[test]
    fn after_a_pause_one_caller_tries_at_a_time() {
        let pause = Pause::new(now);
        pause.begin();
        pass(30);
        let first = pause.attempt().unwrap();
        assert!(pause.is_on() && pause.attempt().is_none());
        drop(first);
        let second = pause.attempt().unwrap();
        assert!(pause.attempt().is_none());
        second.succeeded();
        let both = [pause.attempt().unwrap(), pause.attempt().unwrap()];
        both.into_iter().for_each(Attempt::succeeded);
    }

    #[test]
    fn of_callers_that_fail_at_once_one_reports_and_late_ones_change_no_pause() {
        let pause = Pause::new(now);
        let [first, second, third, fourth] = [(); 4].map(|()| pause.attempt().unwrap());
        assert!(first.failed());
        assert!(!second.failed());
        pass(30);
        let probe = pause.attempt().unwrap();
        assert!(!third.failed(), "what began before the pause says nothing of now");
        fourth.succeeded();
        assert!(pause.is_on());
        assert!(probe.failed());
        pass(59);
        assert!(pause.is_on());
        pass(1);
        assert!(!pause.is_on());
    }
}
