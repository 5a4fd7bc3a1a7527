//! Sibling matmuls become one.
//!
//! Matmuls that multiply the same left operand by weights of the same dtype and transposition
//! into the same result dtype read that operand once if the weights lie side by side: a derived
//! weight, then one slice for each. Every column keeps its own sum, so no bit changes. A weight
//! that anything else reads is left alone, for the merged copy would be memory spent twice.
//!
//! Products with scales merge where all keep their weights in one form: codes, scales and zeros lie
//! side by side then. A block of rows must not reach from one weight into the next.

use super::CANONICAL;
use crate::analysis::{Names, Users};
use crate::manager::{Pass, PassContext, PassError, PassReport};
use crate::rewrite::{Editor, rewrite};
use indexmap::IndexMap;
use piecewise_ir::dtype::DType;
use piecewise_ir::entity::{Node, Value};
use piecewise_ir::graph::{Graph, ValueDef};
use piecewise_ir::module::Module;
use piecewise_ir::op::Op;
use piecewise_ir::weight::Recipe;
use rustc_hash::{FxHashMap, FxHashSet};

/// Makes matmuls of one left operand by several weights one matmul by their concatenation.
#[derive(Clone, Copy, Debug, Default)]
pub struct MergeMatmuls;

/// What siblings share besides their left operand.
#[derive(PartialEq, Eq, Hash)]
struct Form {
    op: Product,
    /// Of weights, scales and zeros, then of the result.
    dtypes: Vec<DType>,
}

#[derive(PartialEq, Eq, Hash)]
enum Product {
    Plain { transpose_lhs: bool, transpose_rhs: bool },
    Scaled { block: [u64; 2] },
}

type Siblings = (Value, Form);

impl Pass for MergeMatmuls {
    fn name(&self) -> &'static str {
        "merge_matmuls"
    }

    fn run(&self, module: &mut Module, cx: &mut PassContext) -> Result<PassReport, PassError> {
        let mut report = PassReport::default();
        let graph = module.graph_mut();
        let users = Users::of(graph);
        let names = Names::of(graph);
        let mut groups: IndexMap<Siblings, Vec<Node>> = IndexMap::new();
        for node in graph.nodes() {
            if let Some(key) = siblings_of(graph, node) {
                groups.entry(key).or_default().push(node);
            }
        }
        unlike_siblings(graph, &names, &groups, &mut report);
        let mut merged: FxHashMap<Node, Vec<Node>> = FxHashMap::default();
        let mut absorbed: FxHashSet<Node> = FxHashSet::default();
        for nodes in groups.into_values().filter(|nodes| nodes.len() > 1) {
            let shared = |node: &Node| {
                let mut weights = graph.node(*node).operands[1..].iter();
                weights.any(|&w| users.nodes(w).len() > 1 || users.is_returned(w))
            };
            let (shared, mut own): (Vec<_>, Vec<_>) = nodes.into_iter().partition(shared);
            if let Some(partial) =
                own.iter().rev().skip(1).find(|node| ends_in_a_block(graph, **node))
            {
                report.remark(
                    "not merged with its siblings",
                    names.node(graph, *partial),
                    "its last block of scales is partial, and would reach into the next weight",
                );
                own.clear();
            }
            for node in shared {
                report.remark(
                    "not merged with its siblings",
                    names.node(graph, node),
                    "its weight has other users, and the merged weight would be a second copy",
                );
            }
            let merges =
                own.len() > 1 && cx.rewrites.allow("merged matmul", || names.node(graph, own[0]));
            if merges {
                absorbed.extend(&own[1..]);
                merged.insert(own[0], own);
            }
        }
        let nodes = graph.order().to_vec();
        let mut editor = Editor::new(graph);
        for node in nodes {
            if let Some(siblings) = merged.get(&node) {
                merge(&mut editor, siblings);
                report.count_many("matmul", siblings.len());
            } else if !absorbed.contains(&node) {
                editor.keep(node);
            }
        }
        editor.finish();
        rewrite(graph, &CANONICAL, cx, &mut report)?;
        Ok(report)
    }
}

fn siblings_of(graph: &Graph, node: Node) -> Option<Siblings> {
    let data = graph.node(node);
    let op = match data.op {
        Op::MatMul { transpose_lhs, transpose_rhs } => {
            Product::Plain { transpose_lhs, transpose_rhs }
        }
        Op::ScaledMatMul { block } => Product::Scaled { block },
        _ => return None,
    };
    let (&lhs, weights) = data.operands.split_first()?;
    let is_weight = |&value: &Value| {
        matches!(graph.def(value), ValueDef::Weight(_)) && graph.ty(value).rank() == 2
    };
    let dtypes = weights.iter().chain(&data.results).map(|&value| graph.ty(value).dtype).collect();
    weights.iter().all(is_weight).then_some((lhs, Form { op, dtypes }))
}

/// Whether the scales of a product's last rows are of fewer rows than the others.
fn ends_in_a_block(graph: &Graph, node: Node) -> bool {
    let data = graph.node(node);
    let Op::ScaledMatMul { block: [rows, _] } = data.op else { return false };
    let extent = graph.ty(data.operands[1]).shape.first().and_then(|dim| dim.as_constant());
    extent.is_none_or(|extent| !extent.is_multiple_of(rows))
}

/// Remarks on products of one left operand of which some, with scales, have another form than others.
fn unlike_siblings(
    graph: &Graph,
    names: &Names,
    groups: &IndexMap<Siblings, Vec<Node>>,
    report: &mut PassReport,
) {
    let mut first: FxHashMap<Value, &Form> = FxHashMap::default();
    for ((lhs, form), nodes) in groups {
        let before = *first.entry(*lhs).or_insert(form);
        let has_scales = |form: &Form| matches!(form.op, Product::Scaled { .. });
        if before != form && (has_scales(before) || has_scales(form)) {
            report.remark(
                "not merged with its siblings",
                names.node(graph, nodes[0]),
                "its weight is kept in another form than theirs",
            );
        }
    }
}

fn merge(editor: &mut Editor<'_>, siblings: &[Node]) {
    let graph = &*editor.graph;
    let first = graph.node(siblings[0]).clone();
    let axis = usize::from(matches!(first.op, Op::MatMul { transpose_rhs: false, .. }));
    let mut result_ty = graph.ty(first.results[0]).clone();
    let last = result_ty.rank() - 1;
    let mut slices = Vec::new();
    let mut columns = 0;
    for &node in siblings {
        let data = graph.node(node);
        let ty = graph.ty(data.results[0]).clone();
        let extent = ty.shape[last].as_constant().unwrap_or(0);
        slices.push((data.results[0], ty, columns, data.loc.clone()));
        columns += extent;
    }
    result_ty.shape[last] = columns.into();
    let mut operands = vec![editor.resolve(first.operands[0])];
    for position in 1..first.operands.len() {
        let graph = &mut *editor.graph;
        let weights = siblings.iter().map(|&node| graph.node(node).operands[position]);
        let weights: Vec<Value> = weights.collect();
        let extents = weights.iter().filter_map(|&w| graph.ty(w).shape[axis].as_constant());
        let mut ty = graph.ty(weights[0]).clone();
        ty.shape[axis] = extents.sum::<u64>().into();
        let recipe = |&value: &Value| match graph.def(value) {
            ValueDef::Weight(index) => Some(graph.weights()[index].recipe.clone()),
            _ => None,
        };
        let parts = weights.iter().filter_map(recipe).collect();
        operands.push(graph.add_weight(ty, Recipe::Concat { axis, parts }));
    }
    let product = editor.insert(first.op, operands, result_ty, first.loc);
    for (result, ty, start, loc) in slices {
        let part = editor.insert(Op::Slice { axis: last, start }, vec![product], ty, loc);
        editor.replace(result, part);
    }
}
