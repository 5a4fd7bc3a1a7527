//! Faults of the fake device.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

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
    /// A replay keeps its caller for a millisecond.
    pub slow_replays: Arc<AtomicBool>,
    /// So does a launch.
    pub slow_launches: Arc<AtomicBool>,
}
