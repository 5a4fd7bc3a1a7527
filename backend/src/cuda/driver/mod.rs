//! The driver functions that this backend uses, as a trait: the system's driver, one with planned
//! faults, and in tests one without a GPU.

#[cfg_attr(
    not(piecewise_testing),
    allow(dead_code, unreachable_pub, reason = "nobody but tests plans a fault")
)]
pub(super) mod faulty;
#[cfg(piecewise_testing)]
#[cfg_attr(not(test), allow(dead_code, reason = "what only tests of this crate ask"))]
pub(super) mod simulated;
pub(super) mod system;

use super::error::{CallError, CudaVersion};
use crate::device::ByteRows;
use piecewise_kernels::op::cuda::TensorBoxes;

pub(super) type Outcome<T> = Result<T, CallError>;

/// Handles are numbers here; each means what its function's documentation says.
pub(super) type Handle = u64;

/// A tensor map as the driver encodes it; what is in it is the driver's own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C, align(64))]
pub(super) struct TensorMap(pub(super) [u64; 16]);

/// What of a device is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Attribute {
    Multiprocessors,
    CapabilityMajor,
    CapabilityMinor,
    L2Bytes,
    SharedBytesPerBlock,
    SharedBytesPerMultiprocessor,
    VirtualMemory,
}

/// A kernel launch as the driver takes it.
#[derive(Clone, Copy, Debug)]
pub(super) struct KernelLaunch<'a> {
    pub(super) function: Handle,
    pub(super) grid: [u32; 3],
    pub(super) block: [u32; 3],
    pub(super) cluster: [u32; 3],
    pub(super) shared_bytes: u32,
    /// Whether it may start before its predecessor ends; it waits by itself.
    pub(super) programmatic: bool,
    pub(super) stream: Handle,
    /// The values of the parameters in order. Those of four bytes are the low half.
    pub(super) parameters: &'a [u64],
    /// The parameters that are tensor maps instead, by position.
    pub(super) maps: &'a [(usize, TensorMap)],
}

impl<'a> KernelLaunch<'a> {
    /// Blocks of threads along one axis, which do not share more memory than their source says.
    pub(super) fn plain(
        function: Handle,
        blocks: u32,
        threads: u32,
        stream: Handle,
        parameters: &'a [u64],
    ) -> Self {
        let (grid, block, cluster) = ([blocks, 1, 1], [threads, 1, 1], [1; 3]);
        let (shared_bytes, programmatic, maps) = (0, false, &[]);
        Self {
            function,
            grid,
            block,
            cluster,
            shared_bytes,
            programmatic,
            stream,
            parameters,
            maps,
        }
    }
}

/// A node of a captured graph.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum GraphNode {
    Kernel { name: String, grid: [u32; 3], block: [u32; 3] },
    MemoryCopy,
    MemorySet,
    Host,
    Child(Vec<GraphNode>),
    Empty,
    Allocation,
    Free,
    Other(u32),
}

/// An edge of a captured graph.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct GraphEdge {
    pub(super) from: usize,
    pub(super) to: usize,
    /// Whether the consumer may start before the producer ends.
    pub(super) programmatic: bool,
}

/// The CUDA driver. Streams, events, modules, functions and graphs belong to the context that is
/// current on the calling thread. Enqueued copies read and write host memory until the stream has
/// passed them: whoever enqueues keeps that memory.
pub(super) trait Driver: Send + Sync + std::fmt::Debug {
    /// Tells a driver with planned faults what the next calls are for.
    fn scope(&self, _label: &[&str], _sizes: &[u64]) {}
    /// Whether it wants to be told.
    fn plans_faults(&self) -> bool {
        false
    }

    /// The CUDA version that it supports; `None` of a driver that is not the system's.
    fn version(&self) -> Option<CudaVersion> {
        None
    }

    fn device_count(&self) -> Outcome<u32>;
    fn device_name(&self, ordinal: u32) -> Outcome<String>;
    fn device_attribute(&self, ordinal: u32, attribute: Attribute) -> Outcome<i32>;
    fn device_bytes(&self, ordinal: u32) -> Outcome<u64>;

    fn retain_context(&self, ordinal: u32) -> Outcome<Handle>;
    fn release_context(&self, ordinal: u32) -> Outcome<()>;
    /// Destroys all that the process has on the device, failed or not, and begins a generation.
    fn reset_context(&self, ordinal: u32) -> Outcome<()>;
    /// How often the context of the device was reset in this process.
    fn generation(&self, ordinal: u32) -> u64;
    fn make_current(&self, context: Handle) -> Outcome<()>;
    fn free_bytes(&self) -> Outcome<u64>;

    fn granularity(&self, ordinal: u32) -> Outcome<u64>;
    fn reserve(&self, bytes: u64) -> Outcome<u64>;
    fn unreserve(&self, address: u64, bytes: u64) -> Outcome<()>;
    fn create_backing(&self, ordinal: u32, bytes: u64) -> Outcome<Handle>;
    fn release_backing(&self, backing: Handle) -> Outcome<()>;
    fn map(&self, address: u64, bytes: u64, backing: Handle) -> Outcome<()>;
    fn unmap(&self, address: u64, bytes: u64) -> Outcome<()>;
    fn allow_access(&self, ordinal: u32, address: u64, bytes: u64) -> Outcome<()>;
    fn allocate(&self, bytes: u64) -> Outcome<u64>;
    fn free(&self, address: u64) -> Outcome<()>;
    /// Pins whole pages of the host until they are unpinned or the context is reset.
    fn pin(&self, block: *mut u8, bytes: u64) -> Outcome<()>;
    fn unpin(&self, block: *mut u8) -> Outcome<()>;

    fn copy_in(&self, to: u64, from: *const u8, bytes: u64, stream: Handle) -> Outcome<()>;
    /// Of rows that follow one another at `from`.
    fn copy_in_rows(&self, to: u64, from: *const u8, rows: ByteRows, stream: Handle)
    -> Outcome<()>;
    fn copy_out(&self, to: *mut u8, from: u64, bytes: u64, stream: Handle) -> Outcome<()>;
    /// From device memory to device memory.
    fn copy_within(&self, to: u64, from: u64, bytes: u64, stream: Handle) -> Outcome<()>;
    /// `width` is 1, 2 or 4; `count` elements are set.
    fn set(&self, to: u64, value: u32, width: u32, count: u64, stream: Handle) -> Outcome<()>;

    fn create_stream(&self) -> Outcome<Handle>;
    fn destroy_stream(&self, stream: Handle) -> Outcome<()>;
    fn synchronize(&self, stream: Handle) -> Outcome<()>;
    fn create_event(&self, timing: bool) -> Outcome<Handle>;
    fn destroy_event(&self, event: Handle) -> Outcome<()>;
    fn record_event(&self, event: Handle, stream: Handle) -> Outcome<()>;
    fn wait_event(&self, event: Handle) -> Outcome<()>;
    /// In milliseconds.
    fn elapsed(&self, start: Handle, end: Handle) -> Outcome<f32>;

    fn load_module(&self, cubin: &[u8]) -> Outcome<Handle>;
    fn unload_module(&self, module: Handle) -> Outcome<()>;
    fn function(&self, module: Handle, name: &str) -> Outcome<Handle>;
    /// Loads the code now, so that no first launch does.
    fn load_function(&self, function: Handle) -> Outcome<()>;
    fn allow_shared(&self, function: Handle, bytes: u32) -> Outcome<()>;
    fn launch(&self, launch: &KernelLaunch<'_>) -> Outcome<()>;
    /// The map of `rows` rows at an address, copied in such boxes.
    fn encode_map(&self, address: u64, boxes: &TensorBoxes, rows: u64) -> Outcome<TensorMap>;

    fn begin_capture(&self, stream: Handle) -> Outcome<()>;
    /// The captured graph; 0 where nothing was captured.
    fn end_capture(&self, stream: Handle) -> Outcome<Handle>;
    fn is_capturing(&self, stream: Handle) -> Outcome<bool>;
    fn graph_nodes(&self, graph: Handle) -> Outcome<Vec<GraphNode>>;
    fn graph_edges(&self, graph: Handle) -> Outcome<Vec<GraphEdge>>;
    fn write_dot(&self, graph: Handle, path: &std::path::Path) -> Outcome<()>;
    fn instantiate(&self, graph: Handle) -> Outcome<Handle>;
    fn destroy_graph(&self, graph: Handle) -> Outcome<()>;
    fn upload(&self, exec: Handle, stream: Handle) -> Outcome<()>;
    fn launch_graph(&self, exec: Handle, stream: Handle) -> Outcome<()>;
    fn destroy_exec(&self, exec: Handle) -> Outcome<()>;
}
