//! Products of the library, by one that notes what it is asked.

use super::fixture::{Fixture, artifact, fixture};
use crate::artifact::{Access, Arg, ArgRef, PieceSize};
use crate::compiler::{CompilerOptions, PieceAt};
use crate::cuda::lt::{LtCall, LtProduct};
use crate::cuda::lt_api::{LtApi, LtLibrary};
use crate::cuda::{CudaImage, Matmul};
use crate::device::measure::MeasuredDevice;
use crate::device::{Device, Program};
use crate::tuning::LibraryAlgorithm;
use cudarc::cublaslt::sys as lt;
use piecewise_ir::dim::Dim;
use piecewise_ir::dtype::DType;
use piecewise_ir::types::TensorType;
use piecewise_kernels::op::OpRegistry;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::without_provenance_mut;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What the library that stands in has been asked.
#[derive(Default)]
struct Asked {
    /// Handles made so far, those that live, and the most that ever did.
    handles: usize,
    live: usize,
    most_live: usize,
    /// Algorithms that were asked for.
    searches: usize,
    /// The handle and the algorithm of each product, by number.
    products: Vec<(usize, u64)>,
}

static ASKED: Mutex<Asked> =
    Mutex::new(Asked { handles: 0, live: 0, most_live: 0, searches: 0, products: Vec::new() });

fn asked() -> MutexGuard<'static, Asked> {
    ASKED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The tests here share the library, and handles of device 0.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    let guard = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    *asked() = Asked::default();
    guard
}

/// SAFETY: `made` points to a place for a pointer.
unsafe fn make<T>(made: *mut *mut T, number: usize) -> c_uint {
    // SAFETY: the caller's.
    unsafe { made.write(without_provenance_mut(number)) };
    0
}

unsafe extern "C" fn create(handle: *mut lt::cublasLtHandle_t) -> c_uint {
    let mut asked = asked();
    (asked.handles, asked.live) = (asked.handles + 1, asked.live + 1);
    asked.most_live = asked.most_live.max(asked.live);
    // SAFETY: the caller gives a place for a handle.
    unsafe { make(handle, asked.handles) }
}

unsafe extern "C" fn destroy(_: lt::cublasLtHandle_t) -> c_uint {
    asked().live -= 1;
    0
}

unsafe extern "C" fn create_operation(
    made: *mut lt::cublasLtMatmulDesc_t,
    _: lt::cublasComputeType_t,
    _: lt::cudaDataType_t,
) -> c_uint {
    // SAFETY: the caller gives a place for a descriptor.
    unsafe { make(made, 1) }
}

unsafe extern "C" fn create_layout(
    made: *mut lt::cublasLtMatrixLayout_t,
    _: lt::cudaDataType,
    _: u64,
    _: u64,
    _: i64,
) -> c_uint {
    // SAFETY: the caller gives a place for a layout.
    unsafe { make(made, 1) }
}

unsafe extern "C" fn create_preference(made: *mut lt::cublasLtMatmulPreference_t) -> c_uint {
    // SAFETY: the caller gives a place for a preference.
    unsafe { make(made, 1) }
}

unsafe extern "C" fn drop_one<T>(_: T) -> c_uint {
    0
}

unsafe extern "C" fn set<T, A>(_: T, _: A, _: *const c_void, _: usize) -> c_uint {
    0
}

unsafe extern "C" fn search(
    _: lt::cublasLtHandle_t,
    _: lt::cublasLtMatmulDesc_t,
    _: lt::cublasLtMatrixLayout_t,
    _: lt::cublasLtMatrixLayout_t,
    _: lt::cublasLtMatrixLayout_t,
    _: lt::cublasLtMatrixLayout_t,
    _: lt::cublasLtMatmulPreference_t,
    _: c_int,
    results: *mut lt::cublasLtMatmulHeuristicResult_t,
    found: *mut c_int,
) -> c_uint {
    asked().searches += 1;
    // SAFETY: the caller gives room for one result at least; of zeros it is one that went well.
    unsafe {
        results.write_bytes(0, 1);
        found.write(1);
    }
    0
}

unsafe extern "C" fn check(
    _: lt::cublasLtHandle_t,
    _: lt::cublasLtMatmulDesc_t,
    _: lt::cublasLtMatrixLayout_t,
    _: lt::cublasLtMatrixLayout_t,
    _: lt::cublasLtMatrixLayout_t,
    _: lt::cublasLtMatrixLayout_t,
    _: *const lt::cublasLtMatmulAlgo_t,
    result: *mut lt::cublasLtMatmulHeuristicResult_t,
) -> c_uint {
    // SAFETY: the caller gives room for a result.
    unsafe { result.write_bytes(0, 1) };
    0
}

unsafe extern "C" fn multiply(
    handle: lt::cublasLtHandle_t,
    _: lt::cublasLtMatmulDesc_t,
    _: *const c_void,
    _: *const c_void,
    _: lt::cublasLtMatrixLayout_t,
    _: *const c_void,
    _: lt::cublasLtMatrixLayout_t,
    _: *const c_void,
    _: *const c_void,
    _: lt::cublasLtMatrixLayout_t,
    _: *mut c_void,
    _: lt::cublasLtMatrixLayout_t,
    algorithm: *const lt::cublasLtMatmulAlgo_t,
    _: *mut c_void,
    _: usize,
    _: lt::cudaStream_t,
) -> c_uint {
    // SAFETY: the caller gives an algorithm.
    let algorithm = unsafe { (*algorithm).data[0] };
    asked().products.push((handle.addr(), algorithm));
    0
}

fn stand_in() -> LtLibrary {
    stand_in_of(1)
}

fn stand_in_of(version: u64) -> LtLibrary {
    let api = LtApi {
        cublasLtCreate: create,
        cublasLtDestroy: destroy,
        cublasLtMatmulDescCreate: create_operation,
        cublasLtMatmulDescDestroy: drop_one,
        cublasLtMatmulDescSetAttribute: set,
        cublasLtMatrixLayoutCreate: create_layout,
        cublasLtMatrixLayoutDestroy: drop_one,
        cublasLtMatrixLayoutSetAttribute: set,
        cublasLtMatmulPreferenceCreate: create_preference,
        cublasLtMatmulPreferenceDestroy: drop_one,
        cublasLtMatmulPreferenceSetAttribute: set,
        cublasLtMatmulAlgoGetHeuristic: search,
        cublasLtMatmulAlgoCheck: check,
        cublasLtMatmul: multiply,
    };
    LtLibrary { api, version }
}

/// A device with the library, and a program of one product.
fn product() -> (Fixture, Program) {
    let mut f = fixture();
    f.device.load(stand_in()).unwrap();
    let rows = Dim::from(f.piece.over.unwrap());
    let ty = TensorType::new(DType::F32, [rows, 4u64.into()]);
    let square = TensorType::new(DType::F32, [4u64, 4]);
    let (lhs, out) = (ty.clone(), ty);
    let matmul = Matmul { transpose_lhs: false, transpose_rhs: true, lhs, rhs: square, out };
    let image = CudaImage::Matmul(Box::new(matmul));
    let mut made = artifact(&[("product", image)], PieceSize::Exact(16));
    let args = &mut made.alternatives[0].parts[0].ways[0].launches[0].args;
    args.insert(1, Arg { at: ArgRef::Operand(0), access: Access::Read });
    let program = f.bind(&made, "p0").unwrap();
    (f, program)
}

/// What the device and the library know the product of three rows by.
fn known(f: &mut Fixture, program: &Program) -> (String, LtProduct) {
    let mut products = f.device.library_products(program, &[3]).unwrap();
    let found = products.pop().unwrap();
    assert!(products.is_empty());
    let key = serde_json::from_str(&found.product).unwrap();
    (found.product, key)
}

fn call() -> LtCall {
    let (lhs, rhs, out, workspace, workspace_bytes) = (0, 0, 0, 0, 0);
    LtCall { lhs, rhs, out, workspace, workspace_bytes }
}

/// A device names the version, which records of measured ways have in their keys; what its compiler gives
/// keys of pieces does not.
#[test]
fn a_compiler_of_a_device_does_not_know_the_version_of_the_library() {
    let _alone = alone();
    let of = |version| {
        let mut f = fixture();
        f.device.load(stand_in_of(version)).unwrap();
        let compiler =
            f.device.compiler(Arc::new(OpRegistry::builtin()), CompilerOptions::default());
        let at = PieceAt { piece: &f.piece, size: PieceSize::Exact(16), bounds: &[16] };
        let ops = compiler.custom_ops(at).map_err(|error| error.to_string());
        (f.device.library(), [compiler.identity(), compiler.target()], ops)
    };
    let ((one, by_one, ops), (other, by_other, same_ops)) = (of(130_100), of(130_200));
    assert_eq!(
        [one.as_deref(), other.as_deref()],
        ["cublasLt 130100", "cublasLt 130200"].map(Some)
    );
    assert_eq!((by_one, ops), (by_other, same_ops));
}

/// Of what is there and in use: this driver is not the system's, and nothing asked for NVRTC.
#[test]
fn versions_are_of_what_a_device_uses() {
    let _alone = alone();
    let mut device = fixture().device;
    assert_eq!(device.versions(), [].into());
    device.load(stand_in_of(130_100)).unwrap();
    assert_eq!(device.versions(), [("cublas_lt", "130100".to_owned())].into());
}

/// Whoever shares the library may hold its lock meanwhile, to search for algorithms.
#[test]
fn a_product_whose_plan_is_known_is_launched_without_a_lock() {
    let _alone = alone();
    let (mut f, program) = product();
    f.launch(&program, 3).unwrap();
    f.launch(&program, 4).unwrap();
    let other = f.device.lt.as_ref().unwrap().share();
    let (locked, is_locked) = channel();
    let (launched, is_launched) = channel();
    let holder = std::thread::spawn(move || {
        let _lock = other.lock();
        locked.send(()).unwrap();
        is_launched.recv_timeout(Duration::from_secs(600)).is_ok()
    });
    is_locked.recv().unwrap();
    f.launch(&program, 3).unwrap();
    f.launch(&program, 4).unwrap();
    launched.send(()).unwrap_or_default();
    assert!(holder.join().unwrap(), "a launch waited for a lock");
    let asked = asked();
    assert_eq!((asked.searches, asked.products.len()), (2, 4));
}

#[test]
fn an_algorithm_that_one_device_prefers_is_taken_by_all_that_share_the_library() {
    let _alone = alone();
    let (mut f, program) = product();
    let other = f.device.lt.as_ref().unwrap().share();
    let (name, key) = known(&mut f, &program);
    let algorithms = |f: &mut Fixture| {
        f.launch(&program, 3).unwrap();
        other.enqueue(&key, &call(), 1).unwrap();
        std::mem::take(&mut asked().products).into_iter().map(|one| one.1).collect::<Vec<_>>()
    };
    assert_eq!(algorithms(&mut f), [0, 0]);
    assert!(f.device.prefer(&name, LibraryAlgorithm([7; 8])).unwrap());
    assert_eq!(algorithms(&mut f), [7, 7]);
}

#[test]
fn a_device_that_is_opened_anew_launches_products_by_another_handle() {
    let _alone = alone();
    let (mut f, program) = product();
    let other = f.device.lt.as_ref().unwrap().share();
    f.launch(&program, 3).unwrap();
    let (_, key) = known(&mut f, &program);
    f.device.reopen().unwrap();
    f.device.lt.as_ref().unwrap().enqueue(&key, &call(), 1).unwrap();
    other.enqueue(&key, &call(), 1).unwrap();
    let asked = asked();
    let handles: Vec<usize> = asked.products.iter().map(|one| one.0).collect();
    assert_eq!((handles, asked.searches), (vec![1, 2, 2], 1), "plans stay");
}

/// Devices that threads open, use and close at once: of one GPU no two handles are ever there.
#[test]
fn a_handle_is_destroyed_before_another_of_its_device_is_made() {
    let _alone = alone();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for rows in (1..=16).cycle().take(40) {
                    let (mut f, program) = product();
                    f.launch(&program, rows).unwrap();
                }
            });
        }
    });
    let asked = asked();
    assert_eq!((asked.live, asked.most_live, asked.products.len()), (0, 1, 160));
}
