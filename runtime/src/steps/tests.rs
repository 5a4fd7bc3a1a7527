mod checks;
mod graphs;
mod staged;
mod stretches;

use super::compiled::CompiledModel;
use super::step::Ticket;
use crate::batch::{BatchBuffers, Chunk, ChunkRows, ChunkTokens, SampleControls, Sampling};
use crate::memory::{PagePool, PageTable};
use crate::testing::{Bounds, Setup, VOCAB, next_id};
use crate::words::{
    CaptureWhen, Checks, FallbackReason, GraphKind, GraphMode, ModelError, StepData, StepMode,
    roles,
};
use piecewise_backend::artifact::PieceSize;
use piecewise_ir::entity::Value;
use piecewise_kernels::step::CaptureSupport;
use std::sync::atomic::Ordering;

pub(crate) type Model = CompiledModel;

/// Submits a prompt of its own pages and wants every row.
pub(crate) fn submit(model: &mut Model, ids: &[u32]) -> Result<Ticket, ModelError> {
    let roles = Setup::roles_of(model);
    let mut table = PageTable::default();
    table.grow(&mut PagePool::new(roles.kv_rows), ids.len() as u64).unwrap();
    let mut batch = BatchBuffers::new(roles);
    batch.push(&chunk(ids, &table, ChunkRows::All));
    model.submit(&batch.view().unwrap().data())
}

/// A whole prompt.
fn chunk<'a>(ids: &'a [u32], table: &'a PageTable, rows: ChunkRows) -> Chunk<'a> {
    Chunk {
        tokens: ChunkTokens::Ids(ids),
        start: 0,
        table,
        slot: None,
        rows,
        entry: None,
        values: &[],
        sampling: Sampling::default(),
        controls: SampleControls::default(),
    }
}

/// Prompts of pages of their own, each of which wants its last row.
fn batch_of(model: &Model, prompts: &[&[u32]]) -> BatchBuffers {
    let roles = Setup::roles_of(model);
    let mut pool = PagePool::new(roles.kv_rows);
    let mut batch = BatchBuffers::new(roles);
    for ids in prompts {
        let mut table = PageTable::default();
        table.grow(&mut pool, ids.len() as u64).unwrap();
        batch.push(&chunk(ids, &table, ChunkRows::Last));
    }
    batch
}

fn submit_last(model: &mut Model, prompts: &[&[u32]]) -> Result<Ticket, ModelError> {
    let mut batch = batch_of(model, prompts);
    model.submit(&batch.view().unwrap().data())
}

pub(crate) fn sampled(model: &mut Model, ticket: &Ticket) -> Vec<u32> {
    let bytes = model.read(ticket).unwrap().bytes(1).unwrap();
    bytes.chunks(4).map(|c| u32::from_le_bytes(c.try_into().unwrap())).collect()
}

pub(crate) fn expected(ids: &[u32]) -> Vec<u32> {
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
        model.fake_mut().copied_in.clear();
        let ticket = submit(&mut model, ids).unwrap();
        assert_eq!(sampled(&mut model, &ticket), expected(ids));
        let (copied, inputs) = (&model.fake().copied_in, model.module().graph().inputs().len());
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
            batch.push(&chunk(prompt, table, ChunkRows::Last));
        }
        model.fake_mut().copied_in.clear();
        let ticket = model.submit(&batch.view().unwrap().data()).unwrap();
        let last: Vec<_> =
            prompts[..4].iter().map(|ids| next_id(ids, Sampling::default())).collect();
        assert_eq!(sampled(&mut model, &ticket), last);
        let copied: u64 = model.fake().copied_in.iter().sum();
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
        ..StepData::default()
    };
    let mut model = Setup::default().build().unwrap();
    let error = model.submit(&short).unwrap_err().to_string();
    assert!(error.contains("tokens_ids") && error.contains("no matrix"), "{error}");
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
    let step = StepData { counts: &[1, 1, 1], inputs: &[&[0; 4]], ..StepData::default() };
    let error = model.submit(&step).unwrap_err().to_string();
    assert!(error.contains("tokens_feedback") && error.contains("1 of 15"), "{error}");
    let inputs = vec![&[0u8; 3][..]; 15];
    let step = StepData { counts: &[1, 1, 1], inputs: &inputs, ..StepData::default() };
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

/// Six or nine tokens, each of which wants its row, where the head takes four rows or sixteen.
#[test]
fn why_a_step_was_launched_is_counted() {
    use GraphMode::{Full, FullAndPiecewise, Piecewise};
    let ids: Vec<u32> = (0..9).map(|i| i * 7 % VOCAB as u32).collect();
    for (mode, rows, padding, tokens, reason) in [
        (Full, 4, true, 6, FallbackReason::SeveralHeadCalls),
        (Full, 16, true, 9, FallbackReason::AboveLargestSize),
        (Full, 16, false, 6, FallbackReason::NoExactSize),
        (Piecewise, 16, true, 6, FallbackReason::TooManyRows),
        (FullAndPiecewise, 16, false, 3, FallbackReason::NoExactSize),
    ] {
        let bounds = Bounds { rows, ..Bounds::default() };
        let mut model = Setup { mode, bounds, padding, ..Setup::default() }.build().unwrap();
        let ticket = submit(&mut model, &ids[..tokens]).unwrap();
        assert_eq!(sampled(&mut model, &ticket), expected(&ids[..tokens]));
        let report = model.last_step().unwrap();
        assert_eq!((report.mode, report.fallback), (StepMode::None, Some(reason)), "{mode:?}");
        let stats = model.statistics();
        assert_eq!((stats.misses(), stats.misses[reason.name()]), (1, 1), "{:?}", stats.misses);
    }
}

#[test]
fn a_mode_that_the_split_ops_do_not_support_is_reduced_or_refused() {
    let setup = Setup { split_support: CaptureSupport::Never, ..Setup::default() };
    let model = setup.build().unwrap();
    assert_eq!(model.dispatcher().mode, GraphMode::Piecewise);
    assert!(model.reduced_mode().unwrap().contains("test.mix"));
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
        assert!(model.reduced_mode().unwrap().starts_with(op), "{:?}", model.reduced_mode());
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
    assert_eq!((kept.dispatcher().mode, kept.reduced_mode()), (GraphMode::Full, None));
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
        let reason = model.reduced_mode().unwrap();
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

/// A state with a row a sequence may be as long as a vocabulary: of many sequences only the few of a
/// probed step are written and read, or a start would take as long as all of them do.
#[test]
fn a_probe_touches_a_state_of_sequences_only_where_its_step_may() {
    let bounds = Bounds { entries: 900, ..Bounds::default() };
    let setup = Setup { mode: GraphMode::Full, probes: true, bounds, ..Setup::default() };
    let mut model = setup.build().unwrap();
    let graph = model.module().graph();
    let sampled = graph.states().iter().find(|s| s.role.as_deref() == Some(roles::SAMPLED));
    let address = model.memory().address(graph, sampled.unwrap().value).unwrap();
    let accesses = model.fake_mut().host_accesses.iter().filter(|(at, _)| *at == address);
    let bytes = Vec::from_iter(accesses.map(|(_, bytes)| *bytes));
    assert!(!bytes.is_empty() && bytes.iter().all(|bytes| *bytes <= 4 * 16), "{bytes:?}");
}

/// Where a graph has little room, probes take less of it; what none of them fits is not believed.
#[test]
fn what_no_probe_can_show_is_not_believed() {
    let with_rows = |kv_rows| {
        let bounds = Bounds { kv_rows, ..Bounds::default() };
        Setup { mode: GraphMode::Full, probes: true, bounds, ..Setup::default() }
    };
    let one_page = with_rows(16).build().unwrap();
    assert_eq!((one_page.dispatcher().mode, one_page.reduced_mode()), (GraphMode::Full, None));
    let no_page = with_rows(8).build().unwrap();
    assert_eq!(no_page.dispatcher().mode, GraphMode::None);
    let reason = no_page.reduced_mode().unwrap();
    assert!(reason.contains("`test.embed`") && reason.contains("no step of made-up"), "{reason}");
    let believed = Setup { probes: false, ..with_rows(8) }.build().unwrap();
    assert_eq!(believed.dispatcher().mode, GraphMode::Full);
}

#[test]
fn strict_refuses_a_step_that_would_be_launched() {
    let setup = Setup { strict: true, ..Setup::default() };
    let mut model = setup.build().unwrap();
    submit(&mut model, &[1, 2, 3]).unwrap();
    let error = submit(&mut model, &[1; 9]).unwrap_err();
    assert!(matches!(error, ModelError::Strict { reason: "above_largest_size", .. }), "{error}");
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
    let lazy = Setup { capture: CaptureWhen::Lazy, ..Setup::default() };
    let mut lazy = lazy.build().unwrap();
    let launched = lazy.fake().counts;
    lazy.measure_ways().unwrap();
    assert_eq!(lazy.fake().counts, launched, "nothing is timed in the place of a graph");
    for ids in [&[4, 5, 6][..], &[1], &[9, 8, 7, 6, 5]] {
        let ticket = submit(&mut model, ids).unwrap();
        assert_eq!(sampled(&mut model, &ticket), expected(ids));
    }
}
