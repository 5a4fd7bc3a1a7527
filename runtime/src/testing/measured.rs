//! The fake device as it is measured: a command takes a microsecond.

use super::device::{FakeCaptured, FakeDevice};
use piecewise_backend::device::{Device, DeviceError};
use piecewise_backend::measure::{GraphShape, LaunchCounts, MeasuredDevice, ReadBandwidth};
use std::time::Duration;

impl MeasuredDevice for FakeDevice {
    type Mark = u64;

    fn cache_bytes(&self) -> u64 {
        0
    }

    fn counts_free_bytes(&self) -> bool {
        true
    }

    fn mark(&mut self) -> Result<u64, DeviceError> {
        self.record()
    }

    fn elapsed(&mut self, start: &u64, end: &u64) -> Result<Duration, DeviceError> {
        self.wait(end)?;
        Ok(Duration::from_micros(end - start))
    }

    fn launch_counts(&self) -> LaunchCounts {
        self.counts
    }

    fn graph_shape(&self, graph: &FakeCaptured) -> GraphShape {
        let launches = graph.launches();
        GraphShape { launches, nodes: launches, programmatic_edges: 0 }
    }

    fn read_bandwidth(&mut self) -> Result<ReadBandwidth, DeviceError> {
        Ok(ReadBandwidth { best: 1e9, median: 1e9, bytes: 1 << 20, passes: 1 })
    }
}
