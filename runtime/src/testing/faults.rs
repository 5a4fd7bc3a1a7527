//! Faults of the fake device.

use piecewise_backend::device::DeviceError;
use piecewise_testing::host_time;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Faults to plant, and counts; shared with the test.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults {
    /// So many captures to come fail.
    pub failing_captures: Arc<AtomicU64>,
    /// Captures hold `test.mix`'s block table at another address.
    pub wrong_address: Arc<AtomicBool>,
    /// Replays of `test.head` write another logit than launches.
    pub wrong_replay: Arc<AtomicBool>,
    /// Replays of `test.head` find their rows as in a uniform batch of the captured sizes.
    pub rows_of_uniform: Arc<AtomicBool>,
    /// Captures of `test.mix` keep the block table that they find.
    pub baked_table: Arc<AtomicBool>,
    /// The replay that is so many away is refused; 0 is off.
    pub failing_replay: Arc<AtomicU64>,
    /// The launch that is so many away fails; 0 is off.
    pub failing_launch: Arc<AtomicU64>,
    /// The event that is so many away is not recorded; 0 is off.
    pub failing_record: Arc<AtomicU64>,
    /// The write that is so many away fails; 0 is off.
    pub failing_write: Arc<AtomicU64>,
    /// The time that is so many away can't be read; 0 is off.
    pub failing_elapsed: Arc<AtomicU64>,
    /// The wait that is so many away finds the device lost; 0 is off.
    pub losing_wait: Arc<AtomicU64>,
    /// Nothing waits: what is submitted runs later than the host believes.
    pub missing_wait: Arc<AtomicBool>,
    /// So many attempts to open the device anew fail.
    pub failing_reopens: Arc<AtomicU64>,
    /// `test.mix` reads one row past the sequence's length.
    pub read_past_length: Arc<AtomicBool>,
    /// `test.head` gives the next row that samples for this position no id; 0 is off.
    pub no_id_at: Arc<AtomicU64>,
    /// A replay keeps its caller for a millisecond of the host's time.
    pub slow_replays: Arc<AtomicBool>,
    /// So does a launch.
    pub slow_launches: Arc<AtomicBool>,
}

/// Whether a fault strikes now: it is counted down.
pub(super) fn is_due(left: &AtomicU64) -> bool {
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)) == Ok(1)
}

/// Lets time pass where a fault makes a call slow.
pub(super) fn keep_caller(is_slow: &AtomicBool) {
    if is_slow.load(Ordering::Relaxed) {
        host_time::pass(Duration::from_millis(1));
    }
}

/// Fails where a fault strikes now.
pub(super) fn check_due(left: &AtomicU64, action: &str) -> Result<(), DeviceError> {
    let (action, reason) = (action.to_owned(), "a planted fault".to_owned());
    if is_due(left) { Err(DeviceError::Driver { action, reason }) } else { Ok(()) }
}
