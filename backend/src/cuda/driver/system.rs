//! The system's driver, its functions resolved from `libcuda.so.1`.

/// Calls a driver function and turns its status into a result.
macro_rules! call {
    ($driver:expr, $function:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: the function was resolved from the driver with this signature; pointers are to
        // live values of the types that it reads or writes, and handles are its own.
        let code = unsafe { ($driver.api.$function)($($argument),*) };
        $driver.check(stringify!($function), code)
    }};
}

mod functions;
mod graph;
mod launch;
mod open;
mod reset;

use super::{Attribute, Driver, GraphEdge, GraphNode, Handle, KernelLaunch, Outcome, TensorMap};
use crate::cuda::error::{CallError, CudaVersion};
use crate::device::ByteRows;
use cudarc::driver::sys as cu;
use functions::DriverApi;
use piecewise_kernels::op::cuda::TensorBoxes;
use std::ffi::{CStr, CString, c_char, c_int, c_uint};
use std::path::Path;
use std::ptr::{null, null_mut};

/// Of blocks of so much shared memory a Hopper has room for two at the most.
const LARGE_SHARED_BYTES: u32 = 100 << 10;

/// The driver of this machine.
#[derive(Debug)]
pub struct SystemDriver {
    api: DriverApi,
    pub(in crate::cuda) version: CudaVersion,
    pub(in crate::cuda) path: &'static str,
}

/// The names and descriptions of the statuses that come up; the driver is only asked about a
/// status that the bindings have a name for.
type NameOf = unsafe extern "C" fn(c_uint, *mut *const c_char) -> c_uint;
type StatusText = unsafe extern "C" fn(cu::CUresult, *mut *const c_char) -> c_uint;

impl SystemDriver {
    fn check(&self, call: &'static str, code: c_uint) -> Outcome<()> {
        if code == 0 { Ok(()) } else { Err(self.error(call, code)) }
    }

    fn error(&self, call: &'static str, code: c_uint) -> CallError {
        let text = |function: StatusText| {
            // SAFETY: only the type of the first parameter changes, from an enum to the number that
            // represents it, because a status may be one that the bindings' enum lacks.
            let function = unsafe { std::mem::transmute::<StatusText, NameOf>(function) };
            let mut text = null();
            // SAFETY: the function takes any number and writes a static string or null.
            let found = unsafe { function(code, &mut text) } == 0 && !text.is_null();
            // SAFETY: the driver's strings end with NUL and live as long as the driver.
            found.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
        };
        let unknown = || "unknown to the driver".to_owned();
        CallError {
            call,
            code,
            name: text(self.api.cuGetErrorName).unwrap_or_else(unknown),
            description: text(self.api.cuGetErrorString).unwrap_or_else(unknown),
        }
    }

    fn device(&self, ordinal: u32) -> Outcome<cu::CUdevice> {
        let mut device = 0;
        call!(self, cuDeviceGet(&mut device, ordinal as c_int))?;
        Ok(device)
    }
}

fn pointer<T>(handle: Handle) -> *mut T {
    std::ptr::with_exposed_provenance_mut(handle as usize)
}

fn number<T>(pointer: *mut T) -> Handle {
    pointer.expose_provenance() as Handle
}

fn allocation_properties(ordinal: u32) -> cu::CUmemAllocationProp {
    cu::CUmemAllocationProp {
        type_: cu::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: cu::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
        location: location(ordinal),
        win32HandleMetaData: null_mut(),
        allocFlags: cu::CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

fn location(ordinal: u32) -> cu::CUmemLocation {
    cu::CUmemLocation {
        type_: cu::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
        id: ordinal as c_int,
    }
}

impl Attribute {
    fn of_driver(self) -> cu::CUdevice_attribute {
        use cu::CUdevice_attribute as A;
        match self {
            Self::Multiprocessors => A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
            Self::CapabilityMajor => A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            Self::CapabilityMinor => A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            Self::L2Bytes => A::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE,
            Self::SharedBytesPerBlock => A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
            Self::SharedBytesPerMultiprocessor => {
                A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR
            }
            Self::VirtualMemory => A::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
        }
    }
}

impl Driver for SystemDriver {
    fn version(&self) -> Option<CudaVersion> {
        Some(self.version)
    }

    fn device_count(&self) -> Outcome<u32> {
        let mut count = 0;
        call!(self, cuDeviceGetCount(&mut count))?;
        Ok(count.max(0) as u32)
    }

    fn device_name(&self, ordinal: u32) -> Outcome<String> {
        let device = self.device(ordinal)?;
        let mut name = [0u8; 256];
        call!(self, cuDeviceGetName(name.as_mut_ptr().cast(), name.len() as c_int, device))?;
        let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
        Ok(String::from_utf8_lossy(&name[..end]).into_owned())
    }

    fn device_attribute(&self, ordinal: u32, attribute: Attribute) -> Outcome<i32> {
        let device = self.device(ordinal)?;
        let mut value = 0;
        call!(self, cuDeviceGetAttribute(&mut value, attribute.of_driver(), device))?;
        Ok(value)
    }

    fn device_bytes(&self, ordinal: u32) -> Outcome<u64> {
        let device = self.device(ordinal)?;
        let mut bytes = 0;
        call!(self, cuDeviceTotalMem_v2(&mut bytes, device))?;
        Ok(bytes as u64)
    }

    fn retain_context(&self, ordinal: u32) -> Outcome<Handle> {
        let device = self.device(ordinal)?;
        let mut context = null_mut();
        call!(self, cuDevicePrimaryCtxRetain(&mut context, device))?;
        Ok(number(context))
    }

    fn release_context(&self, ordinal: u32) -> Outcome<()> {
        let device = self.device(ordinal)?;
        call!(self, cuDevicePrimaryCtxRelease_v2(device))
    }

    fn reset_context(&self, ordinal: u32) -> Outcome<()> {
        let device = self.device(ordinal)?;
        reset::begin_generation(ordinal);
        call!(self, cuDevicePrimaryCtxReset_v2(device))?;
        for mapped in reset::take_mapped(ordinal) {
            // Where the reset has returned a range too, there is nothing left to return.
            if self.unmap(mapped.address, mapped.bytes).is_ok() {
                self.release_backing(mapped.backing)?;
                self.unreserve(mapped.address, mapped.bytes)?;
            }
        }
        Ok(())
    }

    fn generation(&self, ordinal: u32) -> u64 {
        reset::generation(ordinal)
    }

    fn make_current(&self, context: Handle) -> Outcome<()> {
        call!(self, cuCtxSetCurrent(pointer(context)))
    }

    fn free_bytes(&self) -> Outcome<u64> {
        let (mut free, mut total) = (0, 0);
        call!(self, cuMemGetInfo_v2(&mut free, &mut total))?;
        Ok(free as u64)
    }

    fn granularity(&self, ordinal: u32) -> Outcome<u64> {
        let mut bytes = 0;
        let properties = allocation_properties(ordinal);
        let option = cu::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED;
        call!(self, cuMemGetAllocationGranularity(&mut bytes, &properties, option))?;
        Ok(bytes as u64)
    }

    fn reserve(&self, bytes: u64) -> Outcome<u64> {
        let mut address = 0;
        call!(self, cuMemAddressReserve(&mut address, bytes as usize, 0, 0, 0))?;
        Ok(address)
    }

    fn unreserve(&self, address: u64, bytes: u64) -> Outcome<()> {
        call!(self, cuMemAddressFree(address, bytes as usize))
    }

    fn create_backing(&self, ordinal: u32, bytes: u64) -> Outcome<Handle> {
        let mut backing = 0;
        let properties = allocation_properties(ordinal);
        call!(self, cuMemCreate(&mut backing, bytes as usize, &properties, 0))?;
        Ok(backing)
    }

    fn release_backing(&self, backing: Handle) -> Outcome<()> {
        call!(self, cuMemRelease(backing))
    }

    fn map(&self, address: u64, bytes: u64, backing: Handle) -> Outcome<()> {
        call!(self, cuMemMap(address, bytes as usize, 0, backing, 0))?;
        reset::note_mapped(reset::Mapped { address, bytes, backing, ordinal: None });
        Ok(())
    }

    fn unmap(&self, address: u64, bytes: u64) -> Outcome<()> {
        call!(self, cuMemUnmap(address, bytes as usize))?;
        reset::forget_mapped(address);
        Ok(())
    }

    fn allow_access(&self, ordinal: u32, address: u64, bytes: u64) -> Outcome<()> {
        let access = cu::CUmemAccessDesc {
            location: location(ordinal),
            flags: cu::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        reset::note_device(address, ordinal);
        call!(self, cuMemSetAccess(address, bytes as usize, &access, 1))
    }

    fn allocate(&self, bytes: u64) -> Outcome<u64> {
        let mut address = 0;
        call!(self, cuMemAlloc_v2(&mut address, bytes as usize))?;
        Ok(address)
    }

    fn free(&self, address: u64) -> Outcome<()> {
        call!(self, cuMemFree_v2(address))
    }

    unsafe fn pin(&self, block: *mut u8, bytes: u64) -> Outcome<()> {
        call!(self, cuMemHostRegister_v2(block.cast(), bytes as usize, 0))
    }

    fn unpin(&self, block: *mut u8) -> Outcome<()> {
        call!(self, cuMemHostUnregister(block.cast()))
    }

    unsafe fn copy_in(&self, to: u64, from: *const u8, bytes: u64, stream: Handle) -> Outcome<()> {
        call!(self, cuMemcpyHtoDAsync_v2(to, from.cast(), bytes as usize, pointer(stream)))
    }

    unsafe fn copy_in_rows(
        &self,
        to: u64,
        from: *const u8,
        rows: ByteRows,
        stream: Handle,
    ) -> Outcome<()> {
        let copy = cu::CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: cu::CUmemorytype::CU_MEMORYTYPE_HOST,
            srcHost: from.cast(),
            srcDevice: 0,
            srcArray: null_mut(),
            srcPitch: rows.width as usize,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: cu::CUmemorytype::CU_MEMORYTYPE_DEVICE,
            dstHost: null_mut(),
            dstDevice: to,
            dstArray: null_mut(),
            dstPitch: rows.pitch as usize,
            WidthInBytes: rows.width as usize,
            Height: rows.count as usize,
        };
        call!(self, cuMemcpy2DAsync_v2(&copy, pointer(stream)))
    }

    unsafe fn copy_out(&self, to: *mut u8, from: u64, bytes: u64, stream: Handle) -> Outcome<()> {
        call!(self, cuMemcpyDtoHAsync_v2(to.cast(), from, bytes as usize, pointer(stream)))
    }

    fn copy_within(&self, to: u64, from: u64, bytes: u64, stream: Handle) -> Outcome<()> {
        call!(self, cuMemcpyDtoDAsync_v2(to, from, bytes as usize, pointer(stream)))
    }

    fn set(&self, to: u64, value: u32, width: u32, count: u64, stream: Handle) -> Outcome<()> {
        let (count, stream) = (count as usize, pointer(stream));
        match width {
            1 => call!(self, cuMemsetD8Async(to, value as u8, count, stream)),
            2 => call!(self, cuMemsetD16Async(to, value as u16, count, stream)),
            _ => call!(self, cuMemsetD32Async(to, value, count, stream)),
        }
    }

    fn create_stream(&self) -> Outcome<Handle> {
        let mut stream = null_mut();
        let flags = cu::CUstream_flags::CU_STREAM_NON_BLOCKING as c_uint;
        call!(self, cuStreamCreate(&mut stream, flags))?;
        Ok(number(stream))
    }

    fn destroy_stream(&self, stream: Handle) -> Outcome<()> {
        call!(self, cuStreamDestroy_v2(pointer(stream)))
    }

    fn synchronize(&self, stream: Handle) -> Outcome<()> {
        call!(self, cuStreamSynchronize(pointer(stream)))
    }

    fn create_event(&self, timing: bool) -> Outcome<Handle> {
        let mut event = null_mut();
        let flags = match timing {
            true => cu::CUevent_flags::CU_EVENT_DEFAULT,
            false => cu::CUevent_flags::CU_EVENT_DISABLE_TIMING,
        };
        call!(self, cuEventCreate(&mut event, flags as c_uint))?;
        Ok(number(event))
    }

    fn destroy_event(&self, event: Handle) -> Outcome<()> {
        call!(self, cuEventDestroy_v2(pointer(event)))
    }

    fn record_event(&self, event: Handle, stream: Handle) -> Outcome<()> {
        call!(self, cuEventRecord(pointer(event), pointer(stream)))
    }

    fn wait_event(&self, event: Handle) -> Outcome<()> {
        call!(self, cuEventSynchronize(pointer(event)))
    }

    fn elapsed(&self, start: Handle, end: Handle) -> Outcome<f32> {
        let mut milliseconds = 0.0;
        call!(self, cuEventElapsedTime(&mut milliseconds, pointer(start), pointer(end)))?;
        Ok(milliseconds)
    }

    fn load_module(&self, cubin: &[u8]) -> Outcome<Handle> {
        let mut module = null_mut();
        call!(self, cuModuleLoadData(&mut module, cubin.as_ptr().cast()))?;
        Ok(number(module))
    }

    fn unload_module(&self, module: Handle) -> Outcome<()> {
        call!(self, cuModuleUnload(pointer(module)))
    }

    fn function(&self, module: Handle, name: &str) -> Outcome<Handle> {
        let mut function = null_mut();
        // A name with a NUL byte is cut there, and no function is found under it.
        let name = CString::new(name.split('\0').next().unwrap_or_default()).unwrap_or_default();
        call!(self, cuModuleGetFunction(&mut function, pointer(module), name.as_ptr()))?;
        Ok(number(function))
    }

    fn load_function(&self, function: Handle) -> Outcome<()> {
        call!(self, cuFuncLoad(pointer(function)))
    }

    fn allow_shared(&self, function: Handle, bytes: u32) -> Outcome<()> {
        let attribute = cu::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        call!(self, cuFuncSetAttribute(pointer(function), attribute, bytes as c_int))?;
        if bytes < LARGE_SHARED_BYTES {
            return Ok(());
        }
        // A multiprocessor changes how much of its memory is shared while it is empty. A kernel of which
        // one block fits would have it give no more than that, and nothing else room beside the block.
        let attribute =
            cu::CUfunction_attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
        let most = cu::CUshared_carveout_enum::CU_SHAREDMEM_CARVEOUT_MAX_SHARED;
        call!(self, cuFuncSetAttribute(pointer(function), attribute, most as c_int))
    }

    fn launch(&self, launch: &KernelLaunch<'_>) -> Outcome<()> {
        self.launch_kernel(launch)
    }

    fn encode_map(&self, address: u64, boxes: &TensorBoxes, rows: u64) -> Outcome<TensorMap> {
        self.encode_boxes(address, boxes, rows)
    }

    fn begin_capture(&self, stream: Handle) -> Outcome<()> {
        let mode = cu::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        call!(self, cuStreamBeginCapture_v2(pointer(stream), mode))
    }

    fn end_capture(&self, stream: Handle) -> Outcome<Handle> {
        let mut graph = null_mut();
        call!(self, cuStreamEndCapture(pointer(stream), &mut graph))?;
        Ok(number(graph))
    }

    fn captured_node(&self, stream: Handle) -> Outcome<Handle> {
        self.last_captured(pointer(stream)).map(number)
    }

    fn is_capturing(&self, stream: Handle) -> Outcome<bool> {
        let mut status: c_uint = 0;
        call!(self, cuStreamIsCapturing(pointer(stream), (&raw mut status).cast()))?;
        Ok(status != 0)
    }

    fn graph_nodes(&self, graph: Handle) -> Outcome<Vec<GraphNode>> {
        self.nodes_of(pointer(graph))
    }

    fn graph_edges(&self, graph: Handle) -> Outcome<Vec<GraphEdge>> {
        self.edges_of(pointer(graph))
    }

    fn write_dot(&self, graph: Handle, path: &Path) -> Outcome<()> {
        let text = path.to_string_lossy();
        let path = CString::new(text.split('\0').next().unwrap_or_default()).unwrap_or_default();
        let flags =
            cu::CUgraphDebugDot_flags::CU_GRAPH_DEBUG_DOT_FLAGS_KERNEL_NODE_PARAMS as c_uint;
        call!(self, cuGraphDebugDotPrint(pointer(graph), path.as_ptr(), flags))
    }

    fn instantiate(&self, graph: Handle) -> Outcome<Handle> {
        let mut exec = null_mut();
        call!(self, cuGraphInstantiateWithFlags(&mut exec, pointer(graph), 0))?;
        Ok(number(exec))
    }

    fn set_kernel(&self, exec: Handle, node: Handle, launch: &KernelLaunch<'_>) -> Outcome<()> {
        self.set_kernel_node(pointer(exec), pointer(node), launch)
    }

    fn destroy_graph(&self, graph: Handle) -> Outcome<()> {
        call!(self, cuGraphDestroy(pointer(graph)))
    }

    fn upload(&self, exec: Handle, stream: Handle) -> Outcome<()> {
        call!(self, cuGraphUpload(pointer(exec), pointer(stream)))
    }

    fn launch_graph(&self, exec: Handle, stream: Handle) -> Outcome<()> {
        call!(self, cuGraphLaunch(pointer(exec), pointer(stream)))
    }

    fn destroy_exec(&self, exec: Handle) -> Outcome<()> {
        call!(self, cuGraphExecDestroy(pointer(exec)))
    }
}
