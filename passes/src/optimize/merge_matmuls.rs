//! Sibling matmuls become one.
//!
//! Matmuls that multiply the same left operand by weights of the same dtype and transposition
//! into the same result dtype read that operand once if the weights lie side by side: a derived
//! weight, then one slice for each. Every column keeps its own sum, so no bit changes. A weight
//! that anything else reads is left alone, for the merged copy would be memory spent twice.

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

/// What siblings share: left operand, its transposition, the right side's, its dtype, the
/// result's.
type Siblings = (Value, bool, bool, DType, DType);

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
        let mut merged: FxHashMap<Node, Vec<Node>> = FxHashMap::default();
        let mut absorbed: FxHashSet<Node> = FxHashSet::default();
        for nodes in groups.into_values().filter(|nodes| nodes.len() > 1) {
            let shared = |node: &Node| {
                let weight = graph.node(*node).operands[1];
                users.nodes(weight).len() > 1 || users.is_returned(weight)
            };
            let (shared, own): (Vec<_>, Vec<_>) = nodes.into_iter().partition(shared);
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
    let Op::MatMul { transpose_lhs, transpose_rhs } = data.op else { return None };
    let (lhs, rhs) = (data.operands[0], data.operands[1]);
    let ty = graph.ty(rhs);
    let is_weight = matches!(graph.def(rhs), ValueDef::Weight(_));
    (is_weight && ty.rank() == 2).then(|| {
        let result = graph.ty(data.results[0]).dtype;
        (lhs, transpose_lhs, transpose_rhs, ty.dtype, result)
    })
}

fn merge(editor: &mut Editor<'_>, siblings: &[Node]) {
    let graph = &*editor.graph;
    let first = graph.node(siblings[0]).clone();
    let axis = usize::from(!matches!(first.op, Op::MatMul { transpose_rhs: true, .. }));
    let mut weight_ty = graph.ty(first.operands[1]).clone();
    let mut result_ty = graph.ty(first.results[0]).clone();
    let last = result_ty.rank() - 1;
    let mut parts = Vec::new();
    let mut slices = Vec::new();
    let mut columns = 0;
    for &node in siblings {
        let data = graph.node(node);
        let ValueDef::Weight(index) = graph.def(data.operands[1]) else { continue };
        parts.push(graph.weights()[index].recipe.clone());
        let ty = graph.ty(data.results[0]).clone();
        let extent = ty.shape[last].as_constant().unwrap_or(0);
        slices.push((data.results[0], ty, columns, data.loc.clone()));
        columns += extent;
    }
    weight_ty.shape[axis] = columns.into();
    result_ty.shape[last] = columns.into();
    let weight = editor.graph.add_weight(weight_ty, Recipe::Concat { axis, parts });
    let lhs = editor.resolve(first.operands[0]);
    let product = editor.insert(first.op, vec![lhs, weight], result_ty, first.loc);
    for (result, ty, start, loc) in slices {
        let part = editor.insert(Op::Slice { axis: last, start }, vec![product], ty, loc);
        editor.replace(result, part);
    }
}
