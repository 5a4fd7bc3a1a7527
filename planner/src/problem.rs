//! The plan as a problem over axes: which steps each list serves, at which costs.

use crate::axis::{Axis, AxisLimits};
use crate::capture_sizes::{CaptureSizes, ListKind};
use crate::costs::{CostPath, MonotoneCurve, StepCosts};
use crate::error::PlannerError;
use crate::request::{PlanRequest, Question};
use crate::traffic::Steps;

/// Tokens first, then decodes; a list that serves no step has no axis.
#[derive(Default)]
pub(crate) struct Problem {
    pub(crate) lists: Vec<ListKind>,
    pub(crate) axes: Vec<Axis>,
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
        let covers = |axis: &&Axis| axis.ending_at(0).is_none();
        self.axes.iter().filter(covers).map(|axis| axis.graphs_per_size).sum()
    }

    /// The graphs beyond which none can help.
    pub(crate) fn most_graphs(&self) -> usize {
        self.axes.iter().map(|axis| axis.len() * axis.graphs_per_size).sum()
    }
}

/// The axis of one list.
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
    Ok(Axis::new(request.objective, steps, &limits))
}

fn check_gap(path: CostPath, curve: &MonotoneCurve, range: (u32, u32)) -> Result<(), PlannerError> {
    match curve.gap_within(range.0, range.1) {
        Some((from, to)) => Err(PlannerError::CostsGap { path, from, to }),
        None => Ok(()),
    }
}
