//! An op that takes memory whenever it is enqueued: launched it is right, and a capture of it is refused
//! by name, or counted where steps are launched instead.

#![allow(unsafe_code, reason = "memory is asked of the driver, a C library")]

use crate::any_graph::{RandomWeights, build_of, options};
use crate::host_kernel::HostKernel;
use crate::like_first::LikeFirst;
use crate::target::{Cuda, Target};
use libloading::Library;
use piecewise_backend::device::{CaptureRule, DeviceError};
use piecewise_ir::builder::Builder;
use piecewise_ir::custom::Attrs;
use piecewise_ir::dtype::DType::F32;
use piecewise_kernels::op::cuda::{CudaImplementation, CudaOp, CudaOpArgs, CudaOpCall};
use piecewise_kernels::op::{OpError, OpRegistry};
use piecewise_runtime::pipeline::plan;
use piecewise_runtime::steps::BuildOptions;
use piecewise_runtime::words::{
    CompileLevel, FallbackReason, GraphMode, ModelError, OnCaptureFailure, StepData, StepMode,
};
use std::ffi::c_int;
use std::sync::{Arc, OnceLock};

const WIDTH: u64 = 16;
const ROWS: u64 = 4;

/// `y = x`, with memory of the stream that is taken and given back around it.
#[derive(Clone, Copy, Debug)]
struct Taking;

impl Taking {
    const OP: LikeFirst = LikeFirst { name: "test.taking", splits: false };
    const SOURCE: &'static str = r#"
        extern "C" __global__ void copied(const float *x, float *y) {
          const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
          y[i] = x[i];
        }
    "#;
}

fn kernel() -> &'static HostKernel {
    static KERNEL: OnceLock<HostKernel> = OnceLock::new();
    KERNEL.get_or_init(|| HostKernel::load(Taking::SOURCE, "copied").unwrap())
}

/// Takes memory in the order of a stream and gives it back.
fn take(stream: u64) -> Result<(), String> {
    static DRIVER: OnceLock<Library> = OnceLock::new();
    // SAFETY: the driver's library runs no code of its own when it is loaded.
    let driver = DRIVER.get_or_init(|| unsafe { Library::new("libcuda.so.1") }.unwrap());
    let missing = |e: libloading::Error| e.to_string();
    let mut at = 0u64;
    // SAFETY: the signatures are those of the driver's interface, the stream is that of the call, and
    // the pointer is to a local that outlives its call.
    let status = unsafe {
        type Take = unsafe extern "C" fn(*mut u64, usize, usize) -> c_int;
        type Give = unsafe extern "C" fn(u64, usize) -> c_int;
        let take = driver.get::<Take>(b"cuMemAllocAsync\0").map_err(missing)?;
        let give = driver.get::<Give>(b"cuMemFreeAsync\0").map_err(missing)?;
        match take(&mut at, 1 << 16, stream as usize) {
            0 => give(at, stream as usize),
            status => status,
        }
    };
    if status == 0 { Ok(()) } else { Err(format!("the driver returned {status}")) }
}

impl CudaOp for Taking {
    fn name(&self) -> &str {
        Self::OP.name
    }

    fn implementation(&self, _: &CudaOpCall<'_>) -> Result<CudaImplementation, OpError> {
        kernel();
        Ok(CudaImplementation::Host)
    }

    fn enqueue(&self, args: &CudaOpArgs<'_>) -> Result<(), OpError> {
        take(args.stream).map_err(|e| args.error(e))?;
        let (rows, threads) = (args.dim(0, 0) as u32, WIDTH as u32);
        let mut parameters = args.addresses.to_vec();
        kernel().launch(args.stream, rows, threads, &mut parameters).map_err(|e| args.error(e))
    }
}

#[test]
fn cuda_an_op_that_takes_memory_is_launched_and_never_captured() {
    if !Cuda::is_there() {
        return;
    }
    let b = Builder::new("takes").weight_dtype(F32);
    let t = b.symbol("T", 1, ROWS);
    let x = b.input("x", F32, (t, WIDTH));
    let taken = b.custom_one(&Taking::OP, &[x.silu()], Attrs::new());
    let graph = b.finish([taken.linear(b.weight("w", [WIDTH, WIDTH]))]).unwrap();
    let mut ops = OpRegistry::new();
    ops.define(Arc::new(Taking::OP)).implement_cuda(Arc::new(Taking));
    let ops = Arc::new(ops);
    let module = Arc::new(plan(graph, CompileLevel::Piecewise, None, Vec::new()).unwrap().0);
    let build = |mode, on_capture_failure| {
        let options = options(&module, mode, &[ROWS], ROWS);
        let options = BuildOptions { on_capture_failure, strict: false, ..options };
        build_of::<Cuda>(&module, &ops, options, RandomWeights(3))
    };
    let ones: Vec<u8> = (0..ROWS * WIDTH).flat_map(|_| 1f32.to_le_bytes()).collect();
    let inputs = [&ones[..]];
    let step = StepData { counts: &[ROWS], inputs: &inputs, ..StepData::default() };
    let mut outputs = Vec::new();
    for mode in [GraphMode::None, GraphMode::Piecewise, GraphMode::Full] {
        if mode != GraphMode::None {
            let error = build(mode, OnCaptureFailure::Error).unwrap_err();
            let ModelError::Device(DeviceError::Capture { rule, .. }) = error else {
                panic!("{error}");
            };
            assert_eq!(rule, CaptureRule::NoAllocation);
        }
        let mut model = build(mode, OnCaptureFailure::Launch).unwrap();
        let ticket = model.submit(&step).unwrap();
        outputs.push(model.read(&ticket).unwrap().bytes(0).unwrap().to_vec());
        let report = model.last_step().unwrap();
        let reason = (mode != GraphMode::None).then_some(FallbackReason::NotCaptured);
        assert_eq!((report.mode, report.fallback), (StepMode::None, reason));
        assert_eq!(model.statistics().capture_failures > 0, reason.is_some(), "{mode:?}");
    }
    assert!(outputs.windows(2).all(|pair| pair[0] == pair[1]));
}
