//! Rows: what keeps padding away from real rows.

use crate::diagnostic::{Anchor, Diagnostics};
use crate::entity::{Entity, Node, PieceId, Symbol, Value};
use crate::graph::{Graph, ValueDef};
use crate::module::{Step, Stitch};
use crate::op::{Op, row_treatment};
use crate::text::Names;
use std::collections::BTreeSet;

/// Checks P0301 to P0303.
pub(super) fn check(graph: &Graph, stitch: &Stitch, found: &mut Diagnostics) {
    let names = Names::of(graph);
    for step in &stitch.steps {
        if let Step::Piece(id) = *step {
            let piece = &stitch.uses[id];
            let over = stitch.unique[piece.unique].over;
            let rows = PieceRows { graph, names: &names, id, over };
            for &node in &piece.nodes {
                rows.one_symbol(node, found);
                rows.padding(node, found);
            }
        }
    }
    for value in crossing(graph, stitch) {
        let ty = graph.ty(value);
        if ty.shape.iter().skip(1).any(|dim| !dim.terms().is_empty()) {
            let message = format!(
                "{} is {}; on a boundary only the outermost dimension may be symbolic, so that a smaller size is a prefix of a larger one",
                names.value(value),
                ty.display(graph.symbols())
            );
            found.push("P0303", Anchor::Value(value), message);
        }
    }
}

/// A piece, over the rows of a symbol or of none.
struct PieceRows<'a> {
    graph: &'a Graph,
    names: &'a Names<'a>,
    id: PieceId,
    over: Option<Symbol>,
}

impl PieceRows<'_> {
    fn one_symbol(&self, node: Node, found: &mut Diagnostics) {
        let Self { graph, names, id, over } = *self;
        for &result in &graph.node(node).results {
            let ty = graph.ty(result);
            let other =
                ty.shape.iter().flat_map(|d| d.terms()).map(|t| t.0).find(|&s| Some(s) != over);
            if let Some(other) = other {
                let name = |s: Symbol| graph.symbols().get(s).map_or("?", |d| d.name.as_str());
                let message = format!(
                    "{id} iterates over {}, but {} is shaped by `{}`; cut the piece where the symbol changes",
                    over.map_or("no symbol".to_owned(), |s| format!("`{}`", name(s))),
                    names.value(result),
                    name(other)
                );
                found.push("P0301", Anchor::Piece(id), message);
            }
        }
    }

    fn padding(&self, node: Node, found: &mut Diagnostics) {
        let Self { graph, names, id, over } = *self;
        let op = &graph.node(node).op;
        for symbol in graph.symbols().keys() {
            let safe = if over == Some(symbol) {
                let (operands, results) = (graph.operand_types(node), graph.result_types(node));
                row_treatment(op, &operands, &results, symbol).is_padding_safe()
            } else {
                !reads_all_rows(graph, node, symbol)
            };
            if !safe {
                let message = format!(
                    "{} of {id} mixes the rows of `{}`, so that a padding row could reach a real one; make it a split op, or mask by the true counts",
                    names.node(node),
                    graph.symbols()[symbol].name
                );
                let source = names.source(node).map(|source| format!("it was written at {source}"));
                let notes = source.into_iter().collect();
                found.push_with_notes("P0302", Anchor::Piece(id), message, notes);
            }
        }
    }
}

/// Whether an op of a piece over another symbol reads rows of `symbol` that no index chose, so
/// padding rows among them.
fn reads_all_rows(graph: &Graph, node: Node, symbol: Symbol) -> bool {
    let data = graph.node(node);
    let mentions = |value: &Value| graph.ty(*value).mentions(symbol);
    match &data.op {
        Op::Gather | Op::Scatter => data.operands[1..].iter().any(mentions),
        Op::Region(region) => {
            region.body.nodes().any(|statement| reads_all_rows(&region.body, statement, symbol))
        }
        Op::Custom(call) => !call.rows.is_padding_safe() && data.operands.iter().any(mentions),
        _ => data.operands.iter().any(mentions),
    }
}

/// Inputs, values that one step computes and another reads, and outputs.
pub(super) fn crossing(graph: &Graph, stitch: &Stitch) -> BTreeSet<Value> {
    let mut home = vec![None; graph.value_count()];
    for (id, piece) in stitch.uses.iter() {
        for &result in piece.nodes.iter().flat_map(|&n| &graph.node(n).results) {
            home[result.index()] = Some(id);
        }
    }
    let is_result = |v: &Value| matches!(graph.def(*v), ValueDef::Result { .. });
    let mut crossing: BTreeSet<Value> = graph.inputs().iter().map(|i| i.value).collect();
    crossing.extend(graph.outputs().iter().filter(|v| is_result(v)));
    for (id, piece) in stitch.uses.iter() {
        let read = piece.nodes.iter().flat_map(|&n| &graph.node(n).operands);
        crossing.extend(read.filter(|v| is_result(v) && home[v.index()] != Some(id)));
    }
    crossing
}
