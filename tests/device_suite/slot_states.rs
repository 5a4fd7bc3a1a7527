//! States of one slot a sequence: given at admission, zeros before the first token, taken back.

use crate::target::{Cpu, Target};
use piecewise::models::{StepBounds, StepInputs};
use piecewise_backend::cpu::CpuDevice;
use piecewise_backend::tuning::TuneMode;
use piecewise_backend::weights::NormalWeights;
use piecewise_ir::builder::Builder;
use piecewise_ir::custom::{Attrs, CustomOpDef};
use piecewise_ir::dtype::DType;
use piecewise_ir::op::RowTreatment;
use piecewise_ir::types::TensorType;
use piecewise_kernels::inputs::{Extent, StepInput};
use piecewise_kernels::op::{CpuOp, CpuOpArgs, OpError, OpRegistry};
use piecewise_kernels::roles;
use piecewise_runtime::artifact_store::compile_module;
use piecewise_runtime::batch::RoleMap;
use piecewise_runtime::dispatch::Dispatcher;
use piecewise_runtime::engine::{
    BatchingEngine, Engine, EngineOptions, Request, RequestEvent, RequestId,
};
use piecewise_runtime::mode::{GraphMode, Level};
use piecewise_runtime::model::{
    BuildOptions, CaptureWhen, Checks, CompiledModel, OnCaptureFailure,
};
use piecewise_runtime::pipeline::plan;
use piecewise_runtime::sizes::SizeList;
use std::collections::BTreeMap;
use std::sync::Arc;

const WIDTH: u64 = 16;
const SLOTS: u64 = 3;

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

fn engine(mode: GraphMode) -> BatchingEngine<CpuDevice> {
    let b = Builder::new("remembers").weight_dtype(DType::F32);
    let bounds = StepBounds {
        max_tokens: 8,
        max_rows: 3,
        max_sequences: 3,
        max_length: 64,
        kv_rows: 0,
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
    }
    let logits = x.gather(step.logit_rows).matmul_transposed(embedding, DType::F32);
    let graph = b.finish([logits, step.sample(logits)]).unwrap();
    let mut registry = OpRegistry::builtin();
    registry.define(Arc::new(Remember)).implement_cpu(Arc::new(Remember));
    registry.declare_inputs(Remember::NAME, [Remember::spans()]);
    let registry = Arc::new(registry);
    let (module, _) = plan(graph, Level::Piecewise, None, Vec::new()).unwrap();
    let (device, compiler) = Cpu::make(&registry, 1);
    let list = |sizes: &[u64]| SizeList::new("sizes", sizes.to_vec(), "bound", 8).unwrap();
    let options = BuildOptions {
        dispatcher: Dispatcher {
            mode,
            tokens: list(&[1, 2, 4, 8]),
            batches: list(&[1, 2, 3]),
            query_lengths: vec![1],
            max_tokens: 8,
            max_rows: 3,
            max_sequences: 3,
            padding: true,
            own: Vec::new(),
        },
        max_logit_rows: 3,
        read_outputs: vec![1],
        capture: CaptureWhen::Startup,
        on_capture_failure: OnCaptureFailure::Error,
        capture_attempts: 3,
        capture_exclude: Vec::new(),
        probes: Vec::new(),
        tune: TuneMode::default(),
        strict: true,
        checks: Checks { poison: true, addresses: true, compare: true },
    };
    let (build, weights) = (CompiledModel::build, NormalWeights { std: 0.6, seed: 3 });
    let (module, store) = (Arc::new(module), Cpu::store());
    let (sizes, compiler) = (&options.dispatcher, compiler.as_ref());
    let compiled = compile_module(&module, sizes, compiler, store, &mut |_| {}).unwrap();
    let model = build(module, options, compiled, store, device, &weights, &mut |_| {}).unwrap();
    let roles = RoleMap::resolve(model.module().graph(), model.symbols(), &registry).unwrap();
    assert_eq!(roles.state_slots, SLOTS);
    let options = EngineOptions { max_seq_len: 64, ..EngineOptions::of(&model, &roles) };
    BatchingEngine::new(model, roles, options).unwrap()
}

fn request(number: u32) -> Request {
    // Some prompts are longer than a step.
    let ids = (0..1 + number * 7 % 20).map(|i| (number * 13 + i * i) % 61);
    Request::new(ids.collect::<Vec<_>>(), 9)
}

fn ids_of(events: &[RequestEvent]) -> BTreeMap<RequestId, Vec<u32>> {
    let mut ids: BTreeMap<RequestId, Vec<u32>> = BTreeMap::new();
    for event in events {
        if let RequestEvent::Token { request, id } = *event {
            ids.entry(request).or_default().push(id);
        }
    }
    ids
}

/// What each request gives in an engine that has run nothing before.
fn alone(request: &Request) -> Vec<u32> {
    let mut engine = engine(GraphMode::None);
    let id = engine.add(request.clone()).unwrap();
    let mut events = Vec::new();
    engine.run(&mut events).unwrap();
    ids_of(&events).remove(&id).unwrap()
}

#[test]
fn a_slot_serves_one_sequence_after_the_other_from_zeros() {
    let requests: Vec<_> = (0..8).map(request).collect();
    let expected: Vec<_> = requests.iter().map(alone).collect();
    for mode in [GraphMode::None, GraphMode::Piecewise, GraphMode::Full] {
        let mut engine = engine(mode);
        let mut events = Vec::new();
        let mut numbers = BTreeMap::new();
        for (number, request) in requests.iter().enumerate() {
            numbers.insert(engine.add(request.clone()).unwrap(), number);
            engine.step(&mut events).unwrap();
        }
        // What it had in flight is dropped, and its slot goes to another at once.
        let removed = *numbers.keys().next_back().unwrap();
        let running = engine.slots().free_slots();
        engine.remove(removed).unwrap();
        assert!(engine.slots().free_slots() >= running);
        engine.run(&mut events).unwrap();
        for (id, ids) in ids_of(&events) {
            let expected = &expected[numbers[&id]];
            let whole = if id == removed { expected.get(..ids.len()) } else { Some(&expected[..]) };
            assert_eq!(Some(&ids[..]), whole, "{}", mode.name());
        }
        assert_eq!(engine.slots().free_slots() as u64, SLOTS);
    }
}

#[test]
fn a_removed_requests_slot_is_free_within_the_step() {
    let mut engine = engine(GraphMode::Full);
    let ids: Vec<_> = (1..5).map(|number| engine.add(request(number)).unwrap()).collect();
    let mut events = Vec::new();
    for _ in 0..8 {
        engine.step(&mut events).unwrap();
    }
    assert_eq!(engine.slots().free_slots(), 0, "the fourth waits");
    engine.remove(ids[0]).unwrap();
    assert_eq!(engine.slots().free_slots(), 1);
    events.clear();
    engine.run(&mut events).unwrap();
    let found = ids_of(&events);
    assert!(!found.contains_key(&ids[0]));
    assert_eq!(found[&ids[3]], alone(&request(4)));
}

#[test]
fn a_kept_conversation_goes_on_from_its_slot_or_is_computed_again() {
    let mut more = Request::new([5, 6], 6);
    let first = Request { keep: true, ..request(2) };
    let reply = alone(&first);
    let whole = [first.prompt.clone(), reply.clone(), more.prompt.clone()].concat();
    let expected = alone(&Request::new(whole.clone(), 6));
    for others in [0, 5] {
        let mut engine = engine(GraphMode::Piecewise);
        let id = engine.add(first.clone()).unwrap();
        let mut events = Vec::new();
        engine.run(&mut events).unwrap();
        assert_eq!(engine.kept(), [id]);
        assert_eq!(engine.slots().free_slots() as u64, SLOTS - 1);
        for number in 0..others {
            engine.add(request(number)).unwrap();
        }
        engine.run(&mut events).unwrap();
        events.clear();
        more.keep = true;
        engine.extend(id, more.clone()).unwrap();
        engine.run(&mut events).unwrap();
        assert_eq!(ids_of(&events)[&id], expected, "after {others} others");
        let usage = engine.usage(id).unwrap();
        assert_eq!((usage.prompt, usage.generated), (whole.len() as u64, 6));
        // The last id of the first turn was sampled and not computed.
        let kept = (first.prompt.len() + reply.len()) as u64 - 1;
        assert_eq!(usage.cached, if others == 0 { kept } else { 0 });
        engine.remove(id).unwrap();
        assert_eq!(engine.slots().free_slots() as u64, SLOTS);
    }
}
