//! Graphs of any kind, built for a target and stepped with the arrays that the evaluator gets.

use crate::target::Target;
use half::bf16;
use piecewise_backend::compiler::Compiler;
use piecewise_backend::device::Device;
use piecewise_backend::tuning::TuneMode;
use piecewise_backend::weights::{TensorSource, TensorSpec, WeightError, WeightSource};
use piecewise_ir::dtype::DType;
use piecewise_ir::eval::Array;
use piecewise_ir::literal::Scalar;
use piecewise_ir::module::Module;
use piecewise_ir::types::TensorType;
use piecewise_kernels::op::OpRegistry;
use piecewise_runtime::dispatch::{Dispatcher, SizeRules};
use piecewise_runtime::steps::{BuildOptions, CompiledModel};
use piecewise_runtime::store::compile_module;
use piecewise_runtime::words::sizes::SizeList;
use piecewise_runtime::words::{
    CaptureWhen, Checks, GraphMode, ModelError, OnCaptureFailure, StepData, StepMode,
};
use piecewise_testing::random_weight;
use std::borrow::Cow;
use std::sync::Arc;

/// Each mode with how a step then runs.
pub(crate) const MODES: [(GraphMode, StepMode); 3] = [
    (GraphMode::None, StepMode::None),
    (GraphMode::Piecewise, StepMode::Piecewise),
    (GraphMode::Full, StepMode::Full),
];

/// The weights of `piecewise_testing::random_arrays` under this seed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RandomWeights(pub u64);

impl WeightSource for RandomWeights {
    fn tensor(&self, spec: TensorSpec<'_>) -> Result<TensorSource<'_>, WeightError> {
        let TensorSpec { name, dtype, shape } = spec;
        let ty = TensorType::new(dtype, shape);
        Ok(TensorSource::Bytes(Cow::Owned(bytes_of(&random_weight(name, &ty, self.0)))))
    }
}

/// Row-major little-endian bytes.
pub(crate) fn bytes_of(array: &Array) -> Vec<u8> {
    array.data.iter().flat_map(|&x| Scalar::new(array.dtype, x).to_bytes()).collect()
}

/// The elements of row-major little-endian bytes.
pub(crate) fn elements(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    let element = |chunk: &[u8]| {
        let mut bits = [0; 8];
        bits[..chunk.len()].copy_from_slice(chunk);
        Scalar::from_bits(dtype, u64::from_le_bytes(bits)).to_f64()
    };
    // Whole states come here: what they are of is asked once, not for each of them.
    match dtype {
        DType::F32 => {
            bytes.as_chunks().0.iter().map(|&b| f64::from(f32::from_le_bytes(b))).collect()
        }
        DType::BF16 => {
            bytes.as_chunks().0.iter().map(|&b| f64::from(bf16::from_le_bytes(b))).collect()
        }
        _ => bytes.chunks_exact(dtype.size()).map(element).collect(),
    }
}

/// A model of a planned module over one symbol of at most `bound` rows, which captures `sizes`
/// and reads every output back.
pub(crate) fn build<T: Target>(
    module: &Arc<Module>,
    registry: &Arc<OpRegistry>,
    mode: GraphMode,
    sizes: &[u64],
    bound: u64,
    weights: RandomWeights,
) -> CompiledModel {
    let checks = Checks { poison: true, addresses: true, compare: false };
    build_checked::<T>(module, registry, mode, sizes, bound, weights, checks)
}

/// The same with these checks.
pub(crate) fn build_checked<T: Target>(
    module: &Arc<Module>,
    registry: &Arc<OpRegistry>,
    mode: GraphMode,
    sizes: &[u64],
    bound: u64,
    weights: RandomWeights,
    checks: Checks,
) -> CompiledModel {
    let options = BuildOptions { checks, ..options(module, mode, sizes, bound) };
    build_of::<T>(module, registry, options, weights).unwrap()
}

/// How such a model is built, where every step is to replay, without a check.
pub(crate) fn options(module: &Module, mode: GraphMode, sizes: &[u64], bound: u64) -> BuildOptions {
    let list = |sizes: &[u64]| SizeList::new("sizes", sizes.to_vec(), "bound", bound).unwrap();
    BuildOptions {
        dispatcher: Dispatcher {
            mode,
            tokens: list(sizes),
            batches: list(&[1]),
            query_lengths: vec![1],
            max_tokens: bound,
            max_rows: 1,
            max_sequences: 1,
            padding: true,
            own: Vec::new(),
            rules: SizeRules::default(),
        },
        max_logit_rows: 1,
        read_outputs: (0..module.graph().outputs().len()).collect(),
        capture: CaptureWhen::Startup,
        on_capture_failure: OnCaptureFailure::Error,
        capture_attempts: 3,
        recapture_limit: 128,
        capture_exclude: Vec::new(),
        probes: Vec::new(),
        tune: TuneMode::default(),
        tune_budget: std::time::Duration::ZERO,
        tuning_steps: Vec::new(),
        strict: true,
        checks: Checks::default(),
        measure_padding: false,
    }
}

/// A model of a planned module, built so.
pub(crate) fn build_of<T: Target>(
    module: &Arc<Module>,
    registry: &Arc<OpRegistry>,
    options: BuildOptions,
    weights: RandomWeights,
) -> Result<CompiledModel, ModelError> {
    build_by::<T>(module, T::make(registry, 2), options, weights)
}

/// The same by this compiler, for this device.
pub(crate) fn build_by<T: Target>(
    module: &Arc<Module>,
    (device, compiler): (Box<dyn Device>, Box<dyn Compiler>),
    options: BuildOptions,
    weights: RandomWeights,
) -> Result<CompiledModel, ModelError> {
    let (store, sizes) = (T::store(), &options.dispatcher);
    let compiled = compile_module(module, sizes, compiler.as_ref(), store, &mut |_| {})?;
    let (module, weights) = (Arc::clone(module), Arc::new(weights));
    CompiledModel::build(module, options, compiled, store, device, weights, &mut |_| {})
}

/// Overwrites the states, in the order of their declarations.
pub(crate) fn set_states(model: &mut CompiledModel, states: &[Array]) {
    for (i, array) in states.iter().enumerate() {
        let graph = model.module().graph();
        let at = model.memory().address(graph, graph.states()[i].value).unwrap();
        model.device_mut().write(at, &bytes_of(array)).unwrap();
    }
}

/// Runs a step of `rows` rows and returns the bytes of every output.
pub(crate) fn step(
    model: &mut CompiledModel,
    rows: u64,
    inputs: &[Array],
    expected_mode: StepMode,
) -> Vec<Vec<u8>> {
    let inputs: Vec<Vec<u8>> = inputs.iter().map(bytes_of).collect();
    let inputs: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
    let step = StepData { counts: &[rows], inputs: &inputs, ..StepData::default() };
    let ticket = model.submit(&step).unwrap();
    assert_eq!(model.last_step().unwrap().mode, expected_mode);
    let count = model.module().graph().outputs().len();
    let outputs = model.read(&ticket).unwrap();
    (0..count).map(|i| outputs.bytes(i).unwrap().to_vec()).collect()
}
