//! The plan as a problem over axes: which steps each list serves, at which costs.

use crate::axis::{Axis, AxisLimits, unit};
use crate::budgeted::LARGEST_CHARGE;
use crate::capture_sizes::{CaptureSizes, ListKind};
use crate::costs::{CostPath, MonotoneCurve, StepCosts};
use crate::error::PlannerError;
use crate::request::{Objective, PlanRequest, Question};
use crate::traffic::Steps;

/// Tokens first, then decodes; a list that serves no step has no axis.
#[derive(Default)]
pub(crate) struct Problem {
    pub(crate) lists: Vec<ListKind>,
    pub(crate) axes: Vec<Axis>,
    pub(crate) charges: Vec<Vec<u128>>,
}

impl Problem {
    pub(crate) fn new(question: Question<'_>) -> Result<Self, PlannerError> {
        let Question { traffic, costs, request } = question;
        let mut problem = Self::default();
        for list in ListKind::ALL {
            let maximum = request.maximum(list, traffic);
            if maximum == 0 {
                continue;
            }
            let steps = traffic.of_list(list, request.graph_mode);
            let axis = axis(list, &steps, maximum, costs, request)?;
            problem.charges.push(charges(&axis, traffic.steps(), request));
            problem.axes.push(axis);
            problem.lists.push(list);
        }
        Ok(problem)
    }

    pub(crate) fn sizes(&self, nodes: &[Vec<usize>]) -> CaptureSizes {
        CaptureSizes::of(|list| {
            let Some(at) = self.lists.iter().position(|own| *own == list) else {
                return Vec::new();
            };
            nodes[at].iter().map(|node| self.axes[at].candidates[node - 1]).collect()
        })
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

/// The axis of one list, with what its candidates take of each resource that is limited or priced.
fn axis(
    list: ListKind,
    steps: &Steps,
    maximum: u32,
    costs: &StepCosts,
    request: &PlanRequest,
) -> Result<Axis, PlannerError> {
    let path = request.list_path(list);
    let replay = costs.path(path)?;
    let may_end_early = !request.cover_maximum && list == ListKind::Tokens;
    let launched_ns = match request.launched || may_end_early {
        true => Some(&costs.path(CostPath::Launched)?.step_ns),
        false => None,
    };
    for (query, by_count) in steps {
        let (Some((least, _)), Some((most, _))) =
            (by_count.first_key_value(), by_count.last_key_value())
        else {
            continue;
        };
        let [least, most, maximum] = [*least, *most, maximum].map(|n| n.saturating_mul(*query));
        check_gap(path, &replay.step_ns, (least, maximum))?;
        if let Some(curve) = launched_ns {
            check_gap(CostPath::Launched, curve, (least, most))?;
        }
    }
    let limits = AxisLimits {
        maximum,
        multiple_of: request.multiple_of,
        launched: request.launched,
        may_end_early,
        replay_ns: &replay.step_ns,
        launched_ns,
    };
    let mut axis = Axis::new(request.objective, steps, &limits);
    let wanted = request.budgets().into_iter().zip(request.prices());
    for (((field, curve), (budget, price)), amounts) in
        replay.resources().into_iter().zip(wanted).zip(&mut axis.resources)
    {
        let Some(curve) = curve else {
            if budget.is_some() || price > 0.0 {
                return Err(PlannerError::CostsLackResource { path, field });
            }
            continue;
        };
        for (amount, size) in amounts.iter_mut().zip(&axis.candidates) {
            let of_query = |query: &u32| curve.at(size.saturating_mul(*query));
            *amount = steps.keys().map(of_query).fold(0, u64::saturating_add);
        }
    }
    Ok(axis)
}

fn check_gap(path: CostPath, curve: &MonotoneCurve, range: (u32, u32)) -> Result<(), PlannerError> {
    match curve.gap_within(range.0, range.1) {
        Some((from, to)) => Err(PlannerError::CostsGap { path, from, to }),
        None => Ok(()),
    }
}

/// What each candidate costs by itself, at the prices of the request.
fn charges(axis: &Axis, steps: u64, request: &PlanRequest) -> Vec<u128> {
    let in_units = match request.objective {
        Objective::Time => 1e3,
        Objective::Padding => 1.0,
    };
    let per_log = in_units * steps as f64;
    let [per_gib, per_second] = request.prices();
    let per_byte = per_gib * per_log / (1_u64 << 30) as f64;
    let per_ns = per_second * per_log / 1e9;
    let one = unit(request.objective);
    let charge = |(bytes, ns): (&u64, &u64)| {
        let units = (per_byte * *bytes as f64 + per_ns * *ns as f64).round() as u128;
        units.min(LARGEST_CHARGE / one) * one
    };
    let [bytes, ns] = &axis.resources;
    bytes.iter().zip(ns).map(charge).collect()
}
