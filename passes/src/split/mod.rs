//! The splitter: cuts the graph at the split ops into capturable pieces, and finds which of them
//! are the same.
//!
//! A piece holds the nodes between two split ops that iterate over one symbol; where the symbol
//! changes (at the gather of the rows that want logits) a new piece begins. Pure nodes move over
//! a split op when fewer bytes then cross it, consecutive split ops share a cut, and what has no
//! kernel joins a neighbour. A region that makes nothing but what a split op may absorb, or that alone
//! reads what it makes, runs with it, so that the pieces beside it are what they are whatever its
//! kernels take in. The order of the members keeps the order of data and of effects.

// A new op or dtype must not compile before it is here.
#![warn(clippy::wildcard_enum_match_arm)]

mod classify;
mod cut;
mod dependence;
mod error;
mod members;
mod remarks;

use crate::dedupe::{self, Member};
use classify::NodeRole;
use dependence::Dependence;
use piecewise_ir::entity::Node;
use piecewise_ir::graph::Graph;
use piecewise_ir::module::{Module, Step};
use piecewise_ir::op::Op;
use std::collections::BTreeSet;

pub use classify::iteration_symbol;
pub use error::SplitError;
pub(crate) use remarks::explain_steps;

/// At which ops the splitter cuts.
#[derive(Clone, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct SplitOptions {
    /// Names of the custom ops to cut at. `None`: every op whose call says that it splits. Empty:
    /// never.
    pub split_ops: Option<Vec<String>>,
}

/// What a split consists of, and which nodes were moved for it.
#[derive(Clone, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct SplitReport {
    /// Pieces that a step runs, equal ones counted each time.
    pub pieces: usize,
    /// The number of unique pieces, split ops and prologue ops left out.
    pub unique_pieces: usize,
    /// The number of split ops.
    pub split_ops: usize,
    /// The number of ops that run at the start of the step, before the first piece.
    pub prologue_ops: usize,
    /// Nodes that moved over a split op, because fewer bytes then cross it.
    pub moved: Vec<Node>,
    /// Index remaps and literals that joined a neighbouring piece, because alone they were a
    /// piece without a kernel.
    pub joined: Vec<Node>,
    /// Bytes over the split ops in program order, summed over split ops, at the bounds.
    pub boundary_bytes_before: u64,
    /// The same in the order that the split has, after nodes were moved.
    pub boundary_bytes: u64,
    /// Configured names that no custom op of the graph has.
    pub unmatched: Vec<String>,
}

/// Splits the module's graph into pieces, split ops and prologue ops, and finds the unique ones.
/// Slots and offsets are dropped.
///
/// # Errors
/// When the graph's program order is broken; the module is then unchanged.
pub fn split(module: &mut Module, options: &SplitOptions) -> Result<SplitReport, SplitError> {
    let graph = module.graph();
    let dependence = Dependence::of(graph)?;
    let roles = classify::roles(graph, &dependence, options.split_ops.as_deref());
    let program = cut::program_order(&dependence, &roles);
    let cheapest = cut::cheapest(graph, &dependence, &roles, &program);
    let baseline = members::arrange(graph, &dependence, &roles, &program);
    let moved = members::arrange(graph, &dependence, &roles, &cheapest);
    let more_pieces = moved.piece_count() > baseline.piece_count();
    let (segments, arranged) = if more_pieces { (&program, baseline) } else { (&cheapest, moved) };

    let bytes = |segments: &[usize]| cut::boundary_bytes(graph, &dependence, &roles, segments);
    let mut report = SplitReport {
        pieces: arranged.piece_count(),
        split_ops: roles.iter().filter(|r| **r == NodeRole::Split).count(),
        prologue_ops: roles.iter().filter(|r| **r == NodeRole::Prologue).count(),
        moved: differing(&dependence, &program, segments),
        joined: arranged.joined.iter().map(|&i| dependence.node(i)).collect(),
        boundary_bytes_before: bytes(&program),
        boundary_bytes: bytes(segments),
        unmatched: unmatched_names(graph, options),
        ..SplitReport::default()
    };

    let roles = &roles;
    let in_order = |role| (0..roles.len()).filter(move |&i| roles[i] == role);
    let is_op = |at: &&usize| !matches!(roles[**at], NodeRole::Absorbed(_));
    let symbol = |&op: &usize| iteration_symbol(graph, dependence.node(op));
    let of_op = |nodes: &[usize], step| Member {
        step,
        over: nodes.iter().find(is_op).and_then(symbol),
        nodes: nodes.iter().map(|&i| dependence.node(i)).collect(),
    };
    let prologue = in_order(NodeRole::Prologue).map(|i| of_op(&[i], Step::Prologue));
    let rest = arranged.members.iter().map(|member| match member {
        members::Group::Piece { over, nodes } => Member {
            step: Step::Piece,
            over: *over,
            nodes: nodes.iter().map(|&i| dependence.node(i)).collect(),
        },
        members::Group::Split(nodes) => of_op(nodes, Step::Split),
    });
    let stitch = dedupe::stitch(graph, prologue.chain(rest).collect())?;
    report.unique_pieces = stitch.unique_pieces().len();
    module.set_stitch(stitch);
    Ok(report)
}

fn differing(dependence: &Dependence, before: &[usize], after: &[usize]) -> Vec<Node> {
    let indices = (0..before.len()).filter(|&i| before[i] != after[i]);
    indices.map(|i| dependence.node(i)).collect()
}

fn unmatched_names(graph: &Graph, options: &SplitOptions) -> Vec<String> {
    let name =
        |n| if let Op::Custom(call) = &graph.node(n).op { Some(call.name.as_str()) } else { None };
    let names: BTreeSet<&str> = graph.nodes().filter_map(name).collect();
    let configured = options.split_ops.iter().flatten();
    configured.filter(|name| !names.contains(name.as_str())).cloned().collect()
}
