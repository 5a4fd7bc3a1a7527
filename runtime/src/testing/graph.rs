//! The small model's graph and plan: embed and write KV, mix over KV, sample.

use crate::words::roles;
use piecewise_ir::custom::CustomCall;
use piecewise_ir::dim::SymbolDecl;
use piecewise_ir::dtype::DType;
use piecewise_ir::entity::{Entity, Node, Value};
use piecewise_ir::graph::{Graph, Loc, ValueDef};
use piecewise_ir::literal::Scalar;
use piecewise_ir::module::{
    ArenaLayout, LiveRange, Module, PieceUse, SlotData, SlotKind, SlotTable, Step, Stitch,
    UniquePiece,
};
use piecewise_ir::op::{Op, RowTreatment};
use piecewise_ir::types::TensorType;

/// Ids are below this.
pub(crate) const VOCAB: u64 = 97;

/// The largest size of each symbol.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub tokens: u64,
    pub rows: u64,
    pub sequences: u64,
    pub kv_rows: u64,
    pub entries: u64,
    pub table_pages: u64,
    /// Rows that stand for tokens: each is one number, which is taken for an id. 0 has no such state.
    pub embeddings: u64,
    /// Numbers of a row of logits: one for each id, or the id itself as the only one.
    pub logits: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            tokens: 16,
            rows: 4,
            sequences: 6,
            kv_rows: 256,
            entries: 6,
            table_pages: 8,
            embeddings: 0,
            logits: VOCAB,
        }
    }
}

/// The graph alone.
pub(crate) fn fake_graph(bounds: Bounds) -> Graph {
    let mut graph = Graph::new("fake");
    let mut symbol = |name: &str, max, role: &str| {
        let (name, role) = (name.to_owned(), Some(role.to_owned()));
        graph.add_symbol(SymbolDecl { name, min: 0, max, role })
    };
    let t = symbol("T", bounds.tokens, roles::TOKENS);
    let r = symbol("R", bounds.rows, roles::ROWS);
    let s = symbol("S", bounds.sequences, roles::SEQUENCES);
    let p = symbol("P", bounds.kv_rows, roles::KV_ROWS);
    let q = symbol("Q", bounds.entries, roles::SAMPLED_ROWS);
    let given =
        (bounds.embeddings > 0).then(|| symbol("E", bounds.embeddings, roles::EMBEDDING_ROWS));
    let mut input = |dtype, symbol, padding, role: &str| {
        let padding = Some(Scalar::new(dtype, padding));
        let name = role.replace('.', "_");
        graph.add_input(name, TensorType::new(dtype, [symbol]), padding, Some(role.to_owned()))
    };
    let ids = input(DType::I32, t, 0.0, roles::TOKEN_IDS);
    let feedback = input(DType::I32, t, -1.0, roles::TOKEN_FEEDBACK);
    let positions = input(DType::I32, t, 0.0, roles::TOKEN_POSITIONS);
    let slots = input(DType::I32, t, -1.0, roles::KV_SLOTS);
    let lengths = input(DType::I32, s, 0.0, roles::KV_LENGTHS);
    let starts = input(DType::I32, s, 0.0, roles::QUERY_STARTS);
    let queries = input(DType::I32, s, 0.0, roles::QUERY_LENGTHS);
    let rows = input(DType::I32, r, 0.0, roles::LOGIT_ROWS);
    let entries = input(DType::I32, r, -1.0, roles::SAMPLE_SLOTS);
    let temperature = input(DType::F32, r, 0.0, roles::SAMPLE_TEMPERATURE);
    let top_k = input(DType::I32, r, 0.0, roles::SAMPLE_TOP_K);
    let top_p = input(DType::F32, r, 1.0, roles::SAMPLE_TOP_P);
    let seed = input(DType::I64, r, 0.0, roles::SAMPLE_SEED);
    let position = input(DType::I32, r, 0.0, roles::SAMPLE_POSITION);
    let given = given.map(|e| (e, input(DType::I32, t, -1.0, roles::TOKEN_EMBEDDINGS)));
    let pages = TensorType {
        dtype: DType::I32,
        shape: [s.into(), bounds.table_pages.into()].into_iter().collect(),
    };
    let table = graph.add_input(
        "kv_block_table",
        pages,
        Some(Scalar::new(DType::I32, 0.0)),
        Some(roles::KV_BLOCK_TABLE.to_owned()),
    );
    let kv_ty = TensorType {
        dtype: DType::F32,
        shape: [p.into(), 1u64.into(), 1u64.into()].into_iter().collect(),
    };
    let kv = graph.add_state("kv", kv_ty, Some(roles::KV_CACHE.to_owned()));
    let sampled_ty = TensorType::new(DType::I32, [q]);
    let sampled = graph.add_state("sampled", sampled_ty, Some(roles::SAMPLED.to_owned()));
    let x = TensorType::new(DType::F32, [t]);
    let mut embedded = vec![ids, feedback, slots, sampled, kv];
    if let Some((e, rows)) = given {
        let shape = [e.into(), 1u64.into()].into_iter().collect();
        let ty = TensorType { dtype: DType::F32, shape };
        // Inputs come before states.
        embedded.insert(3, rows);
        embedded.push(graph.add_state("given", ty, Some(roles::EMBEDDINGS.to_owned())));
    }
    let embed =
        call("test.embed", vec![3 + given.map_or(1, |_| 2)], RowTreatment::SlotMapped, false);
    let x = graph.push(embed, embedded, x, Loc::default());
    let h = TensorType::new(DType::I64, [t]);
    let mix = call("test.mix", vec![], RowTreatment::Masked, true);
    let mix_operands = vec![x, positions, table, lengths, starts, queries, kv];
    let h = graph.push(mix, mix_operands, h, Loc::default());
    let head = call("test.head", vec![8], RowTreatment::SlotMapped, false);
    let logits = TensorType {
        dtype: DType::F32,
        shape: [r.into(), bounds.logits.into()].into_iter().collect(),
    };
    let operands = vec![h, rows, entries, temperature, top_k, top_p, seed, position, sampled];
    let results = vec![logits, TensorType::new(DType::I32, [r])];
    let head = graph.push_node(head, operands, results, Loc::default());
    let outputs = graph.node(head).results.clone();
    graph.set_outputs(outputs);
    graph
}

fn call(name: &str, mutates: Vec<usize>, rows: RowTreatment, splits: bool) -> Op {
    Op::Custom(Box::new(CustomCall {
        name: name.to_owned(),
        attrs: Default::default(),
        mutates,
        rows,
        splits,
        absorbs: Vec::new(),
        scatters: Vec::new(),
    }))
}

/// The graph, a piece a node, every slot on bytes of its own.
pub(crate) fn fake_module(bounds: Bounds) -> Module {
    let graph = fake_graph(bounds);
    let mut stitch = Stitch::default();
    for (i, node) in graph.nodes().enumerate() {
        let (piece, operands) = single_node_piece(&graph, node);
        let unique = stitch.unique.push(piece);
        let id = stitch.uses.push(PieceUse { unique, nodes: vec![node], operands });
        stitch.steps.push(if i == 1 { Step::Split(id) } else { Step::Piece(id) });
    }
    let last = graph.node_count() - 1;
    let mut slots = SlotTable::default();
    for value in (0..graph.value_count()).map(Value::new) {
        let kind = match graph.def(value) {
            ValueDef::Input(_) => SlotKind::Input,
            ValueDef::Result { .. } if graph.outputs().contains(&value) => SlotKind::Output,
            ValueDef::Result { .. } => SlotKind::Boundary,
            ValueDef::Weight(_) | ValueDef::State(_) => continue,
        };
        slots.slots.push(SlotData { value, kind, live: LiveRange { start: 0, end: last } });
    }
    let maxima: Vec<u64> = graph.symbols().values().map(|decl| decl.max).collect();
    let mut layout = ArenaLayout { bounds: maxima.clone(), align: 64, ..Default::default() };
    let mut at = 64;
    for data in slots.slots.values() {
        let bytes = graph.ty(data.value).bytes(&maxima);
        layout.offsets.push(at);
        layout.sizes.push(bytes);
        at += bytes.next_multiple_of(64);
        if data.kind == SlotKind::Input {
            layout.staged = at;
        }
    }
    layout.bytes = at.next_multiple_of(256);
    let mut module = Module::new(graph);
    module.set_stitch(stitch);
    module.set_slots(slots);
    module.set_layout(layout);
    module
}

fn single_node_piece(graph: &Graph, node: Node) -> (UniquePiece, Vec<Value>) {
    let data = graph.node(node);
    let mut piece = Graph::with_symbols_of(format!("n{}", node.index()), graph);
    let mut operands = Vec::new();
    let mut inner = Vec::new();
    for &value in &data.operands {
        let ty = graph.ty(value).clone();
        inner.push(match graph.def(value) {
            ValueDef::State(i) => piece.add_state(graph.states()[i].name.clone(), ty, None),
            _ => piece.add_input(format!("i{}", inner.len()), ty, None, None),
        });
        operands.push(value);
    }
    operands.extend(&data.results);
    let new = piece.push_node(data.op.clone(), inner, graph.result_types(node), Loc::default());
    piece.set_outputs(piece.node(new).results.clone());
    let over = graph.ty(data.results[0]).outer_symbol();
    let hash = [node.index() as u8; 32];
    (UniquePiece { over, graph: piece, hash }, operands)
}
