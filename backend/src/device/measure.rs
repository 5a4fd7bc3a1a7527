//! What a benchmark asks of a device beyond running models: what it counted, and how fast it reads
//! memory.

use super::error::DeviceError;
use super::handles::{Captured, Program};
use std::collections::BTreeMap;
use std::time::Duration;

/// What a device enqueued since it was opened. Captures and the making of weights do not count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, derive_more::Sub, serde::Serialize)]
pub struct LaunchCounts {
    /// Captured graphs that were launched.
    pub graph_launches: u64,
    /// Launches outside a graph; a matmul of a library is one, whatever it launches.
    pub plain_launches: u64,
    /// Nodes of the graphs that were launched, as the driver tells them.
    pub graph_nodes: u64,
    /// Their edges whose consumer may start before its producer ends.
    pub programmatic_edges: u64,
}

impl LaunchCounts {
    /// What came since `before`, an earlier count of the same device.
    pub fn since(self, before: Self) -> Self {
        self - before
    }
}

/// A part of a step, as it is submitted.
#[derive(Debug)]
pub enum StepPart<'a> {
    /// A captured graph, replayed.
    Replay(&'a Captured),
    /// A program, launched.
    Launch(&'a Program),
}

/// Where and when a block of a kernel ran: nanoseconds of a clock that all multiprocessors share.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
pub struct BlockTime {
    /// Number of the multiprocessor that it ran on.
    pub multiprocessor: u32,
    /// When its first warp began.
    pub start: u64,
    /// When its last warp had waited for the kernels before it; `None` where it did not wait.
    pub released: Option<u64>,
    /// When its last warp ended.
    pub end: u64,
}

/// What the blocks of a captured graph noted at its last replay.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GraphTimes {
    /// How many multiprocessors the device has.
    pub multiprocessors: u32,
    /// For each launch in order, its blocks by their place in the grid, x fastest; none where
    /// nothing is known of a launch: one of a library, or of a kernel that notes nothing.
    pub launches: Vec<Vec<BlockTime>>,
}

/// How fast a device reads its memory.
#[derive(Clone, Copy, PartialEq, Debug, serde::Serialize)]
pub struct ReadBandwidth {
    /// Bytes per second of the fastest pass.
    pub best: f64,
    /// Bytes per second of the median pass.
    pub median: f64,
    /// Bytes that a pass reads, each once.
    pub bytes: u64,
    /// How often memory was read for the figures.
    pub passes: usize,
}

impl ReadBandwidth {
    /// From the times of passes over `bytes` bytes; `None` without any.
    pub fn of(bytes: u64, mut passes: Vec<Duration>) -> Option<Self> {
        passes.sort_unstable();
        let rate = |time: &Duration| bytes as f64 / time.as_secs_f64().max(1e-9);
        let best = rate(passes.first()?);
        let median = rate(&passes[passes.len() / 2]);
        Some(Self { best, median, bytes, passes: passes.len() })
    }
}

/// Versions by the name of what has them.
pub type Versions = BTreeMap<&'static str, String>;

/// What a device tells benchmarks of itself.
pub trait MeasuredDevice {
    /// Versions of what its figures depend on besides this program: its driver, its libraries. None
    /// where there is nothing of that kind.
    fn versions(&self) -> Versions {
        Versions::new()
    }

    /// Bytes of its last cache: what is smaller may not come from memory. 0 where unknown.
    fn cache_bytes(&self) -> u64;

    /// Whether its free bytes are what its driver counts, and not an estimate.
    fn counts_free_bytes(&self) -> bool;

    /// What it enqueued so far.
    fn launch_counts(&self) -> LaunchCounts;

    /// What the blocks of a graph noted at its last replay, which this waits for; `None` where the
    /// device notes nothing.
    ///
    /// # Errors
    /// When work before it failed.
    fn block_times(&mut self, graph: &Captured) -> Result<Option<GraphTimes>, DeviceError>;

    /// Enqueues the parts of a step at these padded sizes by the driver's calls alone, prepared
    /// before, and says how long the calls took on the host; waits for the work. Launches of a host
    /// function are left out, since nobody knows what they call. `None` where there is no driver.
    ///
    /// # Errors
    /// When a call fails.
    fn bare_submit(
        &mut self,
        parts: &[StepPart<'_>],
        sizes: &[u64],
    ) -> Result<Option<Duration>, DeviceError>;

    /// Reads random bytes, several times what its caches hold, from end to end, several times.
    ///
    /// # Errors
    /// When memory is short or the driver refuses.
    fn read_bandwidth(&mut self) -> Result<ReadBandwidth, DeviceError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bandwidth_is_of_the_fastest_and_of_the_middle_pass() {
        let ms = Duration::from_millis;
        let found = ReadBandwidth::of(1000, vec![ms(4), ms(1), ms(2)]).unwrap();
        assert_eq!((found.best, found.median, found.passes), (1e6, 5e5, 3));
        assert_eq!(ReadBandwidth::of(1000, Vec::new()), None);
    }

    #[test]
    fn counts_are_differences() {
        let counts = |n| LaunchCounts {
            graph_launches: n,
            plain_launches: 2 * n,
            graph_nodes: 3 * n,
            programmatic_edges: 4 * n,
        };
        assert_eq!(counts(5).since(counts(3)), counts(2));
    }
}
