//! One path of an encoder: a graph, its budgets, and the steps of the items that come by it.

use super::budgets::Budgets;
use super::packing::pack;
use super::protocol::{ItemEncoder, ItemError, ItemOutputs, PathSize, StepError};
use super::segments::SegmentRule;
use super::statistics::PathStatistics;
use crate::models::encoder::{OutputRows, Values};
use crate::session::{OutputsView, Session, SessionError, Step, SubmittedStep};
use half::{bf16, f16};
use piecewise_ir::dtype::DType;
use rayon::prelude::*;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

/// Numbers whose copying several threads share.
const SHARED_WORK: usize = 1 << 20;
/// The share of each of those that write to new memory.
const SHARE: usize = 64 << 10;

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
    pub(super) computes_in: DType,
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
        let reasons = BTreeSet::from_iter(misses.iter().copied());
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
            let steps = packing.steps.into_iter();
            let steps = steps.map(|step| step.into_iter().map(|place| members[place]).collect());
            self.run_steps(&Run { model, at, items, reason }, steps, &mut results);
        }
        let results = Vec::from_iter(results.into_iter().flatten());
        for error in results.iter().filter_map(|result| result.as_ref().err()) {
            *self.statistics.failed.entry(error.reason()).or_default() += 1;
        }
        results
    }

    /// Runs steps of these places one after the other. While one runs, the outputs of the one before
    /// are copied and the inputs of the next are made ready.
    fn run_steps<M: ItemEncoder>(
        &mut self,
        run: &Run<'_, M>,
        steps: impl Iterator<Item = Vec<usize>>,
        results: &mut [Option<Result<ItemOutputs, ItemError>>],
    ) {
        let mut before: Option<(Vec<usize>, SubmittedStep)> = None;
        for places in steps {
            let submitted = self.submit(run, &places);
            if let Some((places, step)) = before.take() {
                let outputs = self.read(run, &places, &step);
                self.put(run, places, outputs, results);
            }
            match submitted {
                Ok(step) => before = Some((places, step)),
                Err(error) => self.put(run, places, Err(error), results),
            }
        }
        if let Some((places, step)) = before {
            let outputs = self.read(run, &places, &step);
            self.put(run, places, outputs, results);
        }
    }

    /// Puts outputs into their places; of a step that failed each item is run in a step of its own, so
    /// that the others are served. A device that was lost is opened anew first.
    fn put<M: ItemEncoder>(
        &mut self,
        run: &Run<'_, M>,
        places: Vec<usize>,
        outputs: Result<Vec<ItemOutputs>, StepError>,
        results: &mut [Option<Result<ItemOutputs, ItemError>>],
    ) {
        let error = match outputs {
            Ok(outputs) => {
                for (place, outputs) in places.into_iter().zip(outputs) {
                    results[place] = Some(self.held_finite(outputs));
                }
                return;
            }
            Err(error) => error,
        };
        let is_there_again = error.is_lost() && self.recover(&error);
        if places.len() == 1 && !is_there_again {
            results[places[0]] = Some(Err(Arc::new(error).of_item()));
            return;
        }
        for place in places {
            let step = self.submit(run, &[place]);
            let outputs = step.and_then(|step| self.read(run, &[place], &step));
            let outputs = outputs.map(|outputs| outputs.into_iter().next().unwrap_or_default());
            let outputs = outputs.map_err(|error| Arc::new(error).of_item());
            results[place] = Some(outputs.and_then(|outputs| self.held_finite(outputs)));
        }
    }

    /// Outputs that are numbers: nobody can compare others, nor write them.
    fn held_finite(&self, outputs: ItemOutputs) -> Result<ItemOutputs, ItemError> {
        match outputs.iter().flatten().all(|x| x.is_finite()) {
            true => Ok(outputs),
            false => Err(ItemError::NotFinite { computes_in: self.computes_in }),
        }
    }

    fn recover(&mut self, error: &StepError) -> bool {
        tracing::warn!("{error}; the device is opened anew");
        let recovered = self.session.model_mut().recover();
        recovered.inspect_err(|error| tracing::warn!("{error}")).is_ok()
    }

    fn submit<M: ItemEncoder>(
        &mut self,
        run: &Run<'_, M>,
        places: &[usize],
    ) -> Result<SubmittedStep, StepError> {
        let members = Vec::from_iter(places.iter().map(|&place| run.items[place].0));
        let inputs = run.model.fill(run.at, &members);
        for rule in &self.rules {
            rule.check(&inputs).map_err(StepError::Protocol)?;
        }
        let step = with_inputs(self.session.step(), &inputs);
        let step = if run.reason.is_some() { step.launched() } else { step };
        Ok(step.submit()?)
    }

    /// Waits for a step of these places and takes each item's outputs.
    fn read<M: ItemEncoder>(
        &mut self,
        run: &Run<'_, M>,
        places: &[usize],
        step: &SubmittedStep,
    ) -> Result<Vec<ItemOutputs>, StepError> {
        let parts = places.iter().map(|&place| {
            let (item, size) = run.items[place];
            Part { tokens: size.tokens as usize, order: run.model.order(run.at, item) }
        });
        let parts = Vec::from_iter(parts);
        let kinds = run.model.outputs(run.at);
        let mut of_items = places_for(&kinds, &parts);
        let taken =
            self.session.read(step, |outputs| take_outputs(&kinds, &parts, outputs, &mut of_items));
        let taken = taken?;
        let on_device = self.session.last_times().and_then(|times| times.gpu);
        self.statistics.device_time += on_device.unwrap_or_default();
        // Of one that failed its items count when they have run alone.
        if let (Ok(()), Some(report)) = (&taken, step.report()) {
            let tokens = parts.iter().map(|part| part.tokens as u64).sum();
            self.statistics.count(places.len(), tokens, report, run.reason);
        }
        taken.map(|()| of_items)
    }
}

/// What steps of a path are made of.
struct Run<'a, M: ItemEncoder> {
    model: &'a M,
    /// Which path of the model.
    at: usize,
    items: &'a [(&'a M::Item, PathSize)],
    /// Why they are launched, where they are.
    reason: Option<&'static str>,
}

/// An item's part of a step.
struct Part {
    tokens: usize,
    /// The place of each of its tokens, where those lie otherwise.
    order: Option<Vec<u32>>,
}

/// Gives a step its inputs.
pub(super) fn with_inputs<'a>(
    mut step: Step<'a>,
    inputs: &'a [(&'static str, Values<'a>)],
) -> Step<'a> {
    for (name, values) in inputs {
        step = match values {
            Values::I32(values) => step.input(name, values),
            Values::F32(values) => step.input(name, values),
            Values::Parts(parts) => step.input_parts(name, parts),
        };
    }
    step
}

/// Memory for each item's outputs, all of it written: the first write costs more than the copy of
/// what a step made, and is done while the step runs.
fn places_for(kinds: &[OutputRows], items: &[Part]) -> Vec<ItemOutputs> {
    let elements = |kind: &OutputRows, item: &Part| match *kind {
        OutputRows::PerItem(width) => width,
        OutputRows::PerRow(width) => item.tokens * width,
    };
    let place = |item: &Part| kinds.iter().map(|kind| vec![0.0; elements(kind, item)]).collect();
    let mut places: Vec<ItemOutputs> = items.iter().map(place).collect();
    let parts = places.iter_mut().flatten().flat_map(|place| place.chunks_mut(SHARE));
    let parts: Vec<&mut [f32]> = parts.collect();
    match parts.len() < SHARED_WORK / SHARE {
        true => parts.into_iter().for_each(|part| part.fill(f32::NAN)),
        false => parts.into_par_iter().for_each(|part| part.fill(f32::NAN)),
    }
    places
}

/// Copies each item's part of the outputs of a step, which are as `kinds` announces them.
fn take_outputs(
    kinds: &[OutputRows],
    items: &[Part],
    outputs: OutputsView<'_>,
    of_items: &mut [ItemOutputs],
) -> Result<(), StepError> {
    let tokens: usize = items.iter().map(|part| part.tokens).sum();
    if kinds.len() != outputs.len() {
        return Err(StepError::Protocol(format!(
            "it announces {} of the {} outputs that the graph has",
            kinds.len(),
            outputs.len()
        )));
    }
    for Part { tokens, order } in items {
        let Some(order) = order else { continue };
        if order.len() != *tokens || order.iter().any(|&place| place as usize >= *tokens) {
            let places = order.len();
            let reason = format!("an order of {places} places for an item of {tokens} tokens");
            return Err(StepError::Protocol(reason));
        }
    }
    for (i, &kind) in kinds.iter().enumerate() {
        let values = Floats::of(&outputs, i)?;
        let (rows, width) = match kind {
            OutputRows::PerItem(width) => (items.len(), width),
            OutputRows::PerRow(width) => (tokens, width),
        };
        if values.len() != rows * width {
            let (found, count) = (values.len() / width.max(1), items.len());
            let items = if count == 1 { "item" } else { "items" };
            return Err(StepError::Protocol(format!(
                "output {i} of {count} {items} has {found} rows, but {rows} of {width} \
                 elements are announced"
            )));
        }
        let mut first = 0;
        let mut parts = Vec::with_capacity(items.len());
        for (item, own) in items.iter().zip(of_items.iter_mut()) {
            let (rows, order) = match kind {
                OutputRows::PerItem(_) => (1, None),
                OutputRows::PerRow(_) => (item.tokens, item.order.as_deref()),
            };
            let elements = first..first + rows * width;
            first = elements.end;
            parts.push((elements, order, &mut own[i]));
        }
        let copy =
            |(elements, order, own): (Range<usize>, Option<&[u32]>, &mut Vec<f32>)| match values {
                Floats::F32(values) => copy_rows(&values[elements], order, width, own),
                Floats::F16(values) => copy_rows(&values[elements], order, width, own),
                Floats::Bf16(values) => copy_rows(&values[elements], order, width, own),
            };
        match values.len() < SHARED_WORK {
            true => parts.into_iter().for_each(copy),
            false => parts.into_par_iter().for_each(copy),
        }
    }
    Ok(())
}

/// The values of an output.
#[derive(Clone, Copy)]
enum Floats<'a> {
    F32(&'a [f32]),
    F16(&'a [f16]),
    Bf16(&'a [bf16]),
}

impl<'a> Floats<'a> {
    fn of(outputs: &OutputsView<'a>, i: usize) -> Result<Self, SessionError> {
        Ok(match outputs.dtype(i) {
            Some(DType::F16) => Self::F16(outputs.get(i)?),
            Some(DType::BF16) => Self::Bf16(outputs.get(i)?),
            _ => Self::F32(outputs.get(i)?),
        })
    }

    fn len(self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::F16(values) => values.len(),
            Self::Bf16(values) => values.len(),
        }
    }
}

/// Rows of an item to their places in its own order.
fn copy_rows<T: Copy + Into<f32> + Sync>(
    rows: &[T],
    order: Option<&[u32]>,
    width: usize,
    own: &mut [f32],
) {
    let place = |i: usize| order.map_or(i, |order| order[i] as usize);
    let copy = |(i, to): (usize, &mut [f32])| {
        let from = &rows[place(i) * width..][..width];
        to.iter_mut().zip(from).for_each(|(to, &from)| *to = from.into());
    };
    match rows.len() < SHARED_WORK {
        true => own.chunks_mut(width.max(1)).enumerate().for_each(copy),
        false => own.par_chunks_mut(width.max(1)).with_min_len(16).enumerate().for_each(copy),
    }
}
