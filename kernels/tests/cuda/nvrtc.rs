//! NVRTC where it is installed: found by the loader, or in the folders that
//! `PIECEWISE_CUDA_LIBRARY_DIRS` lists.
#![allow(unsafe_code, reason = "NVRTC is a C library; every block states why it is sound")]

use crate::skip::skipped;
use libloading::{Library, Symbol};
use std::ffi::{CString, c_char, c_int, c_void};
use std::path::PathBuf;

type Program = *mut c_void;

/// The compiler library.
pub(crate) struct Nvrtc {
    library: Library,
    /// Whether it can compile in half the time, to machine code that is slow: what it takes is the
    /// same, and nothing runs it here.
    compiles_fast: bool,
}

const NAMES: [&str; 2] = ["libnvrtc.so.13", "libnvrtc.so.12"];

impl Nvrtc {
    /// The library, if there is one.
    pub(crate) fn find() -> Option<Self> {
        let folders = std::env::var_os("PIECEWISE_CUDA_LIBRARY_DIRS").unwrap_or_default();
        let listed =
            std::env::split_paths(&folders).flat_map(|folder| NAMES.map(|name| folder.join(name)));
        let candidates = listed.chain(NAMES.map(PathBuf::from));
        for path in candidates {
            if let Some(builtins) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
                // NVRTC opens its builtins by name: having them in the process is enough.
                for entry in std::fs::read_dir(builtins).into_iter().flatten().flatten() {
                    if entry.file_name().to_string_lossy().starts_with("libnvrtc-builtins") {
                        // SAFETY: NVIDIA's library has no initializer with preconditions.
                        if let Ok(library) = unsafe { Library::new(entry.path()) } {
                            std::mem::forget(library);
                        }
                    }
                }
            }
            // SAFETY: as above.
            if let Ok(library) = unsafe { Library::new(&path) } {
                let compiles_fast = path.ends_with(NAMES[0]);
                return Some(Self { library, compiles_fast });
            }
        }
        let reason = "no NVRTC; install it or list its folder in PIECEWISE_CUDA_LIBRARY_DIRS";
        skipped("PIECEWISE_REQUIRE_NVRTC", reason);
        None
    }

    /// The machine code of `source` for `arch` (`sm_90a`).
    pub(crate) fn compile(
        &self,
        source: &str,
        prelude: &str,
        arch: &str,
        options: &[String],
    ) -> Result<Vec<u8>, String> {
        type Create = unsafe extern "C" fn(
            *mut Program,
            *const c_char,
            *const c_char,
            c_int,
            *const *const c_char,
            *const *const c_char,
        ) -> c_int;
        type Compile = unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int;
        type Size = unsafe extern "C" fn(Program, *mut usize) -> c_int;
        type Bytes = unsafe extern "C" fn(Program, *mut c_char) -> c_int;
        type Destroy = unsafe extern "C" fn(*mut Program) -> c_int;
        let text = |s: &str| CString::new(s).map_err(|e| e.to_string());
        let (source, prelude, name) = (text(source)?, text(prelude)?, text("prelude.cuh")?);
        let mut options: Vec<CString> =
            options.iter().map(|o| text(o)).collect::<Result<_, _>>()?;
        options.push(text(&format!("--gpu-architecture={arch}"))?);
        options.push(text("--std=c++17")?);
        if self.compiles_fast {
            options.push(text("--Ofast-compile=max")?);
        }
        let options: Vec<*const c_char> = options.iter().map(|o| o.as_ptr()).collect();
        // SAFETY: the symbols have NVRTC's documented signatures; every pointer lives through its
        // call, and buffers have the sizes that NVRTC states.
        unsafe {
            let symbol = |name: &[u8]| format!("{}: no such symbol", String::from_utf8_lossy(name));
            macro_rules! get {
                ($type:ty, $name:literal) => {{
                    let found: Symbol<'_, $type> =
                        self.library.get($name).map_err(|_| symbol($name))?;
                    found
                }};
            }
            let create = get!(Create, b"nvrtcCreateProgram");
            let compile = get!(Compile, b"nvrtcCompileProgram");
            let log_size = get!(Size, b"nvrtcGetProgramLogSize");
            let log = get!(Bytes, b"nvrtcGetProgramLog");
            let code_size = get!(Size, b"nvrtcGetCUBINSize");
            let code = get!(Bytes, b"nvrtcGetCUBIN");
            let destroy = get!(Destroy, b"nvrtcDestroyProgram");
            let mut program: Program = std::ptr::null_mut();
            let (headers, names) = ([prelude.as_ptr()], [name.as_ptr()]);
            let made = create(
                &mut program,
                source.as_ptr(),
                c"kernel.cu".as_ptr(),
                1,
                headers.as_ptr(),
                names.as_ptr(),
            );
            if made != 0 {
                return Err(format!("nvrtcCreateProgram: {made}"));
            }
            let done = compile(program, options.len() as c_int, options.as_ptr());
            let bytes = |size: &Symbol<'_, Size>, read: &Symbol<'_, Bytes>| {
                let mut n = 0usize;
                size(program, &mut n);
                let mut buffer = vec![0u8; n];
                if n > 0 {
                    read(program, buffer.as_mut_ptr().cast());
                }
                buffer
            };
            let result = match done {
                0 => Ok(bytes(&code_size, &code)),
                _ => Err(String::from_utf8_lossy(&bytes(&log_size, &log)).into_owned()),
            };
            destroy(&mut program);
            match result {
                Ok(code) if !code.starts_with(b"\x7fELF") => Err("no machine code".to_owned()),
                other => other,
            }
        }
    }
}
