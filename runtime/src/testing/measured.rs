//! The fake device as it is measured: a command takes a microsecond.

use super::device::{FakeCaptured, FakeDevice, FakeProgram};
use piecewise_backend::compiler::Store;
use piecewise_backend::device::{Device, DeviceError};
use piecewise_backend::measure::{GraphShape, LaunchCounts, MeasuredDevice, ReadBandwidth};
use std::time::Duration;

impl MeasuredDevice for FakeDevice {
    type Mark = u64;

    fn model(&self) -> String {
        "fake".to_owned()
    }

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

    fn tune(
        &mut self,
        program: &FakeProgram,
        sizes: &[u64],
        store: &dyn Store,
    ) -> Result<(), DeviceError> {
        let problem = format!("{} at {sizes:?}", program.op);
        let key = piecewise_backend::artifact::Digest::of(problem.as_bytes());
        if !matches!(store.get("tuning", key), Ok(Some(_))) {
            self.tuned.push(problem);
            drop(store.put("tuning", key, &[], b"measured"));
        }
        Ok(())
    }

    fn read_bandwidth(&mut self) -> Result<ReadBandwidth, DeviceError> {
        Ok(ReadBandwidth { best: 1e9, median: 1e9, bytes: 1 << 20, passes: 1 })
    }
}
