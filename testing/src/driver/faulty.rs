//! Planned faults at the driver boundary, for tests of what happens when something fails.

use super::host_time;
use piecewise_backend::cuda::driver::{
    Attribute, Driver, GraphEdge, GraphNode, Handle, KernelLaunch, Outcome, TensorMap,
};
use piecewise_backend::cuda::{CallError, CudaVersion};
use piecewise_backend::device::{ByteRows, Clock};
use piecewise_kernels::op::cuda::TensorBoxes;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A driver call that is to fail.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CallFault {
    /// The driver function, by name: `cuMemCreate`, `cuLaunchKernelEx`, `cuStreamEndCapture`.
    pub call: &'static str,
    /// The status that it returns: 2 is out of memory, 700 an illegal address, 900 an unsupported
    /// capture. A wait for an event that returns 0 says that all is well, and has not waited.
    pub code: u32,
    /// Only while this is being done: a part of the label of a program or capture.
    pub label: Option<String>,
    /// Only for these padded sizes by symbol.
    pub sizes: Option<Vec<u64>>,
    /// How many calls that fit go well first.
    pub after: u32,
    /// How many fail then; `u32::MAX` is all.
    pub times: u32,
    /// Whether every call fails from then on, until the context is reset.
    pub sticky: bool,
    /// Whether the call itself goes well, as one does whose work fails later.
    pub late: bool,
}

impl CallFault {
    /// Every call of `call` fails with `code`.
    pub fn always(call: &'static str, code: u32) -> Self {
        Self {
            call,
            code,
            label: None,
            sizes: None,
            after: 0,
            times: u32::MAX,
            sticky: false,
            late: false,
        }
    }

    /// Only while something whose label contains `label` is being done.
    pub fn at(mut self, label: &str) -> Self {
        self.label = Some(label.to_owned());
        self
    }

    /// Only for these padded sizes.
    pub fn sized(mut self, sizes: &[u64]) -> Self {
        self.sizes = Some(sizes.to_vec());
        self
    }

    /// Once, after `calls` good ones.
    pub fn once_after(mut self, calls: u32) -> Self {
        self.after = calls;
        self.times = 1;
        self
    }

    /// Whatever is called after it fails the same way, until the context is reset.
    pub fn sticky(mut self) -> Self {
        self.sticky = true;
        self
    }

    /// Whatever is called after it fails, and the call itself does not: its work does.
    pub fn late(mut self) -> Self {
        self.late = true;
        self.sticky()
    }
}

/// What is planned to fail; nothing by default. Clones share one plan, so that a test can add to
/// it while the device runs.
#[derive(Clone, Default, Debug)]
pub struct Faults {
    plan: Arc<Mutex<Plan>>,
    /// Whether any call is planned to fail: with none, a call costs no lock.
    armed: Arc<AtomicBool>,
}

#[derive(Default, Debug)]
struct Plan {
    capability: Option<(u32, u32)>,
    calls: Vec<CallFault>,
    label: String,
    sizes: Vec<u64>,
    slow: Option<(&'static str, Duration)>,
    /// The status of a sticky fault that struck.
    stuck: Option<u32>,
}

impl Faults {
    fn plan(&self) -> std::sync::MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Devices will say that they have this compute capability.
    pub fn set_capability(&self, capability: (u32, u32)) {
        self.plan().capability = Some(capability);
    }

    fn is_armed(&self) -> bool {
        self.armed.load(Ordering::Acquire)
    }

    /// A driver call will fail.
    pub fn fail(&self, fault: CallFault) {
        self.armed.store(true, Ordering::Release);
        self.plan().calls.push(fault);
    }

    /// Every call of `call` keeps its caller for so long, by [`host_time`].
    pub fn slow(&self, call: &'static str, each: Duration) {
        self.armed.store(true, Ordering::Release);
        self.plan().slow = Some((call, each));
    }

    /// How many faults have not struck as often as planned.
    pub fn pending(&self) -> usize {
        self.plan().calls.iter().filter(|fault| fault.times > 0).count()
    }

    /// Nothing will fail any more.
    pub fn clear(&self) {
        self.armed.store(false, Ordering::Release);
        *self.plan() = Plan::default();
    }

    fn check(&self, call: &'static str) -> Outcome<()> {
        if !self.is_armed() {
            return Ok(());
        }
        let mut plan = self.plan();
        if let Some((_, each)) = plan.slow.filter(|(slow, _)| *slow == call) {
            host_time::pass(each);
        }
        let Plan { calls, label, sizes, stuck, .. } = &mut *plan;
        let failed = |code, label: &str, sizes: &[u64]| {
            Err(CallError {
                call,
                code,
                name: "a planned fault".to_owned(),
                description: format!("while `{label}` at {sizes:?}"),
            })
        };
        if let Some(code) = *stuck {
            return failed(code, label, sizes);
        }
        for fault in calls {
            let fits = fault.call == call
                && fault.label.as_ref().is_none_or(|part| label.contains(part.as_str()))
                && fault.sizes.as_ref().is_none_or(|fault| fault == sizes);
            if !fits || fault.times == 0 {
                continue;
            }
            if fault.after > 0 {
                fault.after -= 1;
                continue;
            }
            if fault.times != u32::MAX {
                fault.times -= 1;
            }
            if fault.sticky {
                *stuck = Some(fault.code);
            }
            return if fault.late { Ok(()) } else { failed(fault.code, label, sizes) };
        }
        Ok(())
    }
}

/// A driver whose calls fail as planned.
#[derive(Debug)]
pub struct FaultyDriver<D> {
    /// What takes the calls that do not fail.
    pub inner: Arc<D>,
    /// What is planned.
    pub faults: Faults,
}

macro_rules! pass {
    ($( $call:literal fn $name:ident($($arg:ident: $ty:ty),*) -> $out:ty; )*) => {
        $( fn $name(&self, $($arg: $ty),*) -> Outcome<$out> {
            self.faults.check($call)?;
            self.inner.$name($($arg),*)
        } )*
    };
}

/// The same for calls that take memory of the host.
macro_rules! pass_unsafe {
    ($( $call:literal fn $name:ident($($arg:ident: $ty:ty),*) -> $out:ty; )*) => {
        $( unsafe fn $name(&self, $($arg: $ty),*) -> Outcome<$out> {
            self.faults.check($call)?;
            // SAFETY: whoever calls this keeps what the same call of the other driver asks.
            unsafe { self.inner.$name($($arg),*) }
        } )*
    };
}

impl<D: Driver> Driver for FaultyDriver<D> {
    fn scope(&self, label: &[&str], sizes: &[u64]) {
        if self.faults.is_armed() {
            let mut plan = self.faults.plan();
            plan.label = label.join(" / ");
            sizes.clone_into(&mut plan.sizes);
        }
    }

    fn wants_scope(&self) -> bool {
        self.faults.is_armed()
    }

    fn version(&self) -> Option<CudaVersion> {
        self.inner.version()
    }

    fn clock(&self) -> Clock {
        host_time::now
    }

    fn product(&self, name: &str, stream: Handle) -> Outcome<()> {
        self.inner.product(name, stream)
    }

    fn device_attribute(&self, ordinal: u32, attribute: Attribute) -> Outcome<i32> {
        self.faults.check("cuDeviceGetAttribute")?;
        let capability = self.faults.plan().capability;
        match (attribute, capability) {
            (Attribute::CapabilityMajor, Some((major, _))) => Ok(major as i32),
            (Attribute::CapabilityMinor, Some((_, minor))) => Ok(minor as i32),
            _ => self.inner.device_attribute(ordinal, attribute),
        }
    }

    fn reset_context(&self, ordinal: u32) -> Outcome<()> {
        self.faults.plan().stuck = None;
        self.faults.check("cuDevicePrimaryCtxReset_v2")?;
        self.inner.reset_context(ordinal)
    }

    fn generation(&self, ordinal: u32) -> u64 {
        self.inner.generation(ordinal)
    }

    pass! {
        "cuDeviceGetCount" fn device_count() -> u32;
        "cuDeviceGetName" fn device_name(ordinal: u32) -> String;
        "cuDeviceTotalMem_v2" fn device_bytes(ordinal: u32) -> u64;
        "cuDevicePrimaryCtxRetain" fn retain_context(ordinal: u32) -> Handle;
        "cuDevicePrimaryCtxRelease_v2" fn release_context(ordinal: u32) -> ();
        "cuCtxSetCurrent" fn make_current(context: Handle) -> ();
        "cuMemGetInfo_v2" fn free_bytes() -> u64;
        "cuMemGetAllocationGranularity" fn granularity(ordinal: u32) -> u64;
        "cuMemAddressReserve" fn reserve(bytes: u64) -> u64;
        "cuMemAddressFree" fn unreserve(address: u64, bytes: u64) -> ();
        "cuMemCreate" fn create_backing(ordinal: u32, bytes: u64) -> Handle;
        "cuMemRelease" fn release_backing(backing: Handle) -> ();
        "cuMemMap" fn map(address: u64, bytes: u64, backing: Handle) -> ();
        "cuMemUnmap" fn unmap(address: u64, bytes: u64) -> ();
        "cuMemSetAccess" fn allow_access(ordinal: u32, address: u64, bytes: u64) -> ();
        "cuMemAlloc_v2" fn allocate(bytes: u64) -> u64;
        "cuMemFree_v2" fn free(address: u64) -> ();
        "cuMemHostUnregister" fn unpin(block: *mut u8) -> ();
        "cuMemcpyDtoDAsync_v2"
            fn copy_within(to: u64, from: u64, bytes: u64, stream: Handle) -> ();
        "cuMemsetAsync"
            fn set(to: u64, value: u32, width: u32, count: u64, stream: Handle) -> ();
        "cuStreamCreate" fn create_stream() -> Handle;
        "cuStreamDestroy_v2" fn destroy_stream(stream: Handle) -> ();
        "cuStreamSynchronize" fn synchronize(stream: Handle) -> ();
        "cuEventCreate" fn create_event(timing: bool) -> Handle;
        "cuEventDestroy_v2" fn destroy_event(event: Handle) -> ();
        "cuEventRecord" fn record_event(event: Handle, stream: Handle) -> ();
        "cuEventElapsedTime" fn elapsed(start: Handle, end: Handle) -> f32;
        "cuModuleLoadData" fn load_module(cubin: &[u8]) -> Handle;
        "cuModuleUnload" fn unload_module(module: Handle) -> ();
        "cuModuleGetFunction" fn function(module: Handle, name: &str) -> Handle;
        "cuFuncLoad" fn load_function(function: Handle) -> ();
        "cuFuncSetAttribute" fn allow_shared(function: Handle, bytes: u32) -> ();
        "cuTensorMapEncodeTiled"
            fn encode_map(address: u64, boxes: &TensorBoxes, rows: u64) -> TensorMap;
        "cuLaunchKernelEx" fn launch(launch: &KernelLaunch<'_>) -> ();
        "cuStreamBeginCapture_v2" fn begin_capture(stream: Handle) -> ();
        "cuStreamGetCaptureInfo_v3" fn captured_node(stream: Handle) -> Handle;
        "cuStreamIsCapturing" fn is_capturing(stream: Handle) -> bool;
        "cuGraphGetNodes" fn graph_nodes(graph: Handle) -> Vec<GraphNode>;
        "cuGraphGetEdges_v2" fn graph_edges(graph: Handle) -> Vec<GraphEdge>;
        "cuGraphDebugDotPrint" fn write_dot(graph: Handle, path: &Path) -> ();
        "cuGraphInstantiateWithFlags" fn instantiate(graph: Handle) -> Handle;
        "cuGraphExecKernelNodeSetParams_v2"
            fn set_kernel(exec: Handle, node: Handle, launch: &KernelLaunch<'_>) -> ();
        "cuGraphDestroy" fn destroy_graph(graph: Handle) -> ();
        "cuGraphUpload" fn upload(exec: Handle, stream: Handle) -> ();
        "cuGraphLaunch" fn launch_graph(exec: Handle, stream: Handle) -> ();
        "cuGraphExecDestroy" fn destroy_exec(exec: Handle) -> ();
    }

    pass_unsafe! {
        "cuMemHostRegister_v2" fn pin(block: *mut u8, bytes: u64) -> ();
        "cuMemcpyHtoDAsync_v2"
            fn copy_in(to: u64, from: *const u8, bytes: u64, stream: Handle) -> ();
        "cuMemcpy2DAsync_v2"
            fn copy_in_rows(to: u64, from: *const u8, rows: ByteRows, stream: Handle) -> ();
        "cuMemcpyDtoHAsync_v2"
            fn copy_out(to: *mut u8, from: u64, bytes: u64, stream: Handle) -> ();
    }

    fn wait_event(&self, event: Handle) -> Outcome<()> {
        match self.faults.check("cuEventSynchronize") {
            Err(CallError { code: 0, .. }) => Ok(()),
            planned => planned.and_then(|()| self.inner.wait_event(event)),
        }
    }

    /// The stream leaves its capture even where the call is to fail, as it does with the driver.
    fn end_capture(&self, stream: Handle) -> Outcome<Handle> {
        let planned = self.faults.check("cuStreamEndCapture");
        let graph = self.inner.end_capture(stream);
        if planned.is_err()
            && let Ok(graph) = graph
            && graph != 0
        {
            self.inner.destroy_graph(graph)?;
        }
        planned.and(graph)
    }
}
