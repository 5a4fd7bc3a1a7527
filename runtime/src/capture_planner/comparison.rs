//! A plan against the default lists, at equal numbers of graphs and equal maxima.

use serde::Serialize;

use super::costs::StepCosts;
use super::default_lists::Stack;
use super::error::PlannerError;
use super::evaluate::{Outcome, evaluate};
use super::planner::{MAX_GRAPHS, Plan, plan};
use super::request::PlanRequest;
use super::sizes::CaptureSizes;
use super::traffic::Traffic;

/// One stack's default lists and ours.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// Whose rule it is.
    pub stack: Stack,
    /// Its lists, by its rule up to the plan's maxima.
    pub sizes: CaptureSizes,
    /// What they cost.
    pub theirs: Outcome,
    /// The lists that the planner chooses with at most as many graphs.
    pub our_sizes: CaptureSizes,
    /// What those cost.
    pub ours: Outcome,
    /// What the stack's lists cost when they end at its own default cap; what lies above is
    /// launched.
    pub shipped: Outcome,
}

/// Compares with every stack. Budgets and prices of the request are left out: the number of graphs
/// is what is held equal, and so are the maxima. A stack with more graphs than a plan can have is
/// left out.
///
/// # Errors
/// Those of [`plan`] and [`evaluate`].
pub fn compare(
    traffic: &Traffic,
    costs: &StepCosts,
    request: &PlanRequest,
) -> Result<Vec<Comparison>, PlannerError> {
    let query_length = traffic.decode().keys().next_back().copied().unwrap_or(1);
    let (tokens, decode) = (request.token_maximum(traffic), request.decode_maximum(traffic));
    let mut comparisons = Vec::with_capacity(Stack::ALL.len());
    for stack in Stack::ALL {
        let sizes = stack.lists(tokens, decode, query_length);
        let theirs = evaluate(traffic, &sizes, costs, request)?;
        if theirs.graphs == 0 || theirs.graphs > MAX_GRAPHS {
            continue;
        }
        let equal = PlanRequest {
            max_graphs: Some(theirs.graphs),
            multiple_of: 1,
            memory_budget: None,
            capture_budget_ns: None,
            memory_price: 0.0,
            capture_price: 0.0,
            ..request.clone()
        };
        let Plan { sizes: our_sizes, outcome: ours, .. } = match plan(traffic, costs, &equal) {
            Ok(plan) => plan,
            Err(PlannerError::TooManyCandidates { .. }) => continue,
            Err(error) => return Err(error),
        };
        let shipped = stack.shipped_lists(tokens, decode, query_length);
        let shipped = evaluate(traffic, &shipped, costs, request)?;
        comparisons.push(Comparison { stack, sizes, theirs, our_sizes, ours, shipped });
    }
    Ok(comparisons)
}
