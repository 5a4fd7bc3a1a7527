//! Plans of graphs by a rule of lifetimes, and the codes of what a checker finds in them.

use super::launches::{absorbing, plain};
use piecewise_ir::diagnostic::Diagnostics;
use piecewise_ir::graph::Graph;
use piecewise_ir::module::Module;
use piecewise_passes::check::{check_launches, check_plan};
use piecewise_passes::destination::assign_slots;
use piecewise_passes::manager::PassError;
use piecewise_passes::plan::{PlanOptions, plan_arena};
use piecewise_passes::split::{SplitOptions, split};
use piecewise_testing::lifetimes::assign_node_granular_slots;

pub(crate) fn planned(graph: Graph) -> Module {
    planned_by(graph, |module| assign_slots(module).map(drop))
}

pub(crate) fn planned_by_nodes(graph: Graph) -> Module {
    planned_by(graph, assign_node_granular_slots)
}

fn planned_by(graph: Graph, assign: fn(&mut Module) -> Result<(), PassError>) -> Module {
    let mut module = Module::new(graph);
    split(&mut module, &SplitOptions::default()).expect("splits");
    assign(&mut module).expect("has an order");
    plan_arena(&mut module, &PlanOptions::default()).expect("fits");
    module
}

/// Each once, in their order.
pub(crate) fn codes(result: Result<(), Diagnostics>) -> Vec<&'static str> {
    let mut codes: Vec<_> =
        result.err().into_iter().flat_map(|d| d.items).map(|item| item.code).collect();
    codes.sort_unstable();
    codes.dedup();
    codes
}

/// That lifetimes of one node at a time hold for a graph launched node by node, and are refused where
/// launches absorb: by the checker of launches with one of two codes, and by that of plans.
#[track_caller]
pub(crate) fn node_granular_lifetimes_are_refused(graph: Graph, launches: [&str; 2], plan: &str) {
    let module = planned_by_nodes(graph);
    assert_eq!(check_launches(&module, &plain(&module)), Ok(()), "op by op the plan holds");
    let found = codes(check_launches(&module, &absorbing(&module)));
    assert!(launches.iter().any(|code| found.contains(code)), "{found:?}");
    assert!(codes(check_plan(&module)).contains(&plan), "the plan checker sees it as well");
}
