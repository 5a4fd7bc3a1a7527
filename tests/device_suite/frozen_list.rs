//! A captured graph is a frozen list of calls over addresses: replay sees nothing else.

use crate::sequences::{Left, Sequences, Turn, set_states, states, step, try_step};
use crate::small_decoder::Setup;
use crate::target::Target;
use piecewise_backend::artifact::{Choice, PieceSize};
use piecewise_backend::compiler::PieceAt;
use piecewise_backend::device::{Address, Binding, Device};
use piecewise_backend::weights::{NormalWeights, WeightLayout};
use piecewise_ir::dtype::DType;
use piecewise_ir::entity::Entity;
use piecewise_ir::graph::ValueDef;
use piecewise_kernels::op::OpRegistry;
use piecewise_kernels::step::{LaunchContext, StepContext};
use piecewise_runtime::batch::{ChunkRows, Sampling};
use piecewise_runtime::steps::CompiledModel;
use piecewise_runtime::words::{Checks, GraphMode, ModelError, StepMode, roles};
use piecewise_testing::Rng;
use std::sync::Arc;

const CANARY: u8 = 0xab;
const ROWS: u64 = 3;
const ONE_TOKEN: PieceSize = PieceSize::Uniform { sequences: 1, query_length: 1 };

fn backed(device: &mut dyn Device, bytes: u64) -> Address {
    let region = device.reserve("a test", bytes.max(256)).unwrap();
    device.back(region).unwrap();
    region.base
}

/// The first piece of a decoder (it embeds, projects and writes KV) is captured; then module,
/// registry, compiler, artifact and program are dropped, and replays still do what launches did.
pub(crate) fn everything_else_is_dropped_first<T: Target>() {
    let module = Setup::default().module();
    let registry = Arc::new(OpRegistry::builtin());
    let (mut device, compiler) = T::make(&registry, 2);
    let stitch = module.stitch().unwrap();
    let piece = stitch.unique[stitch.unique_pieces()[0]].clone();
    let bounds: Vec<u64> = piece.graph.symbols().values().map(|decl| decl.max).collect();
    let mut sizes = bounds.clone();
    sizes[piece.over.unwrap().index()] = ROWS;
    let layouts = vec![WeightLayout::default(); piece.graph.weights().len()];
    let artifact = compiler
        .compile(
            PieceAt { piece: &piece, size: PieceSize::Exact(ROWS), bounds: &bounds },
            &layouts,
            T::store(),
        )
        .unwrap();
    let graph = &piece.graph;
    let (mut operands, mut written, mut inputs) = (Vec::new(), Vec::new(), Vec::new());
    for value in piece.operands() {
        let bytes = graph.ty(value).bytes(&bounds);
        let at = backed(&mut *device, bytes);
        operands.push(Some(at));
        match graph.def(value) {
            ValueDef::Weight(i) => {
                let source = NormalWeights { std: 0.3, seed: 1 };
                device.materialize(&graph.weights()[i].recipe, layouts[i], &source, at).unwrap();
            }
            ValueDef::Input(_) => inputs.push((at, graph.ty(value).dtype)),
            ValueDef::State(_) => written.push((at, bytes)),
            ValueDef::Result { .. } if graph.outputs().contains(&value) => {
                written.push((at, graph.ty(value).bytes(&sizes)));
            }
            ValueDef::Result { .. } => {}
        }
    }
    let scratch_bytes = artifact.scratch();
    let (scratch, counts) = (backed(&mut *device, scratch_bytes), backed(&mut *device, 256));
    let binding = Binding {
        piece: &piece,
        choice: &Choice::default(),
        operands: &operands,
        scratch,
        scratch_bytes,
        counts,
        bounds: &bounds,
        label: "first piece",
    };
    let program = device.bind(&artifact, &binding).unwrap();

    let true_counts: Vec<u8> = sizes.iter().flat_map(|&n| (n as i32).to_le_bytes()).collect();
    device.write(counts, &true_counts).unwrap();
    // Every index of the piece is a row of something with at least three rows.
    let stage = |device: &mut dyn Device, first: i32| {
        for &(at, dtype) in &inputs {
            assert_eq!(dtype, DType::I32);
            let rows: Vec<u8> =
                (0..ROWS as i32).flat_map(|i| ((first + i) % 3).to_le_bytes()).collect();
            device.write(at, &rows).unwrap();
        }
        for &(at, bytes) in &written {
            device.fill(at, bytes, &[0]).unwrap();
        }
    };
    let left = |device: &mut dyn Device| -> Vec<Vec<u8>> {
        let read = |&(at, bytes): &(Address, u64)| {
            let mut bytes = vec![0; bytes as usize];
            device.read(at, &mut bytes).unwrap();
            bytes
        };
        written.iter().map(read).collect()
    };
    let launch = |device: &mut dyn Device, first| {
        stage(device, first);
        let step = StepContext { counts: &sizes, sizes: &sizes, inputs: &[] };
        device.launch(&program, LaunchContext::Step(&step)).unwrap();
        left(device)
    };
    let launched = [0, 1].map(|first| launch(&mut *device, first));
    assert_ne!(launched[0], launched[1]);
    let captured = device.capture("first piece", &[&program], &sizes).unwrap();
    drop((program, artifact, compiler, registry));
    drop((module, piece));
    for first in [0, 1, 0] {
        stage(&mut *device, first);
        device.replay(&captured).unwrap();
        assert_eq!(left(&mut *device), launched[first as usize]);
    }
}

/// A first step of one sequence, from zeroed states; equal for every call.
fn first_step(model: &mut CompiledModel, tokens: u64) -> Result<Left, Box<ModelError>> {
    let mut sequences = Sequences::of(model);
    let zeros = vec![0; model.memory().states.bytes as usize];
    set_states(model, &zeros);
    let turn = Turn { sequence: 0, tokens, rows: ChunkRows::Last, feedback: false };
    let view = sequences.fill(&[turn], &mut Rng::new(5));
    try_step(model, &view)
}

/// An input moves after the capture: replay goes on reading its old place, and the address check
/// names launch, operand and address.
pub(crate) fn a_swapped_buffer_is_read_at_its_old_place<T: Target>(mode: GraphMode) {
    let setup = Setup { mode, ..Setup::default() };
    for addresses in [false, true] {
        let checks = Checks { addresses, ..Checks::default() };
        let mut model = Setup { checks, ..setup.clone() }.build::<T>();
        let before = first_step(&mut model, 5).unwrap();
        let ids = model.module().graph().inputs()[0].value;
        let old = model.memory().address(model.module().graph(), ids).unwrap();
        let elsewhere = model.memory().layout().bytes - 64;
        model.memory_mut().move_slot(ids, elsewhere);
        let after = first_step(&mut model, 5);
        if !addresses {
            assert_eq!(after.unwrap(), before);
            continue;
        }
        let error = *after.unwrap_err();
        assert!(
            matches!(&error, ModelError::StaleAddress { address, .. } if *address == old),
            "{error}"
        );
    }
}

/// Two slots change places: each address is one that some operand has, and neither is right.
pub(crate) fn swapped_slots_are_named<T: Target>(mode: GraphMode) {
    let checks = Checks { addresses: true, ..Checks::default() };
    let mut model = Setup { mode, checks, ..Setup::default() }.build::<T>();
    first_step(&mut model, 5).unwrap();
    let inputs = model.module().graph().inputs();
    let of_role =
        |role: &str| inputs.iter().find(|i| i.role.as_deref() == Some(role)).unwrap().value;
    // What a piece reads: split ops are launched from where they were bound.
    let pair = [roles::TOKEN_IDS, roles::KV_SLOTS].map(of_role);
    let at = pair.map(|value| model.memory().slot_offset(value).unwrap());
    assert_ne!(at[0], at[1]);
    model.memory_mut().move_slot(pair[0], at[1]);
    model.memory_mut().move_slot(pair[1], at[0]);
    let error = *first_step(&mut model, 5).unwrap_err();
    assert!(matches!(&error, ModelError::StaleAddress { .. }), "{mode:?}: {error}");
    assert!(error.to_string().contains("another value"), "{mode:?}: {error}");
}

/// Five tokens with sizes 4 and 8 replay 8: of every slot no row past 8 changes, of the KV cache
/// only the rows of the five tokens.
pub(crate) fn no_row_past_the_size_is_touched<T: Target>(mode: GraphMode) {
    let setup = Setup { mode, sizes: vec![4, 8], ..Setup::default() };
    let mut model = setup.build::<T>();
    let arena = model.memory().arena.base;
    let staged = model.memory().layout().staged;
    let slots = model.memory().layout().bytes;
    model.device_mut().fill(arena.offset(staged), slots - staged, &[CANARY]).unwrap();
    let states = model.memory().states;
    model.device_mut().fill(states.base, states.bytes, &[CANARY]).unwrap();

    let mut sequences = Sequences::of(&model);
    let turn = Turn { sequence: 0, tokens: 5, rows: ChunkRows::Last, feedback: false };
    let left = step(&mut model, &sequences.fill(&[turn], &mut Rng::new(1)));
    assert_ne!(left.report.mode, StepMode::None);
    assert_eq!(left.report.sizes.tokens, PieceSize::Exact(8));

    let mut sizes = vec![0; model.symbols().bounds().len()];
    let report = left.report.sizes;
    model.symbols().fill(&mut sizes, |class| report.rows_of(class));
    let mut bytes = vec![0; slots as usize];
    model.device_mut().read(arena, &mut bytes).unwrap();
    let graph = model.module().graph();
    let layout = model.memory().layout();
    let mut may_change = vec![false; slots as usize];
    may_change[..staged as usize].fill(true);
    let mut past_the_size = 0;
    for (slot, data) in model.module().slots().unwrap().slots.iter() {
        let start = layout.offsets[slot.index()] as usize;
        let used = graph.ty(data.value).bytes(&sizes) as usize;
        past_the_size += layout.sizes[slot.index()] as usize - used;
        may_change[start..start + used].fill(true);
    }
    assert!(past_the_size > 0);
    let touched = (0..bytes.len()).find(|&i| !may_change[i] && bytes[i] != CANARY);
    assert_eq!(touched, None, "a byte of the arena that no row of the step holds");

    for state in graph.states() {
        let at = (model.memory().address(graph, state.value).unwrap().0 - states.base.0) as usize;
        let ty = graph.ty(state.value);
        let row = ty.row().bytes(model.symbols().bounds()) as usize;
        let rows = left.states[at..at + ty.bytes(model.symbols().bounds()) as usize].chunks(row);
        let changed = rows.enumerate().filter(|(_, row)| row.iter().any(|&b| b != CANARY));
        let changed: Vec<u64> = changed.map(|(i, _)| i as u64).collect();
        let expected: Vec<u64> = match state.role.as_deref() {
            Some(roles::KV_CACHE) => {
                (0..5).map(|position| sequences.list[0].table.slot(position).unwrap()).collect()
            }
            _ => vec![0],
        };
        assert_eq!(changed, expected, "rows of state {}", state.name);
    }
}

/// One graph of one token serves two sequences of other lengths in other pages in turn.
pub(crate) fn one_graph_serves_other_metadata<T: Target>() {
    let setup = Setup { mode: GraphMode::Full, ..Setup::default() };
    let mut replayed = setup.build::<T>();
    let mut launched = setup.build::<T>();
    launched.set_launches_only(true);
    let mut sequences = Sequences::of(&replayed);
    let mut rng = Rng::new(9);
    let mut logits = Vec::new();
    for (sequence, tokens) in [(0, 7), (1, 20), (0, 1), (1, 1), (0, 1)] {
        let turn = Turn { sequence, tokens, rows: ChunkRows::Last, feedback: tokens == 1 };
        let view = sequences.fill(&[turn], &mut rng);
        let (found, expected) = (step(&mut replayed, &view), step(&mut launched, &view));
        assert_eq!(found.difference(&expected), None);
        if tokens == 1 {
            logits.push(found.outputs[0].clone());
        }
    }
    assert_eq!(replayed.statistics().full_replays[&ONE_TOKEN], 3);
    assert!(logits[0] != logits[1] && logits[1] != logits[2] && logits[0] != logits[2]);
}

/// One graph of one token samples greedily and by other seeds, temperatures and filters in turn,
/// as a launched step with the same parameters does.
pub(crate) fn one_graph_samples_as_each_step_says<T: Target>() {
    let setup = Setup { mode: GraphMode::Full, ..Setup::default() };
    let mut replayed = setup.build::<T>();
    let mut launched = setup.build::<T>();
    launched.set_launches_only(true);
    let mut sequences = Sequences::of(&replayed);
    let mut rng = Rng::new(12);
    let greedy = Sampling::default();
    let hot = |seed| Sampling { temperature: 5.0, seed, ..Sampling::default() };
    let mut rules =
        vec![greedy, Sampling { top_k: 1, ..hot(1) }, Sampling { top_p: 1e-6, ..hot(2) }];
    rules.extend((3..23).map(hot));
    let before = states(&mut replayed);
    let mut sampled = Vec::new();
    for rule in rules {
        // Each step is the same but for how it samples.
        set_states(&mut replayed, &before);
        set_states(&mut launched, &before);
        sequences.restart(0);
        sequences.sampling = Some(rule);
        let turn = Turn { sequence: 0, tokens: 1, rows: ChunkRows::Last, feedback: false };
        let ids = rng.clone();
        let view = sequences.fill(&[turn], &mut rng);
        let (found, expected) = (step(&mut replayed, &view), step(&mut launched, &view));
        rng = ids;
        assert_eq!(found.report.mode, StepMode::Full);
        assert_eq!(found.difference(&expected), None, "{rule:?}");
        sampled.push(i32::from_le_bytes(found.outputs[1][..4].try_into().unwrap()));
    }
    assert_eq!(replayed.statistics().full_replays[&ONE_TOKEN], sampled.len() as u64);
    assert_eq!(sampled[1..3], [sampled[0]; 2], "one candidate is the likeliest one");
    let other = sampled[3..].iter().filter(|&&id| id != sampled[0]).count();
    assert!(other > 5, "hot samples are spread: {sampled:?}");
}
