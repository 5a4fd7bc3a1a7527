//! Dependences between nodes by position in program order: of data and of effects.

use super::error::SplitError;
use crate::analysis::Names;
use piecewise_ir::entity::{Entity, Node, Value};
use piecewise_ir::graph::{Graph, ValueDef};

/// The nodes of a graph in program order with what each must come after. A node that mutates a
/// state comes after every earlier node that mutates any state, and after the readers of its own;
/// a reader of a state comes after what mutated it before.
#[derive(Debug)]
pub(super) struct Dependence {
    nodes: Vec<Node>,
    preds: Vec<Vec<usize>>,
    succs: Vec<Vec<usize>>,
    readers: Vec<Vec<usize>>,
    returned: Vec<bool>,
}

#[derive(Clone, Default)]
struct StateUse {
    last_write: Option<usize>,
    reads_since: Vec<usize>,
}

impl Dependence {
    /// The dependences of `graph`.
    pub(super) fn of(graph: &Graph) -> Result<Self, SplitError> {
        let nodes: Vec<Node> = graph.nodes().collect();
        let mut preds = vec![Vec::new(); nodes.len()];
        let mut readers = vec![Vec::new(); nodes.len()];
        let mut defined: Vec<Option<usize>> = vec![None; graph.value_count()];
        let mut states = vec![StateUse::default(); graph.value_count()];
        let mut last_effect = None;
        for (at, &node) in nodes.iter().enumerate() {
            let data = graph.node(node);
            let mutated = data.op.mutated_operands();
            for (position, &operand) in data.operands.iter().enumerate() {
                if !graph.has_value(operand) {
                    return Err(undefined_operand(graph, node, position));
                }
                match graph.def(operand) {
                    ValueDef::Result { .. } => {
                        let Some(writer) = defined[operand.index()] else {
                            return Err(undefined_operand(graph, node, position));
                        };
                        preds[at].push(writer);
                        readers[writer].push(at);
                    }
                    ValueDef::State(_) => {
                        let state = &mut states[operand.index()];
                        preds[at].extend(state.last_write.filter(|&write| write != at));
                        if mutated.contains(&position) {
                            preds[at].extend(state.reads_since.drain(..).filter(|&r| r != at));
                            state.last_write = Some(at);
                        } else {
                            state.reads_since.push(at);
                        }
                    }
                    ValueDef::Input(_) | ValueDef::Weight(_) => {}
                }
            }
            if data.op.has_effect() {
                preds[at].extend(last_effect.replace(at));
            }
            for result in &data.results {
                defined[result.index()] = Some(at);
            }
        }
        let returned = returned(graph, nodes.len(), &defined)?;
        for list in preds.iter_mut().chain(&mut readers) {
            list.sort_unstable();
            list.dedup();
        }
        let mut succs = vec![Vec::new(); nodes.len()];
        for (at, list) in preds.iter().enumerate() {
            list.iter().for_each(|&pred| succs[pred].push(at));
        }
        Ok(Self { nodes, preds, succs, readers, returned })
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The node at a position.
    pub(super) fn node(&self, at: usize) -> Node {
        self.nodes[at]
    }

    /// What the node at `at` comes right after, ascending.
    pub(super) fn preds(&self, at: usize) -> &[usize] {
        &self.preds[at]
    }

    /// What comes right after the node at `at`, ascending.
    pub(super) fn succs(&self, at: usize) -> &[usize] {
        &self.succs[at]
    }

    /// The nodes that read a result of the node at `at`, ascending.
    pub(super) fn readers(&self, at: usize) -> &[usize] {
        &self.readers[at]
    }

    /// Whether the graph returns a result of the node at `at`.
    pub(super) fn is_returned(&self, at: usize) -> bool {
        self.returned[at]
    }

    /// Marks everything that a marked node comes after.
    pub(super) fn close_backward(&self, marked: &mut [bool]) {
        for at in (0..self.len()).rev() {
            if marked[at] {
                self.preds[at].iter().for_each(|&pred| marked[pred] = true);
            }
        }
    }

    /// Marks everything that comes after a marked node.
    pub(super) fn close_forward(&self, marked: &mut [bool]) {
        for at in 0..self.len() {
            if marked[at] {
                self.succs[at].iter().for_each(|&succ| marked[succ] = true);
            }
        }
    }
}

fn returned(
    graph: &Graph,
    nodes: usize,
    defined: &[Option<usize>],
) -> Result<Vec<bool>, SplitError> {
    let mut returned = vec![false; nodes];
    for (position, &output) in graph.outputs().iter().enumerate() {
        if !graph.has_value(output) {
            return Err(SplitError::UndefinedOutput { position });
        }
        if matches!(graph.def(output), ValueDef::Result { .. }) {
            let writer = defined[output.index()];
            returned[writer.ok_or(SplitError::UndefinedOutput { position })?] = true;
        }
    }
    Ok(returned)
}

fn undefined_operand(graph: &Graph, node: Node, position: usize) -> SplitError {
    SplitError::UseBeforeDefinition { reader: Names::of(graph).node(graph, node), position }
}

/// The bytes at the bounds of those results of `node` that `is_read` accepts; saturating.
pub(super) fn result_bytes(graph: &Graph, node: Node, is_read: impl Fn(Value) -> bool) -> u64 {
    let results = graph.node(node).results.iter().filter(|&&v| is_read(v));
    results.fold(0, |sum, &v| sum.saturating_add(graph.ty(v).max_bytes(graph.symbols())))
}
