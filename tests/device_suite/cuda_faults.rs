//! What a model on CUDA does when calls of the driver fail as planned: at every capture, at a
//! launch, for want of memory. Needs a GPU: what follows a failure must still be right.

use crate::equal_modes::two_steps;
use crate::sequences::{Left, Sequences, Turn, try_step};
use crate::small_decoder::Setup;
use crate::target::{Cuda, Target};
use piecewise_backend::compiler::CompilerOptions;
use piecewise_backend::cuda::CudaOptions;
use piecewise_backend::device::{Device, DeviceError};
use piecewise_backend::weights::NormalWeights;
use piecewise_kernels::op::OpRegistry;
use piecewise_runtime::batch::ChunkRows;
use piecewise_runtime::steps::{BuildOptions, CompiledModel};
use piecewise_runtime::store::compile_module;
use piecewise_runtime::words::{FallbackReason, GraphMode, ModelError, OnCaptureFailure, StepMode};
use piecewise_testing::cuda::open_faulty;
use piecewise_testing::{CallFault, Faults, Rng};
use std::sync::Arc;

fn setup() -> Setup {
    Setup { sizes: vec![1, 4, 8], batches: vec![1, 4], ..Setup::default() }
}

fn build(
    faults: &Faults,
    on_capture_failure: OnCaptureFailure,
) -> Result<CompiledModel, ModelError> {
    let registry = Arc::new(OpRegistry::builtin());
    let (options, ops) = (CudaOptions::default(), OpRegistry::clone(&registry));
    let device = open_faulty(options, ops, faults).unwrap();
    let compiler = device.compiler(registry, CompilerOptions::default());
    let setup = setup();
    let options = BuildOptions { on_capture_failure, probes: Vec::new(), ..setup.options() };
    let (module, store) = (setup.module(), Cuda::store());
    let compiled = compile_module(&module, &options.dispatcher, &*compiler, store, &mut |_| {})?;
    CompiledModel::build(
        Arc::new(module),
        options,
        compiled,
        store,
        Box::new(device),
        Arc::new(NormalWeights { std: 0.4, seed: 7 }),
        &mut |_| {},
    )
}

/// Steps of every captured size.
fn steps(model: &mut CompiledModel) -> Vec<Left> {
    [1, 4, 8].into_iter().flat_map(|tokens| two_steps(model, tokens)).collect()
}

/// Every capture of a model fails in its turn, at each call that a capture consists of.
#[test]
fn a_capture_that_fails_leaves_right_steps_or_is_an_error() {
    if !Cuda::is_there() {
        return;
    }
    let mut good = build(&Faults::default(), OnCaptureFailure::Error).unwrap();
    let (graphs, expected) = (good.captured_graphs() as u32, steps(&mut good));
    assert!(graphs > 6, "{graphs}");
    let calls = ["cuStreamBeginCapture_v2", "cuStreamEndCapture", "cuGraphInstantiateWithFlags"];
    for nth in 0..graphs {
        let call = calls[nth as usize % calls.len()];
        let faults = Faults::default();
        faults.fail(CallFault::always(call, 900).once_after(nth));
        let error = build(&faults, OnCaptureFailure::Error).unwrap_err();
        let ModelError::Device(DeviceError::CaptureFailed { reason, .. }) = &error else {
            panic!("capture {nth}: {error}");
        };
        assert!(reason.contains(call), "capture {nth}: {error}");

        let faults = Faults::default();
        faults.fail(CallFault::always(call, 900).once_after(nth));
        let mut model = build(&faults, OnCaptureFailure::Launch).unwrap();
        assert_eq!(model.captured_graphs() as u32, graphs - 1, "capture {nth}");
        for (found, expected) in steps(&mut model).iter().zip(&expected) {
            assert_eq!(found.difference(expected), None, "capture {nth}");
        }
    }
    // And all of them.
    let faults = Faults::default();
    faults.fail(CallFault::always("cuStreamEndCapture", 900));
    let mut model = build(&faults, OnCaptureFailure::Launch).unwrap();
    assert_eq!(model.captured_graphs(), 0);
    for (found, expected) in steps(&mut model).iter().zip(&expected) {
        assert_eq!(found.report.mode, StepMode::None);
        assert_eq!(found.difference(expected), None);
    }
    println!("cuda: {graphs} captures failed in turn");
}

#[test]
fn a_launch_that_fails_is_named_and_the_next_step_is_right() {
    if !Cuda::is_there() {
        return;
    }
    let faults = Faults::default();
    let mut model = build(&faults, OnCaptureFailure::Error).unwrap();
    let expected = steps(&mut model);
    for call in ["cuLaunchKernelEx", "cuGraphLaunch"] {
        faults.fail(CallFault::always(call, 701).once_after(1));
        let mut sequences = Sequences::of(&model);
        // Above every captured size, so that pieces are launched; or within one.
        let tokens = if call == "cuGraphLaunch" { 3 } else { 20 };
        let mut turn = Turn { sequence: 0, tokens, rows: ChunkRows::Last, feedback: false };
        let (mut failed, mut fallbacks) = (None, Vec::new());
        for _ in 0..2 {
            failed = try_step(&mut model, &sequences.fill(&[turn], &mut Rng::new(1))).err();
            if failed.is_some() {
                break;
            }
            fallbacks.push(model.last_step().unwrap().fallback);
            turn.tokens = 1;
        }
        match failed {
            Some(error) => {
                let error = error.to_string();
                assert!(call == "cuLaunchKernelEx" && error.contains("a planned fault"), "{error}");
            }
            None => {
                let refused = fallbacks.contains(&Some(FallbackReason::ReplayRefused));
                assert!(refused, "{call}: {fallbacks:?}");
            }
        }
        faults.clear();
        for (found, expected) in steps(&mut model).iter().zip(&expected) {
            assert_eq!(found.difference(expected), None, "after {call}");
        }
    }
}

#[test]
fn a_model_that_does_not_fit_is_an_error_that_says_what_asked() {
    if !Cuda::is_there() {
        return;
    }
    for nth in 0..3 {
        let faults = Faults::default();
        faults.fail(CallFault::always("cuMemCreate", 2).once_after(nth));
        let error = build(&faults, OnCaptureFailure::Error).unwrap_err();
        assert!(matches!(error, ModelError::Device(DeviceError::OutOfMemory { .. })), "{error}");
    }
    let mut model = build(&Faults::default(), OnCaptureFailure::Error).unwrap();
    assert_eq!(model.dispatcher().mode, GraphMode::FullAndPiecewise);
    steps(&mut model);
}
