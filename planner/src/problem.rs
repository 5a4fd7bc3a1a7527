//! The plan as a problem over axes: which steps each list serves, at which costs.

use crate::axis::{Axis, AxisLimits, Steps, unit};
use crate::budget::LARGEST_CHARGE;
use crate::capture_sizes::CaptureSizes;
use crate::costs::{CostPath, MonotoneCurve, StepCosts};
use crate::error::PlannerError;
use crate::request::PlanRequest;
use crate::traffic::{StepKind, Traffic};

use crate::evaluate::ListKind;

/// Tokens first, then decodes; a list that serves no step has no axis.
pub(crate) struct Problem {
    pub(crate) lists: Vec<ListKind>,
    pub(crate) axes: Vec<Axis>,
    pub(crate) charges: Vec<Vec<u128>>,
}

impl Problem {
    pub(crate) fn new(
        traffic: &Traffic,
        costs: &StepCosts,
        request: &PlanRequest,
    ) -> Result<Self, PlannerError> {
        let mut problem = Self { lists: Vec::new(), axes: Vec::new(), charges: Vec::new() };
        let token_maximum = request.token_maximum(traffic);
        if token_maximum > 0 {
            let path = request.graph_mode.token_path();
            let by_count = token_histogram(traffic, request);
            let step = [(1, by_count)];
            problem.add(ListKind::Tokens, &step, path, token_maximum, traffic, costs, request)?;
        }
        let decode_maximum = request.decode_maximum(traffic);
        if decode_maximum > 0 {
            let steps: Vec<(u32, Vec<(u32, u64)>)> = traffic
                .decode()
                .iter()
                .map(|(query, batches)| (*query, batches.iter().map(|(b, n)| (*b, *n)).collect()))
                .collect();
            let path = CostPath::Full;
            problem.add(ListKind::Decode, &steps, path, decode_maximum, traffic, costs, request)?;
        }
        Ok(problem)
    }

    #[expect(clippy::too_many_arguments, reason = "one private call for each list")]
    fn add(
        &mut self,
        list: ListKind,
        steps: &[(u32, Vec<(u32, u64)>)],
        path: CostPath,
        maximum: u32,
        traffic: &Traffic,
        costs: &StepCosts,
        request: &PlanRequest,
    ) -> Result<(), PlannerError> {
        let replay = costs.path(path)?;
        let may_end_early = !request.cover_maximum && list == ListKind::Tokens;
        let launched = if request.launched || may_end_early {
            Some(&costs.path(CostPath::Launched)?.step_ns)
        } else {
            None
        };
        for (query, by_count) in steps {
            let Some((least, _)) = by_count.first() else { continue };
            let range = (least.saturating_mul(*query), maximum.saturating_mul(*query));
            check_gap(path, &replay.step_ns, range)?;
            if let Some(curve) = launched {
                let most = by_count.last().map_or(*least, |(count, _)| *count);
                check_gap(CostPath::Launched, curve, (range.0, most.saturating_mul(*query)))?;
            }
        }
        let limits = AxisLimits {
            maximum,
            multiple_of: request.multiple_of,
            launched: request.launched,
            may_end_early,
        };
        let of_queries = steps
            .iter()
            .map(|(query_length, by_count)| Steps {
                query_length: *query_length,
                by_count: by_count.clone(),
                replay: &replay.step_ns,
                launched,
            })
            .collect();
        let mut axis = Axis::new(request.objective, of_queries, &limits);
        let wanted = (
            request.memory_budget.is_some() || request.memory_price > 0.0,
            request.capture_budget_ns.is_some() || request.capture_price > 0.0,
        );
        for (query, _) in steps {
            axis.add_resources(*query, replay, wanted)
                .map_err(|field| PlannerError::CostsLackResource { path, field })?;
        }
        self.charges.push(charges(&axis, traffic.steps(), request));
        self.axes.push(axis);
        self.lists.push(list);
        Ok(())
    }

    pub(crate) fn sizes(&self, nodes: &[Vec<usize>]) -> CaptureSizes {
        let mut sizes = CaptureSizes::default();
        for ((list, axis), nodes) in self.lists.iter().zip(&self.axes).zip(nodes) {
            let chosen = nodes.iter().map(|node| axis.candidates[node - 1]).collect();
            match list {
                ListKind::Tokens => sizes.capture_num_tokens = chosen,
                ListKind::Decode => sizes.decode_batch_sizes = chosen,
            }
        }
        sizes
    }

    /// The fewest graphs of any plan.
    pub(crate) fn least_graphs(&self) -> usize {
        self.least_nodes()
            .iter()
            .zip(&self.axes)
            .map(|(nodes, axis)| nodes.len() * axis.graphs_per_size)
            .sum()
    }

    /// The plan that only covers the maxima.
    pub(crate) fn least_nodes(&self) -> Vec<Vec<usize>> {
        let least = |axis: &Axis| match axis.ending_at(0) {
            Some(_) => Vec::new(),
            None => vec![axis.len()],
        };
        self.axes.iter().map(least).collect()
    }

    /// The graphs beyond which none can help.
    pub(crate) fn most_graphs(&self) -> usize {
        self.axes.iter().map(|axis| axis.len() * axis.graphs_per_size).sum()
    }
}

fn token_histogram(traffic: &Traffic, request: &PlanRequest) -> Vec<(u32, u64)> {
    if request.graph_mode.has_full() {
        return traffic.mixed().iter().map(|(count, steps)| (*count, *steps)).collect();
    }
    let mut tokens = traffic.mixed().clone();
    for (kind, count, steps) in traffic.iter() {
        if matches!(kind, StepKind::Decode { .. }) {
            *tokens.entry(kind.tokens(count)).or_default() += steps;
        }
    }
    tokens.into_iter().collect()
}

fn check_gap(path: CostPath, curve: &MonotoneCurve, range: (u32, u32)) -> Result<(), PlannerError> {
    match curve.gap_within(range.0, range.1) {
        Some((from, to)) => Err(PlannerError::CostsGap { path, from, to }),
        None => Ok(()),
    }
}

/// What each candidate costs by itself, at the prices of the request.
fn charges(axis: &Axis, steps: u64, request: &PlanRequest) -> Vec<u128> {
    use crate::request::Objective;
    let in_units = match request.objective {
        Objective::Time => 1e3,
        Objective::Padding => 1.0,
    };
    let per_log = in_units * steps as f64;
    let per_byte = request.memory_price * per_log / (1_u64 << 30) as f64;
    let per_ns = request.capture_price * per_log / 1e9;
    let one = unit(request.objective);
    let charge = |(bytes, ns): (&u64, &u64)| {
        let units = (per_byte * *bytes as f64 + per_ns * *ns as f64).round() as u128;
        units.min(LARGEST_CHARGE / one) * one
    };
    axis.memory.iter().zip(&axis.capture).map(charge).collect()
}
