//! One path of an encoder: a graph, its budgets, and the steps of the items that come by it.

use super::budgets::Budgets;
use super::packing::pack;
use super::protocol::{ItemEncoder, ItemError, ItemOutputs, PathSize};
use super::segments::SegmentRule;
use super::statistics::PathStatistics;
use crate::models::encoder::{OutputRows, Values};
use crate::session::{OutputsView, Session, SessionError};
use std::sync::Arc;

/// Why a step has no outputs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StepError {
    /// It does not run.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// Its inputs or outputs are not what the model announced.
    #[error("{0}")]
    Protocol(String),
}

impl StepError {
    fn of_item(self: &Arc<Self>) -> ItemError {
        match &**self {
            Self::Session(_) => ItemError::Step(Arc::clone(self)),
            Self::Protocol(reason) => ItemError::Protocol { reason: reason.clone() },
        }
    }
}

/// Why no graph takes an item, whatever it shares a step with.
const TOO_MANY_FRAMES: &str = "too_many_frames";
const PRUNED_BY_DATA: &str = "pruned_by_data";
const ABOVE_LARGEST: &str = "above_largest_size";

#[derive(Debug)]
pub(super) struct Path {
    pub(super) name: Arc<str>,
    pub(super) session: Session,
    pub(super) budgets: Budgets,
    pub(super) rules: Vec<SegmentRule>,
    pub(super) is_strict: bool,
    pub(super) statistics: PathStatistics,
}

impl Path {
    /// Why no graph takes an item of this size; `None` where one does.
    fn miss(&self, prunes_videos: bool, size: PathSize) -> Option<&'static str> {
        if prunes_videos && size.frames > 1 {
            Some(PRUNED_BY_DATA)
        } else if size.frames > self.budgets.bounds.max_frames.max(1) {
            Some(TOO_MANY_FRAMES)
        } else if self.budgets.holding(size.tokens).is_none() {
            Some(ABOVE_LARGEST)
        } else {
            None
        }
    }

    /// The outputs of items on this path, the `at`th of `model`, each with what it brings, in their
    /// order. Those that no graph takes are launched, apart from the others.
    pub(super) fn encode<M: ItemEncoder>(
        &mut self,
        model: &M,
        at: usize,
        items: &[(&M::Item, PathSize)],
        one_by_one: bool,
    ) -> Vec<Result<ItemOutputs, ItemError>> {
        let prunes = model.prunes_videos(at);
        let misses = Vec::from_iter(items.iter().map(|(_, size)| self.miss(prunes, *size)));
        let mut reasons = Vec::from_iter(misses.iter().copied());
        reasons.sort_unstable();
        reasons.dedup();
        let mut results = Vec::from_iter(items.iter().map(|_| None));
        for reason in reasons {
            let members = Vec::from_iter((0..items.len()).filter(|&i| misses[i] == reason));
            let size = |&i: &usize| vec![items[i].1.tokens, items[i].1.frames];
            let sizes = Vec::from_iter(members.iter().map(size));
            let most = if one_by_one { 1 } else { usize::MAX };
            let cost = |rows: &[u64], count: usize| {
                let cost = self.budgets.cost(rows, count, reason.is_some());
                cost.filter(|_| count <= most)
            };
            let mut packing = pack(&sizes, &cost);
            for place in packing.refused {
                let (tokens, max_num_tokens) = (sizes[place][0], self.budgets.bounds.max_rows);
                results[members[place]] =
                    Some(Err(ItemError::LargerThanAStep { tokens, max_num_tokens }));
            }
            if let Some(reason) = reason.filter(|_| self.is_strict) {
                for place in packing.steps.drain(..).flatten() {
                    results[members[place]] = Some(Err(ItemError::Strict { reason }));
                }
            }
            for step in packing.steps {
                let places = Vec::from_iter(step.into_iter().map(|place| members[place]));
                let members = Vec::from_iter(places.iter().map(|&place| items[place]));
                let outputs = self.step_or_each(model, at, &members, reason);
                for (place, outputs) in places.into_iter().zip(outputs) {
                    results[place] = Some(outputs);
                }
            }
        }
        results.into_iter().flatten().collect()
    }

    /// One step, or, where that fails, each item in a step of its own, so that the others are
    /// served.
    fn step_or_each<M: ItemEncoder>(
        &mut self,
        model: &M,
        at: usize,
        items: &[(&M::Item, PathSize)],
        reason: Option<&'static str>,
    ) -> Vec<Result<ItemOutputs, ItemError>> {
        match self.step(model, at, items, reason) {
            Ok(outputs) => outputs.into_iter().map(Ok).collect(),
            Err(_) if items.len() > 1 => {
                let each = items.chunks(1);
                each.flat_map(|one| self.step_or_each(model, at, one, reason)).collect()
            }
            Err(error) => vec![Err(Arc::new(error).of_item())],
        }
    }

    fn step<M: ItemEncoder>(
        &mut self,
        model: &M,
        at: usize,
        items: &[(&M::Item, PathSize)],
        reason: Option<&'static str>,
    ) -> Result<Vec<ItemOutputs>, StepError> {
        let members = Vec::from_iter(items.iter().map(|(item, _)| *item));
        let inputs = model.fill(at, &members);
        for rule in &self.rules {
            rule.check(&inputs).map_err(StepError::Protocol)?;
        }
        let mut step = self.session.step();
        for (name, values) in &inputs {
            step = match values {
                Values::I32(values) => step.input(name, values),
                Values::F32(values) => step.input(name, values),
            };
        }
        let step = if reason.is_some() { step.launched() } else { step };
        let kinds = model.outputs(at);
        let outputs = step.run_read(|outputs| of_each_item(kinds, items, outputs))?;
        let tokens = items.iter().map(|(_, size)| size.tokens).sum();
        let on_device = self.session.last_times().and_then(|times| times.gpu);
        self.statistics.device_time += on_device.unwrap_or_default();
        if let Some(report) = self.session.last_step() {
            self.statistics.count(items.len(), tokens, report, reason);
        }
        outputs
    }
}

/// Each item's part of the outputs of a step, which are as `kinds` announces them.
fn of_each_item<I>(
    kinds: Vec<OutputRows>,
    items: &[(I, PathSize)],
    outputs: OutputsView<'_>,
) -> Result<Vec<ItemOutputs>, StepError> {
    let tokens: u64 = items.iter().map(|(_, size)| size.tokens).sum();
    if kinds.len() != outputs.len() {
        return Err(StepError::Protocol(format!(
            "it announces {} of the {} outputs that the graph has",
            kinds.len(),
            outputs.len()
        )));
    }
    let mut of_items = Vec::from_iter(items.iter().map(|_| Vec::with_capacity(kinds.len())));
    for (i, kind) in kinds.into_iter().enumerate() {
        let values = outputs.get::<f32>(i)?;
        let (rows, width) = match kind {
            OutputRows::PerItem(width) => (items.len(), width),
            OutputRows::PerRow(width) => (tokens as usize, width),
        };
        if values.len() != rows * width {
            let (found, count) = (values.len() / width.max(1), items.len());
            let items = if count == 1 { "item" } else { "items" };
            return Err(StepError::Protocol(format!(
                "output {i} of {count} {items} has {found} rows, but {rows} of {width} \
                 elements are announced"
            )));
        }
        let mut rest = values;
        for ((_, size), own) in items.iter().zip(&mut of_items) {
            let rows = match kind {
                OutputRows::PerItem(_) => 1,
                OutputRows::PerRow(_) => size.tokens as usize,
            };
            let (first, others) = rest.split_at(rows * width);
            own.push(first.to_vec());
            rest = others;
        }
    }
    Ok(of_items)
}
