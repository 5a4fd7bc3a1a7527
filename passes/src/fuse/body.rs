//! The row program of a group, put in the place of its nodes.

use super::decisions::Decisions;
use super::groups::Groups;
use super::recompute::{Form, Recompute};
use super::rows::{operand_mode, push_row_form};
use crate::manager::PassReport;
use crate::optimize::remove_dead;
use piecewise_ir::entity::{Entity, Node, Symbol, Value};
use piecewise_ir::graph::{Graph, Loc};
use piecewise_ir::op::Op;
use piecewise_ir::region::{ParamMode, Region};
use piecewise_ir::types::TensorType;
use rustc_hash::{FxHashMap, FxHashSet};

/// Replaces every group with a region. Groups that are views stay as they are, and those that a
/// bisection refuses, with all that they would have recomputed.
pub(super) fn emit(
    graph: &mut Graph,
    groups: &Groups,
    recompute: &Recompute,
    decisions: &mut Decisions<'_>,
    report: &mut PassReport,
) {
    let mut parts = Vec::new();
    let mut placed = FxHashSet::default();
    for group in groups.order(graph, recompute) {
        let members: Vec<Node> = groups.members(group).collect();
        let wanted = groups.over(group).filter(|_| !groups.is_view(graph, recompute, group));
        match wanted.filter(|_| decisions.allow("region", graph, members[0])) {
            None if wanted.is_some() => {
                let mut nodes = Vec::new();
                for node in members {
                    push_with_recomputed(graph, groups, recompute, node, &mut placed, &mut nodes);
                }
                parts.push(Part::Plain(nodes));
            }
            None => parts.push(Part::Plain(members)),
            Some(over) => {
                report.count("region");
                report.count_many("fused node", members.len());
                let program = Builder::new(graph, recompute, over).build(&members);
                let loc = common_loc(graph, &members);
                parts.push(Part::Region(Box::new((over, program, loc))));
            }
        }
    }
    let mut read = vec![false; graph.value_count()];
    graph.outputs().iter().for_each(|v| read[v.index()] = true);
    for part in &parts {
        match part {
            Part::Plain(nodes) => {
                let operands = nodes.iter().flat_map(|&n| &graph.node(n).operands);
                operands.for_each(|v| read[v.index()] = true);
            }
            Part::Region(region) => {
                let program = &region.1;
                program.operands.iter().for_each(|v| read[v.index()] = true);
            }
        }
    }
    let mut order = Vec::new();
    let mut renamed: FxHashMap<Value, Value> = FxHashMap::default();
    for part in parts {
        let (over, program, loc) = match part {
            Part::Plain(nodes) => {
                order.extend(nodes);
                continue;
            }
            Part::Region(region) => *region,
        };
        let Program { mut body, operands, modes, mut rows } = program;
        rows.retain(|(value, _)| read[value.index()]);
        body.set_outputs(rows.iter().map(|&(_, row)| row).collect());
        remove_dead(&mut body);
        body.compact();
        let types = rows.iter().map(|&(value, _)| graph.ty(value).clone()).collect();
        let op = Op::Region(Box::new(Region { over, params: modes, body }));
        let node = graph.push_node(op, operands, types, loc);
        let results = graph.node(node).results.clone();
        renamed.extend(rows.into_iter().map(|(value, _)| value).zip(results));
        order.push(node);
    }
    let now = |value: Value| renamed.get(&value).copied().unwrap_or(value);
    for &node in &order {
        for operand in &mut graph.node_mut(node).operands {
            *operand = now(*operand);
        }
    }
    let outputs = graph.outputs().iter().map(|&v| now(v)).collect();
    graph.set_order(order);
    graph.set_outputs(outputs);
}

/// A node, behind those that only its region would have made.
fn push_with_recomputed(
    graph: &Graph,
    groups: &Groups,
    recompute: &Recompute,
    node: Node,
    placed: &mut FxHashSet<Node>,
    nodes: &mut Vec<Node>,
) {
    for &value in &graph.node(node).operands {
        if let (Some(def), Some(Form::Row)) = (graph.defining_node(value), recompute.form(value))
            && groups.over(groups.group(def)).is_none()
            && placed.insert(def)
        {
            push_with_recomputed(graph, groups, recompute, def, placed, nodes);
        }
    }
    nodes.push(node);
}

/// What stands in the new program order.
enum Part {
    /// Nodes that stay as they are.
    Plain(Vec<Node>),
    /// A region over the rows of a symbol.
    Region(Box<(Symbol, Program, Loc)>),
}

/// The scope that all of `nodes` were written in, and the first source line.
fn common_loc(graph: &Graph, nodes: &[Node]) -> Loc {
    let first = &graph.node(nodes[0]).loc;
    let mut scope: Vec<&str> = first.scope.split('.').collect();
    for &node in &nodes[1..] {
        let other = graph.node(node).loc.scope.split('.');
        let common = scope.iter().zip(other).take_while(|(a, b)| **a == *b).count();
        scope.truncate(common);
    }
    Loc { scope: scope.join("."), source: first.source.clone() }
}

/// A row program with what it is applied to.
struct Program {
    body: Graph,
    operands: Vec<Value>,
    modes: Vec<ParamMode>,
    /// Each value of the graph around it that it computes, with its row.
    rows: Vec<(Value, Value)>,
}

struct Builder<'g> {
    graph: &'g Graph,
    recompute: &'g Recompute,
    over: Symbol,
    body: Graph,
    operands: Vec<Value>,
    modes: Vec<ParamMode>,
    /// For a value of the graph: as the body sees it in each mode.
    inside: FxHashMap<(Value, ParamMode), Value>,
}

impl<'g> Builder<'g> {
    fn new(graph: &'g Graph, recompute: &'g Recompute, over: Symbol) -> Self {
        Self {
            graph,
            recompute,
            over,
            body: Graph::with_symbols_of("", graph),
            operands: Vec::new(),
            modes: Vec::new(),
            inside: FxHashMap::default(),
        }
    }

    fn build(mut self, members: &[Node]) -> Program {
        let mut rows = Vec::new();
        for &node in members {
            let pushed = self.push(node);
            rows.extend(self.graph.node(node).results.iter().copied().zip(pushed));
        }
        Program { body: self.body, operands: self.operands, modes: self.modes, rows }
    }

    /// Appends the row form of `node` once, with all it takes.
    fn push(&mut self, node: Node) -> Vec<Value> {
        let operands = self.graph.node(node).operands.clone();
        let seen: Vec<Value> = operands
            .into_iter()
            .enumerate()
            .map(|(position, value)| self.operand(node, position, value))
            .collect();
        let rows = push_row_form(&mut self.body, self.graph, node, seen);
        for (&value, &row) in self.graph.node(node).results.iter().zip(&rows) {
            self.inside.insert((value, ParamMode::Row), row);
        }
        rows
    }

    fn operand(&mut self, node: Node, position: usize, value: Value) -> Value {
        let mode = operand_mode(self.graph, node, position, self.over).unwrap_or(ParamMode::Whole);
        if let Some(&inside) = self.inside.get(&(value, mode)) {
            return inside;
        }
        let table = matches!(self.graph.node(node).op, Op::Gather) && position == 0;
        match (self.graph.defining_node(value), self.recompute.form(value)) {
            (Some(def), Some(Form::Row)) if mode == ParamMode::Row => self.push(def)[0],
            (Some(def), Some(Form::Static)) if !table => self.push_static(def),
            _ => self.param(value, mode),
        }
    }

    /// Appends a static node as it is, with all it takes.
    fn push_static(&mut self, node: Node) -> Value {
        let data = self.graph.node(node);
        let result = data.results[0];
        if let Some(&inside) = self.inside.get(&(result, ParamMode::Whole)) {
            return inside;
        }
        let operands = data
            .operands
            .iter()
            .map(|&value| match self.graph.defining_node(value) {
                Some(def) => self.push_static(def),
                None => self.param(value, ParamMode::Whole),
            })
            .collect();
        let ty = self.graph.ty(result).clone();
        let inside = self.body.push(data.op.clone(), operands, ty, data.loc.clone());
        self.inside.insert((result, ParamMode::Whole), inside);
        inside
    }

    fn param(&mut self, value: Value, mode: ParamMode) -> Value {
        if let Some(&inside) = self.inside.get(&(value, mode)) {
            return inside;
        }
        let ty: &TensorType = self.graph.ty(value);
        let ty = if mode == ParamMode::Row { ty.row() } else { ty.clone() };
        let inside = self.body.add_input(format!("p{}", self.modes.len()), ty, None, None);
        self.operands.push(value);
        self.modes.push(mode);
        self.inside.insert((value, mode), inside);
        inside
    }
}
