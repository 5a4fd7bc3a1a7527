//! Folding: what no step can change is computed before the first step.

mod constants;
mod weights;

use super::dce::remove_dead;
use crate::manager::{Pass, PassContext, PassError, PassReport};
use piecewise_ir::module::Module;

/// Computes constant expressions, and makes derived weights of what depends on weights alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fold;

impl Pass for Fold {
    fn name(&self) -> &'static str {
        "fold"
    }

    fn run(&self, module: &mut Module, _: &mut PassContext) -> Result<PassReport, PassError> {
        let mut report = PassReport::default();
        let graph = module.graph_mut();
        constants::fold_literals(graph, &mut report);
        constants::fold_tables(graph, &mut report);
        weights::fold(graph, &mut report);
        remove_dead(graph);
        Ok(report)
    }
}
