//! The functions of cuBLASLt, and what they return.

use super::library::{CudaLibrary, LibraryError, Opened, library_api, open};
use cudarc::cublaslt::sys as lt;
use std::ffi::{c_int, c_void};
use std::path::PathBuf;

library_api! {
    /// The functions of cuBLASLt that are used.
    struct LtApi from cudarc::cublaslt::sys, status cublasStatus_t {
        fn cublasLtCreate(*mut lt::cublasLtHandle_t);
        fn cublasLtDestroy(lt::cublasLtHandle_t);
        fn cublasLtMatmulDescCreate(
            *mut lt::cublasLtMatmulDesc_t, lt::cublasComputeType_t, lt::cudaDataType_t,
        );
        fn cublasLtMatmulDescDestroy(lt::cublasLtMatmulDesc_t);
        fn cublasLtMatmulDescSetAttribute(
            lt::cublasLtMatmulDesc_t, lt::cublasLtMatmulDescAttributes_t, *const c_void, usize,
        );
        fn cublasLtMatrixLayoutCreate(
            *mut lt::cublasLtMatrixLayout_t, lt::cudaDataType, u64, u64, i64,
        );
        fn cublasLtMatrixLayoutDestroy(lt::cublasLtMatrixLayout_t);
        fn cublasLtMatrixLayoutSetAttribute(
            lt::cublasLtMatrixLayout_t, lt::cublasLtMatrixLayoutAttribute_t, *const c_void, usize,
        );
        fn cublasLtMatmulPreferenceCreate(*mut lt::cublasLtMatmulPreference_t);
        fn cublasLtMatmulPreferenceDestroy(lt::cublasLtMatmulPreference_t);
        fn cublasLtMatmulPreferenceSetAttribute(
            lt::cublasLtMatmulPreference_t, lt::cublasLtMatmulPreferenceAttributes_t,
            *const c_void, usize,
        );
        fn cublasLtMatmulAlgoGetHeuristic(
            lt::cublasLtHandle_t, lt::cublasLtMatmulDesc_t, lt::cublasLtMatrixLayout_t,
            lt::cublasLtMatrixLayout_t, lt::cublasLtMatrixLayout_t, lt::cublasLtMatrixLayout_t,
            lt::cublasLtMatmulPreference_t, c_int, *mut lt::cublasLtMatmulHeuristicResult_t,
            *mut c_int,
        );
        fn cublasLtMatmulAlgoCheck(
            lt::cublasLtHandle_t, lt::cublasLtMatmulDesc_t, lt::cublasLtMatrixLayout_t,
            lt::cublasLtMatrixLayout_t, lt::cublasLtMatrixLayout_t, lt::cublasLtMatrixLayout_t,
            *const lt::cublasLtMatmulAlgo_t, *mut lt::cublasLtMatmulHeuristicResult_t,
        );
        fn cublasLtMatmul(
            lt::cublasLtHandle_t, lt::cublasLtMatmulDesc_t, *const c_void, *const c_void,
            lt::cublasLtMatrixLayout_t, *const c_void, lt::cublasLtMatrixLayout_t, *const c_void,
            *const c_void, lt::cublasLtMatrixLayout_t, *mut c_void, lt::cublasLtMatrixLayout_t,
            *const lt::cublasLtMatmulAlgo_t, *mut c_void, usize, lt::cudaStream_t,
        );
    }
}

/// A function of the library that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{call} returned {} ({code}) for {what}", status_name(*code))]
pub struct LtError {
    /// The library's function, such as `cublasLtMatmul`.
    pub call: &'static str,
    /// The `cublasStatus_t` that it returned.
    pub code: u32,
    /// The product or query, in words.
    pub what: String,
}

fn status_name(code: u32) -> &'static str {
    match code {
        1 => "CUBLAS_STATUS_NOT_INITIALIZED",
        3 => "CUBLAS_STATUS_ALLOC_FAILED",
        7 => "CUBLAS_STATUS_INVALID_VALUE",
        8 => "CUBLAS_STATUS_ARCH_MISMATCH",
        11 => "CUBLAS_STATUS_MAPPING_ERROR",
        13 => "CUBLAS_STATUS_EXECUTION_FAILED",
        14 => "CUBLAS_STATUS_INTERNAL_ERROR",
        15 => "CUBLAS_STATUS_NOT_SUPPORTED",
        16 => "CUBLAS_STATUS_LICENSE_ERROR",
        _ => "an unknown status",
    }
}

/// The library, opened without a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct LtLibrary {
    pub(super) api: LtApi,
    pub(super) version: u64,
}

/// Opens the library, and asks for its version.
pub(super) fn find(dirs: &[PathBuf], major: Option<u32>) -> Result<(Opened, u64), LibraryError> {
    let library = open(CudaLibrary::CublasLt, dirs, major)?;
    // SAFETY: this is the function's signature in every version.
    let version =
        unsafe { library.function::<unsafe extern "C" fn() -> usize>("cublasLtGetVersion")? };
    // SAFETY: the function reads nothing.
    Ok((library, unsafe { version() } as u64))
}

impl LtLibrary {
    pub(super) fn open(dirs: &[PathBuf], major: Option<u32>) -> Result<Self, LibraryError> {
        let (library, version) = find(dirs, major)?;
        Ok(Self { api: LtApi::resolve(&library)?, version })
    }

    pub(super) fn identity(&self) -> String {
        format!("cublasLt {}", self.version)
    }
}

/// Calls a function of the library and turns its status into a result.
macro_rules! call {
    ($api:expr, $what:expr, $function:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: the function was resolved from the library with this signature; pointers are to
        // live values of the types that it reads or writes, and handles are its own.
        match unsafe { ($api.$function)($($argument),*) } {
            0 => Ok(()),
            code => {
                Err(LtError { call: stringify!($function), code, what: $what.to_string() })
            }
        }
    }};
}

pub(super) use call;

/// Where the library reads an attribute, and its size.
pub(super) fn bytes_of<T>(value: &T) -> (*const c_void, usize) {
    (std::ptr::from_ref(value).cast(), size_of::<T>())
}
