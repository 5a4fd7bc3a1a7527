//! Shared libraries found at run time: by configured folders first, then by the loader's rules.

use derive_more::Display;
use libloading::Library;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// The environment variable that adds folders to search for CUDA libraries, separated like
/// `PATH`.
pub const LIBRARY_DIRS_VARIABLE: &str = "PIECEWISE_CUDA_LIBRARY_DIRS";

/// Folders to search for NVRTC and cuBLASLt before the system's own: `extra`, then those of
/// [`LIBRARY_DIRS_VARIABLE`].
pub fn library_dirs(extra: &[PathBuf]) -> Vec<PathBuf> {
    let variable = std::env::var_os(LIBRARY_DIRS_VARIABLE).unwrap_or_default();
    let named = std::env::split_paths(&variable).filter(|dir| !dir.as_os_str().is_empty());
    extra.iter().cloned().chain(named).collect()
}

/// A library of the toolkit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Display, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CudaLibrary {
    /// The driver, which comes with the GPU's kernel module.
    #[display("CUDA driver")]
    Driver,
    /// The run-time compiler.
    #[display("NVRTC")]
    Nvrtc,
    /// The matrix product library.
    #[display("cuBLASLt")]
    CublasLt,
}

impl CudaLibrary {
    /// The file names that the loader is asked for, in order. A driver is never looked up without
    /// its version: that file may be the toolkit's stub, which has no device.
    fn soname_stem(self) -> (&'static str, &'static [&'static str]) {
        match self {
            Self::Driver => ("libcuda.so", &["1"]),
            Self::Nvrtc => ("libnvrtc.so", &["13", "12", ""]),
            Self::CublasLt => ("libcublasLt.so", &["13", "12", ""]),
        }
    }

    /// Libraries beside it that it opens by name when it is used, and would not find in a
    /// configured folder.
    fn companions(self) -> &'static [&'static str] {
        match self {
            Self::Nvrtc => &["libnvrtc-builtins.so."],
            Self::CublasLt => &["libcublas.so.", "libnvJitLink.so."],
            Self::Driver => &[],
        }
    }

    /// What to do where it is missing, as the end of a message.
    pub fn remedy(self) -> &'static str {
        match self {
            Self::Driver => {
                "install the NVIDIA driver of this GPU (nvidia-smi should run), and in a \
                 container start it with access to the GPU"
            }
            Self::Nvrtc => {
                "install the CUDA toolkit or `pip install nvidia-cuda-nvrtc`, and name the \
                 library's folder in `cuda.library_dirs` or PIECEWISE_CUDA_LIBRARY_DIRS"
            }
            Self::CublasLt => {
                "install the CUDA toolkit or `pip install nvidia-cublas`, and name the library's \
                 folder in `cuda.library_dirs` or PIECEWISE_CUDA_LIBRARY_DIRS"
            }
        }
    }
}

/// A library that could not be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, serde::Serialize)]
#[non_exhaustive]
#[expect(missing_docs, reason = "a field is what the message calls it")]
pub enum LibraryError {
    /// No file of that name could be opened.
    #[error("{library} was not found (looked for {tried}); {remedy}", remedy = library.remedy())]
    NotFound {
        library: CudaLibrary,
        /// What was asked for, in order.
        tried: String,
    },
    /// It lacks a function: another version than expected, or a stub.
    #[error(
        "{library} at {path} has no function `{symbol}`; it is too old or a stub: {remedy}",
        remedy = library.remedy()
    )]
    MissingSymbol { library: CudaLibrary, path: String, symbol: &'static str },
}

/// An opened library. It is never closed: the driver and its companions start threads and exit
/// handlers that outlive any handle.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opened {
    pub(super) library: CudaLibrary,
    handle: &'static Library,
    pub(super) path: &'static str,
}

impl Opened {
    /// A function of the library.
    ///
    /// # Safety
    /// `F` must be the type of the function `symbol`.
    pub(super) unsafe fn function<F: Copy>(&self, symbol: &'static str) -> Result<F, LibraryError> {
        // SAFETY: the caller vouches for the type, and the library is never closed.
        let found = unsafe { self.handle.get::<F>(symbol) };
        found.map(|f| *f).map_err(|_| LibraryError::MissingSymbol {
            library: self.library,
            path: self.path.to_owned(),
            symbol,
        })
    }
}

/// Opens a library: from `dirs` in order, newest first, then by the loader's rules. Versions
/// above `newest_major` are passed over.
pub(super) fn open(
    library: CudaLibrary,
    dirs: &[PathBuf],
    newest_major: Option<u32>,
) -> Result<Opened, LibraryError> {
    let (stem, versions) = library.soname_stem();
    let fits = |version: &str| {
        let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
        library == CudaLibrary::Driver
            || newest_major.zip(major).is_none_or(|(newest, major)| major <= newest)
    };
    let mut tried = Vec::new();
    for dir in dirs {
        for name in matching(dir, stem) {
            if !fits(name[stem.len()..].trim_start_matches('.')) {
                continue;
            }
            for companion in library.companions() {
                for file in matching(dir, companion) {
                    // What fails to open here shows when the library itself needs it.
                    let _ = open_forever(dir.join(file).as_os_str());
                }
            }
            let path = dir.join(name);
            if let Some(handle) = open_forever(path.as_os_str()) {
                let path = path.to_string_lossy().into_owned().leak();
                return Ok(Opened { library, handle, path });
            }
            tried.push(path.to_string_lossy().into_owned());
        }
        if tried.is_empty() {
            tried.push(format!("{}/{stem}.*", dir.display()));
        }
    }
    for version in versions.iter().filter(|version| fits(version)) {
        let name = match *version {
            "" => stem.to_owned(),
            version => format!("{stem}.{version}"),
        };
        if let Some(handle) = open_forever(OsStr::new(&name)) {
            return Ok(Opened { library, handle, path: name.leak() });
        }
        tried.push(name);
    }
    Err(LibraryError::NotFound { library, tried: tried.join(", ") })
}

/// The files of `dir` whose names start with `prefix`, the highest version first.
fn matching(dir: &Path, prefix: &str) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.starts_with(prefix))
        .collect();
    let version = |name: &String| -> Vec<u32> {
        name[prefix.len()..].split('.').filter_map(|part| part.parse().ok()).collect()
    };
    names.sort_by(|a, b| version(b).cmp(&version(a)).then_with(|| a.cmp(b)));
    names
}

fn open_forever(name: &OsStr) -> Option<&'static Library> {
    // SAFETY: opening a library runs its initializers; these are NVIDIA's libraries under their
    // own names, from folders that the user or the system configured.
    let handle = unsafe { Library::new(name) }.ok()?;
    Some(Box::leak(Box::new(handle)))
}

/// Declares the functions that are used of a library: they are all resolved when it is opened, so
/// that an old library is an error and not a panic in the middle of a run. The compiler checks
/// every signature against the bindings; only the status is taken as a number, because a newer
/// library may return one that the bindings' enum lacks.
macro_rules! library_api {
    (
        $(#[$meta:meta])*
        struct $name:ident from $sys:path, status $status:ident {
            $( fn $function:ident($($type:ty),* $(,)?); )*
        }
    ) => {
        $(#[$meta])*
        #[allow(non_snake_case, reason = "fields carry the names of the library's functions")]
        #[derive(Clone, Copy)]
        pub(super) struct $name {
            $( pub(super) $function: unsafe extern "C" fn($($type),*) -> core::ffi::c_uint, )*
        }

        impl $name {
            pub(super) fn resolve(
                library: &$crate::cuda::library::Opened,
            ) -> Result<Self, $crate::cuda::library::LibraryError> {
                Ok(Self {
                    // SAFETY: the signature is that of the bindings, checked below.
                    $( $function: unsafe { library.function(stringify!($function))? }, )*
                })
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(stringify!($name))
            }
        }

        const _: () = {
            use $sys as bindings;
            $( let _: unsafe fn($($type),*) -> bindings::$status = bindings::$function; )*
            assert!(size_of::<bindings::$status>() == size_of::<core::ffi::c_uint>());
        };
    };
}

pub(super) use library_api;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_in_a_folder_comes_first() {
        let dir = std::env::temp_dir().join(format!("piecewise-libraries-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        for name in ["libnvrtc.so.9", "libnvrtc.so.12", "libnvrtc.so", "libnvrtc.alt.so.13"] {
            std::fs::write(dir.join(name), "not a library").unwrap();
        }
        let names = matching(&dir, "libnvrtc.so");
        let error = open(CudaLibrary::Nvrtc, std::slice::from_ref(&dir), Some(9)).err();
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(names, ["libnvrtc.so.12", "libnvrtc.so.9", "libnvrtc.so"]);
        if let Some(error) = error {
            let text = error.to_string();
            assert!(text.contains("libnvrtc.so.9, "), "{text}");
            assert!(!text.contains("so.12") && !text.contains("so.13"), "{text}");
        }
    }
}
