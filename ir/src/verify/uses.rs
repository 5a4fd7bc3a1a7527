//! Uses of unique pieces: the module's nodes and values, position by position.

use super::same::same_op;
use crate::diagnostic::{Anchor, Diagnostics};
use crate::entity::{Entity, PieceId, Value};
use crate::graph::{Graph, ValueDef};
use crate::module::{PieceUse, Stitch, UniquePiece};
use crate::text::Names;
use crate::weight::Recipe;
use std::collections::{BTreeMap, BTreeSet};

/// Checks P0202 to P0208 where the unique piece's ids are sound.
pub(super) fn check(graph: &Graph, stitch: &Stitch, found: &mut Diagnostics) {
    let readers = readers(graph, stitch);
    let names = Names::of(graph);
    for (id, piece) in stitch.uses.iter() {
        let unique = &stitch.unique[piece.unique];
        let mut ids = Diagnostics::default();
        let own_names = Names::of(&unique.graph);
        if super::integrity::check(&unique.graph, &own_names, &mut ids) {
            Use { graph, names: &names, id, piece, unique, own_names }.check(&readers, found);
        }
    }
}

/// For each value of the graph, the uses that read it; outputs are read by `None`.
fn readers(graph: &Graph, stitch: &Stitch) -> Vec<BTreeSet<Option<PieceId>>> {
    let mut readers = vec![BTreeSet::new(); graph.value_count()];
    for (id, piece) in stitch.uses.iter() {
        for &node in &piece.nodes {
            for &operand in &graph.node(node).operands {
                readers[operand.index()].insert(Some(id));
            }
        }
    }
    for &output in graph.outputs() {
        readers[output.index()].insert(None);
    }
    readers
}

struct Use<'a> {
    graph: &'a Graph,
    names: &'a Names<'a>,
    id: PieceId,
    piece: &'a PieceUse,
    unique: &'a UniquePiece,
    own_names: Names<'a>,
}

impl Use<'_> {
    fn push(&self, found: &mut Diagnostics, code: &'static str, message: String) {
        found.push(code, Anchor::Piece(self.id), format!("{}: {message}", self.id));
    }

    fn check(&self, readers: &[BTreeSet<Option<PieceId>>], found: &mut Diagnostics) {
        let own = self.unique.operands();
        let nodes = self.unique.graph.order().len();
        if self.piece.nodes.len() != nodes || self.piece.operands.len() != own.len() {
            let message = format!(
                "{} nodes and {} operands, but {} has {nodes} and {}",
                self.piece.nodes.len(),
                self.piece.operands.len(),
                self.piece.unique,
                own.len()
            );
            return self.push(found, "P0202", message);
        }
        if let Some(&v) = self.piece.operands.iter().find(|v| !self.graph.has_value(**v)) {
            let v = self.names.value(v);
            let message = format!("operand {v} is no value of the module's graph");
            return self.push(found, "P0202", message);
        }
        let map: BTreeMap<Value, Value> =
            own.iter().copied().zip(self.piece.operands.iter().copied()).collect();
        self.operands(&own, found);
        self.weights(found);
        self.nodes(&map, found);
        self.outputs(&own, readers, found);
    }

    fn operands(&self, own: &[Value], found: &mut Diagnostics) {
        let mut seen = BTreeSet::new();
        for (i, (&a, &b)) in own.iter().zip(&self.piece.operands).enumerate() {
            let kinds_fit = matches!(
                (self.unique.graph.def(a), self.graph.def(b)),
                (ValueDef::Input(_), ValueDef::Input(_) | ValueDef::Result { .. })
                    | (ValueDef::Weight(_), ValueDef::Weight(_))
                    | (ValueDef::State(_), ValueDef::State(_))
                    | (ValueDef::Result { .. }, ValueDef::Result { .. })
            );
            let (ta, tb) = (self.unique.graph.ty(a), self.graph.ty(b));
            if !kinds_fit || ta != tb {
                let (a, b) = (self.own_names.value(a), self.names.value(b));
                let message = format!(
                    "operand {i} is {b}: {}, but {} has {a}: {}, {}",
                    tb.display(self.graph.symbols()),
                    self.piece.unique,
                    ta.display(self.unique.graph.symbols()),
                    if kinds_fit { "of another type" } else { "declared as something else" }
                );
                self.push(found, "P0203", message);
            }
            if !seen.insert(b) {
                let message = format!(
                    "operand {i} is {}, which another operand is too; which operands are the same is part of a unique piece",
                    self.names.value(b)
                );
                self.push(found, "P0206", message);
            }
        }
    }

    fn weights(&self, found: &mut Diagnostics) {
        let unique = &self.unique.graph;
        for weight in unique.weights() {
            let is_plain = matches!(&weight.recipe, Recipe::Checkpoint { ty, .. } if ty == unique.ty(weight.value));
            if !is_plain {
                let message = format!(
                    "{} of {} is derived, but how a weight comes about is no part of a unique piece; \
                     declare it as a plain tensor of its type",
                    self.own_names.value(weight.value),
                    self.piece.unique
                );
                self.push(found, "P0207", message);
            }
        }
    }

    fn nodes(&self, map: &BTreeMap<Value, Value>, found: &mut Diagnostics) {
        for (own, &node) in self.unique.graph.nodes().zip(&self.piece.nodes) {
            let (a, b) = (self.unique.graph.node(own), self.graph.node(node));
            if !same_op(&a.op, &b.op) {
                let message = format!(
                    "{} is another op than {} in {}",
                    self.names.node(node),
                    self.own_names.node(own),
                    self.piece.unique
                );
                self.push(found, "P0204", message);
            }
            let renamed = |values: &[Value]| -> Option<Vec<Value>> {
                values.iter().map(|v| map.get(v).copied()).collect()
            };
            if renamed(&a.operands).as_ref() != Some(&b.operands)
                || renamed(&a.results).as_ref() != Some(&b.results)
            {
                let message = format!(
                    "the operands and results of {} are not those of {} in {} by position",
                    self.names.node(node),
                    self.own_names.node(own),
                    self.piece.unique
                );
                self.push(found, "P0205", message);
            }
        }
    }

    fn outputs(
        &self,
        own: &[Value],
        readers: &[BTreeSet<Option<PieceId>>],
        found: &mut Diagnostics,
    ) {
        for (&a, &b) in own.iter().zip(&self.piece.operands) {
            let is_result = matches!(self.unique.graph.def(a), ValueDef::Result { .. });
            let read_after = readers[b.index()].iter().any(|&reader| reader != Some(self.id));
            if is_result && read_after && !self.unique.graph.outputs().contains(&a) {
                let (a, b) = (self.own_names.value(a), self.names.value(b));
                let message =
                    format!("{b} is read after it, but {a} of {} is no output", self.piece.unique);
                self.push(found, "P0208", message);
            }
        }
    }
}
