//! Steps with rows of several kinds: tokens, four patches for each, and windows of their own number.

use crate::any_graph::{MODES, RandomWeights, bytes_of, elements};
use crate::target::Target;
use piecewise_backend::tuning::TuneMode;
use piecewise_ir::builder::Builder;
use piecewise_ir::custom::OpDefs;
use piecewise_ir::dtype::DType::F32;
use piecewise_ir::eval::{Array, Evaluator};
use piecewise_ir::graph::Graph;
use piecewise_kernels::op::OpRegistry;
use piecewise_runtime::dispatch::{Dispatcher, OwnSizes, SizeRules};
use piecewise_runtime::pipeline::plan;
use piecewise_runtime::steps::{BuildOptions, CompiledModel};
use piecewise_runtime::store::compile_module;
use piecewise_runtime::words::sizes::SizeList;
use piecewise_runtime::words::{
    CaptureWhen, Checks, CompileLevel, GraphMode, ModelError, OnCaptureFailure, StepData, StepMode,
};
use piecewise_testing::{Rng, norm_error, random_arrays};
use std::sync::Arc;

const WIDTH: u64 = 8;
const WEIGHTS: u64 = 5;

fn graph() -> Graph {
    let b = Builder::new("tower").weight_dtype(F32);
    let kinds = [("T", 1, 16, "tokens"), ("P", 4, 64, "4*tokens"), ("W", 1, 24, "rows.windows")];
    let outputs = kinds.map(|(name, min, max, role)| {
        let rows = b.symbol_with_role(name, min, max, role);
        let x = b.input(&name.to_lowercase(), F32, (rows, WIDTH));
        let _scope = b.scope(name);
        let h = x.rms_norm(b.weight("norm", [WIDTH]), 1e-5).silu();
        x + h.linear(b.weight("out", [WIDTH, WIDTH]))
    });
    b.finish(outputs).unwrap()
}

fn build<T: Target>(mode: GraphMode) -> CompiledModel {
    let registry = Arc::new(OpRegistry::builtin());
    let (device, compiler) = T::make(&registry, 2);
    let list = |sizes: &[u64]| SizeList::new("sizes", sizes.to_vec(), "bound", 64).unwrap();
    let options = BuildOptions {
        dispatcher: Dispatcher {
            mode,
            tokens: list(&[4, 8, 16]),
            batches: list(&[1]),
            query_lengths: vec![1],
            max_tokens: 16,
            max_rows: 1,
            max_sequences: 1,
            padding: true,
            own: vec![OwnSizes { role: "rows.windows".to_owned(), sizes: list(&[2, 8, 16]) }],
            rules: SizeRules::default(),
        },
        max_logit_rows: 1,
        read_outputs: vec![0, 1, 2],
        capture: CaptureWhen::Startup,
        on_capture_failure: OnCaptureFailure::Error,
        capture_attempts: 3,
        recapture_limit: 128,
        capture_exclude: Vec::new(),
        probes: Vec::new(),
        tune: TuneMode::default(),
        tune_budget: std::time::Duration::ZERO,
        tuning_steps: Vec::new(),
        strict: false,
        checks: Checks { poison: true, addresses: true, compare: false },
        measure_padding: false,
    };
    let (module, _) = plan(graph(), CompileLevel::Piecewise, None, Vec::new()).unwrap();
    let (build, weights) = (CompiledModel::build, RandomWeights(WEIGHTS));
    let (module, store) = (Arc::new(module), T::store());
    let (sizes, compiler) = (&options.dispatcher, compiler.as_ref());
    let compiled = compile_module(&module, sizes, compiler, store, &mut |_| {}).unwrap();
    build(module, options, compiled, store, device, Arc::new(weights), &mut |_| {}).unwrap()
}

/// Each kind has its own size, graphs and padding; one above its largest size is launched.
pub(crate) fn equal_the_evaluator<T: Target>() {
    let graph = graph();
    let (ops, weights) =
        (OpDefs::new(), random_arrays(&graph, &[1, 4, 1], WEIGHTS).unwrap().weights);
    for (mode, step_mode) in MODES {
        let mut model = build::<T>(mode);
        let mut rng = Rng::new(9);
        for (tokens, windows) in [(3, 2), (8, 7), (1, 16), (16, 1), (5, 20)] {
            let counts = [tokens, 4 * tokens, windows];
            let inputs = counts.map(|rows| {
                Array::from_fn(F32, vec![rows as usize, WIDTH as usize], |_| rng.symmetric(1.0))
                    .rounded()
            });
            let bytes = inputs.each_ref().map(bytes_of);
            let bytes = bytes.each_ref().map(Vec::as_slice);
            let step = StepData { counts: &counts, inputs: &bytes, ..StepData::default() };
            let ticket = model.submit(&step).unwrap();
            let report = model.last_step().unwrap();
            let launched = windows > 16;
            assert_eq!(report.mode, if launched { StepMode::None } else { step_mode });
            assert_eq!(report.fallback.is_some(), launched && step_mode != StepMode::None);
            let found = model.read(&ticket).unwrap();
            let expected = Evaluator::new(&graph, &ops).run(&counts, &inputs, &weights, &mut []);
            for (i, expected) in expected.unwrap().iter().enumerate() {
                let error = norm_error(&elements(F32, found.bytes(i).unwrap()), &expected.data);
                assert!(error < 1e-5, "output {i} of {counts:?} in {}: {error}", mode.name());
            }
        }
        let x = [vec![0; 4 * 8 * 2], vec![0; 4 * 8 * 7], vec![0; 4 * 8]];
        let x = x.each_ref().map(Vec::as_slice);
        let step = StepData { counts: &[2, 7, 1], inputs: &x, ..StepData::default() };
        let error = model.submit(&step).unwrap_err();
        assert!(matches!(error, ModelError::Tied { count: 7, expected: 8, .. }), "{error}");
    }
}
