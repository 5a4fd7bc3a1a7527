//! The device as benchmarks see it: events that tell time, counts, and the read bandwidth.

use super::bound::{BoundLaunch, Work};
use super::captured::CudaCaptured;
use super::device::CudaDevice;
use super::driver::{Handle, KernelLaunch};
use super::lt::{LtCall, LtPlan};
use super::lt_handle::LtHandle;
use super::memory::TemporaryBlock;
use super::nvrtc::Nvrtc;
use super::program::CudaProgram;
use crate::compiler::NoStore;
use crate::device::measure::{
    GraphTimes, LaunchCounts, MeasuredDevice, ReadBandwidth, StepPart, Versions,
};
use crate::device::{Captured, Device, DeviceError};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The kernel that reads memory with accesses of 16 bytes.
pub const BANDWIDTH_KERNEL: &str = include_str!("kernels/bandwidth.cu");

/// Blocks of the kernel for each multiprocessor: the best of these counts.
const BLOCKS_PER_MULTIPROCESSOR: [u32; 3] = [2, 4, 8];

/// Timed passes for each of those counts.
const PASSES: usize = 12;

/// A call that is ready.
enum BareCall<'a> {
    Graph(Handle),
    Kernel { launch: KernelLaunch<'a>, parameters: Vec<u64> },
    Library { handle: Arc<LtHandle>, plan: Arc<LtPlan>, call: &'a LtCall },
}

impl CudaDevice {
    fn bare_call<'a>(
        &self,
        launch: &'a BoundLaunch,
        sizes: &[u64],
    ) -> Result<Option<BareCall<'a>>, String> {
        match &launch.work {
            Work::Host(_) => Ok(None),
            Work::Matmul(bound) => {
                let lt = self.loaded_lt()?;
                let plan = lt.prepare(&bound.product(sizes)?).map_err(|e| e.to_string())?;
                Ok(Some(BareCall::Library { handle: lt.handle(), plan, call: &bound.call }))
            }
            Work::Kernel(bound) => {
                let Some(launch) = self.kernel_launch(bound, sizes)? else { return Ok(None) };
                let launch = KernelLaunch { maps: &bound.maps, ..launch };
                let parameters = bound.values.iter().map(|value| value.at(sizes, 0)).collect();
                Ok(Some(BareCall::Kernel { launch, parameters }))
            }
        }
    }
}

/// Bytes that a pass reads where memory allows: on the fastest device of today still a good part
/// of a millisecond, so that the start of a kernel does not show.
const BYTES: u64 = 4 << 30;

/// The release of the system's driver as its kernel module has it, where that says so: `580.159.04`. What
/// the driver itself tells is the CUDA version, which many releases have in common.
fn driver_release() -> Option<String> {
    let text = std::fs::read_to_string("/sys/module/nvidia/version").ok()?;
    Some(text.trim().to_owned()).filter(|release| !release.is_empty())
}

impl MeasuredDevice for CudaDevice {
    /// NVRTC's once it has been opened, which a kernel does that no store has.
    fn versions(&self) -> Versions {
        let cuda = self.stream.context.driver.version();
        let nvrtc = self.loader.kernels.nvrtc.opened().map(Nvrtc::version);
        let library = self.lt.as_ref().map(|lt| lt.lock().library_version().to_string());
        let all = [
            ("driver", cuda.and_then(|_| driver_release())),
            ("cuda", cuda.map(|version| version.to_string())),
            ("nvrtc", nvrtc.map(|(major, minor)| format!("{major}.{minor}"))),
            ("cublas_lt", library),
        ];
        all.into_iter().filter_map(|(name, version)| Some((name, version?))).collect()
    }

    fn cache_bytes(&self) -> u64 {
        self.report().l2_bytes
    }

    fn counts_free_bytes(&self) -> bool {
        true
    }

    fn launch_counts(&self) -> LaunchCounts {
        self.counts.get()
    }

    fn block_times(&mut self, graph: &Captured) -> Result<Option<GraphTimes>, DeviceError> {
        self.enter()?;
        let Some(stamps) = &graph.of::<CudaCaptured>()?.stamps else { return Ok(None) };
        let context = &self.stream.context;
        let launches = stamps.read(context, &self.stream)?;
        Ok(Some(GraphTimes { multiprocessors: context.device.multiprocessors, launches }))
    }

    fn bare_submit(
        &mut self,
        parts: &[StepPart<'_>],
        sizes: &[u64],
    ) -> Result<Option<Duration>, DeviceError> {
        self.enter()?;
        let refused = |reason: String| DeviceError::Driver {
            action: "enqueue a step by the driver's calls alone".to_owned(),
            reason,
        };
        let mut calls = Vec::new();
        for part in parts {
            match part {
                StepPart::Replay(graph) => {
                    calls.push(BareCall::Graph(graph.of::<CudaCaptured>()?.exec.handle));
                }
                StepPart::Launch(program) => {
                    for launch in &program.of::<CudaProgram>()?.launches {
                        calls.extend(self.bare_call(launch, sizes).map_err(refused)?);
                    }
                }
            }
        }
        let driver = self.stream.context.driver.clone();
        let stream = self.stream.handle;
        let started = Instant::now();
        for call in &calls {
            let done = match call {
                BareCall::Graph(exec) => driver.launch_graph(*exec, stream),
                BareCall::Kernel { launch, parameters } => {
                    driver.launch(&KernelLaunch { parameters, ..*launch })
                }
                BareCall::Library { handle, plan, call } => {
                    handle.enqueue(plan, call, stream).map_err(|e| refused(e.to_string()))?;
                    Ok(())
                }
            };
            done.map_err(|e| refused(e.to_string()))?;
        }
        let time = started.elapsed();
        self.finish()?;
        Ok(Some(time))
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
        self.loader.fill_normal(&mut self.modules, buffer.address, bytes / 4)?;
        let kernels = &self.loader.kernels;
        let code = kernels.compiled(BANDWIDTH_KERNEL, "bandwidth", &NoStore).map_err(refused)?;
        let kernel = self
            .modules
            .kernel(&code.cubin, "read_blocks", 0)
            .map_err(|e| refused(e.to_string()))?;
        let mut times = Vec::new();
        for per_multiprocessor in BLOCKS_PER_MULTIPROCESSOR {
            let blocks =
                (context.device.multiprocessors.max(1) * per_multiprocessor).min(most_blocks);
            let parameters = &[buffer.address, bytes / 16, sink.address];
            let stream = self.stream.handle;
            let launch = KernelLaunch::plain(kernel.function, blocks, 256, stream, parameters);
            for pass in 0..=PASSES {
                let start = self.mark(None)?;
                context.driver.launch(&launch).map_err(|e| refused(e.to_string()))?;
                let end = self.mark(None)?;
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
