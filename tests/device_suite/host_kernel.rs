//! A kernel as a user's host function has it: loaded through the driver, launched on a stream
//! that is known as a number alone.

#![allow(unsafe_code, reason = "the driver is a C library; every block states why it is sound")]

use libloading::Library;
use piecewise_backend::cuda::{CudaOptions, CudaProbe, Nvrtc, Source, library_dirs};
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;

type Status = c_int;
type LaunchKernel = unsafe extern "C" fn(
    usize,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    usize,
    *mut *mut c_void,
    *mut *mut c_void,
) -> Status;

/// A kernel of the first device's primary context, which it keeps for as long as the process runs.
#[derive(Debug)]
pub(crate) struct HostKernel {
    function: usize,
    launch: LaunchKernel,
    _driver: Library,
}

fn ok(call: &str, status: Status) -> Result<(), String> {
    if status == 0 { Ok(()) } else { Err(format!("{call} returned {status}")) }
}

impl HostKernel {
    /// Compiles `source` for the first device and loads its `entry`.
    pub(crate) fn load(source: &str, entry: &str) -> Result<Self, String> {
        let dirs = library_dirs(&[]);
        let probe = CudaProbe::run(&CudaOptions::default());
        let arch = probe.check(0).map_err(|e| e.to_string())?.arch;
        let nvrtc = Nvrtc::open(&dirs, None).map_err(|e| e.to_string())?;
        let source = Source { name: "host.cu", text: source, headers: &[], options: &[] };
        let cubin = nvrtc.compile(&source, arch).map_err(|e| e.to_string())?;
        let entry = CString::new(entry).map_err(|e| e.to_string())?;
        let missing = |e: libloading::Error| e.to_string();
        // SAFETY: the driver's library runs no code of its own when it is loaded.
        let driver = unsafe { Library::new("libcuda.so.1") }.map_err(missing)?;
        let (mut device, mut context, mut module, mut function) = (0, 0usize, 0usize, 0usize);
        // SAFETY: the signatures are those of the driver's interface, every pointer is to a local
        // that outlives its call, and the image is the whole ELF file that the compiler made.
        unsafe {
            let init = driver.get::<unsafe extern "C" fn(c_uint) -> Status>(b"cuInit\0");
            ok("cuInit", init.map_err(missing)?(0))?;
            type Get = unsafe extern "C" fn(*mut c_int, c_int) -> Status;
            let get = driver.get::<Get>(b"cuDeviceGet\0").map_err(missing)?;
            ok("cuDeviceGet", get(&mut device, 0))?;
            type Retain = unsafe extern "C" fn(*mut usize, c_int) -> Status;
            let retain = driver.get::<Retain>(b"cuDevicePrimaryCtxRetain\0").map_err(missing)?;
            ok("cuDevicePrimaryCtxRetain", retain(&mut context, device))?;
            type SetCurrent = unsafe extern "C" fn(usize) -> Status;
            let set_current = driver.get::<SetCurrent>(b"cuCtxSetCurrent\0").map_err(missing)?;
            ok("cuCtxSetCurrent", set_current(context))?;
            type LoadData = unsafe extern "C" fn(*mut usize, *const c_void) -> Status;
            let load = driver.get::<LoadData>(b"cuModuleLoadData\0").map_err(missing)?;
            ok("cuModuleLoadData", load(&mut module, cubin.as_ptr().cast()))?;
            type Function = unsafe extern "C" fn(*mut usize, usize, *const c_char) -> Status;
            let find = driver.get::<Function>(b"cuModuleGetFunction\0").map_err(missing)?;
            ok("cuModuleGetFunction", find(&mut function, module, entry.as_ptr()))?;
            type FuncLoad = unsafe extern "C" fn(usize) -> Status;
            let load = driver.get::<FuncLoad>(b"cuFuncLoad\0").map_err(missing)?;
            ok("cuFuncLoad", load(function))?;
            let launch = *driver.get::<LaunchKernel>(b"cuLaunchKernel\0").map_err(missing)?;
            Ok(Self { function, launch, _driver: driver })
        }
    }

    /// Launches it with one parameter of at most 8 bytes for each number.
    pub(crate) fn launch(
        &self,
        stream: u64,
        blocks: u32,
        threads: u32,
        parameters: &mut [u64],
    ) -> Result<(), String> {
        let mut pointers: Vec<*mut c_void> =
            parameters.iter_mut().map(|p| std::ptr::from_mut(p).cast()).collect();
        let (function, stream) = (self.function, stream as usize);
        // SAFETY: the function is loaded for as long as the process runs, the stream is that of
        // the call, and each pointer is to the bytes of a parameter, which the driver copies.
        let status = unsafe {
            let pointers = pointers.as_mut_ptr();
            (self.launch)(function, blocks, 1, 1, threads, 1, 1, 0, stream, pointers, null_mut())
        };
        ok("cuLaunchKernel", status)
    }
}
