//! The driver functions that this backend uses, as a trait: a device is opened over the system's driver
//! ([`SystemDriver`](system::SystemDriver)), or over one of somebody's own that counts calls, logs them, lets them fail, or
//! has no GPU behind it ([`CudaDevice::over`](super::CudaDevice::over)).

pub mod system;

use super::error::{CallError, CudaVersion};
use crate::device::{ByteRows, Clock};
use piecewise_kernels::op::cuda::TensorBoxes;
use std::time::Instant;

/// What a call of the driver gives.
pub type Outcome<T> = Result<T, CallError>;

/// Handles are numbers here; each means what its function's documentation says.
pub type Handle = u64;

/// A tensor map as the driver encodes it; what is in it is the driver's own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C, align(64))]
pub struct TensorMap(pub [u64; 16]);

/// What of a device is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Attribute {
    /// Those that blocks run on.
    Multiprocessors,
    /// The 9 of compute capability 9.0.
    CapabilityMajor,
    /// The 0 of compute capability 9.0.
    CapabilityMinor,
    /// Of the second-level cache.
    L2Bytes,
    /// The most that a block can ask for.
    SharedBytesPerBlock,
    /// For all its blocks together.
    SharedBytesPerMultiprocessor,
    /// 1 where memory can be mapped at reserved addresses, or else 0.
    VirtualMemory,
}

/// A kernel launch as the driver takes it.
#[derive(Clone, Copy, Debug)]
pub struct KernelLaunch<'a> {
    /// What [`Driver::function`] gave.
    pub function: Handle,
    /// Blocks by axis.
    pub grid: [u32; 3],
    /// Threads of a block by axis.
    pub block: [u32; 3],
    /// Blocks of a cluster by axis; all 1 without clusters.
    pub cluster: [u32; 3],
    /// Dynamic shared memory of a block.
    pub shared_bytes: u32,
    /// Whether it may start before its predecessor ends; it waits by itself.
    pub programmatic: bool,
    /// Where it is enqueued.
    pub stream: Handle,
    /// The values of the parameters in order. Those of four bytes are the low half.
    pub parameters: &'a [u64],
    /// The parameters that are tensor maps instead, by position.
    pub maps: &'a [(usize, TensorMap)],
}

impl<'a> KernelLaunch<'a> {
    /// Whether it launches as much with the same parameters as another launch of its kernel.
    pub(super) fn is_like(&self, other: &KernelLaunch<'_>) -> bool {
        self.grid == other.grid && self.parameters == other.parameters && self.maps == other.maps
    }

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
#[expect(missing_docs, reason = "a field is what a launch calls it")]
pub enum GraphNode {
    /// A kernel, by the name of its entry.
    Kernel { name: String, grid: [u32; 3], block: [u32; 3] },
    /// A copy between any two places.
    MemoryCopy,
    /// Memory filled with a value.
    MemorySet,
    /// A function of the host.
    Host,
    /// A graph within the graph, by its nodes.
    Child(Vec<GraphNode>),
    /// Nothing but its edges.
    Empty,
    /// Memory that replays allocate.
    Allocation,
    /// Memory that replays free.
    Free,
    /// What this backend does not know, by the driver's number.
    Other(u32),
}

/// An edge of a captured graph.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GraphEdge {
    /// The producer, by its place among [`Driver::graph_nodes`].
    pub from: usize,
    /// The consumer, likewise.
    pub to: usize,
    /// Whether the consumer may start before the producer ends.
    pub programmatic: bool,
}

/// The CUDA driver. Streams, events, modules, functions and graphs belong to the context that is
/// current on the calling thread. Enqueued copies read and write host memory until the stream has
/// passed them: whoever enqueues keeps that memory.
///
/// An error is what the driver's own function returned. [`SystemDriver`](system::SystemDriver) is the machine's; another
/// one usually hands its calls on to that.
pub trait Driver: Send + Sync + std::fmt::Debug {
    /// Says what the next calls are for: the label of a program or capture, and the padded sizes by
    /// symbol index.
    fn scope(&self, _label: &[&str], _sizes: &[u64]) {}
    /// Whether it wants to be told of each launch, too, which costs time.
    fn wants_scope(&self) -> bool {
        false
    }

    /// The CUDA version that it supports; `None` of a driver that is not the system's.
    fn version(&self) -> Option<CudaVersion> {
        None
    }
    /// Tells the host's time: the system's, where a driver does not simulate another.
    fn clock(&self) -> Clock {
        Instant::now
    }
    /// Enqueues a product of cuBLASLt on a device that has opened no such library; `name` is that
    /// of its launch. A library needs the system's driver, so that another one may do without.
    fn product(&self, name: &str, stream: Handle) -> Outcome<()> {
        let _ = stream;
        Err(CallError {
            call: "cublasLtMatmul",
            code: 1,
            name: "CUBLAS_STATUS_NOT_INITIALIZED".to_owned(),
            description: format!("cuBLASLt is not loaded for `{name}`"),
        })
    }

    /// Devices of this machine that are visible.
    fn device_count(&self) -> Outcome<u32>;
    /// The model: `NVIDIA H100 80GB HBM3`.
    fn device_name(&self, ordinal: u32) -> Outcome<String>;
    /// A number that describes it.
    fn device_attribute(&self, ordinal: u32, attribute: Attribute) -> Outcome<i32>;
    /// All memory that it has.
    fn device_bytes(&self, ordinal: u32) -> Outcome<u64>;

    /// The primary context, made where there is none.
    fn retain_context(&self, ordinal: u32) -> Outcome<Handle>;
    /// Gives up what [`Self::retain_context`] took.
    fn release_context(&self, ordinal: u32) -> Outcome<()>;
    /// Destroys all that the process has on the device, failed or not, and begins a generation.
    fn reset_context(&self, ordinal: u32) -> Outcome<()>;
    /// How often the context of the device was reset in this process.
    fn generation(&self, ordinal: u32) -> u64;
    /// On the calling thread.
    fn make_current(&self, context: Handle) -> Outcome<()>;
    /// Memory that can still be taken.
    fn free_bytes(&self) -> Outcome<u64>;

    /// What the bytes of a backing must be a multiple of.
    fn granularity(&self, ordinal: u32) -> Outcome<u64>;
    /// A range of addresses without memory.
    fn reserve(&self, bytes: u64) -> Outcome<u64>;
    /// Returns a range that [`Self::reserve`] gave.
    fn unreserve(&self, address: u64, bytes: u64) -> Outcome<()>;
    /// Memory without an address.
    fn create_backing(&self, ordinal: u32, bytes: u64) -> Outcome<Handle>;
    /// Returns memory, once no range maps it any more.
    fn release_backing(&self, backing: Handle) -> Outcome<()>;
    /// Puts memory at reserved addresses.
    fn map(&self, address: u64, bytes: u64, backing: Handle) -> Outcome<()>;
    /// Takes it away again.
    fn unmap(&self, address: u64, bytes: u64) -> Outcome<()>;
    /// Lets the device read and write what is mapped.
    fn allow_access(&self, ordinal: u32, address: u64, bytes: u64) -> Outcome<()>;
    /// Memory with an address.
    fn allocate(&self, bytes: u64) -> Outcome<u64>;
    /// Returns what [`Self::allocate`] gave.
    fn free(&self, address: u64) -> Outcome<()>;
    /// Pins whole pages of the host until they are unpinned or the context is reset.
    ///
    /// # Safety
    /// The pages are one allocation of so many bytes, and stay it until then.
    unsafe fn pin(&self, block: *mut u8, bytes: u64) -> Outcome<()>;
    /// Ends what [`Self::pin`] began.
    fn unpin(&self, block: *mut u8) -> Outcome<()>;

    /// Enqueues a copy from the host.
    ///
    /// # Safety
    /// So many bytes are there, and nobody writes to them, until the stream has passed the copy.
    unsafe fn copy_in(&self, to: u64, from: *const u8, bytes: u64, stream: Handle) -> Outcome<()>;
    /// Of rows that follow one another at `from`.
    ///
    /// # Safety
    /// As for [`Self::copy_in`], of the bytes of all rows.
    unsafe fn copy_in_rows(
        &self,
        to: u64,
        from: *const u8,
        rows: ByteRows,
        stream: Handle,
    ) -> Outcome<()>;
    /// Enqueues a copy to the host.
    ///
    /// # Safety
    /// So many bytes are there, and nobody else uses them, until the stream has passed the copy.
    unsafe fn copy_out(&self, to: *mut u8, from: u64, bytes: u64, stream: Handle) -> Outcome<()>;
    /// From device memory to device memory.
    fn copy_within(&self, to: u64, from: u64, bytes: u64, stream: Handle) -> Outcome<()>;
    /// `width` is 1, 2 or 4; `count` elements are set.
    fn set(&self, to: u64, value: u32, width: u32, count: u64, stream: Handle) -> Outcome<()>;

    /// One that does not wait for the default stream.
    fn create_stream(&self) -> Outcome<Handle>;
    /// Returns what [`Self::create_stream`] gave.
    fn destroy_stream(&self, stream: Handle) -> Outcome<()>;
    /// Waits for all that is enqueued.
    fn synchronize(&self, stream: Handle) -> Outcome<()>;
    /// One that remembers when it was passed, where `timing` is asked for.
    fn create_event(&self, timing: bool) -> Outcome<Handle>;
    /// Returns what [`Self::create_event`] gave.
    fn destroy_event(&self, event: Handle) -> Outcome<()>;
    /// At the present end of the stream.
    fn record_event(&self, event: Handle, stream: Handle) -> Outcome<()>;
    /// Until its stream has passed where it was recorded.
    fn wait_event(&self, event: Handle) -> Outcome<()>;
    /// In milliseconds.
    fn elapsed(&self, start: Handle, end: Handle) -> Outcome<f32>;

    /// Machine code, given to the device.
    fn load_module(&self, cubin: &[u8]) -> Outcome<Handle>;
    /// Takes back what [`Self::load_module`] gave.
    fn unload_module(&self, module: Handle) -> Outcome<()>;
    /// An entry of a module.
    fn function(&self, module: Handle, name: &str) -> Outcome<Handle>;
    /// Loads the code now, so that no first launch does.
    fn load_function(&self, function: Handle) -> Outcome<()>;
    /// Lets launches ask for so much dynamic shared memory.
    fn allow_shared(&self, function: Handle, bytes: u32) -> Outcome<()>;
    /// Enqueues a kernel.
    fn launch(&self, launch: &KernelLaunch<'_>) -> Outcome<()>;
    /// The map of `rows` rows at an address, copied in such boxes.
    fn encode_map(&self, address: u64, boxes: &TensorBoxes, rows: u64) -> Outcome<TensorMap>;

    /// What is enqueued from now on is noted and not run.
    fn begin_capture(&self, stream: Handle) -> Outcome<()>;
    /// The captured graph; 0 where nothing was captured.
    fn end_capture(&self, stream: Handle) -> Outcome<Handle>;
    /// The node of what was enqueued last in the capture under way.
    fn captured_node(&self, stream: Handle) -> Outcome<Handle>;
    /// Whether a capture was begun that has not ended.
    fn is_capturing(&self, stream: Handle) -> Outcome<bool>;
    /// What the graph is made of.
    fn graph_nodes(&self, graph: Handle) -> Outcome<Vec<GraphNode>>;
    /// Between nodes by their places.
    fn graph_edges(&self, graph: Handle) -> Outcome<Vec<GraphEdge>>;
    /// For graphviz.
    fn write_dot(&self, graph: Handle, path: &std::path::Path) -> Outcome<()>;
    /// What can be launched of a graph.
    fn instantiate(&self, graph: Handle) -> Outcome<Handle>;
    /// Sets grid and parameters of a kernel's node in every launch of `exec` to come; the graph that it was
    /// instantiated from is still there. What a capture made of the node's attributes stays: its edges and
    /// its clusters.
    fn set_kernel(&self, exec: Handle, node: Handle, launch: &KernelLaunch<'_>) -> Outcome<()>;
    /// What was instantiated of it stays.
    fn destroy_graph(&self, graph: Handle) -> Outcome<()>;
    /// So that the first launch takes no longer than others.
    fn upload(&self, exec: Handle, stream: Handle) -> Outcome<()>;
    /// Enqueues all of it.
    fn launch_graph(&self, exec: Handle, stream: Handle) -> Outcome<()>;
    /// Returns what [`Self::instantiate`] gave.
    fn destroy_exec(&self, exec: Handle) -> Outcome<()>;
}
