//! Common subexpression elimination.
//!
//! Two nodes are one if they have the same op with the same attribute bits, operands and result
//! types, mutate nothing, and read every state at the same version: a mutation in between keeps
//! two reads of a state apart. The first in program order stays. Two weights are one if they have
//! the same recipe.

use super::CANONICAL;
use crate::analysis::{Names, StateVersions, Users};
use crate::manager::{Pass, PassContext, PassError, PassReport};
use crate::rewrite::{Editor, rewrite};
use piecewise_ir::custom::Attr;
use piecewise_ir::entity::{Node, Value};
use piecewise_ir::graph::Graph;
use piecewise_ir::module::Module;
use piecewise_ir::op::{Format, Op};
use piecewise_ir::types::TensorType;
use rustc_hash::FxHashMap;

/// Makes equal pure computations one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cse;

/// What equal nodes agree on beyond their attributes.
type Key = (Format, Vec<Value>, Vec<TensorType>, Vec<u32>);

impl Pass for Cse {
    fn name(&self) -> &'static str {
        "cse"
    }

    fn run(&self, module: &mut Module, cx: &mut PassContext) -> Result<PassReport, PassError> {
        let mut report = PassReport::default();
        let graph = module.graph_mut();
        let names = Names::of(graph);
        let nodes = graph.order().to_vec();
        let mut seen: FxHashMap<Key, Vec<Node>> = FxHashMap::default();
        let mut versions = StateVersions::new(graph);
        let mut same_weights = equal_weights(graph);
        let rewrites = &mut cx.rewrites;
        same_weights.retain(|(from, _)| rewrites.allow("weight", || names.value(*from).to_owned()));
        report.count_many("weight", same_weights.len());
        let mut editor = Editor::new(graph);
        for (from, to) in same_weights {
            editor.replace(from, to);
        }
        for node in nodes {
            editor.resolve_operands(node);
            let graph = &*editor.graph;
            versions.advance(graph, node);
            let data = graph.node(node);
            if data.op.has_effect() {
                editor.keep(node);
                continue;
            }
            let key = (
                data.op.format(),
                data.operands.clone(),
                graph.result_types(node),
                versions.of(graph, &data.operands),
            );
            let alike = seen.entry(key).or_default();
            let first = alike.iter().copied().find(|&n| same_attributes(graph, n, node));
            match first.filter(|_| rewrites.allow("cse", || names.node(graph, node))) {
                None => {
                    alike.push(node);
                    editor.keep(node);
                }
                Some(first) => {
                    report.count(data.op.mnemonic());
                    let pairs = data.results.iter().copied().zip(graph.node(first).results.clone());
                    for (from, to) in pairs.collect::<Vec<_>>() {
                        editor.replace(from, to);
                    }
                }
            }
        }
        editor.finish();
        rewrite(graph, &CANONICAL, cx, &mut report)?;
        Ok(report)
    }
}

fn same_attributes(graph: &Graph, a: Node, b: Node) -> bool {
    match (&graph.node(a).op, &graph.node(b).op) {
        (Op::Custom(x), Op::Custom(y)) => {
            let floats_agree = x.attrs.values().zip(y.attrs.values()).all(|pair| match pair {
                // Equality of floats holds 0.0 and -0.0 for the same.
                (Attr::Float(p), Attr::Float(q)) => p.to_bits() == q.to_bits(),
                _ => true,
            });
            x == y && floats_agree
        }
        (x, y) => x == y,
    }
}

/// Each used weight whose recipe an earlier one has, with that one.
fn equal_weights(graph: &Graph) -> Vec<(Value, Value)> {
    let users = Users::of(graph);
    let mut seen: FxHashMap<(TensorType, Vec<String>), Vec<usize>> = FxHashMap::default();
    let mut equal = Vec::new();
    for (index, weight) in graph.weights().iter().enumerate() {
        if users.nodes(weight.value).is_empty() && !users.is_returned(weight.value) {
            continue;
        }
        let mut sources = Vec::new();
        weight.recipe.visit_sources(&mut |name, _| sources.push(name.to_owned()));
        let alike = seen.entry((graph.ty(weight.value).clone(), sources)).or_default();
        match alike.iter().find(|&&i| graph.weights()[i].recipe == weight.recipe) {
            Some(&first) => equal.push((weight.value, graph.weights()[first].value)),
            None => alike.push(index),
        }
    }
    equal
}
