//! The fake device as it is measured.

use super::device::FakeDevice;
use super::program::FakeCaptured;
use piecewise_backend::device::measure::{
    BlockTime, GraphTimes, LaunchCounts, MeasuredDevice, ReadBandwidth, StepPart,
};
use piecewise_backend::device::{Captured, DeviceError};
use std::time::Duration;

impl MeasuredDevice for FakeDevice {
    fn cache_bytes(&self) -> u64 {
        0
    }

    fn counts_free_bytes(&self) -> bool {
        true
    }

    fn launch_counts(&self) -> LaunchCounts {
        self.counts
    }

    /// A block for each launch, one after the other.
    fn block_times(&mut self, graph: &Captured) -> Result<Option<GraphTimes>, DeviceError> {
        let block = |i: u64| {
            let start = 10 * i;
            BlockTime { multiprocessor: 0, start, released: Some(start + 2), end: start + 9 }
        };
        let launches =
            (1..=graph.of::<FakeCaptured>()?.launches()).map(|i| vec![block(i)]).collect();
        Ok(Some(GraphTimes { multiprocessors: 1, launches }))
    }

    fn bare_submit(
        &mut self,
        parts: &[StepPart<'_>],
        _: &[u64],
    ) -> Result<Option<Duration>, DeviceError> {
        Ok(Some(Duration::from_micros(parts.len() as u64)))
    }

    fn read_bandwidth(&mut self) -> Result<ReadBandwidth, DeviceError> {
        Ok(ReadBandwidth { best: 1e9, median: 1e9, bytes: 1 << 20, passes: 1 })
    }
}
