//! The device as benchmarks see it: events that tell time, counts, and the read bandwidth.

use super::device::{CudaCaptured, CudaDevice};
use super::driver::KernelLaunch;
use super::error::device_error;
use super::event::CudaEvent;
use super::memory::TemporaryBlock;
use super::nvrtc::Source;
use crate::compiler::NoStore;
use crate::device::{Device, DeviceError};
use crate::measure::{GraphShape, LaunchCounts, MeasuredDevice, ReadBandwidth};
use std::time::Duration;

/// The kernel that reads memory with accesses of 16 bytes.
pub const BANDWIDTH_KERNEL: &str = include_str!("kernels/bandwidth.cu");

/// Blocks of the kernel for each multiprocessor: the best of these counts.
const BLOCKS_PER_MULTIPROCESSOR: [u32; 3] = [2, 4, 8];

/// Passes of each.
const PASSES: usize = 12;

/// Bytes that a pass reads where memory allows: on the fastest device of today still a good part
/// of a millisecond, so that the start of a kernel does not show.
const BYTES: u64 = 4 << 30;

impl MeasuredDevice for CudaDevice {
    type Mark = CudaEvent;

    fn cache_bytes(&self) -> u64 {
        self.report().l2_bytes
    }

    fn counts_free_bytes(&self) -> bool {
        true
    }

    fn mark(&mut self) -> Result<CudaEvent, DeviceError> {
        self.enter()?;
        CudaEvent::record(&self.stream, true).map_err(|e| device_error("mark a time", &e))
    }

    fn elapsed(&mut self, start: &CudaEvent, end: &CudaEvent) -> Result<Duration, DeviceError> {
        self.wait(start)?;
        self.wait(end)?;
        let ms = end.milliseconds_since(start).map_err(|e| device_error("read a time", &e))?;
        Ok(Duration::from_secs_f64(f64::from(ms.max(0.0)) / 1e3))
    }

    fn launch_counts(&self) -> LaunchCounts {
        self.counts.get()
    }

    fn graph_shape(&self, graph: &CudaCaptured) -> GraphShape {
        let summary = graph.summary();
        GraphShape {
            launches: graph.launches() as u64,
            nodes: summary.nodes as u64,
            programmatic_edges: summary.programmatic_edges as u64,
        }
    }

    fn read_bandwidth(&mut self) -> Result<ReadBandwidth, DeviceError> {
        self.enter()?;
        let refused = |reason: String| DeviceError::Driver {
            action: "measure the read bandwidth".to_owned(),
            reason,
        };
        let least = 4 * self.cache_bytes() + (1 << 20);
        let bytes = (self.free_bytes() / 4).min(BYTES) / 16 * 16;
        if bytes < least {
            let reason = format!("{least} bytes of memory must be free, and there are too few");
            return Err(refused(reason));
        }
        let context = self.stream.context.clone();
        let most_blocks = context.device.multiprocessors.max(1) * 8;
        let what = "what is read to measure the bandwidth";
        let buffer = TemporaryBlock::allocate(&context, what, bytes)?;
        let sink = TemporaryBlock::allocate(&context, what, 4 * u64::from(most_blocks))?;
        self.fill_normal(buffer.address, bytes / 4)?;
        let source =
            Source { name: "bandwidth.cu", text: BANDWIDTH_KERNEL, headers: &[], options: &[] };
        let code = self.kernels().compiled(&source, "bandwidth", &NoStore).map_err(refused)?;
        let kernel = self.kernel(&code.cubin, "read_blocks").map_err(|e| refused(e.to_string()))?;
        let mut times = Vec::new();
        for per_multiprocessor in BLOCKS_PER_MULTIPROCESSOR {
            let blocks =
                (context.device.multiprocessors.max(1) * per_multiprocessor).min(most_blocks);
            let launch = KernelLaunch {
                function: kernel.function,
                grid: [blocks, 1, 1],
                block: [256, 1, 1],
                cluster: [1; 3],
                shared_bytes: 0,
                programmatic: false,
                stream: self.stream.handle,
                parameters: &[buffer.address, bytes / 16, sink.address],
                maps: &[],
            };
            for pass in 0..=PASSES {
                let start = self.mark()?;
                context.driver.launch(&launch).map_err(|e| refused(e.to_string()))?;
                let end = self.mark()?;
                let time = self.elapsed(&start, &end)?;
                // The first pass warms up.
                if pass > 0 {
                    times.push(time);
                }
            }
        }
        ReadBandwidth::of(bytes, times).ok_or_else(|| refused("no pass was timed".to_owned()))
    }
}
