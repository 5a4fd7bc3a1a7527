//! Derived weights: casts, slices, permutations, reshapes and concatenations of weights, done once
//! at load.
//!
//! The rule weighs memory against work per step:
//! - A reader that needs the whole tensor in memory (matmul, custom op, the table of a gather, the
//!   graph's outputs) would have it made anew in every step, so it is folded, even where the
//!   source stays in memory for another reader.
//! - Row programs read a weight in place: slicing, permuting and reshaping are strides to them, and
//!   a cast is one instruction on the way. Folding saves nothing there. Strides are folded all the same
//!   where the source has no other reader, for it costs nothing; a cast is not, because its
//!   result may be wider than its source and is read once for every few rows.

use crate::analysis::{Names, Users};
use crate::manager::PassReport;
use crate::rewrite::{Editor, Rewrites};
use piecewise_ir::entity::{Node, Value};
use piecewise_ir::graph::{Graph, ValueDef};
use piecewise_ir::op::{Op, OpClass};
use piecewise_ir::weight::Recipe;
use rustc_hash::FxHashMap;

/// The most links and sources of one recipe. Without a limit, a weight joined with itself again
/// and again would have a recipe as large as its result.
const MAX_RECIPE: usize = 4096;

/// A value that depends on weights alone.
#[derive(Clone)]
struct Derived {
    recipe: Recipe,
    /// The number of its links and sources.
    size: usize,
    has_cast: bool,
    /// Whether nothing but this value reads any of its source weights.
    sole_reader: bool,
}

/// Replaces values that depend on weights alone with derived weights where the rule says so.
pub(super) fn fold(
    graph: &mut Graph,
    names: &Names,
    rewrites: &mut Rewrites,
    report: &mut PassReport,
) {
    let users = Users::of(graph);
    let nodes = graph.order().to_vec();
    let mut derived: FxHashMap<Value, Derived> = FxHashMap::default();
    let mut editor = Editor::new(graph);
    for node in nodes {
        let graph = &*editor.graph;
        let Some(found) = derive(graph, &users, &derived, node) else {
            editor.keep(node);
            continue;
        };
        let result = graph.result(node);
        let materialised = users.is_returned(result)
            || users
                .nodes(result)
                .iter()
                .any(|&(user, position)| needs_memory(&graph.node(user).op, position));
        let is_last = !users.nodes(result).iter().any(|&(user, _)| is_link(&graph.node(user).op));
        let is_wanted = materialised || (is_last && found.sole_reader && !found.has_cast);
        if is_wanted && rewrites.allow("derived weight", || names.node(graph, node)) {
            report.count("derived weight");
            let ty = graph.ty(result).clone();
            let weight = editor.graph.add_weight(ty, found.recipe.clone());
            editor.replace(result, weight);
        } else if !is_wanted && is_last && !users.nodes(result).is_empty() {
            report.remark(
                "not folded into a derived weight",
                names.node(graph, node),
                "its readers are row programs, which do this on the way from the source",
            );
        }
        derived.insert(result, found);
        editor.keep(node);
    }
    editor.finish();
}

/// Whether operand `position` of `op` must lie in memory as a whole.
pub(super) fn needs_memory(op: &Op, position: usize) -> bool {
    match op.class() {
        OpClass::Product { .. } | OpClass::Custom(_) | OpClass::Region(_) => true,
        OpClass::Scatter => true,
        OpClass::Gather => position == 0,
        OpClass::Elementwise | OpClass::Remap | OpClass::Constant => false,
        OpClass::Reduction | OpClass::Search => false,
    }
}

fn is_link(op: &Op) -> bool {
    matches!(op, Op::Cast | Op::Slice { .. } | Op::Permute { .. } | Op::Reshape | Op::Concat { .. })
}

fn derive(
    graph: &Graph,
    users: &Users,
    derived: &FxHashMap<Value, Derived>,
    node: Node,
) -> Option<Derived> {
    let data = graph.node(node);
    if !is_link(&data.op) {
        return None;
    }
    let part = |&value: &Value| match graph.def(value) {
        ValueDef::Weight(index) => Some(Derived {
            recipe: graph.weights()[index].recipe.clone(),
            size: 1,
            has_cast: false,
            sole_reader: users.nodes(value).len() == 1 && !users.is_returned(value),
        }),
        _ => {
            let mut inner = derived.get(&value)?.clone();
            inner.sole_reader &= users.nodes(value).len() == 1 && !users.is_returned(value);
            Some(inner)
        }
    };
    let mut parts = data.operands.iter().map(part).collect::<Option<Vec<_>>>()?;
    let has_cast = matches!(data.op, Op::Cast) || parts.iter().any(|p| p.has_cast);
    let sole_reader = parts.iter().all(|p| p.sole_reader);
    let size = parts.iter().fold(1usize, |n, p| n.saturating_add(p.size));
    if size > MAX_RECIPE {
        return None;
    }
    let ty = graph.ty(data.results[0]);
    let recipe = match &data.op {
        Op::Concat { axis } => {
            Recipe::Concat { axis: *axis, parts: parts.into_iter().map(|p| p.recipe).collect() }
        }
        op => {
            let of = Box::new(parts.pop()?.recipe);
            match op {
                Op::Cast => Recipe::Cast { to: ty.dtype, of },
                Op::Permute { perm } => Recipe::Transpose { perm: perm.clone(), of },
                Op::Slice { axis, start } => {
                    let len = ty.shape[*axis].as_constant()?;
                    Recipe::Slice { axis: *axis, start: *start, len, of }
                }
                Op::Reshape => Recipe::Reshape { shape: ty.static_shape()?, of },
                _ => return None,
            }
        }
    };
    Some(Derived { recipe, size, has_cast, sole_reader })
}
