//! The fake device as it is measured.

use super::device::FakeDevice;
use super::program::{FakeCaptured, FakeProgram};
use piecewise_backend::device::DeviceError;
use piecewise_backend::measure::{
    BlockTime, GraphShape, GraphTimes, LaunchCounts, LaunchView, MeasuredDevice, ReadBandwidth,
    StepPart,
};
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

    fn graph_shape(&self, graph: &FakeCaptured) -> GraphShape {
        let launches = graph.launches();
        GraphShape { launches, nodes: launches, programmatic_edges: 0 }
    }

    fn launches<'a>(&self, program: &'a FakeProgram) -> Vec<LaunchView<'a>> {
        let view = LaunchView { name: &program.op, kernel: &program.op, nodes: &[0] };
        if program.left_out { Vec::new() } else { vec![view] }
    }

    fn without(&self, program: &FakeProgram, left_out: &[usize]) -> FakeProgram {
        let mut program = program.clone();
        program.left_out |= left_out.contains(&0);
        program
    }

    /// A block for each launch, one after the other.
    fn block_times(&mut self, graph: &FakeCaptured) -> Result<Option<GraphTimes>, DeviceError> {
        let block = |i: u64| {
            let start = 10 * i;
            BlockTime { multiprocessor: 0, start, released: Some(start + 2), end: start + 9 }
        };
        let launches = (1..=graph.launches()).map(|i| vec![block(i)]).collect();
        Ok(Some(GraphTimes { multiprocessors: 1, launches }))
    }

    fn bare_submit(
        &mut self,
        parts: &[StepPart<'_, FakeProgram, FakeCaptured>],
        _: &[u64],
    ) -> Result<Option<Duration>, DeviceError> {
        Ok(Some(Duration::from_micros(parts.len() as u64)))
    }

    fn read_bandwidth(&mut self) -> Result<ReadBandwidth, DeviceError> {
        Ok(ReadBandwidth { best: 1e9, median: 1e9, bytes: 1 << 20, passes: 1 })
    }
}
