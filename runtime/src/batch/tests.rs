use super::*;
use crate::memory::{PagePool, PageTable};
use crate::testing::{Bounds, fake_graph};
use crate::words::{FillError, SymbolTable};
use piecewise_ir::dim::SymbolDecl;
use piecewise_ir::dtype::DType;
use piecewise_ir::graph::{Graph, Loc};
use piecewise_ir::literal::Scalar;
use piecewise_ir::op::{Op, UnaryOp};
use piecewise_ir::types::TensorType;
use piecewise_kernels::inputs::{Extent, StepInput};
use piecewise_kernels::op::OpRegistry;

fn resolve(graph: &Graph) -> Result<RoleMap, RoleError> {
    RoleMap::resolve(graph, &SymbolTable::new(graph.symbols()).unwrap(), &OpRegistry::builtin())
}

fn ints(bytes: &[u8]) -> Vec<i32> {
    bytes.chunks(4).map(|c| i32::from_le_bytes(c.try_into().unwrap())).collect()
}

#[test]
fn each_input_gets_what_its_role_says() {
    let graph = fake_graph(Bounds { table_pages: 3, ..Bounds::default() });
    let roles = resolve(&graph).unwrap();
    let names: Vec<_> = graph.inputs().iter().map(|i| i.role.clone().unwrap()).collect();
    let mut pool = PagePool::new(64);
    let (mut a, mut b) = (PageTable::default(), PageTable::default());
    a.grow(&mut pool, 2).unwrap();
    b.grow(&mut pool, 18).unwrap();
    let sampling =
        Sampling { temperature: 0.5, top_k: 3, top_p: 0.9, seed: 1 << 40, ..Sampling::default() };
    let mut batch = BatchBuffers::new(roles);
    for _ in 0..2 {
        batch.clear();
        batch.push(&Chunk {
            tokens: ChunkTokens::Feedback(5),
            start: 1,
            table: &a,
            slot: None,
            rows: ChunkRows::Last,
            entry: Some(5),
            values: &[],
            sampling,
            controls: SampleControls::default(),
        });
        batch.push(&Chunk {
            tokens: ChunkTokens::Ids(&[7, 8, 9]),
            start: 15,
            table: &b,
            slot: None,
            rows: ChunkRows::All,
            entry: Some(2),
            values: &[],
            sampling: Sampling::default(),
            controls: SampleControls::default(),
        });
    }
    let view = batch.view().unwrap();
    let step = view.data();
    let table = names.iter().position(|name| name == "kv.block_table").unwrap();
    assert_eq!(step.short_rows, [(table, 2)]);
    let of = |role: &str| step.inputs[names.iter().position(|n| n == role).unwrap()];
    let expected: [(&str, &[i32]); 12] = [
        ("tokens.ids", &[0, 7, 8, 9]),
        ("tokens.feedback", &[5, -1, -1, -1]),
        ("tokens.positions", &[1, 15, 16, 17]),
        ("kv.slots", &[1, 31, 32, 33]),
        // Of three columns, those that the longest sequence needs.
        ("kv.block_table", &[0, 0, 1, 2]),
        ("kv.lengths", &[2, 18]),
        ("query.starts", &[0, 1]),
        ("query.lengths", &[1, 3]),
        ("rows.tokens", &[0, 1, 2, 3]),
        ("sample.slots", &[5, -1, -1, 2]),
        ("sample.top_k", &[3, 0, 0, 0]),
        ("sample.position", &[2, 16, 17, 18]),
    ];
    for (role, values) in expected {
        assert_eq!(ints(of(role)), values, "{role}");
    }
    assert_eq!(of("sample.seed")[..16], [[0, 0, 0, 0, 0, 1, 0, 0], [0; 8]].concat());
    assert_eq!(of("sample.temperature")[..4], 0.5f32.to_le_bytes());
    assert_eq!((step.counts[..3].to_vec(), step.query_length), (vec![4, 4, 2], None));
}

fn pages_of(step: &crate::words::StepData<'_>) -> usize {
    let [(_, columns)] = step.short_rows else { panic!("{:?}", step.short_rows) };
    *columns as usize
}

/// What attention reads before the kernels ahead are done rests on it.
#[test]
fn a_chunk_is_written_at_the_last_positions_of_its_sequence() {
    let graph = fake_graph(Bounds { table_pages: 4, ..Bounds::default() });
    let at = |role: &str| graph.inputs().iter().position(|i| i.role.as_deref() == Some(role));
    let [slots, pages, lengths, counts] =
        ["kv.slots", "kv.block_table", "kv.lengths", "query.lengths"].map(|role| at(role).unwrap());
    let mut pool = PagePool::new(256);
    let mut batch = BatchBuffers::new(resolve(&graph).unwrap());
    let ids = [1; 40];
    let mut tables = Vec::new();
    for (start, count) in [(0, 1), (15, 1), (16, 17), (0, 40), (31, 2)] {
        let mut table = PageTable::default();
        table.grow(&mut pool, (start + count) as u64).unwrap();
        tables.push((start, count, table));
    }
    for (start, count, table) in &tables {
        batch.push(&Chunk {
            tokens: ChunkTokens::Ids(&ids[..*count]),
            start: *start as u64,
            table,
            slot: None,
            rows: ChunkRows::Last,
            entry: None,
            values: &[],
            sampling: Sampling::default(),
            controls: SampleControls::default(),
        });
    }
    let view = batch.view().unwrap();
    let of = |input: usize| ints(view.data().inputs[input]);
    let columns = pages_of(&view.data());
    let (slots, pages) = (of(slots), of(pages));
    let mut written = slots.iter();
    for (sequence, (length, count)) in of(lengths).into_iter().zip(of(counts)).enumerate() {
        for position in length - count..length {
            let page = pages[sequence * columns + position as usize / 16];
            assert_eq!(written.next(), Some(&(page * 16 + position % 16)));
        }
    }
    assert_eq!(written.next(), None);
}

#[test]
fn the_query_length_is_uniform_only_where_every_sequence_agrees() {
    let roles = resolve(&fake_graph(Bounds::default())).unwrap();
    let table = PageTable::default();
    let chunk = |ids: &'static [u32], rows| Chunk {
        tokens: ChunkTokens::Ids(ids),
        start: 0,
        table: &table,
        slot: None,
        rows,
        entry: None,
        values: &[],
        sampling: Sampling::default(),
        controls: SampleControls::default(),
    };
    let mut batch = BatchBuffers::new(roles);
    let mut query_length = |chunks: &[Chunk<'_>]| {
        batch.clear();
        chunks.iter().for_each(|chunk| batch.push(chunk));
        batch.query_length()
    };
    let last = ChunkRows::Last;
    assert_eq!(query_length(&[chunk(&[1, 2], last), chunk(&[3, 4], last)]), Some(2));
    assert_eq!(query_length(&[chunk(&[1], last), chunk(&[3, 4], last)]), None);
    assert_eq!(query_length(&[chunk(&[1], ChunkRows::None), chunk(&[3], last)]), Some(1));
    assert_eq!(query_length(&[chunk(&[1, 2], ChunkRows::All)]), Some(2));
    assert_eq!(query_length(&[chunk(&[1, 2], last), chunk(&[1], last), chunk(&[1], last)]), None);
    assert_eq!(query_length(&[]), None);
}

#[test]
fn roles_that_do_not_fit_are_named() {
    let mut graph = fake_graph(Bounds::default());
    let ty = TensorType::new(DType::I32, [graph.symbol_named("T").unwrap()]);
    graph.add_input("extra", ty.clone(), None, Some("kv.slot".to_owned()));
    let error = resolve(&graph).unwrap_err().to_string();
    assert!(error.contains("%extra") && error.contains("\"kv.slot\""), "{error}");
    assert!(error.contains("kv.slots"), "{error}");

    let mut graph = fake_graph(Bounds::default());
    graph.add_input("extra", ty.with_dtype(DType::F32), None, Some("kv.slots".to_owned()));
    let error = resolve(&graph).unwrap_err();
    assert!(matches!(&error, RoleError::Type { role, .. } if role == "kv.slots"), "{error}");

    let mut graph = Graph::new("alone");
    let error = resolve(&graph).unwrap_err();
    assert!(matches!(&error, RoleError::Missing { role: "tokens.ids", .. }), "{error}");
    graph.add_input("plain", TensorType::scalar(DType::I32), None, None);
    assert!(matches!(resolve(&graph), Err(RoleError::NoRole { .. })));
}

/// What the graph keeps for the next step is what it returns, and the next step takes it.
#[test]
fn ids_that_the_next_step_would_not_find_are_an_error_of_who_generates() {
    let bounds = Bounds::default();
    let good = fake_graph(bounds);
    assert!(resolve(&good).unwrap().has_feedback());
    resolve(&good).unwrap().check_generates().unwrap();
    let fails = |change: &dyn Fn(&mut Graph)| {
        let mut graph = fake_graph(bounds);
        change(&mut graph);
        let roles = resolve(&graph).unwrap();
        assert!(roles.sampled.is_none() || !roles.has_feedback());
        roles.check_generates().unwrap_err().to_string()
    };
    let nodes: Vec<_> = good.nodes().collect();
    let ids = good.outputs()[1];
    let no_ids = fails(&|graph| graph.set_outputs(graph.outputs()[..1].to_vec()));
    assert!(no_ids.contains("returns no sampled ids"), "{no_ids}");
    // Others are returned than are kept.
    let others = |graph: &mut Graph| {
        let other =
            graph.push(Op::Unary(UnaryOp::Neg), vec![ids], graph.ty(ids).clone(), Loc::default());
        graph.set_outputs(vec![graph.outputs()[0], other]);
    };
    let others = fails(&others);
    assert!(others.contains("others are written"), "{others}");
    let unwritten = fails(&|graph| match &mut graph.node_mut(nodes[2]).op {
        Op::Custom(call) => call.mutates.clear(),
        _ => unreachable!(),
    });
    assert!(unwritten.contains("no node writes"), "{unwritten}");
    let untaken = fails(&|graph| {
        let [other, state] = [0, 1].map(|at| graph.states()[at].value);
        for operand in &mut graph.node_mut(nodes[0]).operands {
            *operand = if *operand == state { other } else { *operand };
        }
    });
    assert!(untaken.contains("no node takes"), "{untaken}");
    for said in [no_ids, others, unwritten, untaken] {
        assert!(said.contains("return what `StepInputs::sample"), "{said}");
    }
}

/// The small graph with an input of an own role over sequences.
fn with_input(role: &str) -> Graph {
    let mut graph = fake_graph(Bounds::default());
    let ty = TensorType::new(DType::I32, [graph.symbol_named("S").unwrap()]);
    let padding = Some(Scalar::new(DType::I32, 0.0));
    graph.add_input("seen", ty, padding, Some(role.to_owned()));
    graph
}

fn seen() -> StepInput {
    StepInput::new("my.seen", DType::I32, [Extent::of(crate::words::roles::SEQUENCES)], 0.0)
}

fn resolve_with(graph: &Graph, ops: &OpRegistry) -> Result<RoleMap, RoleError> {
    RoleMap::resolve(graph, &SymbolTable::new(graph.symbols()).unwrap(), ops)
}

#[test]
fn an_op_fills_an_input_of_its_own() {
    let mut ops = OpRegistry::builtin();
    ops.declare_inputs(
        "my.op",
        [seen().filled(|batch, out| {
            out.extend(batch.sequences().map(|sequence| sequence.start() as i32));
            Ok(())
        })],
    );
    let roles = resolve_with(&with_input("my.seen"), &ops).unwrap();
    let table = PageTable::default();
    let mut batch = BatchBuffers::new(roles);
    for start in [4, 7] {
        batch.push(&Chunk {
            tokens: ChunkTokens::Ids(&[1, 2]),
            start,
            table: &table,
            slot: None,
            rows: ChunkRows::Last,
            entry: None,
            values: &[],
            sampling: Sampling::default(),
            controls: SampleControls::default(),
        });
    }
    let view = batch.view().unwrap();
    assert_eq!(ints(view.data().inputs.last().unwrap()), [4, 7]);
}

#[test]
fn inputs_that_can_not_be_filled_are_named_with_their_op() {
    let graph = with_input("my.seen");
    let error = |ops: &OpRegistry| resolve_with(&graph, ops).unwrap_err();
    let mut ops = OpRegistry::builtin();
    assert!(matches!(error(&ops), RoleError::Unknown { input, .. } if input == "seen"));
    ops.declare_inputs("my.op", [seen()]);
    assert!(matches!(error(&ops), RoleError::NoFill { op, .. } if op == "my.op"));
    let floats =
        StepInput::new("my.seen", DType::F32, [Extent::of(crate::words::roles::SEQUENCES)], 0.0);
    ops.declare_inputs("my.other", [floats]);
    let conflict = error(&ops).to_string();
    assert!(conflict.contains("my.op (i32") && conflict.contains("my.other (f32"), "{conflict}");
    let mut ops = OpRegistry::builtin();
    let padded =
        StepInput::new("my.seen", DType::I32, [Extent::of(crate::words::roles::SEQUENCES)], -1.0);
    ops.declare_inputs("my.op", [padded.filled(|_, _| Ok(()))]);
    let error = error(&ops).to_string();
    assert!(error.contains("padded with 0") && error.contains("padded with -1"), "{error}");

    let mut graph = fake_graph(Bounds::default());
    graph.add_symbol(SymbolDecl {
        name: "W".to_owned(),
        min: 1,
        max: 8,
        role: Some("rows.windows".to_owned()),
    });
    let mut ops = OpRegistry::builtin();
    let error = resolve_with(&graph, &ops).unwrap_err();
    assert!(matches!(error, RoleError::Uncounted { symbol, .. } if symbol == "W"));
    ops.declare_rows("my.op", "rows.windows", |_| 1);
    ops.declare_rows("my.op", "rows.windows", |_| 2);
    assert!(resolve_with(&graph, &ops).is_ok(), "an op may say it anew");
    ops.declare_rows("my.other", "rows.windows", |_| 1);
    let conflict = resolve_with(&graph, &ops).unwrap_err().to_string();
    for part in ["\"rows.windows\"", "my.op", "my.other", "only one may"] {
        assert!(conflict.contains(part), "{part} in {conflict}");
    }
}

#[test]
fn a_fill_past_the_end_of_its_buffer_is_an_error_and_the_chunks_stay() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    let faulty = Arc::new(AtomicBool::new(true));
    let switch = Arc::clone(&faulty);
    let mut ops = OpRegistry::builtin();
    ops.declare_inputs(
        "my.op",
        [seen().filled(move |batch, out| {
            let more = usize::from(switch.load(Ordering::Relaxed));
            out.repeat(3, batch.sequences().len() + more);
            Ok(())
        })],
    );
    let table = PageTable::default();
    let mut batch = BatchBuffers::new(resolve_with(&with_input("my.seen"), &ops).unwrap());
    batch.push(&Chunk {
        tokens: ChunkTokens::Ids(&[1, 2]),
        start: 0,
        table: &table,
        slot: None,
        rows: ChunkRows::Last,
        entry: None,
        values: &[],
        sampling: Sampling::default(),
        controls: SampleControls::default(),
    });
    let error = batch.view().unwrap_err();
    assert!(
        matches!(&error, FillError::Input { op, input, .. } if op == "my.op" && input == "seen"),
        "{error}"
    );
    assert!(error.to_string().contains("1 elements past the 1 of its buffer"), "{error}");
    faulty.store(false, Ordering::Relaxed);
    let view = batch.view().unwrap();
    assert_eq!(ints(view.data().inputs.last().unwrap()), [3]);
    assert_eq!(view.data().counts[..3], [2, 1, 1]);
}

#[test]
fn a_sequence_without_a_slot_is_named_where_a_slot_is_needed() {
    let mut graph = with_input(crate::words::roles::SEQUENCE_SLOTS);
    assert!(resolve(&graph).is_err(), "the slot of nobody is padded with -1");
    graph = fake_graph(Bounds::default());
    let ty = TensorType::new(DType::I32, [graph.symbol_named("S").unwrap()]);
    let padding = Some(Scalar::new(DType::I32, -1.0));
    graph.add_input("slots", ty, padding, Some(crate::words::roles::SEQUENCE_SLOTS.to_owned()));
    let table = PageTable::default();
    let mut batch = BatchBuffers::new(resolve(&graph).unwrap());
    batch.push(&Chunk {
        tokens: ChunkTokens::Ids(&[1]),
        start: 0,
        table: &table,
        slot: None,
        rows: ChunkRows::Last,
        entry: None,
        values: &[],
        sampling: Sampling::default(),
        controls: SampleControls::default(),
    });
    let error = batch.view().unwrap_err().to_string();
    assert!(error.contains("%slots") && error.contains("it was removed"), "{error}");
}
