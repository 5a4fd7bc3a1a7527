//! Why the step is cut where it is.

// A new op or dtype must not compile before it is here.
#![warn(clippy::wildcard_enum_match_arm)]

use super::SplitOptions;
use crate::analysis::Names;
use crate::manager::PassReport;
use piecewise_ir::custom::CustomCall;
use piecewise_ir::entity::{Node, PieceId};
use piecewise_ir::module::{Module, Step, Stitch};
use piecewise_ir::op::Op;
use std::cmp::Ordering;

/// What is remarked of a region in a split op's step.
const WITH: &str = "runs with the split op";

/// Remarks on the split ops, on the custom ops that stay in a piece or go before all pieces, and
/// on pieces that begin without a split op before them.
pub(crate) fn explain_steps(
    module: &Module,
    options: &SplitOptions,
    names: &Names,
    report: &mut PassReport,
) {
    let (graph, Some(stitch)) = (module.graph(), module.stitch()) else { return };
    let call =
        |node: Node| if let Op::Custom(call) = &graph.node(node).op { Some(call) } else { None };
    let mut before: Option<PieceId> = None;
    for &step in &stitch.steps {
        let nodes = &stitch.uses[step.id()].nodes;
        let Some(&first) = nodes.first() else { continue };
        match step {
            Step::Prologue(_) => {
                let why = "it depends on inputs alone";
                report.remark("runs before all pieces", names.node(graph, first), why);
            }
            Step::Split(_) => {
                let op = nodes.iter().enumerate().find_map(|(i, &node)| Some((i, call(node)?)));
                let Some((op, call)) = op else { continue };
                for (i, &node) in nodes.iter().enumerate() {
                    let name = &call.name;
                    let (what, why) = match i.cmp(&op) {
                        Ordering::Equal => ("split here", why_split(call, options)),
                        Ordering::Less => {
                            (WITH, format!("`{name}` alone reads it, and may absorb it"))
                        }
                        Ordering::Greater => {
                            (WITH, format!("it alone reads `{name}`, which may absorb it"))
                        }
                    };
                    report.remark(what, names.node(graph, node), why);
                }
            }
            Step::Piece(id) => {
                if let Some(before) = before {
                    let why = format!(
                        "it iterates over {}, what comes before it over {}: a piece iterates \
                         over one symbol",
                        symbol_of(stitch, id),
                        symbol_of(stitch, before)
                    );
                    report.remark("a new piece begins", names.node(graph, first), why);
                }
                for (&node, call) in nodes.iter().filter_map(|n| Some((n, call(*n)?))) {
                    let why = why_not_split(call, options);
                    report.remark("stays in a piece", names.node(graph, node), why);
                }
            }
        }
        before = match step {
            Step::Piece(id) => Some(id),
            Step::Prologue(_) | Step::Split(_) => None,
        };
    }
}

fn symbol_of(stitch: &Stitch, id: PieceId) -> String {
    let piece = &stitch.unique[stitch.uses[id].unique];
    piece.over.map_or("no symbol".to_owned(), |over| piece.graph.symbols()[over].name.clone())
}

fn why_split(call: &CustomCall, options: &SplitOptions) -> String {
    match &options.split_ops {
        Some(_) => format!("the configuration splits at `{}`", call.name),
        None => "its definition says that a step is split there".to_owned(),
    }
}

fn why_not_split(call: &CustomCall, options: &SplitOptions) -> String {
    match &options.split_ops {
        Some(names) if names.is_empty() => "the configuration never splits".to_owned(),
        Some(_) => format!("`{}` is not among the configured split ops", call.name),
        None => {
            "its definition does not split: it can be captured with what is around it".to_owned()
        }
    }
}
