use super::*;
use crate::kv::{PagePool, PageTable};
use crate::symbols::SymbolTable;
use crate::testing::{Bounds, fake_graph};
use piecewise_ir::dtype::DType;
use piecewise_ir::graph::Graph;
use piecewise_ir::types::TensorType;

fn resolve(graph: &Graph) -> Result<RoleMap, RoleError> {
    RoleMap::resolve(graph, &SymbolTable::new(graph.symbols()).unwrap())
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
    let sampling = Sampling { temperature: 0.5, top_k: 3, top_p: 0.9, seed: 1 << 40 };
    let mut batch = BatchBuffers::new(roles);
    for _ in 0..2 {
        batch.clear();
        batch.push(&Chunk {
            tokens: ChunkTokens::Feedback(5),
            start: 1,
            table: &a,
            rows: ChunkRows::Last,
            entry: Some(5),
            sampling,
        });
        batch.push(&Chunk {
            tokens: ChunkTokens::Ids(&[7, 8, 9]),
            start: 15,
            table: &b,
            rows: ChunkRows::All,
            entry: Some(2),
            sampling: Sampling::default(),
        });
    }
    let view = batch.view();
    let step = view.inputs();
    let of = |role: &str| step.inputs[names.iter().position(|n| n == role).unwrap()];
    let expected: [(&str, &[i32]); 12] = [
        ("tokens.ids", &[0, 7, 8, 9]),
        ("tokens.feedback", &[5, -1, -1, -1]),
        ("tokens.positions", &[1, 15, 16, 17]),
        ("kv.slots", &[1, 31, 32, 33]),
        ("kv.block_table", &[0, 0, 0, 1, 2, 0]),
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
            rows: ChunkRows::Last,
            entry: None,
            sampling: Sampling::default(),
        });
    }
    let view = batch.view();
    let of = |input: usize| ints(view.inputs().inputs[input]);
    let (slots, pages) = (of(slots), of(pages));
    let mut written = slots.iter();
    for (sequence, (length, count)) in of(lengths).into_iter().zip(of(counts)).enumerate() {
        for position in length - count..length {
            let page = pages[sequence * 4 + position as usize / 16];
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
        rows,
        entry: None,
        sampling: Sampling::default(),
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
    assert_eq!(query_length(&[chunk(&[1], ChunkRows::None), chunk(&[3], last)]), None);
    assert_eq!(query_length(&[chunk(&[1, 2], ChunkRows::All)]), None);
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
    assert!(matches!(&error, RoleError::Type { role: "kv.slots", .. }), "{error}");

    let mut graph = Graph::new("alone");
    let error = resolve(&graph).unwrap_err();
    assert!(matches!(&error, RoleError::Missing { role: "tokens.ids", .. }), "{error}");
    graph.add_input("plain", TensorType::scalar(DType::I32), None, None);
    assert!(matches!(resolve(&graph), Err(RoleError::NoRole { .. })));
}
