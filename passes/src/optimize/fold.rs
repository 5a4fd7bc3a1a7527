//! Folding: what no step can change is computed before the first step.

mod constants;
mod weights;

use super::dce::remove_dead;
use crate::analysis::Names;
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
        let names = Names::of(graph);
        constants::fold_literals(graph, &mut report);
        constants::fold_tables(graph, &names, &mut report);
        weights::fold(graph, &names, &mut report);
        remove_dead(graph);
        Ok(report)
    }
}
