//! From traffic, costs and a request to a plan.

use serde::Serialize;

use crate::axis::{Axis, unit};
use crate::budgeted::{Budgeted, BudgetedPlan, UNLIMITED};
use crate::capture_sizes::{CaptureSizes, ListKind};
use crate::dynamic_program::{INFEASIBLE, Keep, Potentials, chain, walk};
use crate::error::PlannerError;
use crate::evaluate::{Outcome, evaluate};
use crate::mode::GraphMode;
use crate::problem::Problem;
use crate::request::{Objective, PlanRequest, Question};
use crate::tradeoff::{CurvePoint, knee};

/// Graphs up to which the trade-off curve is computed when no maximum is given.
pub const DEFAULT_CURVE_GRAPHS: usize = 64;

/// Entries of the table of the dynamic program, to bound its memory.
const MAX_TABLE: usize = 1 << 27;

/// What a plan says that its lists do not.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "warning")]
#[non_exhaustive]
pub enum PlanWarning {
    /// No mixed step in the log, so that no token size was chosen.
    NoMixedSteps,
    /// No uniform decode in the log, so that no decode size was chosen.
    NoDecodes,
    /// Too few graphs for lists of both kinds: decodes replay token sizes.
    DecodesShareTokenSizes,
    /// Mixed steps have more sequences than the largest decode size, which bounds rows and
    /// sequences of every step.
    MoreSequencesThanDecodeSizes {
        /// The most sequences in one step of the log.
        most_sequences: u32,
        /// The largest decode size of the plan.
        largest: u32,
    },
    /// Nobody said how large a step may be, so that a list ends at the largest one in the log; larger
    /// ones would be launched.
    NoBound {
        /// The list that ends there.
        list: ListKind,
        /// `max_num_tokens` or `max_num_seqs`: what to give.
        bound_key: &'static str,
        /// Where it ends.
        largest: u32,
    },
    /// A list ends below the largest step that there may be; those above are launched.
    EndsBelowBound {
        /// The list that ends there.
        list: ListKind,
        /// `max_num_tokens` or `max_num_seqs`.
        bound_key: &'static str,
        /// Where it ends; 0 where it is empty.
        largest: u32,
        /// Where steps may end, by the key or, where that is not given, by the log.
        bound: u32,
    },
    /// The search within the budgets hit its limit of work: the plan is at most this share above
    /// the best one.
    NotProvenOptimal {
        /// The share, from 0 to 1.
        at_most_above: f64,
    },
}

/// The lists that cost least, and what others would cost.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The sizes to capture, in tokens and in decode batches.
    pub sizes: CaptureSizes,
    /// What they cost on the log.
    pub outcome: Outcome,
    /// The cheapest plans of every number of graphs, without regard to budgets; empty when one
    /// list had to serve both kinds of step.
    pub curve: Vec<CurvePoint>,
    /// The number of graphs at the knee of the curve.
    pub knee_graphs: usize,
    /// What the lists do not show, such as a kind of step that the log lacks.
    pub warnings: Vec<PlanWarning>,
}

/// Chooses the lists.
///
/// Exact: no other lists within the constraints cost less, unless a
/// [`PlanWarning::NotProvenOptimal`] says how far the search within budgets came. Time
/// O(K N log N) and memory O(K N) for N distinct counts and K graphs.
///
/// # Errors
/// Those of [`PlanRequest::validate`], of missing or gappy costs, and
/// [`PlannerError::BudgetTooSmall`].
pub fn plan(question: Question<'_>) -> Result<Plan, PlannerError> {
    let Question { traffic, request, .. } = question;
    request.validate(traffic)?;
    let problem = Problem::new(question)?;
    if let Some(given) = request.max_graphs.filter(|given| *given < problem.least_graphs()) {
        return plan_shared(question, given, problem.least_graphs());
    }
    let (curve, curve_costs, tables) = curve(&problem, request)?;
    let knee_index = knee(&curve_costs);
    let knee_graphs = curve.get(knee_index).map_or(0, |point| point.graphs);
    let budgeted = request.budgets() != [None; 2];
    let priced = request.prices() != [0.0; 2];
    let graphs = match request.max_graphs {
        None if !(budgeted || priced) => knee_graphs,
        given => given
            .unwrap_or(DEFAULT_CURVE_GRAPHS)
            .min(problem.most_graphs())
            .max(problem.least_graphs()),
    };
    let mut warnings = Vec::new();
    let nodes = if budgeted {
        let found = within_budgets(&problem, request, graphs)?;
        if found.at_least < found.cost {
            let best = found.at_least.max(1) as f64;
            warnings.push(PlanWarning::NotProvenOptimal {
                at_most_above: (found.cost - found.at_least) as f64 / best,
            });
        }
        found.nodes
    } else {
        walk(&tables, fewest_for(&curve_costs, &curve, graphs))
    };
    let sizes = problem.sizes(&nodes);
    let outcome = evaluate(question, &sizes)?;
    let mode = request.graph_mode;
    if mode.has_token_graphs() && request.maximum(ListKind::Tokens, traffic) == 0 {
        warnings.push(PlanWarning::NoMixedSteps);
    }
    if mode.has_decode_graphs() && traffic.decode().is_empty() {
        warnings.push(PlanWarning::NoDecodes);
    }
    if let Some(&largest) = sizes.decode_batch_sizes.last()
        && traffic.most_sequences > largest
    {
        let most_sequences = traffic.most_sequences;
        warnings.push(PlanWarning::MoreSequencesThanDecodeSizes { most_sequences, largest });
    }
    warnings
        .extend(ListKind::ALL.into_iter().filter_map(|list| ends_early(list, &sizes, question)));
    Ok(Plan { sizes, outcome, curve, knee_graphs, warnings })
}

/// Whether steps may come that a list does not hold.
fn ends_early(
    list: ListKind,
    sizes: &CaptureSizes,
    Question { traffic, request, .. }: Question<'_>,
) -> Option<PlanWarning> {
    let (bound_key, given) = match list {
        ListKind::Tokens => ("max_num_tokens", request.max_num_tokens),
        ListKind::Decode => ("max_num_seqs", request.max_num_seqs),
    };
    let largest = sizes.list(list).last().copied().unwrap_or(0);
    match request.maximum(list, traffic) {
        // Of what the traffic does not have there are other warnings.
        0 => None,
        bound if largest < bound => {
            Some(PlanWarning::EndsBelowBound { list, bound_key, largest, bound })
        }
        _ if given.is_none() => Some(PlanWarning::NoBound { list, bound_key, largest }),
        _ => None,
    }
}

/// The best lists for each of several numbers of graphs, without budgets, from one table, and the
/// curve up to the largest of them; `None` where a number is too large to plan for.
pub(crate) fn plans_of_counts(
    question: Question<'_>,
    counts: &[usize],
) -> Result<(Vec<Option<CaptureSizes>>, Vec<CurvePoint>), PlannerError> {
    let request = question.request;
    request.validate(question.traffic)?;
    let problem = Problem::new(question)?;
    let widest = problem.axes.iter().map(Axis::len).max().unwrap_or(0);
    let can_plan = |count: usize| {
        let graphs = count.max(DEFAULT_CURVE_GRAPHS).min(problem.most_graphs());
        count >= problem.least_graphs() && widest.saturating_mul(graphs + 1) <= MAX_TABLE
    };
    let largest = counts.iter().copied().filter(|count| can_plan(*count)).max();
    let up_to = PlanRequest { max_graphs: largest, ..request.clone() };
    let (curve, curve_costs, tables) = curve(&problem, &up_to)?;
    let sizes = |count: usize| {
        let graphs = fewest_for(&curve_costs, &curve, count);
        problem.sizes(&walk(&tables, graphs))
    };
    let plans = counts.iter().map(|count| can_plan(*count).then(|| sizes(*count))).collect();
    Ok((plans, curve))
}

/// With too few graphs for both lists, every step uses the token sizes, as dispatch does for a
/// decode that no decode size holds.
fn plan_shared(question: Question<'_>, given: usize, least: usize) -> Result<Plan, PlannerError> {
    let request = question.request;
    if request.graph_mode != GraphMode::FullAndPiecewise {
        return Err(PlannerError::TooFewGraphs { given, least });
    }
    let shared = PlanRequest { graph_mode: GraphMode::Piecewise, ..request.clone() };
    let mut plan = plan(Question { request: &shared, ..question })?;
    plan.warnings.retain(|warning| !matches!(warning, PlanWarning::NoMixedSteps));
    plan.warnings.push(PlanWarning::DecodesShareTokenSizes);
    plan.curve.clear();
    plan.outcome = evaluate(question, &plan.sizes)?;
    Ok(plan)
}

type Curve = (Vec<CurvePoint>, Vec<u128>, Vec<Potentials>);

fn curve(problem: &Problem, request: &PlanRequest) -> Result<Curve, PlannerError> {
    let most = request.max_graphs.unwrap_or(0).max(DEFAULT_CURVE_GRAPHS).min(problem.most_graphs());
    for axis in &problem.axes {
        if axis.len().saturating_mul(most + 1) > MAX_TABLE {
            return Err(PlannerError::TooManyCandidates { candidates: axis.len(), graphs: most });
        }
    }
    let (tables, after) = chain(&problem.axes, &problem.charges, most, Keep::First);
    let mut points = Vec::new();
    let mut costs = Vec::new();
    let one = unit(request.objective);
    let in_units = if request.objective == Objective::Time { 1e3 } else { 1.0 };
    for (graphs, packed) in after.iter().enumerate().skip(problem.least_graphs().max(1)) {
        if *packed == INFEASIBLE {
            continue;
        }
        let sizes = problem.sizes(&walk(&tables, graphs));
        let cost = packed / one;
        points.push(CurvePoint {
            graphs,
            token_sizes: sizes.capture_num_tokens.len(),
            decode_sizes: sizes.decode_batch_sizes.len(),
            cost: cost as f64 / in_units,
        });
        costs.push(cost);
    }
    Ok((points, costs, tables))
}

/// The fewest graphs that cost no more than `graphs` do.
fn fewest_for(costs: &[u128], curve: &[CurvePoint], graphs: usize) -> usize {
    let Some(at) = curve.iter().rposition(|point| point.graphs <= graphs) else { return graphs };
    let first = costs.iter().position(|cost| *cost <= costs[at]).unwrap_or(at);
    curve[first].graphs
}

fn within_budgets(
    problem: &Problem,
    request: &PlanRequest,
    graphs: usize,
) -> Result<BudgetedPlan, PlannerError> {
    let least = problem.least_nodes();
    let names = [("memory budget", "bytes"), ("capture budget", "nanoseconds")];
    for (resource, (what, unit)) in names.into_iter().enumerate() {
        let nodes = problem.axes.iter().zip(&least);
        let amounts = nodes.flat_map(|(axis, nodes)| {
            nodes.iter().map(move |node| axis.resources[resource][node - 1])
        });
        let least = amounts.sum();
        if let Some(budget) = request.budgets()[resource].filter(|budget| *budget < least) {
            return Err(PlannerError::BudgetTooSmall { what, budget, least, unit });
        }
    }
    if problem.axes.is_empty() {
        return Ok(BudgetedPlan { nodes: Vec::new(), cost: 0, at_least: 0 });
    }
    let search = Budgeted {
        axes: &problem.axes,
        charges: &problem.charges,
        max_graphs: graphs,
        budgets: request.budgets().map(|budget| budget.unwrap_or(UNLIMITED)),
    };
    Ok(search.solve(least))
}
