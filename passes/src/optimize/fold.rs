//! Folding: what no step can change is computed before the first step.

mod constants;
mod weights;

use super::CANONICAL;
use super::dce::remove_dead;
use crate::analysis::Names;
use crate::manager::{Pass, PassContext, PassError, PassReport};
use crate::rewrite::rewrite;
use piecewise_ir::module::Module;

/// Computes constant expressions, and makes derived weights of what depends on weights alone. What is
/// known then can make more canonical, and that more known: it goes on until nothing changes, so that
/// `x * exp(0)` becomes `x`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fold;

impl Pass for Fold {
    fn name(&self) -> &'static str {
        "fold"
    }

    fn run(&self, module: &mut Module, cx: &mut PassContext) -> Result<PassReport, PassError> {
        let mut report = PassReport::default();
        let graph = module.graph_mut();
        let names = Names::of(graph);
        loop {
            let before = report.total();
            // Those of the last round tell what is left.
            report.remarks.clear();
            constants::fold_literals(graph, &names, &mut cx.rewrites, &mut report);
            constants::fold_tables(graph, &names, &mut cx.rewrites, &mut report);
            weights::fold(graph, &names, &mut cx.rewrites, &mut report);
            remove_dead(graph);
            if report.total() == before {
                return Ok(report);
            }
            rewrite(graph, &CANONICAL, cx, &mut report)?;
        }
    }
}
