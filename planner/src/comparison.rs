//! A plan against the default lists, at equal numbers of graphs and equal maxima.

use serde::Serialize;

use crate::capture_sizes::{CaptureSizes, ListKind};
use crate::default_lists::Stack;
use crate::error::PlannerError;
use crate::evaluate::{Outcome, evaluate};
use crate::planner::plans_of_counts;
use crate::request::{Objective, PlanRequest, Question};

/// One stack's default lists and ours.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// Who ships the rule that the lists follow.
    pub stack: Stack,
    /// Its lists, by its rule up to the plan's maxima.
    pub sizes: CaptureSizes,
    /// The cost of its lists on the log.
    pub theirs: Outcome,
    /// The lists that the planner chooses with at most as many graphs.
    pub our_sizes: CaptureSizes,
    /// The cost of our lists on the same log.
    pub ours: Outcome,
    /// The fewest graphs with which the planner is as good as the stack's lists.
    pub graphs_to_match: Option<usize>,
    /// What the stack's lists cost when they end at its own default cap; what lies above is
    /// launched.
    pub shipped: Outcome,
}

/// Compares with every stack. Budgets and prices of the request are left out: the number of graphs
/// is what is held equal, and so are the maxima. A stack with more graphs than can be planned for is
/// left out.
///
/// # Errors
/// Those of [`plan`](crate::plan) and [`evaluate`].
pub fn compare(question: Question<'_>) -> Result<Vec<Comparison>, PlannerError> {
    let Question { traffic, request, .. } = question;
    let query_length = traffic.decode().keys().next_back().copied().unwrap_or(1);
    let [tokens, decode] = ListKind::ALL.map(|list| request.maximum(list, traffic));
    let unlimited = PlanRequest {
        max_graphs: None,
        multiple_of: 1,
        memory_budget: None,
        capture_budget_ns: None,
        memory_price: 0.0,
        capture_price: 0.0,
        ..request.clone()
    };
    let mut defaults = Vec::with_capacity(Stack::ALL.len());
    for stack in Stack::ALL {
        let sizes = stack.lists(tokens, decode, query_length);
        let theirs = evaluate(question, &sizes)?;
        if theirs.graphs > 0 {
            defaults.push((stack, sizes, theirs));
        }
    }
    let counts: Vec<usize> = defaults.iter().map(|(_, _, theirs)| theirs.graphs).collect();
    let (plans, curve) = plans_of_counts(Question { request: &unlimited, ..question }, &counts)?;
    let mut comparisons = Vec::with_capacity(defaults.len());
    for ((stack, sizes, theirs), our_sizes) in defaults.into_iter().zip(plans) {
        let Some(our_sizes) = our_sizes else { continue };
        let ours = evaluate(question, &our_sizes)?;
        let target = match request.objective {
            Objective::Time => theirs.expected_ns.map(|ns| ns as f64 / 1e3),
            Objective::Padding => Some(theirs.padding_tokens as f64),
        };
        let matching = curve.iter().find(|point| target.is_some_and(|cost| point.cost <= cost));
        let graphs_to_match = matching.map(|point| point.graphs);
        let shipped = stack.shipped_lists(tokens, decode, query_length);
        let shipped = evaluate(question, &shipped)?;
        comparisons.push(Comparison {
            stack,
            sizes,
            theirs,
            our_sizes,
            ours,
            graphs_to_match,
            shipped,
        });
    }
    Ok(comparisons)
}
