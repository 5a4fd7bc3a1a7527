//! Every rule of modules, broken once: exactly its code is found.

use super::verify_module;
use crate::custom::{Attr, CustomCall, CustomOpDef};
use crate::dim::{Dim, SymbolDecl};
use crate::dtype::DType;
use crate::entity::{Node, PieceId, Slot, Symbol, UniquePieceId, Value};
use crate::graph::{Graph, Loc, ValueDef};
use crate::literal::Scalar;
use crate::module::{
    ArenaLayout, LiveRange, Module, PieceUse, SlotData, SlotKind, SlotTable, Step, Stitch,
    UniquePiece,
};
use crate::op::{BinaryOp, Op, ReduceOp, RowTreatment, UnaryOp};
use crate::testing::MixOp;
use crate::types::TensorType;
use crate::weight::Recipe;
use std::collections::BTreeMap;

const T: Symbol = Symbol(0);

/// The kind of a step and its nodes.
type Member = (fn(PieceId) -> Step, &'static [u32]);

fn rows(dtype: DType, inner: &[usize]) -> TensorType {
    let shape = std::iter::once(Dim::from(T)).chain(inner.iter().map(|&d| Dim::from(d)));
    TensorType::new(dtype, shape.collect::<Vec<_>>())
}

fn matrix() -> TensorType {
    rows(DType::F32, &[4])
}

fn call(name: &str, mutates: Vec<usize>, rows: RowTreatment) -> Op {
    let attrs = [("scale".to_owned(), Attr::Float(0.5))].into();
    let splits = rows == RowTreatment::Mixed;
    Op::Custom(Box::new(CustomCall {
        name: name.into(),
        attrs,
        mutates,
        rows,
        splits,
        absorbs: vec![],
        scatters: vec![],
    }))
}

/// Nodes: `n0` a prologue op over the slots; `n1` negates `x`; `n2` scatters that into the state;
/// `n3` scales it by a weight; `n4` mixes rows; `n5` adds `n1`'s and `n4`'s; `n6` is its tanh,
/// which is returned.
fn graph() -> Graph {
    let mut g = Graph::new("step");
    g.add_symbol(SymbolDecl { name: "T".into(), min: 1, max: 16, role: None });
    g.add_symbol(SymbolDecl { name: "R".into(), min: 1, max: 4, role: None });
    let x = g.add_input("x", matrix(), None, None);
    let slots = TensorType::new(DType::I32, [T]);
    let slots = g.add_input("slots", slots, Some(Scalar::int(DType::I32, -1)), None);
    let ty = TensorType::new(DType::F32, [4]);
    let weight = g.add_weight(ty.clone(), Recipe::Checkpoint { name: "w".into(), ty });
    let state = g.add_state("s", TensorType::new(DType::F32, [8, 4]), None);
    let loc = Loc::default;
    let plan = call("test.plan", vec![], RowTreatment::Independent);
    g.push(plan, vec![slots], rows(DType::I32, &[]), loc());
    let a = g.push(Op::Unary(UnaryOp::Neg), vec![x], matrix(), loc());
    g.push_node(Op::Scatter, vec![state, slots, a], vec![], loc());
    let scaled = call("test.scale", vec![], RowTreatment::Independent);
    let b = g.push(scaled, vec![a, weight], matrix(), loc());
    let mix = call(MixOp::NAME, MixOp.mutates(), MixOp.rows());
    let c = g.push(mix, vec![b, state, slots], matrix(), loc());
    let d = g.push(Op::Binary(BinaryOp::Add), vec![a, c], matrix(), loc());
    let e = g.push(Op::Unary(UnaryOp::Tanh), vec![d], matrix(), loc());
    g.set_outputs(vec![e]);
    g
}

/// One unique piece and one use for each member.
fn stitched(g: &Graph, members: &[Member]) -> Stitch {
    let mut stitch = Stitch::default();
    for (kind, nodes) in members {
        let nodes: Vec<Node> = nodes.iter().map(|&n| Node(n)).collect();
        let (piece, operands) = piece(g, &nodes);
        let unique = UniquePiece { over: Some(T), graph: piece, hash: [0; 32] };
        let unique = stitch.unique.push(unique);
        let id = stitch.uses.push(PieceUse { unique, nodes, operands });
        stitch.steps.push(kind(id));
    }
    stitch
}

/// The graph of `nodes` alone, all results returned, and its operands.
fn piece(g: &Graph, nodes: &[Node]) -> (Graph, Vec<Value>) {
    let inside: Vec<Value> = nodes.iter().flat_map(|&n| g.node(n).results.clone()).collect();
    let mut outside: Vec<Value> = nodes.iter().flat_map(|&n| g.node(n).operands.clone()).collect();
    outside.retain(|v| !inside.contains(v));
    let rank = |v: &Value| match g.def(*v) {
        ValueDef::Weight(_) => 1,
        ValueDef::State(_) => 2,
        _ => 0,
    };
    outside.sort_by_key(|v| (rank(v), *v));
    outside.dedup();
    let mut piece = Graph::with_symbols_of("piece", g);
    let mut map = BTreeMap::new();
    for (i, &v) in outside.iter().enumerate() {
        let ty = g.ty(v).clone();
        let own = match g.def(v) {
            ValueDef::Weight(_) => {
                piece.add_weight(ty.clone(), Recipe::Checkpoint { name: i.to_string(), ty })
            }
            ValueDef::State(_) => piece.add_state(format!("s{i}"), ty, None),
            _ => piece.add_input(format!("x{i}"), ty, None, None),
        };
        map.insert(v, own);
    }
    for &n in nodes {
        let data = g.node(n);
        let operands = data.operands.iter().map(|v| map[v]).collect();
        let own = piece.push_node(data.op.clone(), operands, g.result_types(n), Loc::default());
        map.extend(data.results.iter().copied().zip(piece.node(own).results.clone()));
    }
    piece.set_outputs(inside.iter().map(|v| map[v]).collect());
    (piece, [outside, inside].concat())
}

const PIECES: &[Member] = &[
    (Step::Prologue, &[0]),
    (Step::Piece, &[1, 2, 3]),
    (Step::Split, &[4]),
    (Step::Piece, &[5, 6]),
];
const FIRST: PieceId = PieceId(1);
const LAST: PieceId = PieceId(3);

fn slots(g: &Graph) -> SlotTable {
    let results = g.nodes().flat_map(|n| g.node(n).results.clone());
    let kinds = [
        SlotKind::Input,
        SlotKind::Input,
        SlotKind::Local,
        SlotKind::Boundary,
        SlotKind::Boundary,
        SlotKind::Boundary,
        SlotKind::Local,
        SlotKind::Output,
    ];
    let values = g.inputs().iter().map(|i| i.value).chain(results);
    let slot = |(value, kind)| SlotData { value, kind, live: LiveRange { start: 0, end: 6 } };
    SlotTable { slots: values.zip(kinds).map(slot).collect() }
}

fn layout(g: &Graph, table: &SlotTable) -> ArenaLayout {
    let bounds = vec![16, 4];
    let sizes: Vec<u64> = table.slots.values().map(|s| g.ty(s.value).bytes(&bounds)).collect();
    let offsets = (0..sizes.len() as u64).map(|i| 256 + 256 * i).collect();
    let bytes = 256 * (sizes.len() as u64 + 1);
    ArenaLayout { bounds, align: 256, counts: 0, staged: 768, offsets, sizes, bytes }
}

#[track_caller]
fn assert_codes(module: &Module, expected: &[&str]) {
    let found = verify_module(module).err().unwrap_or_default();
    let codes: Vec<&str> = found.items.iter().map(|item| item.code).collect();
    assert_eq!(codes, expected, "{found}");
}

/// The sound module with its stitch changed by `plant`.
#[track_caller]
fn expect(code: &str, plant: impl FnOnce(&mut Stitch)) {
    let mut module = Module::new(graph());
    let mut stitch = stitched(module.graph(), PIECES);
    plant(&mut stitch);
    module.set_stitch(stitch);
    assert_codes(&module, &[code]);
}

/// Another graph in other steps.
#[track_caller]
fn expect_graph(code: &str, members: &[Member], plant: impl FnOnce(&mut Graph)) {
    let mut g = graph();
    plant(&mut g);
    let stitch = stitched(&g, members);
    let mut module = Module::new(g);
    module.set_stitch(stitch);
    assert_codes(&module, &[code]);
}

#[track_caller]
fn expect_plan(code: &str, plant: impl FnOnce(&mut SlotTable, &mut ArenaLayout)) {
    let mut module = Module::new(graph());
    module.set_stitch(stitched(module.graph(), PIECES));
    let mut table = slots(module.graph());
    let mut plan = layout(module.graph(), &table);
    plant(&mut table, &mut plan);
    module.set_slots(table);
    module.set_layout(plan);
    assert_codes(&module, &[code]);
}

#[test]
fn the_base_is_clean() {
    let mut module = Module::new(graph());
    assert_codes(&module, &[]);
    module.set_stitch(stitched(module.graph(), PIECES));
    assert_codes(&module, &[]);
    let table = slots(module.graph());
    module.set_slots(table.clone());
    assert_codes(&module, &[]);
    module.set_layout(layout(module.graph(), &table));
    assert_codes(&module, &[]);
}

#[test]
fn a_faulty_graph_is_found_first() {
    let mut g = graph();
    g.set_outputs(vec![Value(99)]);
    assert_codes(&Module::new(g), &["V0002"]);
}

#[test]
fn steps() {
    expect("P0101", |s| s.steps.push(Step::Piece(FIRST)));
    expect("P0101", |s| s.steps.push(Step::Piece(PieceId(9))));
    expect("P0102", |s| s.uses[FIRST].unique = UniquePieceId(9));
    expect("P0103", |s| {
        s.steps.pop();
        s.uses = s.uses.values().take(3).cloned().chain([]).collect();
        // Only one of the two nodes is left without a step.
        s.uses[PieceId(2)].nodes.push(Node(5));
    });
    expect("P0103", |s| s.uses[LAST].nodes.push(Node(4)));
    expect("P0103", |s| s.uses[LAST].nodes.push(Node(77)));
}

#[test]
fn orders() {
    let swapped: &[Member] = &[
        (Step::Prologue, &[0]),
        (Step::Piece, &[1, 2, 3]),
        (Step::Piece, &[5]),
        (Step::Split, &[4]),
        (Step::Piece, &[6]),
    ];
    expect_graph("P0104", swapped, |_| {});
    let late_scatter: &[Member] = &[
        (Step::Prologue, &[0]),
        (Step::Piece, &[1, 3]),
        (Step::Split, &[4]),
        (Step::Piece, &[2, 5, 6]),
    ];
    expect_graph("P0105", late_scatter, |_| {});
}

#[test]
fn prologue_and_split_steps() {
    expect("P0106", |s| s.steps.swap(0, 1));
    let not_custom: &[Member] = &[
        (Step::Prologue, &[0]),
        (Step::Prologue, &[1]),
        (Step::Piece, &[2, 3]),
        (Step::Split, &[4]),
        (Step::Piece, &[5, 6]),
    ];
    expect_graph("P0106", not_custom, |_| {});
    let two_splits: &[Member] = &[
        (Step::Prologue, &[0]),
        (Step::Piece, &[1, 2, 3]),
        (Step::Split, &[4, 5]),
        (Step::Piece, &[6]),
    ];
    expect_graph("P0107", two_splits, |_| {});
}

#[test]
fn uses() {
    let unique = |s: &mut Stitch, id: PieceId| s.uses[id].unique;
    expect("P0201", |s| {
        let u = unique(s, LAST);
        s.unique[u].graph.set_symbol_bounds(T, 2, 1);
    });
    expect("P0202", |s| {
        s.uses[LAST].operands.pop();
    });
    expect("P0202", |s| s.uses[LAST].operands[0] = Value(99));
    expect("P0204", |s| {
        let u = unique(s, LAST);
        s.unique[u].graph.node_mut(Node(1)).op = Op::Unary(UnaryOp::Sin);
    });
    expect("P0205", |s| {
        let u = unique(s, LAST);
        s.unique[u].graph.node_mut(Node(0)).operands.swap(0, 1);
    });
    expect("P0208", |s| {
        let u = unique(s, FIRST);
        s.unique[u].graph.set_outputs(vec![]);
        let b = s.unique[u].graph.result(Node(2));
        s.unique[u].graph.set_outputs(vec![b]);
    });
}

#[test]
fn operands_of_uses() {
    // A constant of another type than the module's.
    let literal = |g: &mut Graph, dtype: DType| {
        let op = Op::Literal(crate::literal::Literal::new(dtype, [1.0]));
        g.push(op, vec![], TensorType::new(dtype, [1]), Loc::default())
    };
    let mut g = graph();
    literal(&mut g, DType::F32);
    let mut members = PIECES.to_vec();
    members.push((Step::Piece, &[7]));
    let mut stitch = stitched(&g, &members);
    let unique = stitch.uses[PieceId(4)].unique;
    let mut other = Graph::with_symbols_of("piece", &g);
    let value = literal(&mut other, DType::F16);
    other.set_outputs(vec![value]);
    stitch.unique[unique].graph = other;
    let mut module = Module::new(g);
    module.set_stitch(stitch);
    // The op is another one, too: a literal has a dtype of its own.
    assert_codes(&module, &["P0203", "P0204"]);
}

#[test]
fn different_operands_are_different_values() {
    let mut g = graph();
    let d = g.node(Node(5)).operands[1];
    g.node_mut(Node(5)).operands[0] = d;
    let mut stitch = stitched(&g, PIECES);
    let unique = stitch.uses[LAST].unique;
    let mut other = Graph::with_symbols_of("piece", &g);
    let a = other.add_input("a", matrix(), None, None);
    let b = other.add_input("b", matrix(), None, None);
    let loc = Loc::default;
    let sum = other.push(Op::Binary(BinaryOp::Add), vec![a, b], matrix(), loc());
    let y = other.push(Op::Unary(UnaryOp::Tanh), vec![sum], matrix(), loc());
    other.set_outputs(vec![y]);
    stitch.unique[unique].graph = other;
    stitch.uses[LAST].operands.insert(0, d);
    let mut module = Module::new(g);
    module.set_stitch(stitch);
    assert_codes(&module, &["P0206"]);
}

#[test]
fn weights_of_uses() {
    let mut module = Module::new(graph());
    let mut stitch = stitched(module.graph(), PIECES);
    let unique = stitch.uses[FIRST].unique;
    let mut other = Graph::with_symbols_of("piece", module.graph());
    let own = stitch.unique[unique].graph.clone();
    for input in own.inputs() {
        other.add_input(input.name.clone(), own.ty(input.value).clone(), None, None);
    }
    let ty = TensorType::new(DType::F16, [4]);
    let of = Box::new(Recipe::Checkpoint { name: "0".into(), ty });
    let ty = TensorType::new(DType::F32, [4]);
    other.add_weight(ty, Recipe::Cast { to: DType::F32, of });
    other.add_state("s", TensorType::new(DType::F32, [8, 4]), None);
    for n in own.nodes() {
        let data = own.node(n);
        let results = own.result_types(n);
        other.push_node(data.op.clone(), data.operands.clone(), results, Loc::default());
    }
    other.set_outputs(own.outputs().to_vec());
    stitch.unique[unique].graph = other;
    module.set_stitch(stitch);
    assert_codes(&module, &["P0207"]);
}

#[test]
fn rows_of_pieces() {
    // A piece over `T` that computes one row of `R`.
    let mut members = PIECES.to_vec();
    members.push((Step::Piece, &[7]));
    expect_graph("P0301", &members, |g| {
        let ty = TensorType::new(DType::F32, [Symbol(1)]);
        g.push(Op::Iota { axis: 0 }, vec![], ty, Loc::default());
    });
    // A sum over rows, padding among them.
    expect_graph("P0302", &members, |g| {
        let sum = Op::Reduce { op: ReduceOp::Sum, axes: vec![0] };
        let x = g.inputs()[0].value;
        g.push(sum, vec![x], TensorType::new(DType::F32, [1, 4]), Loc::default());
    });
    // The mixing op inside of a piece.
    let unsplit: &[Member] = &[(Step::Prologue, &[0]), (Step::Piece, &[1, 2, 3, 4, 5, 6])];
    expect_graph("P0302", unsplit, |_| {});
    expect_graph("P0303", PIECES, |g| {
        let ty = TensorType::new(DType::F32, [Dim::from(4), Dim::from(T)]);
        g.add_input("columns", ty, None, None);
    });
}

#[test]
fn rows_of_another_symbol_are_read_at_indices_only() {
    let mut members = PIECES.to_vec();
    members.push((Step::Piece, &[7]));
    let run = |op: Op, operands: &dyn Fn(&mut Graph) -> Vec<Value>, result: TensorType| {
        let mut g = graph();
        let operands = operands(&mut g);
        g.push(op, operands, result, Loc::default());
        let mut stitch = stitched(&g, &members);
        let unique = stitch.uses[PieceId(4)].unique;
        stitch.unique[unique].over = Some(Symbol(1));
        let mut module = Module::new(g);
        module.set_stitch(stitch);
        verify_module(&module).err().map(|found| found.items[0].code)
    };
    let gather = |g: &mut Graph| {
        let ty = TensorType::new(DType::I32, [Symbol(1)]);
        let rows = g.add_input("rows", ty, Some(Scalar::int(DType::I32, 0)), None);
        vec![g.inputs()[0].value, rows]
    };
    let rows = TensorType::new(DType::F32, [Dim::from(Symbol(1)), Dim::from(4)]);
    assert_eq!(run(Op::Gather, &gather, rows), None);
    let sum = Op::Reduce { op: ReduceOp::Sum, axes: vec![0] };
    let x = |g: &mut Graph| vec![g.inputs()[0].value];
    assert_eq!(run(sum, &x, TensorType::new(DType::F32, [1, 4])), Some("P0302"));
}

#[test]
fn slot_rules() {
    let mut module = Module::new(graph());
    module.set_slots(slots(module.graph()));
    assert_codes(&module, &["P0401"]);
    let mut module = Module::new(graph());
    module.set_stitch(stitched(module.graph(), PIECES));
    module.set_layout(ArenaLayout::default());
    assert_codes(&module, &["P0401"]);

    let weight = graph().weights()[0].value;
    let extra = |value, kind| SlotData { value, kind, live: LiveRange { start: 0, end: 6 } };
    let grow = |plan: &mut ArenaLayout| {
        plan.offsets.push(plan.bytes);
        plan.sizes.push(256);
        plan.bytes += 256;
    };
    expect_plan("P0402", |table, plan| {
        table.slots.push(extra(weight, SlotKind::Local));
        grow(plan);
    });
    expect_plan("P0403", |table, plan| {
        let value = table.slots[Slot(6)].value;
        table.slots.push(extra(value, SlotKind::Local));
        grow(plan);
    });
    expect_plan("P0404", |table, plan| {
        table.slots = table.slots.values().take(7).cloned().collect();
        plan.offsets.pop();
        plan.sizes.pop();
    });
    expect_plan("P0405", |table, _| table.slots[Slot(3)].kind = SlotKind::Local);
    expect_plan("P0406", |table, _| table.slots[Slot(7)].live.end = 5);
    expect_plan("P0406", |table, _| table.slots[Slot(0)].live.start = 1);
}

#[test]
fn layout_rules() {
    expect_plan("P0501", |_, plan| plan.align = 3);
    expect_plan("P0501", |_, plan| plan.offsets[5] += 4);
    expect_plan("P0502", |_, plan| plan.sizes.truncate(2));
    expect_plan("P0503", |_, plan| plan.bounds[1] = 5);
    expect_plan("P0504", |_, plan| plan.sizes[4] = 128);
    expect_plan("P0505", |_, plan| plan.staged = 512);
    expect_plan("P0505", |_, plan| plan.offsets[0] = 0);
    expect_plan("P0506", |_, plan| plan.offsets[7] = 1 << 40);
    expect_plan("P0506", |_, plan| plan.staged = 1 << 40);
}
