//! NVRTC: CUDA C++ source to a cubin. It needs no GPU.

use super::library::{CudaLibrary, LibraryError, Opened, library_api, open};
use cudarc::nvrtc::sys::nvrtcProgram;
use derive_more::Display;
use serde::{Deserialize, Serialize};
use std::ffi::{CString, c_char, c_int};
use std::path::PathBuf;

library_api! {
    /// The functions of NVRTC that are used.
    struct NvrtcApi from cudarc::nvrtc::sys, status nvrtcResult {
        fn nvrtcVersion(*mut c_int, *mut c_int);
        fn nvrtcGetNumSupportedArchs(*mut c_int);
        fn nvrtcGetSupportedArchs(*mut c_int);
        fn nvrtcCreateProgram(
            *mut nvrtcProgram, *const c_char, *const c_char, c_int, *const *const c_char,
            *const *const c_char,
        );
        fn nvrtcCompileProgram(nvrtcProgram, c_int, *const *const c_char);
        fn nvrtcDestroyProgram(*mut nvrtcProgram);
        fn nvrtcGetProgramLogSize(nvrtcProgram, *mut usize);
        fn nvrtcGetProgramLog(nvrtcProgram, *mut c_char);
        fn nvrtcGetCUBINSize(nvrtcProgram, *mut usize);
        fn nvrtcGetCUBIN(nvrtcProgram, *mut c_char);
        fn nvrtcGetPTXSize(nvrtcProgram, *mut usize);
        fn nvrtcGetPTX(nvrtcProgram, *mut c_char);
    }
}

/// A real architecture: kernels are compiled to its machine code, with the instructions of that
/// capability alone where kernels use them (`sm_90a`: `wgmma`). Such code runs on every device of the
/// capability, and code of `sm_90` on no other one either, so that there is one name for both.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Display, Serialize, Deserialize,
)]
#[display("sm_{number}{}", if *self == Self::HOPPER { "a" } else { "" })]
pub struct Arch {
    /// The compute capability times ten: 90.
    pub number: u32,
}

impl Arch {
    /// The oldest that kernels are written for: bf16 arithmetic and asynchronous copies.
    pub const OLDEST: Self = Self { number: 80 };
    /// The one of H100 and H200.
    pub const HOPPER: Self = Self { number: 90 };

    /// The architecture of a device of this compute capability.
    pub fn of(capability: (u32, u32)) -> Self {
        Self { number: capability.0 * 10 + capability.1 }
    }

    /// Bytes of shared memory that one block may have, as the CUDA programming guide lists them by
    /// compute capability; of an unlisted one, what all of them give.
    pub fn shared_bytes_of_block(self) -> u64 {
        let kib = match self.number {
            80 | 87 => 163,
            90 | 100 | 103 | 110 => 227,
            _ => 99,
        };
        kib << 10
    }

    /// Bytes of shared memory of which two blocks, but not three, find room on a multiprocessor.
    pub fn shared_bytes_of_half(self) -> u64 {
        self.shared_bytes_of_block() / 3072 * 1024 + 2048
    }

    /// Whether warpgroups multiply together and copies are of boxes, as the product in tiles needs.
    pub fn has_warpgroup_products(self) -> bool {
        self == Self::HOPPER
    }

    /// Whether kernels can wait for their predecessor by themselves (Hopper and later).
    pub fn has_programmatic_launch(self) -> bool {
        self.number >= 90
    }
}

impl std::str::FromStr for Arch {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let rest = text.strip_prefix("sm_").unwrap_or_default();
        // `a` has instructions of one capability alone, `f` those of a family.
        let digits = rest.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let first = match &rest[digits.len()..] {
            "" => 0,
            "a" => Self::HOPPER.number,
            "f" => 100,
            _ => u32::MAX,
        };
        let number = digits.parse().ok().filter(|number| (50..=999).contains(number));
        match number.filter(|number| *number >= first) {
            Some(number) if number < Self::OLDEST.number => Err(format!(
                "`{text}` is too old: kernels need bf16 arithmetic and asynchronous copies, which \
                 {} and later have",
                Self::OLDEST
            )),
            Some(number) => Ok(Self { number }),
            None => {
                Err(format!("`{text}` is no architecture; write `sm_` and a number: sm_80, sm_90a"))
            }
        }
    }
}

/// A compiler's input. Everything in it changes the image.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// The name in messages, and what `#line` would show.
    pub name: &'a str,
    /// The source, in CUDA C++.
    pub text: &'a str,
    /// What `#include` finds, by name.
    pub headers: &'a [(&'a str, &'a str)],
    /// Options beside the architecture: `--std=c++17`.
    pub options: &'a [&'a str],
}

/// Why there is no cubin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "a field is what the message calls it")]
pub enum NvrtcError {
    /// The library can't be used.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// Source, name, header or option holds a NUL byte.
    #[error("{what} of kernel source `{name}` holds a NUL byte")]
    Nul { name: String, what: &'static str },
    /// The source does not compile.
    #[error("`{name}` does not compile for {arch} ({call} returned {code}):\n{log}")]
    Compile {
        name: String,
        arch: Arch,
        /// The NVRTC function that failed.
        call: &'static str,
        code: u32,
        log: String,
    },
    /// The library compiled it, but not to machine code.
    #[error("`{name}` compiled to no machine code for {arch}; NVRTC {version} knows {known}")]
    NoImage {
        name: String,
        arch: Arch,
        version: String,
        /// The architectures that it knows.
        known: String,
    },
    /// A call without a program failed.
    #[error("{call} returned {code}; the NVRTC library at {path} is broken or incomplete")]
    Broken {
        call: &'static str,
        code: u32,
        /// Where the library was found.
        path: String,
    },
}

/// The first version that keeps on disk what it has compiled. Earlier ones refuse to be told not to.
const CACHES_FROM: (u32, u32) = (12, 9);

/// What a version is told beside the options of a source.
fn options_of(version: (u32, u32), arch: Arch) -> Vec<String> {
    let mut options = vec![format!("--gpu-architecture={arch}")];
    // Its cache gives one thread at a time what the store of a model would.
    options.extend((version >= CACHES_FROM).then(|| "--no-cache".to_owned()));
    options
}

/// NVRTC, opened. It is used by several threads at once.
#[derive(Clone, Debug)]
pub struct Nvrtc {
    api: NvrtcApi,
    path: &'static str,
    version: (u32, u32),
    archs: Vec<Arch>,
    /// What every source is compiled with, beside its own options.
    options: Vec<String>,
}

impl Nvrtc {
    /// Finds and opens NVRTC: in `dirs`, then by the loader's rules. Where the driver's major
    /// version is known, newer ones are passed over: such a driver can't load their images.
    ///
    /// # Errors
    /// When there is none, or it lacks a function.
    pub fn open(dirs: &[PathBuf], driver_major: Option<u32>) -> Result<Self, NvrtcError> {
        Self::resolve(&open(CudaLibrary::Nvrtc, dirs, driver_major)?)
    }

    fn resolve(library: &Opened) -> Result<Self, NvrtcError> {
        let api = NvrtcApi::resolve(library)?;
        let broken = |call, code| NvrtcError::Broken { call, code, path: library.path.to_owned() };
        let check = |call, code| if code == 0 { Ok(()) } else { Err(broken(call, code)) };
        let (mut major, mut minor, mut count) = (0, 0, 0);
        // SAFETY: all pointers are to live integers of the types that the function writes.
        check("nvrtcVersion", unsafe { (api.nvrtcVersion)(&mut major, &mut minor) })?;
        // SAFETY: as above.
        check("nvrtcGetNumSupportedArchs", unsafe { (api.nvrtcGetNumSupportedArchs)(&mut count) })?;
        let mut archs = vec![0; count.clamp(0, 4096) as usize];
        // SAFETY: the function writes as many integers as it counted, and the vector holds those.
        check("nvrtcGetSupportedArchs", unsafe {
            (api.nvrtcGetSupportedArchs)(archs.as_mut_ptr())
        })?;
        let archs = archs.into_iter().map(|number: c_int| Arch { number: number.max(0) as u32 });
        let version = (major.max(0) as u32, minor.max(0) as u32);
        Ok(Self { api, path: library.path, version, archs: archs.collect(), options: Vec::new() })
    }

    /// The same, which compiles every source with this option, too: `-lineinfo` for a profiler,
    /// `--Ofast-compile=max` for code that only has to compile. What it makes names the option, but not in its key: give
    /// it a store of its own.
    #[must_use]
    pub fn with_option(mut self, option: &str) -> Self {
        self.options.push(option.to_owned());
        self
    }

    /// Major and minor version: `(13, 0)` of 13.0.
    pub fn version(&self) -> (u32, u32) {
        self.version
    }

    /// What an image's provenance says of this library, `nvrtc 13.0`, and of options of one's own.
    pub fn identity(&self) -> String {
        let version = format!("nvrtc {}.{}", self.version.0, self.version.1);
        self.options.iter().fold(version, |identity, option| format!("{identity} {option}"))
    }

    /// The file that was opened, as the loader was given it.
    pub fn path(&self) -> &str {
        self.path
    }

    /// The architectures that it compiles for, ascending.
    pub fn archs(&self) -> &[Arch] {
        &self.archs
    }

    /// Compiles `source` to machine code of `arch`. The same input gives the same bytes.
    ///
    /// # Errors
    /// When the source does not compile, with the compiler's log, or the library does not know
    /// the architecture.
    pub fn compile(&self, source: &Source<'_>, arch: Arch) -> Result<Vec<u8>, NvrtcError> {
        let cubin = self.compiled(source, arch, |program| program.cubin())?;
        if cubin.is_empty() {
            let known = self.archs.iter().map(Arch::to_string).collect::<Vec<_>>().join(" ");
            let version = format!("{}.{}", self.version.0, self.version.1);
            let name = source.name.to_owned();
            return Err(NvrtcError::NoImage { name, arch, version, known });
        }
        Ok(cubin)
    }

    /// Compiles `source` to the PTX that machine code of `arch` is made of.
    ///
    /// # Errors
    /// As for [`Self::compile`].
    pub fn ptx(&self, source: &Source<'_>, arch: Arch) -> Result<Vec<u8>, NvrtcError> {
        let mut text = self.compiled(source, arch, |program| program.ptx())?;
        // It ends as a text of C does.
        while text.last() == Some(&0) {
            text.pop();
        }
        Ok(text)
    }

    /// What `take` gets of the compiled program.
    fn compiled(
        &self,
        source: &Source<'_>,
        arch: Arch,
        take: impl FnOnce(&mut Program<'_>) -> Result<Vec<u8>, (&'static str, u32)>,
    ) -> Result<Vec<u8>, NvrtcError> {
        let nul = |what| move |_| NvrtcError::Nul { name: source.name.to_owned(), what };
        let text = CString::new(source.text).map_err(nul("the text"))?;
        let name = CString::new(source.name).map_err(nul("the name"))?;
        let (mut header_texts, mut header_names) = (Vec::new(), Vec::new());
        for (name, text) in source.headers {
            header_names.push(CString::new(*name).map_err(nul("a header's name"))?);
            header_texts.push(CString::new(*text).map_err(nul("a header"))?);
        }
        let mut options =
            Vec::from_iter(options_of(self.version, arch).into_iter().map(CString::new));
        options.extend(source.options.iter().map(|option| CString::new(*option)));
        options.extend(self.options.iter().map(|option| CString::new(option.as_str())));
        let options = options.into_iter().collect::<Result<Vec<_>, _>>();
        let options = options.map_err(nul("an option"))?;
        let pointers =
            |texts: &[CString]| texts.iter().map(|text| text.as_ptr()).collect::<Vec<_>>();
        let (texts, names) = (pointers(&header_texts), pointers(&header_names));
        let failed = |call, code, log| NvrtcError::Compile {
            name: source.name.to_owned(),
            arch,
            call,
            code,
            log,
        };
        let mut program: nvrtcProgram = std::ptr::null_mut();
        // SAFETY: all strings end with NUL and outlive the program, which is destroyed below.
        let code = unsafe {
            (self.api.nvrtcCreateProgram)(
                &mut program,
                text.as_ptr(),
                name.as_ptr(),
                texts.len() as c_int,
                texts.as_ptr(),
                names.as_ptr(),
            )
        };
        if code != 0 {
            return Err(failed("nvrtcCreateProgram", code, String::new()));
        }
        let mut program = Program { api: &self.api, program };
        let arguments = pointers(&options);
        // SAFETY: the program lives, and the options are as many strings as said.
        let code = unsafe {
            (self.api.nvrtcCompileProgram)(
                program.program,
                arguments.len() as c_int,
                arguments.as_ptr(),
            )
        };
        if code != 0 {
            return Err(failed("nvrtcCompileProgram", code, program.log()));
        }
        take(&mut program).map_err(|(call, code)| {
            let log = program.log();
            failed(call, code, log)
        })
    }
}

struct Program<'a> {
    api: &'a NvrtcApi,
    program: nvrtcProgram,
}

impl Program<'_> {
    fn log(&mut self) -> String {
        let mut size = 0;
        // SAFETY: the program lives; `size` is what the function writes.
        if unsafe { (self.api.nvrtcGetProgramLogSize)(self.program, &mut size) } != 0 {
            return String::new();
        }
        let mut log = vec![0u8; size];
        // SAFETY: the log has exactly `size` bytes.
        if unsafe { (self.api.nvrtcGetProgramLog)(self.program, log.as_mut_ptr().cast()) } != 0 {
            return String::new();
        }
        String::from_utf8_lossy(&log).trim_end_matches(['\0', '\n']).to_owned()
    }

    fn cubin(&mut self) -> Result<Vec<u8>, (&'static str, u32)> {
        let mut size = 0;
        // SAFETY: the program lives; `size` is what the function writes.
        match unsafe { (self.api.nvrtcGetCUBINSize)(self.program, &mut size) } {
            0 => {}
            code => return Err(("nvrtcGetCUBINSize", code)),
        }
        let mut cubin = vec![0u8; size];
        if size == 0 {
            return Ok(cubin);
        }
        // SAFETY: the image has exactly `size` bytes.
        match unsafe { (self.api.nvrtcGetCUBIN)(self.program, cubin.as_mut_ptr().cast()) } {
            0 => Ok(cubin),
            code => Err(("nvrtcGetCUBIN", code)),
        }
    }

    fn ptx(&mut self) -> Result<Vec<u8>, (&'static str, u32)> {
        let mut size = 0;
        // SAFETY: the program lives; `size` is what the function writes.
        match unsafe { (self.api.nvrtcGetPTXSize)(self.program, &mut size) } {
            0 => {}
            code => return Err(("nvrtcGetPTXSize", code)),
        }
        let mut text = vec![0u8; size];
        // SAFETY: the text has exactly `size` bytes.
        match unsafe { (self.api.nvrtcGetPTX)(self.program, text.as_mut_ptr().cast()) } {
            0 => Ok(text),
            code => Err(("nvrtcGetPTX", code)),
        }
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // SAFETY: the program was created and is destroyed once.
        let code = unsafe { (self.api.nvrtcDestroyProgram)(&mut self.program) };
        if code != 0 {
            tracing::warn!(code, "nvrtcDestroyProgram failed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_librarys_own_cache_is_left_out_where_it_has_one() {
        let leaves_out = |version| {
            let options = options_of(version, Arch::HOPPER);
            assert_eq!(options[0], "--gpu-architecture=sm_90a");
            options[1..] == ["--no-cache"]
        };
        assert_eq!(
            [(12, 0), (12, 8), (12, 9), (13, 0)].map(leaves_out),
            [false, false, true, true]
        );
    }
}
