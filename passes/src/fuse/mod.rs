//! Region fusion: groups of primitives over the rows of one symbol become row programs.
//!
//! One algorithm finds every region; it knows no model and no composite.
//!
//! 1. `rows` says which nodes have a form on one row: elementwise ops, reductions over inner
//!    axes, index remaps that keep the outer symbol outermost, gathers of rows, scatters.
//! 2. `recompute` says which values every reader computes for itself rather than read from
//!    memory: what is the same for all rows, and rows that are smaller than what is computed
//!    from them.
//! 3. `groups` grows groups: along values first, then across groups that read the same rows.
//!    A group stays convex in data and in the order of effects.
//! 4. `body` writes the row program of each group and puts it in the place of its nodes.
//!
//! Each of these is a decision that a bisection counts: what is not allowed is left apart, in memory,
//! outside regions.

mod apart;
mod body;
mod decisions;
mod groups;
mod recompute;
mod remarks;
mod rows;
mod shared_rows;
mod spans;

use crate::manager::{Pass, PassContext, PassError, PassReport};
use crate::optimize::remove_dead;
use decisions::Decisions;
use groups::Groups;
use piecewise_ir::module::Module;
use recompute::Recompute;

/// Makes regions of everything that has a form on one row.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fuse;

impl Pass for Fuse {
    fn name(&self) -> &'static str {
        "fuse"
    }

    fn run(&self, module: &mut Module, cx: &mut PassContext) -> Result<PassReport, PassError> {
        let mut report = PassReport::default();
        let graph = module.graph_mut();
        let decisions = &mut Decisions::of(graph, &mut cx.rewrites);
        let recompute = Recompute::of(graph, decisions);
        let groups = Groups::grow(graph, &recompute, decisions);
        // What a bisection keeps apart has no reason in the graph.
        if !decisions.are_bounded() {
            remarks::explain(graph, &groups, &recompute, &mut report);
        }
        body::emit(graph, &groups, &recompute, decisions, &mut report);
        remove_dead(graph);
        Ok(report)
    }
}
