//! Values that every reader computes for itself.
//!
//! - **Static** values of literals, weights and inputs (a norm weight's cast) are made within the
//!   row program, from the source.
//! - **Constants over rows** (an epsilon, a weight repeated for each row) take no memory.
//! - **Small rows** computed from inputs and weights alone (a row of a rope table, picked by
//!   position) are smaller than what is computed from them: reading them again costs less than
//!   keeping them for all the readers of a step, and readers that are alike stay alike, whereas
//!   one of them would have to be the writer. Rows as large as what is computed from them (an
//!   embedding) are kept.

// A new op or dtype must not compile before it is here.
#![warn(clippy::wildcard_enum_match_arm)]

use super::decisions::Decisions;
use super::rows::{made_rows, operand_mode, row_elements, row_symbol};
use crate::analysis::Users;
use piecewise_ir::entity::{Entity, Node, Symbol, Value};
use piecewise_ir::graph::{Graph, ValueDef};
use piecewise_ir::op::{Op, OpClass};
use piecewise_ir::region::ParamMode;

/// The largest static value that a row program makes for itself, in elements: a row's worth, not
/// a matrix.
const MAX_STATIC_ELEMENTS: u64 = 1 << 16;

/// The most nodes that a recomputed value may take.
const MAX_CONE: u32 = 64;

/// How a value is recomputed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Form {
    /// As it is: it has no rows.
    Static,
    /// One row at a time.
    Row,
}

/// For each value, whether and how its readers recompute it; for each node, its row symbol.
pub(super) struct Recompute {
    forms: Vec<Option<Form>>,
    symbols: Vec<Option<Symbol>>,
    kept: Vec<bool>,
}

/// What it takes to compute a row value from inputs and weights alone.
#[derive(Clone, Copy)]
struct Cone {
    nodes: u32,
    /// The largest row in it, repetitions aside; `None` if it is constant over rows.
    elements: Option<u64>,
}

impl Recompute {
    pub(super) fn of(graph: &Graph, decisions: &mut Decisions<'_>) -> Self {
        let users = Users::of(graph);
        let mut symbols = vec![None; graph.node_count()];
        for node in graph.nodes() {
            symbols[node.index()] = row_symbol(graph, node).ok();
        }
        let statics = static_values(graph);
        let cones = cones(graph, &symbols, &statics);
        let mut this = Self { forms: vec![None; graph.value_count()], symbols, kept: Vec::new() };
        this.kept = vec![false; graph.node_count()];
        for node in graph.nodes().rev() {
            let [value] = *graph.node(node).results.as_slice() else { continue };
            if statics[value.index()].is_some() {
                if decisions.allow("static value made by its readers", graph, node) {
                    this.forms[value.index()] = Some(Form::Static);
                }
            } else if let Some(cone) = cones[value.index()]
                && let Some(kept) = this.kept_if_recomputed(graph, &users, node, value, cone)
                && decisions.allow("rows made by their readers", graph, node)
            {
                this.forms[value.index()] = Some(Form::Row);
                this.kept[node.index()] = kept;
            }
        }
        this
    }

    /// Of a value whose readers should recompute it, whether it is kept in memory beside that.
    fn kept_if_recomputed(
        &self,
        graph: &Graph,
        users: &Users,
        node: Node,
        value: Value,
        cone: Cone,
    ) -> Option<bool> {
        let over = self.symbols[node.index()];
        let in_memory = users.is_returned(value)
            || users.nodes(value).iter().any(|&(user, position)| {
                self.symbols[user.index()] != over
                    || over.is_none_or(|over| {
                        operand_mode(graph, user, position, over) != Some(ParamMode::Row)
                    })
            });
        let Some(elements) = cone.elements else { return Some(in_memory) };
        // A repetition is never worth keeping: its source is no larger than what it feeds.
        let repeats = matches!(graph.node(node).op, Op::Broadcast);
        let small = users.nodes(value).iter().any(|&(user, _)| {
            let data = graph.node(user);
            let computed =
                made_rows(data).iter().map(|&v| row_elements(graph.ty(v))).max().unwrap_or(0);
            let recomputed = data.results.iter().any(|&v| self.form(v).is_some());
            recomputed || computed > elements || (repeats && computed == elements)
        });
        (small && !in_memory).then_some(false)
    }

    /// How the readers of `value` recompute it, if they do.
    pub(super) fn form(&self, value: Value) -> Option<Form> {
        self.forms[value.index()]
    }

    /// The symbol over whose rows `node` may join a group, if it may.
    pub(super) fn groupable(&self, graph: &Graph, node: Node) -> Option<Symbol> {
        let recomputed = graph.node(node).results.iter().any(|&v| self.form(v).is_some());
        if recomputed && !self.kept[node.index()] { None } else { self.symbols[node.index()] }
    }
}

/// For each static value that a row program may make for itself, the nodes that it takes.
fn static_values(graph: &Graph) -> Vec<Option<u32>> {
    let mut cone: Vec<Option<u32>> = vec![None; graph.value_count()];
    let small =
        |value: Value| graph.ty(value).static_elements().is_some_and(|n| n <= MAX_STATIC_ELEMENTS);
    for node in graph.nodes() {
        let data = graph.node(node);
        let allowed = match data.op.class() {
            OpClass::Gather | OpClass::Scatter | OpClass::Search | OpClass::Product { .. } => false,
            OpClass::Region(_) | OpClass::Custom(_) => false,
            OpClass::Elementwise | OpClass::Reduction => small(data.results[0]),
            OpClass::Remap | OpClass::Constant => small(data.results[0]),
        };
        if !allowed {
            continue;
        }
        let operands = data.operands.iter().map(|&v| match graph.def(v) {
            ValueDef::Weight(_) | ValueDef::Input(_) => small(v).then_some(0),
            ValueDef::State(_) => None,
            ValueDef::Result { .. } => cone[v.index()],
        });
        let nodes = operands.collect::<Option<Vec<_>>>().map(total);
        cone[data.results[0].index()] = nodes.filter(|&n| n <= MAX_CONE);
    }
    cone
}

fn total(operands: Vec<u32>) -> u32 {
    operands.into_iter().fold(1, u32::saturating_add)
}

fn cones(graph: &Graph, symbols: &[Option<Symbol>], statics: &[Option<u32>]) -> Vec<Option<Cone>> {
    let mut cones: Vec<Option<Cone>> = vec![None; graph.value_count()];
    for node in graph.nodes() {
        let Some(over) = symbols[node.index()] else { continue };
        let data = graph.node(node);
        if matches!(data.op.class(), OpClass::Scatter | OpClass::Reduction | OpClass::Search) {
            continue;
        }
        let operand = |(position, &value): (usize, &Value)| {
            let mode = operand_mode(graph, node, position, over)?;
            match (mode, graph.def(value)) {
                (ParamMode::Row, ValueDef::Input(_)) => {
                    Some(Cone { nodes: 0, elements: Some(row_elements(graph.ty(value))) })
                }
                (ParamMode::Row, ValueDef::Result { .. }) => cones[value.index()],
                (ParamMode::Whole, ValueDef::Weight(_) | ValueDef::Input(_)) => {
                    Some(Cone { nodes: 0, elements: None })
                }
                (ParamMode::Whole, ValueDef::Result { .. }) if !matches!(data.op, Op::Gather) => {
                    Some(Cone { nodes: statics[value.index()]?, elements: None })
                }
                _ => None,
            }
        };
        let parts = data.operands.iter().enumerate().map(operand).collect::<Option<Vec<_>>>();
        let Some(parts) = parts else { continue };
        let nodes = total(parts.iter().map(|p| p.nodes).collect());
        let result = data.results[0];
        let own = row_elements(graph.ty(result));
        let elements = parts.iter().filter_map(|p| p.elements).max();
        let elements = elements.map(|largest| match (&data.op, data.op.class()) {
            (Op::Broadcast, _) => largest,
            (_, OpClass::Gather) => own,
            (_, OpClass::Elementwise | OpClass::Remap | OpClass::Reduction | OpClass::Search)
            | (_, OpClass::Scatter | OpClass::Product { .. } | OpClass::Constant)
            | (_, OpClass::Region(_) | OpClass::Custom(_)) => largest.max(own),
        });
        if nodes <= MAX_CONE {
            cones[result.index()] = Some(Cone { nodes, elements });
        }
    }
    cones
}
