//! From traffic, costs and a request to a plan.

use serde::Serialize;

use crate::axis::unit;
use crate::capture_sizes::{CaptureSizes, ListKind};
use crate::dynamic_program::{INFEASIBLE, Potentials, chain, walk};
use crate::error::PlannerError;
use crate::evaluate::{Outcome, evaluate};
use crate::mode::GraphMode;
use crate::problem::Problem;
use crate::request::{Objective, PlanRequest, Question};
use crate::tradeoff::{CurvePoint, knee};

/// Graphs up to which the trade-off curve is computed when no maximum is given.
const DEFAULT_CURVE_GRAPHS: usize = 64;

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
}

/// The lists that cost least, and what others would cost.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The sizes to capture, in tokens and in decode batches.
    pub sizes: CaptureSizes,
    /// What they cost on the log.
    pub outcome: Outcome,
    /// The cheapest plans of every number of graphs; empty when one list had to serve both kinds of
    /// step.
    pub curve: Vec<CurvePoint>,
    /// The number of graphs at the knee of the curve.
    pub knee_graphs: usize,
    /// What the lists do not show, such as a kind of step that the log lacks.
    pub warnings: Vec<PlanWarning>,
}

/// Chooses the lists.
///
/// Exact: no other lists within the constraints cost less. Time O(K N log N) and memory O(K N) for N
/// distinct counts and K graphs.
///
/// # Errors
/// Those of [`PlanRequest::validate`], and of missing or gappy costs.
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
    let within = |graphs: usize| graphs.min(problem.most_graphs()).max(problem.least_graphs());
    let graphs = request.max_graphs.map_or(knee_graphs, within);
    let sizes = problem.sizes(&walk(&tables, fewest_for(&curve_costs, &curve, graphs)));
    let outcome = evaluate(question, &sizes)?;
    let mut warnings = Vec::new();
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
    let (tables, after) = chain(&problem.axes, most);
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
