use super::capture::GraphKind;
use super::*;
use crate::batch::{BatchBuffers, Chunk, ChunkRows, ChunkTokens, Sampling};
use crate::dispatch::FallbackReason;
use crate::kv::{PagePool, PageTable};
use crate::mode::{GraphMode, StepMode};
use crate::testing::{Bounds, FakeDevice, Setup, VOCAB, next_id};
use piecewise_backend::artifact::PieceSize;
use piecewise_backend::device::DeviceError;
use piecewise_backend::measure::MeasuredDevice;
use piecewise_backend::store::MemoryStore;
use piecewise_backend::tuning::TuneMode;
use piecewise_ir::entity::Value;
use piecewise_kernels::step::CaptureSupport;
use std::sync::atomic::Ordering;

type Model = CompiledModel<FakeDevice>;

/// Submits a prompt of its own pages and wants every row.
fn submit(model: &mut Model, ids: &[u32]) -> Result<Ticket, ModelError> {
    let roles = Setup::roles_of(model);
    let mut table = PageTable::default();
    table.grow(&mut PagePool::new(roles.kv_rows), ids.len() as u64).unwrap();
    let mut batch = BatchBuffers::new(roles);
    batch.push(&Chunk {
        tokens: ChunkTokens::Ids(ids),
        start: 0,
        table: &table,
        slot: None,
        rows: ChunkRows::All,
        entry: None,
        values: &[],
        sampling: Sampling::default(),
    });
    model.submit(&batch.view().unwrap().data())
}

/// Submits prompts, each of which wants its last row.
fn submit_last(model: &mut Model, prompts: &[&[u32]]) -> Result<Ticket, ModelError> {
    let roles = Setup::roles_of(model);
    let mut pool = PagePool::new(roles.kv_rows);
    let mut batch = BatchBuffers::new(roles);
    for ids in prompts {
        let mut table = PageTable::default();
        table.grow(&mut pool, ids.len() as u64).unwrap();
        batch.push(&Chunk {
            tokens: ChunkTokens::Ids(ids),
            start: 0,
            table: &table,
            slot: None,
            rows: ChunkRows::Last,
            entry: None,
            values: &[],
            sampling: Sampling::default(),
        });
    }
    model.submit(&batch.view().unwrap().data())
}

fn sampled(model: &mut Model, ticket: &Ticket) -> Vec<u32> {
    let bytes = model.read(ticket).unwrap().bytes(1).unwrap();
    bytes.chunks(4).map(|c| u32::from_le_bytes(c.try_into().unwrap())).collect()
}

fn expected(ids: &[u32]) -> Vec<u32> {
    (1..=ids.len()).map(|n| next_id(&ids[..n], Sampling::default())).collect()
}

/// The bytes of a value at the bounds.
fn value_bytes(model: &mut Model, value: Value) -> Vec<u8> {
    let graph = model.module().graph();
    let address = model.memory().address(graph, value).unwrap();
    let mut bytes = vec![0; graph.ty(value).bytes(model.symbols().bounds()) as usize];
    model.device_mut().read(address, &mut bytes).unwrap();
    bytes
}

#[test]
fn a_step_copies_what_it_uses_of_its_inputs() {
    let bounds = Bounds { tokens: 1 << 18, ..Bounds::default() };
    let setup = Setup { bounds, checks: Checks::default(), ..Setup::default() };
    let mut model = setup.build().unwrap();
    let staged = model.memory().layout().staged;
    for ids in [&[5, 6, 7, 8, 9][..], &[4], &[3, 2, 1]] {
        model.device_mut().copied_in.clear();
        let ticket = submit(&mut model, ids).unwrap();
        assert_eq!(sampled(&mut model, &ticket), expected(ids));
        let (copied, inputs) = (&model.device().copied_in, model.module().graph().inputs().len());
        assert!(copied.len() <= inputs + 1, "{copied:?}");
        assert!(copied.iter().sum::<u64>() < staged / 16, "{copied:?} of {staged}");
    }
}

/// Of a table of a megabyte a few columns go to the device; the others keep what was there.
#[test]
fn of_a_wide_block_table_the_columns_in_use_are_copied() {
    let bounds = Bounds { table_pages: 1 << 15, sequences: 8, tokens: 64, ..Bounds::default() };
    let mut setup = Setup { bounds, ..Setup::default() };
    setup.token_sizes = vec![64];
    setup.batch_sizes = vec![4, 8];
    for poison in [false, true] {
        setup.checks.poison = poison;
        let mut model = setup.build().unwrap();
        let roles = Setup::roles_of(&model);
        let mut pool = PagePool::new(roles.kv_rows);
        let mut batch = BatchBuffers::new(roles);
        let prompts: Vec<Vec<u32>> = (1..=5).map(|n| (0..n * 4).collect()).collect();
        let mut table_of = |prompt: &Vec<u32>| {
            let mut table = PageTable::default();
            table.grow(&mut pool, prompt.len() as u64).unwrap();
            table
        };
        let tables: Vec<_> = prompts.iter().map(&mut table_of).collect();
        for (prompt, table) in prompts.iter().zip(&tables).take(4) {
            batch.push(&Chunk {
                tokens: ChunkTokens::Ids(prompt),
                start: 0,
                table,
                slot: None,
                rows: ChunkRows::Last,
                entry: None,
                values: &[],
                sampling: Sampling::default(),
            });
        }
        model.device_mut().copied_in.clear();
        let ticket = model.submit(&batch.view().unwrap().data()).unwrap();
        let last: Vec<_> =
            prompts[..4].iter().map(|ids| next_id(ids, Sampling::default())).collect();
        assert_eq!(sampled(&mut model, &ticket), last);
        let copied: u64 = model.device().copied_in.iter().sum();
        assert_eq!(copied < 8192, !poison, "{copied}");
        let table = model.module().graph().inputs().last().unwrap().value;
        let bytes = value_bytes(&mut model, table);
        let entry = |row: usize, column: usize| {
            let at = 4 * (row * (1 << 15) + column);
            i32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
        };
        let pages: Vec<_> = tables.iter().map(|table| table.pages()[0].number() as i32).collect();
        for (row, page) in pages.iter().enumerate().take(4) {
            assert_eq!(entry(row, 0), *page);
            let unused = entry(row, 1);
            assert!(if poison { unused == -1 } else { unused == 0 }, "{unused}");
        }
    }
    let short = StepData {
        counts: &[1, 1, 1],
        inputs: &[&[0u8; 4][..]; 15],
        short_rows: &[(0, 1)],
        query_length: None,
    };
    let mut model = Setup::default().build().unwrap();
    let error = model.submit(&short).unwrap_err().to_string();
    assert!(error.contains("tokens_ids") && error.contains("no matrix"), "{error}");
}

/// What a store that was measured with holds.
fn measured() -> MemoryStore {
    let store = MemoryStore::new();
    let setup = Setup { alternatives: 3, tune: TuneMode::Measure, ..Setup::default() };
    let model = setup.build_with(&store).unwrap();
    let programs = model.members.list.iter().flat_map(|m| m.sized.iter().map(|(_, p)| p));
    assert!(programs.into_iter().all(|program| program.alternative == 1));
    assert!(model.stats.tuning.measured > 0);
    assert_eq!(model.stats.tuning.refused, 0);
    store
}

#[test]
fn the_fastest_alternative_is_measured_once_and_then_remembered() {
    let store = measured();
    for tune in [TuneMode::Load, TuneMode::Measure] {
        let setup = Setup { alternatives: 3, tune, ..Setup::default() };
        let model = setup.build_with(&store).unwrap();
        assert!(model.members.list.iter().all(|member| member.general.alternative == 1));
        assert_eq!((model.stats.tuning.measured, model.stats.tuning.untuned), (0, 0));
    }
}

#[test]
fn without_a_record_or_with_one_of_other_alternatives_the_first_is_taken() {
    let store = measured();
    for (alternatives, tune) in [(3, TuneMode::Off), (2, TuneMode::Load)] {
        let setup = Setup { alternatives, tune, ..Setup::default() };
        let model = setup.build_with(&store).unwrap();
        assert!(model.members.list.iter().all(|member| member.general.alternative == 0));
        assert_eq!(model.stats.tuning.loaded, 0);
    }
}

#[test]
fn a_step_runs_at_the_size_above_it_and_touches_no_row_past_it() {
    let bounds = Bounds { rows: 16, ..Bounds::default() };
    let mut setup = Setup { bounds, batch_sizes: vec![1, 4, 8], ..Setup::default() };
    setup.token_sizes = vec![4, 8];
    setup.mode = GraphMode::Piecewise;
    setup.checks.poison = false;
    let mut model = setup.build().unwrap();
    let x = model.module().stitch().unwrap().uses.values().next().unwrap().operands[5];
    let at = model.memory().address(model.module().graph(), x).unwrap();
    model.device_mut().write(at, &[0xab; 4 * 16]).unwrap();
    let ticket = submit(&mut model, &[1, 2, 3, 4, 5]).unwrap();
    assert_eq!(sampled(&mut model, &ticket), expected(&[1, 2, 3, 4, 5]));
    let report = model.last_step().unwrap();
    assert_eq!((report.mode, report.sizes.tokens.rows()), (StepMode::Piecewise, 8));
    let bytes = value_bytes(&mut model, x);
    assert_eq!(bytes[4 * 8..], [0xab; 4 * 8]);
    assert_ne!(bytes[4 * 7..4 * 8], [0xab; 4]);
    assert_eq!(model.statistics().piece_replays[&PieceSize::Exact(8)], 2);
    assert!((model.statistics().padding_share() - 3.0 / 8.0).abs() < 1e-9);
}

#[test]
fn graphs_are_captured_largest_first() {
    let mut model = Setup::default().build().unwrap();
    let captured = model.recapture(GraphMode::FullAndPiecewise, &mut |_| {}).unwrap();
    for kind in [GraphKind::Full, GraphKind::Tokens, GraphKind::Rows] {
        let of_kind = captured.iter().filter(|graph| graph.kind == kind);
        let sizes: Vec<u64> = of_kind.map(|graph| graph.size.rows()).collect();
        assert!(sizes.is_sorted_by(|a, b| a >= b), "{kind:?}: {sizes:?}");
        assert!(sizes.len() > 1 || kind == GraphKind::Rows, "{kind:?}: {sizes:?}");
    }
}

#[test]
fn inputs_are_padded_with_what_their_declaration_says() {
    let mut setup = Setup::default();
    setup.checks.poison = true;
    let mut model = setup.build().unwrap();
    submit(&mut model, &[7, 8, 9]).unwrap();
    let inputs: Vec<_> = model.module().graph().inputs().to_vec();
    let mut padding_of = |role: &str, element: usize, rows: std::ops::Range<usize>| {
        let decl = inputs.iter().find(|i| i.role.as_deref() == Some(role)).unwrap();
        value_bytes(&mut model, decl.value)[element * rows.start..element * rows.end].to_vec()
    };
    assert_eq!(padding_of("tokens.ids", 4, 2..4), [9, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(padding_of("kv.slots", 4, 2..4), [2, 0, 0, 0, 255, 255, 255, 255]);
    assert_eq!(padding_of("kv.lengths", 4, 0..2), [3, 0, 0, 0, 255, 255, 255, 255]);
    assert_eq!(padding_of("sample.seed", 8, 3..4), [0; 8]);
    // Poison instead of the declared 0.
    assert_eq!(padding_of("sample.temperature", 4, 2..4), [0, 0, 0, 0, 255, 255, 255, 255]);
}

#[test]
fn inputs_and_counts_that_do_not_fit_are_named() {
    let mut model = Setup::default().build().unwrap();
    let error = submit(&mut model, &[1; 17]).unwrap_err();
    assert!(matches!(error, ModelError::TooMany { option: "max_num_tokens", .. }), "{error}");
    let step =
        StepData { counts: &[1, 1, 1], inputs: &[&[0; 4]], short_rows: &[], query_length: None };
    let error = model.submit(&step).unwrap_err().to_string();
    assert!(error.contains("tokens_feedback") && error.contains("1 of 15"), "{error}");
    let inputs = vec![&[0u8; 3][..]; 15];
    let step =
        StepData { counts: &[1, 1, 1], inputs: &inputs, short_rows: &[], query_length: None };
    let error = model.submit(&step).unwrap_err().to_string();
    assert!(error.contains("tokens_ids") && error.contains("3 bytes"), "{error}");
}

#[test]
fn a_ticket_lasts_until_the_second_submit_after_it() {
    let mut model = Setup::default().build().unwrap();
    let a = submit(&mut model, &[1]).unwrap();
    let b = submit(&mut model, &[2]).unwrap();
    assert_eq!(sampled(&mut model, &a), expected(&[1]));
    assert_eq!(sampled(&mut model, &a), expected(&[1]), "reading twice is fine");
    submit(&mut model, &[3]).unwrap();
    assert!(matches!(model.read(&a), Err(ModelError::Expired { step: 0 })));
    assert_eq!(sampled(&mut model, &b), expected(&[2]));
}

#[test]
fn rows_past_the_cap_run_the_head_again() {
    let ids: Vec<u32> = (0..16).map(|i| i * 7 % VOCAB as u32).collect();
    let mut in_calls = Vec::new();
    for rows in [16, 4] {
        let bounds = Bounds { rows, ..Bounds::default() };
        for mode in GraphMode::ALL {
            let mut model = Setup { mode, bounds, ..Setup::default() }.build().unwrap();
            let ticket = submit(&mut model, &ids).unwrap();
            assert_eq!(sampled(&mut model, &ticket), expected(&ids), "{}", mode.name());
            in_calls.push(model.read(&ticket).unwrap().bytes(0).unwrap().to_vec());
        }
    }
    assert!(
        in_calls.windows(2).all(|pair| pair[0] == pair[1]),
        "the logits of one call and of four"
    );
}

#[test]
fn a_failed_capture_is_an_error_or_a_counted_fallback() {
    let setup = Setup::default();
    setup.faults.failing_captures.store(1, Ordering::Relaxed);
    assert!(matches!(setup.build(), Err(ModelError::Device(_))));

    let setup = Setup { on_capture_failure: OnCaptureFailure::Launch, ..Setup::default() };
    setup.faults.failing_captures.store(u64::MAX, Ordering::Relaxed);
    let mut model = setup.build().unwrap();
    assert_eq!((model.captured_graphs(), model.statistics().captures), (0, 0));
    let ticket = submit(&mut model, &[4, 5, 6]).unwrap();
    assert_eq!(sampled(&mut model, &ticket), expected(&[4, 5, 6]));
    assert_eq!(model.last_step().unwrap().fallback, Some(FallbackReason::NotCaptured));
    for _ in 0..2 {
        model.capture_all(OnCaptureFailure::Launch, &mut |_| {}).unwrap();
    }
    setup.faults.failing_captures.store(0, Ordering::Relaxed);
    model.capture_all(OnCaptureFailure::Launch, &mut |_| {}).unwrap();
    assert_eq!(model.captured_graphs(), 0, "disabled after three failures in a row");
    let all = model.enable_graphs().unwrap();
    assert!(all > 0);
    submit(&mut model, &[4, 5, 6]).unwrap();
    assert_eq!(model.last_step().unwrap().mode, StepMode::Piecewise);
    model.invalidate_graphs();
    assert_eq!(model.captured_graphs(), 0);
    model.capture_all(OnCaptureFailure::Error, &mut |_| {}).unwrap();
    assert_eq!(model.captured_graphs(), all);
}

#[test]
fn lazy_capture_captures_what_the_step_needs_once() {
    let mut model = Setup { capture: CaptureWhen::Lazy, ..Setup::default() }.build().unwrap();
    assert_eq!(model.statistics().captures, 0);
    for _ in 0..2 {
        let ticket = submit(&mut model, &[4, 5, 6]).unwrap();
        assert_eq!(sampled(&mut model, &ticket), expected(&[4, 5, 6]));
        assert_eq!(model.last_step().unwrap().mode, StepMode::Piecewise);
        assert_eq!(model.statistics().captures, 2);
    }
    submit(&mut model, &[4]).unwrap();
    assert_eq!(model.last_step().unwrap().mode, StepMode::Full);
    assert_eq!(model.statistics().captures, 3);
}

#[test]
fn a_mode_that_the_split_ops_do_not_support_is_lowered_or_refused() {
    let setup = Setup { split_support: CaptureSupport::Never, ..Setup::default() };
    let model = setup.build().unwrap();
    assert_eq!(model.dispatcher().mode, GraphMode::Piecewise);
    assert!(model.lowered_mode().unwrap().contains("test.mix"));
    let error = Setup { strict: true, ..setup }.build().unwrap_err();
    assert!(matches!(error, ModelError::Mode { mode: "full_and_piecewise", .. }), "{error}");
}

#[test]
fn what_an_op_supports_decides_the_mode_inside_a_piece_as_between_them() {
    use CaptureSupport::{Always, Never, SingleTokenDecode, UniformBatch};
    use GraphMode::{Full, FullAndPiecewise, FullDecodeOnly, None, Piecewise};
    // Supported between pieces and inside of one, query lengths, the mode asked for and had.
    let cases = [
        (Never, Always, vec![1], Full, Piecewise),
        (SingleTokenDecode, Always, vec![1], Full, FullAndPiecewise),
        (SingleTokenDecode, Always, vec![1, 4], Full, Piecewise),
        (UniformBatch, Always, vec![1, 4], Full, FullAndPiecewise),
        (Always, Never, vec![1], Full, None),
        (Always, SingleTokenDecode, vec![1], Full, FullDecodeOnly),
        (Always, SingleTokenDecode, vec![1, 4], FullDecodeOnly, None),
        (Always, UniformBatch, vec![1, 4], FullAndPiecewise, FullDecodeOnly),
        (Always, UniformBatch, vec![1], Piecewise, None),
        (UniformBatch, UniformBatch, vec![1], FullAndPiecewise, FullDecodeOnly),
        (Always, Always, vec![1, 4], Full, Full),
    ];
    for (split_support, piece_support, query_lengths, mode, had) in cases {
        let setup = Setup { split_support, piece_support, query_lengths, mode, ..Setup::default() };
        let mut model = setup.build().unwrap();
        assert_eq!(model.dispatcher().mode, had, "{setup:?}");
        if had == mode {
            continue;
        }
        let op = if piece_support < Always { "`test.embed` in p0" } else { "`test.mix`" };
        assert!(model.lowered_mode().unwrap().starts_with(op), "{:?}", model.lowered_mode());
        let error = Setup { strict: true, ..setup.clone() }.build().unwrap_err().to_string();
        assert!(error.contains(op) && error.contains(mode.name()), "{error}");
        let error = model.set_graph_mode(mode, &mut |_| {}).unwrap_err().to_string();
        assert!(error.contains(op), "{error}");
        // A mixed step replays nothing that holds an op which can't be captured for it.
        let ticket = submit(&mut model, &[4, 5, 6]).unwrap();
        assert_eq!(sampled(&mut model, &ticket), expected(&[4, 5, 6]));
        let mixed = model.last_step().unwrap().mode;
        assert!(mixed < StepMode::Full || split_support.min(piece_support) == Always);
        assert!(mixed < StepMode::Piecewise || piece_support == Always);
    }
}

#[test]
fn what_an_op_declares_is_probed() {
    let setup = Setup { mode: GraphMode::Full, probes: true, ..Setup::default() };
    let several = Setup { query_lengths: vec![1, 2], ..setup.clone() };
    let mut kept = several.build().unwrap();
    assert_eq!((kept.dispatcher().mode, kept.lowered_mode()), (GraphMode::Full, None));
    let zeros = |model: &mut Model| {
        let region = model.memory().states;
        let mut bytes = vec![1; region.bytes as usize];
        model.device_mut().read(region.base, &mut bytes).unwrap();
        bytes.iter().all(|byte| *byte == 0)
    };
    assert!(zeros(&mut kept), "a probe leaves nothing in the states");

    // An op that finds its rows by the captured sizes is right in uniform batches alone, one that
    // keeps the table of its capture in none.
    let faults = [
        (&setup.faults.rows_of_uniform, "`test.head` in p2", GraphMode::FullDecodeOnly),
        (&setup.faults.baked_table, "`test.mix`", GraphMode::Piecewise),
    ];
    for (fault, op, had) in faults {
        fault.store(true, Ordering::Relaxed);
        let mut model = setup.build().unwrap();
        assert_eq!(model.dispatcher().mode, had, "{op}");
        let reason = model.lowered_mode().unwrap();
        assert!(reason.starts_with(op) && reason.contains("another batch writes"), "{reason}");
        // Mixed steps and a decode: none runs the op where it is wrong.
        for ids in [&[4, 5, 6][..], &[7, 8], &[9]] {
            let ticket = submit(&mut model, ids).unwrap();
            assert_eq!(sampled(&mut model, &ticket), expected(ids), "{op}");
        }
        let error = Setup { strict: true, ..setup.clone() }.build().unwrap_err();
        assert!(
            matches!(&error, ModelError::Mode { reason, .. } if reason.starts_with(op)),
            "{error}"
        );
        // Without a probe the declaration is believed, and the result is wrong.
        let mut believed = Setup { probes: false, ..setup.clone() }.build().unwrap();
        assert_eq!(believed.dispatcher().mode, GraphMode::Full);
        let ticket = submit_last(&mut believed, &[&[4, 5], &[6, 7, 8]]).unwrap();
        let right = [expected(&[4, 5])[1], expected(&[6, 7, 8])[2]];
        assert_ne!(sampled(&mut believed, &ticket), right, "{op}");
        let ticket = submit_last(&mut model, &[&[4, 5], &[6, 7, 8]]).unwrap();
        assert_eq!(sampled(&mut model, &ticket), right, "{op}");
        fault.store(false, Ordering::Relaxed);
    }
}

#[test]
fn strict_refuses_a_step_that_would_be_launched() {
    let setup = Setup { strict: true, ..Setup::default() };
    let mut model = setup.build().unwrap();
    submit(&mut model, &[1, 2, 3]).unwrap();
    let error = submit(&mut model, &[1; 9]).unwrap_err();
    assert!(matches!(error, ModelError::Strict { reason: "above_largest_size", .. }), "{error}");
}

#[test]
fn check_addresses_names_a_buffer_swapped_after_the_capture() {
    for mode in [GraphMode::Piecewise, GraphMode::Full] {
        let mut model = Setup { mode, ..Setup::default() }.build().unwrap();
        submit(&mut model, &[1, 2, 3]).unwrap();
        let ids = model.module().graph().inputs()[0].value;
        let elsewhere = model.memory().layout().bytes - 64;
        model.memory_mut().move_slot(ids, elsewhere);
        let error = submit(&mut model, &[1, 2, 3]).unwrap_err();
        let ModelError::StaleAddress { launch, operand, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!((launch.as_str(), operand.as_str()), ("test.embed", "0"));
    }
    let setup = Setup { mode: GraphMode::Full, ..Setup::default() };
    setup.faults.wrong_address.store(true, Ordering::Relaxed);
    let error = submit(&mut setup.build().unwrap(), &[1, 2, 3]).unwrap_err().to_string();
    assert!(error.contains("test.mix") && error.contains(" 2 at "), "{error}");
}

/// Two slots that change places: each address is one that some operand has, and neither is right.
#[test]
fn check_addresses_names_two_slots_that_changed_places() {
    for mode in [GraphMode::Piecewise, GraphMode::Full] {
        let mut model = Setup { mode, ..Setup::default() }.build().unwrap();
        submit(&mut model, &[1, 2, 3]).unwrap();
        let graph = model.module().graph();
        let input = |role: &str| {
            let found = graph.inputs().iter().find(|input| input.role.as_deref() == Some(role));
            found.unwrap().value
        };
        let (slots, starts) = (input("kv.slots"), input("kv.lengths"));
        let at = [slots, starts].map(|value| model.memory().slot_offset(value).unwrap());
        model.memory_mut().move_slot(slots, at[1]);
        model.memory_mut().move_slot(starts, at[0]);
        let error = submit(&mut model, &[1, 2, 3]);
        match mode {
            // Split ops are launched from where they were bound.
            GraphMode::Piecewise => drop(error),
            _ => {
                let error = error.unwrap_err();
                assert!(matches!(&error, ModelError::StaleAddress { .. }), "{error}");
                assert!(error.to_string().contains("another value"), "{error}");
            }
        }
    }
}

#[test]
fn check_compare_names_the_first_value_that_a_replay_writes_otherwise() {
    for (mode, who) in [(GraphMode::Piecewise, "written by p2"), (GraphMode::Full, "output 0")] {
        let mut setup = Setup { mode, ..Setup::default() };
        setup.checks.compare = true;
        let mut model = setup.build().unwrap();
        let ticket = submit(&mut model, &[1, 2, 3]).unwrap();
        assert_eq!(sampled(&mut model, &ticket), expected(&[1, 2, 3]));
        setup.faults.wrong_replay.store(true, Ordering::Relaxed);
        let error = submit(&mut model, &[1, 2, 3]).unwrap_err();
        let ModelError::ReplayDiffers { value, row: 0, .. } = &error else {
            panic!("{error}");
        };
        assert!(value.contains(who), "{error}");
    }
}

/// A step of three tokens at each graph that is refused in its turn: the tokens are right, the graph
/// is launched from there on and captured again by the next step that wants it, the others stay.
#[test]
fn a_refused_replay_is_launched_and_captured_again() {
    for mode in [GraphMode::Piecewise, GraphMode::Full] {
        let setup = Setup { mode, ..Setup::default() };
        let graphs = if mode == GraphMode::Full { 1 } else { 2 };
        for refused in 1..=graphs {
            let mut model = setup.build().unwrap();
            let all = model.captured_graphs();
            setup.faults.failing_replay.store(refused, Ordering::Relaxed);
            let ticket = submit(&mut model, &[4, 5, 6]).unwrap();
            assert_eq!(sampled(&mut model, &ticket), expected(&[4, 5, 6]));
            let report = model.last_step().unwrap();
            assert_eq!(report.fallback, Some(FallbackReason::ReplayRefused));
            assert_eq!(report.mode, StepMode::None);
            assert_eq!(model.captured_graphs(), all - 1, "the others stay");
            let stale = model.graphs().into_iter().find(|g| g.state == GraphState::Stale).unwrap();
            assert_eq!((stale.counts.failures, stale.counts.captures), (1, 1));
            let ticket = submit(&mut model, &[4, 5, 6]).unwrap();
            assert_eq!(sampled(&mut model, &ticket), expected(&[4, 5, 6]));
            assert_eq!(model.last_step().unwrap().mode, mode.mixed());
            assert_eq!(model.captured_graphs(), all);
            let stats = model.statistics();
            assert_eq!((stats.refused_replays, stats.recaptures), (1, 1));
            assert_eq!(stats.misses["replay_refused"], 1);
            let again = model.graphs().into_iter().find(|g| g.key == stale.key).unwrap();
            assert_eq!((again.state, again.counts.recaptures), (GraphState::Ready, 1));
            assert_eq!((again.counts.launches, again.counts.misses), (1, 1));
        }
        setup.faults.failing_replay.store(1, Ordering::Relaxed);
        let error = submit(&mut Setup { strict: true, ..setup }.build().unwrap(), &[4]);
        assert!(matches!(error, Err(ModelError::Device(DeviceError::Refused { .. }))), "{error:?}");
    }
}

#[test]
fn a_graph_that_is_refused_three_times_in_a_row_is_disabled() {
    let setup = Setup { mode: GraphMode::Full, ..Setup::default() };
    let mut model = setup.build().unwrap();
    for refusals in 1..=5 {
        setup.faults.failing_replay.store(1, Ordering::Relaxed);
        let ticket = submit(&mut model, &[4, 5, 6]).unwrap();
        assert_eq!(sampled(&mut model, &ticket), expected(&[4, 5, 6]));
        let fallback = model.last_step().unwrap().fallback.unwrap();
        let reason = match refusals {
            ..=3 => FallbackReason::ReplayRefused,
            _ => FallbackReason::NotCaptured,
        };
        assert_eq!(fallback, reason, "{refusals}");
    }
    assert_eq!(model.statistics().refused_replays, 3);
    setup.faults.failing_replay.store(0, Ordering::Relaxed);
    model.enable_graphs().unwrap();
    submit(&mut model, &[4, 5, 6]).unwrap();
    assert_eq!(model.last_step().unwrap().mode, StepMode::Full);
}

/// Dropped graphs come back as steps want them, each once.
#[test]
fn invalidated_graphs_are_captured_again_by_the_steps_that_want_them() {
    let mut model = Setup { mode: GraphMode::Full, ..Setup::default() }.build().unwrap();
    let all = model.captured_graphs();
    model.invalidate_graphs();
    for _ in 0..2 {
        let ticket = submit(&mut model, &[4, 5, 6]).unwrap();
        assert_eq!(sampled(&mut model, &ticket), expected(&[4, 5, 6]));
        assert_eq!(model.last_step().unwrap().mode, StepMode::Full);
        assert_eq!((model.captured_graphs(), model.statistics().recaptures), (1, 1));
    }
    model.capture_all(OnCaptureFailure::Error, &mut |_| {}).unwrap();
    assert_eq!(
        (model.captured_graphs() as u64, all as u64),
        (all as u64, model.statistics().recaptures)
    );
}

#[test]
fn background_capture_takes_what_steps_want_first_and_then_all() {
    let lazy = Setup { capture: CaptureWhen::Background, ..Setup::default() };
    let mut model = lazy.build().unwrap();
    assert_eq!(model.statistics().captures, 0);
    // A graph that is wanted comes before larger ones that are not.
    model.graphs.slot_mut(GraphKey::Full(model.dispatcher.full_decode(1, 1))).unwrap().miss();
    assert!(model.capture_next().unwrap());
    let ready: Vec<_> =
        model.graphs().into_iter().filter(|g| g.state == GraphState::Ready).collect();
    assert_eq!(ready.len(), 1);
    assert_eq!(ready[0].key, GraphKey::Full(model.dispatcher.full_decode(1, 1)));
    let all = Setup::default().build().unwrap().captured_graphs();
    let mut launched = 0;
    for _ in 0..2000 {
        let ticket = submit(&mut model, &[4, 5, 6]).unwrap();
        assert_eq!(sampled(&mut model, &ticket), expected(&[4, 5, 6]));
        launched += u32::from(model.last_step().unwrap().mode == StepMode::None);
    }
    assert!((1..2000).contains(&launched), "{launched}");
    while model.capture_next().unwrap() {}
    assert_eq!(model.captured_graphs(), all);
    // A failure is counted, and never one of the step.
    model.invalidate_graphs();
    lazy.faults.failing_captures.store(u64::MAX, Ordering::Relaxed);
    for _ in 0..600 {
        let ticket = submit(&mut model, &[4, 5, 6]).unwrap();
        assert_eq!(sampled(&mut model, &ticket), expected(&[4, 5, 6]));
    }
    assert!(model.statistics().capture_failures > 0);
}

#[test]
fn a_lost_device_is_opened_anew_and_everything_on_it_made_again() {
    for capture in [CaptureWhen::Startup, CaptureWhen::Lazy, CaptureWhen::Background] {
        let setup = Setup { capture, ..Setup::default() };
        let mut model = setup.build().unwrap();
        let before = model.captured_graphs();
        let ticket = submit(&mut model, &[4, 5, 6]).unwrap();
        setup.faults.losing_wait.store(1, Ordering::Relaxed);
        assert!(model.read(&ticket).unwrap_err().is_lost());
        assert!(submit(&mut model, &[4]).unwrap_err().is_lost());
        setup.faults.failing_reopens.store(1, Ordering::Relaxed);
        assert!(model.recover().unwrap_err().is_lost());
        assert!(model.is_lost());
        assert!(matches!(submit(&mut model, &[4]), Err(ModelError::Lost)));
        model.recover().unwrap();
        assert!(!model.is_lost());
        assert!(matches!(model.read(&ticket), Err(ModelError::Expired { .. })));
        assert_eq!(model.captured_graphs(), before);
        for _ in 0..3 {
            let ticket = submit(&mut model, &[4, 5, 6]).unwrap();
            assert_eq!(sampled(&mut model, &ticket), expected(&[4, 5, 6]));
        }
        assert_eq!(model.statistics().recoveries, 1);
    }
}

/// Reading what a step has not written yet, or filling what it has not copied yet, is found by the
/// device that runs late.
#[test]
fn a_missing_wait_is_found() {
    let setup = Setup::default();
    let mut model = setup.build().unwrap();
    let ticket = submit(&mut model, &[1, 2, 3]).unwrap();
    setup.faults.missing_wait.store(true, Ordering::Relaxed);
    let read = std::panic::AssertUnwindSafe(|| model.read(&ticket).map(drop));
    let panic = std::panic::catch_unwind(read).unwrap_err();
    let text = panic.downcast_ref::<&str>().unwrap();
    assert_eq!(*text, "a host block is read before its copies are done");
}

/// Where inputs of a step are of another step, the check says which.
#[test]
fn check_addresses_names_inputs_that_disagree_about_pages() {
    let model = &mut Setup::default().build().unwrap();
    let roles = Setup::roles_of(model);
    let mut table = PageTable::default();
    table.grow(&mut PagePool::new(roles.kv_rows), 3).unwrap();
    let mut batch = BatchBuffers::new(roles);
    batch.push(&Chunk {
        tokens: ChunkTokens::Ids(&[1, 2, 3]),
        start: 0,
        table: &table,
        slot: None,
        rows: ChunkRows::Last,
        entry: None,
        values: &[],
        sampling: Sampling::default(),
    });
    let view = batch.view().unwrap();
    let data = view.data();
    model.submit(&data).unwrap();
    let stale = |model: &mut Model, role: &str, number: i32| {
        let inputs = model.module().graph().inputs();
        let at = inputs.iter().position(|input| input.role.as_deref() == Some(role)).unwrap();
        let mut changed: Vec<Vec<u8>> = data.inputs.iter().map(|bytes| bytes.to_vec()).collect();
        changed[at][..4].copy_from_slice(&number.to_le_bytes());
        let inputs: Vec<&[u8]> = changed.iter().map(Vec::as_slice).collect();
        let error = model.submit(&StepData { inputs: &inputs, ..data }).unwrap_err();
        assert!(matches!(error, ModelError::Pages(_)), "{error}");
        error.to_string()
    };
    let names = [("kv.block_table", 2), ("kv.lengths", 9), ("kv.slots", 7)];
    let found = names.map(|(role, number)| stale(model, role, number));
    assert!(found[0].contains("page 2"), "{}", found[0]);
    assert!(found[1].contains("9 keys"), "{}", found[1]);
    assert!(found[2].contains("writes row 7"), "{}", found[2]);
}

/// An op is two launches of the fake compiler, and one of the fake device.
#[test]
fn the_ledger_knows_the_graphs_before_they_are_captured() {
    for mode in GraphMode::ALL {
        let model = Setup { mode, ..Setup::default() }.build().unwrap();
        let launches: u64 =
            model.ready_graphs().map(|g| model.device().graph_shape(g).launches).sum();
        let expected = ((model.captured_graphs() as u64) << 20) + 2 * launches;
        assert_eq!(model.memory().ledger.graphs, expected, "{}", mode.name());
        assert_eq!(model.memory().ledger.pinned, model.device().pinned_bytes(), "{}", mode.name());
    }
}

/// Steps for which it was measured that padding loses go the other way, with the reason.
#[test]
fn steps_that_padding_loses_go_the_other_way() {
    use crate::dispatch::OtherWay;
    let setup = Setup { mode: GraphMode::FullAndPiecewise, ..Setup::default() };
    let mut model = setup.build().unwrap();
    let ids = [4, 5, 6];
    submit(&mut model, &ids).unwrap();
    let replayed = model.last_step().unwrap();
    assert_eq!((replayed.mode, replayed.sizes.tokens.rows()), (StepMode::Piecewise, 4));
    model.ways.set(StepMode::Piecewise, PieceSize::Exact(4), 3, OtherWay::Launches);
    let ticket = submit(&mut model, &ids).unwrap();
    assert_eq!(sampled(&mut model, &ticket), expected(&ids));
    let launched = model.last_step().unwrap();
    assert_eq!(launched.fallback, Some(FallbackReason::PaddingLoses));
    assert_eq!(launched.sizes.tokens, PieceSize::General(3));
    submit(&mut model, &[4, 5, 6, 7]).unwrap();
    assert_eq!(model.last_step().unwrap().mode, StepMode::Piecewise, "nothing is padded");
    // A whole step whose pieces are faster.
    submit(&mut model, &[4]).unwrap();
    let whole = model.last_step().unwrap();
    assert_eq!(whole.mode, StepMode::Full);
    model.ways.set(StepMode::Full, whole.sizes.whole(), 1, OtherWay::Pieces);
    let ticket = submit(&mut model, &[4]).unwrap();
    assert_eq!(sampled(&mut model, &ticket), expected(&[4]));
    assert_eq!(model.last_step().unwrap().mode, StepMode::Piecewise);
    assert_eq!(model.statistics().pieces_for_padding, 1);
}

#[test]
fn measuring_ways_changes_no_step_and_no_count() {
    let mut model = Setup::default().build().unwrap();
    let before = model.statistics().clone();
    model.measure_ways().unwrap();
    assert_eq!(model.statistics(), &before);
    for ids in [&[4, 5, 6][..], &[1], &[9, 8, 7, 6, 5]] {
        let ticket = submit(&mut model, ids).unwrap();
        assert_eq!(sampled(&mut model, &ticket), expected(ids));
    }
}

/// A specialized size serves steps of exactly so many tokens, and the first captures it.
#[test]
fn a_specialized_size_is_captured_by_the_first_step_of_its_tokens() {
    let mut setup = Setup { mode: GraphMode::Full, ..Setup::default() };
    setup.rules.specialized = vec![3];
    let mut model = setup.build().unwrap();
    let at_start = model.captured_graphs();
    for (ids, size) in [(&[4, 5][..], 2), (&[4, 5, 6], 3), (&[4, 5, 6], 3), (&[1, 2, 3, 4], 4)] {
        let ticket = submit(&mut model, ids).unwrap();
        assert_eq!(sampled(&mut model, &ticket), expected(ids));
        let report = model.last_step().unwrap();
        assert_eq!((report.mode, report.sizes.tokens.rows()), (StepMode::Full, size), "{ids:?}");
    }
    assert_eq!(model.captured_graphs(), at_start + 1);
    setup.rules.launched = vec![3];
    let mut model = Setup { strict: true, ..setup }.build().unwrap();
    submit(&mut model, &[4, 5, 6]).unwrap();
    assert_eq!(model.last_step().unwrap().fallback, Some(FallbackReason::LaunchedSize));
}
