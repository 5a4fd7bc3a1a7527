//! Unique pieces: members of the step that are equal up to the names of values, weights and
//! states are compiled, tuned and cached once.
//!
//! What makes two members equal is [`piecewise_ir::text::canonical_piece`]: types, ops,
//! attributes, the structure of recipes, and which operands are one state or one checkpoint
//! tensor. Within a module they must also iterate over the same symbols, because all unique
//! pieces share its symbols.

mod canonical;

use crate::analysis::Names;
use canonical::PieceBuilder;
use indexmap::IndexMap;
use piecewise_ir::entity::{Entity, Node, PieceId, Symbol, UniquePieceId};
use piecewise_ir::graph::{Graph, ValueDef};
use piecewise_ir::module::{PieceUse, Step, Stitch, UniquePiece};
use piecewise_ir::text::canonical_piece;

/// A member of the step before it is known which of them are equal.
#[derive(Clone, Debug)]
pub struct Member {
    /// What it is in the step: captured, or run between pieces.
    pub step: fn(PieceId) -> Step,
    /// The symbol whose rows it iterates over.
    pub over: Option<Symbol>,
    /// Its nodes in program order.
    pub nodes: Vec<Node>,
}

/// Why unique pieces could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "a field is what the message calls it")]
pub enum DedupeError {
    /// A node mutates something that is no state.
    #[error("{node} mutates operand {position}, which is not a state; write into a declared state")]
    MutatesNoState {
        /// The node, as a remark on the graph names it.
        node: String,
        position: usize,
    },
}

/// The stitch of `members`, which hold every node of `graph` once, in the order of the step.
///
/// # Errors
/// When a node mutates something that is no state.
pub fn stitch(graph: &Graph, members: Vec<Member>) -> Result<Stitch, DedupeError> {
    let read_outside = values_read_outside(graph, &members);
    let mut stitch = Stitch::default();
    // Within a module, pieces of one text are told apart by their symbols.
    let mut known: IndexMap<([u8; 32], Vec<Symbol>), UniquePieceId> = IndexMap::new();
    for member in members {
        check_mutations(graph, &member)?;
        let (piece, operands) = PieceBuilder::new(graph).build(&member.nodes, &read_outside);
        let text = canonical_piece(&piece, member.over);
        let hash = *blake3::hash(text.as_bytes()).as_bytes();
        let identity = (hash, symbols_in_order(&piece, member.over));
        let unique = *known.entry(identity).or_insert_with(|| {
            stitch.unique.push(UniquePiece { over: member.over, graph: piece, hash })
        });
        let id: PieceId = stitch.uses.push(PieceUse { unique, nodes: member.nodes, operands });
        stitch.steps.push((member.step)(id));
    }
    Ok(stitch)
}

/// By value: whether another member than the one that defines it reads it, or the graph returns
/// it.
fn values_read_outside(graph: &Graph, members: &[Member]) -> Vec<bool> {
    let mut member_of = vec![None; graph.value_count()];
    for (m, member) in members.iter().enumerate() {
        for &result in member.nodes.iter().flat_map(|&n| &graph.node(n).results) {
            member_of[result.index()] = Some(m);
        }
    }
    let mut outside = vec![false; graph.value_count()];
    for (m, member) in members.iter().enumerate() {
        for &operand in member.nodes.iter().flat_map(|&n| &graph.node(n).operands) {
            outside[operand.index()] |= member_of[operand.index()] != Some(m);
        }
    }
    graph.outputs().iter().for_each(|v| outside[v.index()] = true);
    outside
}

fn check_mutations(graph: &Graph, member: &Member) -> Result<(), DedupeError> {
    for &node in &member.nodes {
        let data = graph.node(node);
        for position in data.op.mutated_operands() {
            let state = data.operands.get(position).map(|&v| graph.def(v));
            if !matches!(state, Some(ValueDef::State(_))) {
                let node = Names::of(graph).node(graph, node);
                return Err(DedupeError::MutatesNoState { node, position });
            }
        }
    }
    Ok(())
}

/// The symbols of a piece by first use.
fn symbols_in_order(piece: &Graph, over: Option<Symbol>) -> Vec<Symbol> {
    let mut symbols: Vec<Symbol> = over.into_iter().collect();
    let mut see = |symbol: Symbol| {
        if !symbols.contains(&symbol) {
            symbols.push(symbol);
        }
    };
    let declared = piece.inputs().iter().map(|i| i.value);
    let states = piece.states().iter().map(|s| s.value);
    let results = piece.nodes().flat_map(|n| piece.node(n).results.iter().copied());
    for value in declared.chain(states).chain(results) {
        for dim in &piece.ty(value).shape {
            dim.terms().iter().for_each(|&(symbol, _)| see(symbol));
        }
    }
    symbols
}
