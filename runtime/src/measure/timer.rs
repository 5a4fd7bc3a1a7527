//! The timer of a compiled model.

use super::error::MeasureError;
use super::interface::{CaptureReport, HeldBytes, StepRecord, StepTimer};
use super::plan::{PlannedChunk, PlannedStep, StepTokens};
use super::timeline::Timeline;
use crate::batch::{
    BatchBuffers, Chunk, ChunkTokens, RoleMap, SampleControls, Sampling, full_steps,
};
use crate::memory::{PagePool, PageTable, SlotPool, StateSlot};
use crate::steps::{CompiledModel, Model, StepLaunch, Ticket};
use crate::words::{Dispatch, GraphMode, Progress, StepSizes};
use piecewise_backend::measure::{GraphShape, MeasuredDevice, ReadBandwidth, Versions};
use piecewise_backend::tuning::TuneMode;
use std::time::{Duration, Instant};

/// How often the driver's calls alone are timed.
const BARE_SUBMITS: usize = 15;

/// A model with sequences to measure it on.
#[derive(derive_more::Debug)]
#[debug("ModelTimer of {} sequences, {model:?}", tables.len())]
pub struct ModelTimer<D: MeasuredDevice> {
    model: CompiledModel<D>,
    batch: BatchBuffers,
    tables: Vec<PageTable>,
    free_slots: SlotPool,
    /// Of each sequence, where states have a row for each.
    slots: Vec<StateSlot>,
    entries: u64,
    sampled: usize,
}

/// A step that is submitted and not yet read.
struct InFlight<M> {
    ticket: Ticket,
    start: M,
    end: M,
    record: StepRecord,
}

impl<D: MeasuredDevice> ModelTimer<D> {
    /// Measures `model` on sequences with room for so many positions each.
    ///
    /// # Errors
    /// When it does not feed back what it samples, or its KV pool is too small.
    pub fn new(
        mut model: CompiledModel<D>,
        roles: RoleMap,
        positions: &[u64],
    ) -> Result<Self, MeasureError> {
        let sampled =
            roles.sampled.ok_or(MeasureError::NoFeedback { what: "an output of sampled ids" })?;
        if !roles.has_feedback() {
            return Err(MeasureError::NoFeedback { what: "the feedback of sampled ids" });
        }
        // A step that nobody asks of log-probabilities brings back none.
        roles.details.into_iter().for_each(|output| model.read_back(output, false));
        let mut pool = PagePool::new(roles.kv_rows);
        let tables = positions.iter().map(|&rows| {
            let mut table = PageTable::with_capacity(rows);
            table.grow(&mut pool, rows)?;
            Ok(table)
        });
        let tables = tables.collect::<Result<Vec<_>, MeasureError>>()?;
        let free_slots = SlotPool::new(model.module().graph(), model.memory(), roles.state_slots);
        let entries = roles.sampled_entries;
        let batch = BatchBuffers::new(roles);
        Ok(Self { batch, model, tables, free_slots, slots: Vec::new(), entries, sampled })
    }

    /// The model, to look at its device.
    #[cfg(test)]
    pub(super) fn model_mut(&mut self) -> &mut CompiledModel<D> {
        &mut self.model
    }

    /// Has each sequence begin with states of zeros, so that the same steps give the same ids again.
    fn clear_states(&mut self) -> Result<(), MeasureError> {
        while let Some(slot) = self.slots.pop() {
            self.free_slots.give_back(slot);
        }
        while self.slots.len() < self.tables.len()
            && let Some(slot) = self.free_slots.take(self.model.device_mut())?
        {
            self.slots.push(slot);
        }
        Ok(())
    }

    fn run_all(&mut self, steps: &[PlannedStep]) -> Result<Vec<StepRecord>, MeasureError> {
        self.clear_states()?;
        let mut records = Vec::with_capacity(steps.len());
        let mut marks = Vec::with_capacity(steps.len());
        let mut in_flight: Option<InFlight<D::Mark>> = None;
        let mut last_done = Instant::now();
        let mut finish = |timer: &mut Self, step: InFlight<D::Mark>| {
            let InFlight { ticket, start, end, mut record } = step;
            let bytes = timer.model.read(&ticket)?.bytes(timer.sampled)?;
            let word = |c: &[u8]| u32::from_le_bytes([c[0], c[1], c[2], c[3]]);
            record.ids = bytes.chunks_exact(4).map(word).collect();
            let now = Instant::now();
            record.wall = now - last_done;
            last_done = now;
            records.push(record);
            marks.push((start, end));
            Ok::<_, MeasureError>(())
        };
        for (number, step) in steps.iter().enumerate() {
            let submitted = self.submit(number, step)?;
            if let Some(before) = in_flight.replace(submitted) {
                finish(self, before)?;
            }
        }
        if let Some(last) = in_flight {
            finish(self, last)?;
        }
        for (record, (start, end)) in records.iter_mut().zip(&marks) {
            record.device = self.model.device_mut().elapsed(start, end)?;
        }
        Ok(records)
    }

    fn submit(
        &mut self,
        number: usize,
        step: &PlannedStep,
    ) -> Result<InFlight<D::Mark>, MeasureError> {
        let before = self.model.device().launch_counts();
        let start = self.model.device_mut().mark(None)?;
        let started = Instant::now();
        self.batch.clear();
        for chunk in &step.chunks {
            let slots = &self.slots;
            push(&mut self.batch, &self.tables, slots, self.entries, chunk).map_err(|reason| {
                MeasureError::Plan { step: number, sequence: chunk.sequence, reason }
            })?;
        }
        let ticket = self.model.submit(&self.batch.step()?.data())?;
        let submit = started.elapsed();
        let end = self.model.device_mut().mark(None)?;
        let launches = self.model.device().launch_counts().since(before);
        let Some(report) = self.model.last_step() else {
            let reason = "left no report".to_owned();
            return Err(MeasureError::Plan { step: number, sequence: 0, reason });
        };
        let record = StepRecord {
            device: Duration::ZERO,
            wall: Duration::ZERO,
            submit,
            launches,
            mode: report.mode,
            sizes: report.sizes,
            fallback: report.fallback,
            ids: Vec::new(),
        };
        Ok(InFlight { ticket, start, end, record })
    }

    /// What is in all captured graphs.
    fn shape(&self) -> GraphShape {
        let device = self.model.device();
        let shapes = self.model.ready_graphs().map(|graph| device.graph_shape(graph));
        shapes.fold(GraphShape::default(), |sum, shape| sum + shape)
    }
}

impl<D: MeasuredDevice> StepTimer for ModelTimer<D> {
    fn run(
        &mut self,
        steps: &[PlannedStep],
        launched: bool,
    ) -> Result<Vec<StepRecord>, MeasureError> {
        self.model.set_launches_only(launched);
        let done = self.run_all(steps);
        self.model.set_launches_only(false);
        done
    }

    fn recapture(
        &mut self,
        mode: GraphMode,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<CaptureReport, MeasureError> {
        self.model.invalidate_graphs();
        let free = self.free_bytes();
        let started = Instant::now();
        let graphs = self.model.recapture(mode, progress)?;
        let time = started.elapsed();
        if self.model.tune() == TuneMode::Measure {
            let steps = full_steps(self.batch.roles(), self.model.dispatcher());
            self.model.measure_launches(&steps, self.model.launches_budget())?;
        }
        let bytes = free.zip(self.free_bytes()).map(|(free, left)| free.saturating_sub(left));
        Ok(CaptureReport { graphs, time, bytes, shape: self.shape() })
    }

    fn timeline(&mut self, sizes: StepSizes) -> Result<Timeline, MeasureError> {
        let tokens = sizes.tokens.rows();
        let times = self.model.block_times(sizes)?.ok_or(MeasureError::NoTimeline { tokens })?;
        Ok(Timeline::new(self.model.step_launches(sizes), times))
    }

    fn bare_submit(&mut self, record: &StepRecord) -> Result<Option<Duration>, MeasureError> {
        let StepRecord { mode, sizes, fallback, .. } = *record;
        let mut times = Vec::with_capacity(BARE_SUBMITS);
        for _ in 0..BARE_SUBMITS {
            times.extend(self.model.bare_submit(Dispatch { mode, sizes, fallback })?);
        }
        times.sort_unstable();
        Ok(times.get(times.len() / 2).copied())
    }

    fn step_launches(&self, sizes: StepSizes) -> Vec<StepLaunch> {
        self.model.step_launches(sizes)
    }

    fn leave_out(&mut self, is_left_out: &dyn Fn(&StepLaunch) -> bool) -> usize {
        self.model.leave_out(is_left_out)
    }

    fn read_bandwidth(&mut self) -> Result<ReadBandwidth, MeasureError> {
        Ok(self.model.device_mut().read_bandwidth()?)
    }

    fn free_bytes(&self) -> Option<u64> {
        let device = self.model.device();
        device.counts_free_bytes().then(|| device.free_bytes())
    }

    fn give_back(mut self: Box<Self>) -> Result<Option<HeldBytes>, MeasureError> {
        let device = self.model.device_mut();
        if !device.counts_free_bytes() {
            return Ok(None);
        }
        let end = device.record(None)?;
        device.wait(&end)?;
        let memory = self.model.memory();
        let parts = [memory.arena, memory.weights, memory.states];
        let mut held = [0; 3];
        for (held, part) in held.iter_mut().zip(parts) {
            let device = self.model.device_mut();
            let free = device.free_bytes();
            device.drop_backing(part)?;
            *held = device.free_bytes().saturating_sub(free);
        }
        let [arena, weights, states] = held;
        Ok(Some(HeldBytes { arena, weights, states }))
    }

    fn model(&self) -> &dyn Model {
        &self.model
    }

    fn cache_bytes(&self) -> u64 {
        self.model.device().cache_bytes()
    }

    fn versions(&self) -> Versions {
        self.model.device().versions()
    }

    fn device_model(&self) -> String {
        self.model.device().model()
    }
}

fn push(
    batch: &mut BatchBuffers,
    tables: &[PageTable],
    slots: &[StateSlot],
    entries: u64,
    chunk: &PlannedChunk,
) -> Result<(), String> {
    let Some(table) = tables.get(chunk.sequence) else {
        return Err(format!("is not there: there are {}", tables.len()));
    };
    let entry = u32::try_from(chunk.sequence).ok().filter(|&e| u64::from(e) < entries);
    let end = chunk.start + chunk.count();
    if end > table.rows() {
        return Err(format!("reaches position {end}, and has room for {}", table.rows()));
    }
    let tokens = match (&chunk.tokens, entry) {
        (StepTokens::Ids(ids), _) => ChunkTokens::Ids(ids),
        (StepTokens::Feedback, Some(entry)) => ChunkTokens::Feedback(entry),
        (StepTokens::Feedback, None) => {
            return Err(format!("feeds back, and there are {entries} entries of sampled ids"));
        }
    };
    let slot = slots.get(chunk.sequence);
    if slot.is_none() && batch.roles().state_slots > 0 {
        return Err(format!("needs a slot of states, and there are {}", slots.len()));
    }
    batch.push(&Chunk {
        tokens,
        start: chunk.start,
        table,
        slot,
        rows: chunk.rows,
        entry,
        values: &[],
        sampling: Sampling::default(),
        controls: SampleControls::default(),
    });
    Ok(())
}
