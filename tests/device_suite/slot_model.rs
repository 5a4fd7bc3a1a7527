//! A model with states of one slot a sequence, of an op of the suite's own on both backends and of
//! convolutions.

use crate::target::Target;
use piecewise::models::op_builders::{AttentionSpec, DecoderStates as _, KernelOps as _};
use piecewise::models::{StepBounds, StepInputs};
use piecewise_backend::compiler::Compiler;
use piecewise_backend::device::Device;
use piecewise_backend::tuning::TuneMode;
use piecewise_backend::weights::NormalWeights;
use piecewise_ir::builder::Builder;
use piecewise_ir::custom::{Attrs, CustomOpDef};
use piecewise_ir::dim::Dim;
use piecewise_ir::dtype::DType;
use piecewise_ir::entity::Entity;
use piecewise_ir::op::RowTreatment;
use piecewise_ir::types::TensorType;
use piecewise_kernels::inputs::{Extent, StepInput};
use piecewise_kernels::op::cuda::{
    CudaImplementation, CudaOp, CudaOpCall, GridAxis, LaunchRecipe, OpKernels, Param, Scalar,
};
use piecewise_kernels::op::{CpuOp, CpuOpArgs, OpError, OpRegistry};
use piecewise_kernels::roles;
use piecewise_runtime::batch::RoleMap;
use piecewise_runtime::dispatch::{Dispatcher, SizeRules};
use piecewise_runtime::engine::{Engine, EngineOptions, Request, RequestEvent};
use piecewise_runtime::pipeline::plan;
use piecewise_runtime::steps::{BuildOptions, CompiledModel};
use piecewise_runtime::store::compile_module;
use piecewise_runtime::words::RequestId;
use piecewise_runtime::words::sizes::SizeList;
use piecewise_runtime::words::{CaptureWhen, Checks, CompileLevel, GraphMode, OnCaptureFailure};
use std::collections::BTreeMap;
use std::sync::Arc;

const WIDTH: u64 = 16;
/// Slots of its states.
pub(crate) const SLOTS: u64 = 3;

/// `y[t] = memory = 0.5 * memory + x[t]` down the rows of each sequence.
#[derive(Debug)]
struct Remember;

impl Remember {
    const NAME: &'static str = "test.remember";

    /// Slot, first row and rows of each sequence.
    fn spans() -> StepInput {
        let shape = [Extent::of(roles::SEQUENCES), Extent::Constant(3)];
        StepInput::new("test.spans", DType::I32, shape, -1.0).filled(|batch, out| {
            for sequence in batch.sequences() {
                let slot = sequence.slot().ok_or("no slot")? as i32;
                let (first, rows) = (sequence.token_rows().start, sequence.tokens());
                out.extend([slot, first as i32, rows as i32]);
            }
            Ok(())
        })
    }
}

impl CustomOpDef for Remember {
    fn name(&self) -> &str {
        Self::NAME
    }
    fn infer(&self, operands: &[TensorType], _: &Attrs) -> Result<Vec<TensorType>, String> {
        Ok(vec![operands[0].clone()])
    }
    fn mutates(&self) -> Vec<usize> {
        vec![1]
    }
    fn rows(&self) -> RowTreatment {
        RowTreatment::Masked
    }
    fn splits(&self) -> bool {
        true
    }
}

impl CpuOp for Remember {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn run(&self, args: &CpuOpArgs<'_>) -> Result<(), OpError> {
        let (x, spans) = (args.read::<f32>(0)?, args.read::<i32>(2)?);
        let (memory, y) = (args.write::<f32>(1)?, args.write::<f32>(3)?);
        let width = WIDTH as usize;
        for span in spans[..3 * args.true_dim(2, 0)].chunks_exact(3) {
            let [slot, first, rows] = [span[0], span[1], span[2]].map(|n| n as usize);
            for at in first * width..(first + rows) * width {
                let kept = &mut memory[slot * width + at % width];
                *kept = 0.5 * *kept + x[at];
                y[at] = *kept;
            }
        }
        Ok(())
    }
}

impl CudaOp for Remember {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn implementation(&self, call: &CudaOpCall<'_>) -> Result<CudaImplementation, OpError> {
        let Some(sequences) = call.operands[2].outer_symbol() else {
            let message = "spans have no rows of a symbol".to_owned();
            return Err(OpError { op: Self::NAME.to_owned(), message });
        };
        let mut params: Vec<Param> = (0..4).map(Param::Arg).collect();
        params.push(Param::Counts);
        let symbol = Dim::constant(sequences.index() as u64);
        params.push(Param::Scalar(Scalar::U32(symbol)));
        let source = include_str!("remember_kernel.cu");
        let launch = LaunchRecipe::new(source, "remember", GridAxis::one(), WIDTH as u32, params);
        Ok(CudaImplementation::Source(OpKernels::new([launch])))
    }
}

/// How an engine over the model is built.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotSetup {
    pub mode: GraphMode,
    pub capture: CaptureWhen,
    pub on_capture_failure: OnCaptureFailure,
    pub strict: bool,
    pub checks: Checks,
    /// Rows of a pool of keys and values; 0 for a model without attention.
    pub kv_rows: u64,
}

impl SlotSetup {
    pub(crate) const WEIGHTS: NormalWeights = NormalWeights { std: 0.6, seed: 3 };

    /// Every check on, and every step replayed.
    pub(crate) fn checked(mode: GraphMode) -> Self {
        let checks = Checks { poison: true, addresses: true, compare: true };
        let (capture, on_capture_failure) = (CaptureWhen::Startup, OnCaptureFailure::Error);
        Self { mode, capture, on_capture_failure, strict: true, checks, kv_rows: 0 }
    }

    /// The registry that has the model's op.
    pub(crate) fn registry() -> Arc<OpRegistry> {
        let mut registry = OpRegistry::builtin();
        registry.define(Arc::new(Remember)).implement_cpu(Arc::new(Remember));
        registry.implement_cuda(Arc::new(Remember));
        registry.declare_inputs(Remember::NAME, [Remember::spans()]);
        Arc::new(registry)
    }

    pub(crate) fn engine<T: Target>(self) -> Engine {
        let registry = Self::registry();
        let (device, compiler) = T::make(&registry, 1);
        self.engine_on::<T>(&registry, device, &*compiler)
    }

    /// An engine on a device that runs the ops of [`Self::registry`].
    pub(crate) fn engine_on<T: Target>(
        self,
        registry: &Arc<OpRegistry>,
        device: Box<dyn Device>,
        compiler: &dyn Compiler,
    ) -> Engine {
        let b = Builder::new("remembers").weight_dtype(DType::F32);
        let bounds = StepBounds {
            max_tokens: 8,
            max_rows: 3,
            max_sequences: 3,
            max_length: 64,
            kv_rows: self.kv_rows,
            state_slots: SLOTS,
        };
        let step = StepInputs::declare(&b, &bounds);
        let spans = step.input(&b, "spans", &Remember::spans());
        let embedding = b.weight("embedding", [61, WIDTH]);
        let mut x = embedding.gather(step.ids);
        for layer in 0..2 {
            let _scope = b.scope(format!("layers.{layer}"));
            let memory = step.slot_state(&b, "memory", DType::F32, [WIDTH]);
            let h = x.linear(b.weight("in", [WIDTH, WIDTH])).silu();
            x = x + b.custom_one(&Remember, &[h, memory, spans], Attrs::new());
            x = x + step.causal_convolution(&b, "window", x, b.weight("taps", [WIDTH, 3]));
            if self.kv_rows > 0 {
                let (kv, head) = (b.kv_state(step.kv_rows, 1, WIDTH, DType::F32), x.heads(WIDTH));
                kv.write(step.kv_slots, head, head);
                let spec = AttentionSpec { scale: 0.25, causal: true };
                x = x + head.paged_attention(kv, &step.attention, spec);
            }
        }
        let logits = x.gather(step.logit_rows).matmul_transposed(embedding, DType::F32);
        let graph = b.finish([logits, step.sample(logits)]).unwrap();
        let (module, _) = plan(graph, CompileLevel::Piecewise, None, Vec::new()).unwrap();
        let list = |sizes: &[u64]| SizeList::new("sizes", sizes.to_vec(), "bound", 8).unwrap();
        let options = BuildOptions {
            dispatcher: Dispatcher {
                mode: self.mode,
                tokens: list(&[1, 2, 4, 8]),
                batches: list(&[1, 2, 3]),
                query_lengths: vec![1],
                max_tokens: 8,
                max_rows: 3,
                max_sequences: 3,
                padding: true,
                own: Vec::new(),
                rules: SizeRules::default(),
            },
            max_logit_rows: 3,
            read_outputs: vec![1],
            capture: self.capture,
            on_capture_failure: self.on_capture_failure,
            capture_attempts: 3,
            recapture_limit: 128,
            capture_exclude: Vec::new(),
            probes: Vec::new(),
            tune: TuneMode::default(),
            tune_budget: std::time::Duration::ZERO,
            tuning_steps: Vec::new(),
            strict: self.strict,
            checks: self.checks,
            measure_padding: false,
        };
        let (build, weights) = (CompiledModel::build, Arc::new(Self::WEIGHTS));
        let (module, store) = (Arc::new(module), T::store());
        let sizes = &options.dispatcher;
        let compiled = compile_module(&module, sizes, compiler, store, &mut |_| {}).unwrap();
        let model = build(module, options, compiled, store, device, weights, &mut |_| {}).unwrap();
        let roles = RoleMap::resolve(model.module().graph(), model.symbols(), registry).unwrap();
        assert_eq!(roles.state_slots, SLOTS);
        let options = EngineOptions { max_seq_len: 64, ..EngineOptions::of(&model, &roles) };
        Engine::new(model, roles, options).unwrap()
    }
}

/// Some prompts are longer than a step.
pub(crate) fn request(number: u32) -> Request {
    let ids = (0..1 + number * 7 % 20).map(|i| (number * 13 + i * i) % 61);
    Request::new(ids.collect::<Vec<_>>(), 9)
}

/// The tokens of each request.
pub(crate) fn ids_of(events: &[RequestEvent]) -> BTreeMap<RequestId, Vec<u32>> {
    let mut ids: BTreeMap<RequestId, Vec<u32>> = BTreeMap::new();
    for event in events {
        if let RequestEvent::Token { request, id, .. } = *event {
            ids.entry(request).or_default().push(id);
        }
    }
    ids
}
