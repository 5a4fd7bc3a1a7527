//! The timer of a compiled model.

use super::error::MeasureError;
use super::plan::{PlannedChunk, PlannedStep, StepTokens};
use super::record::{CaptureReport, HeldBytes, StepRecord};
use super::timeline::Timeline;
use crate::batch::{
    BatchBuffers, Chunk, ChunkTokens, RoleMap, SampleControls, Sampling, full_steps,
};
use crate::memory::{PagePool, PageTable, SlotPool, StateSlot};
use crate::steps::{CompiledModel, StepLaunch, Ticket};
use crate::words::{Dispatch, GraphMode, Progress, StepSizes};
use piecewise_backend::device::measure::{ReadBandwidth, Versions};
use piecewise_backend::device::{Event, GraphShape};
use piecewise_backend::tuning::TuneMode;
use std::time::{Duration, Instant};

/// How often the driver's calls alone are timed.
const BARE_SUBMITS: usize = 15;

/// A model with sequences to measure it on.
#[derive(derive_more::Debug)]
#[debug("ModelTimer of {} sequences, {model:?}", tables.len())]
pub struct ModelTimer {
    model: CompiledModel,
    batch: BatchBuffers,
    tables: Vec<PageTable>,
    free_slots: SlotPool,
    /// Of each sequence, where states have a row for each.
    slots: Vec<StateSlot>,
    entries: u64,
    sampled: usize,
}

/// A step that is submitted and not yet read.
struct InFlight {
    ticket: Ticket,
    start: Event,
    end: Event,
    record: StepRecord,
}

impl ModelTimer {
    /// Measures `model` on sequences with room for so many positions each.
    ///
    /// # Errors
    /// When it does not feed back what it samples, or its KV pool is too small.
    pub fn new(
        mut model: CompiledModel,
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
    pub(super) fn model_mut(&mut self) -> &mut CompiledModel {
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
        let mut in_flight: Option<InFlight> = None;
        let mut last_done = Instant::now();
        let mut finish = |timer: &mut Self, step: InFlight| {
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

    fn submit(&mut self, number: usize, step: &PlannedStep) -> Result<InFlight, MeasureError> {
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
        let shapes = self.model.ready_graphs().map(|graph| graph.shape());
        shapes.fold(GraphShape::default(), |sum, shape| sum + shape)
    }
}

impl ModelTimer {
    /// Runs steps in order, each submitted before the one before it is read. With `launched` they
    /// are launched at the sizes that they would replay at.
    ///
    /// # Errors
    /// When a step does not fit the model, or the device fails.
    pub fn run(
        &mut self,
        steps: &[PlannedStep],
        launched: bool,
    ) -> Result<Vec<StepRecord>, MeasureError> {
        self.model.set_launches_only(launched);
        let done = self.run_all(steps);
        self.model.set_launches_only(false);
        done
    }

    /// Captures the graphs of `mode` instead of those that there are.
    ///
    /// # Errors
    /// When the mode can't be captured.
    pub fn recapture(
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

    /// Where and when the blocks of the whole steps of these sizes ran at their last replay.
    ///
    /// # Errors
    /// When nothing was noted of them, or work before failed.
    pub fn timeline(&mut self, sizes: StepSizes) -> Result<Timeline, MeasureError> {
        let tokens = sizes.tokens.rows();
        let times = self.model.block_times(sizes)?.ok_or(MeasureError::NoTimeline { tokens })?;
        Ok(Timeline::new(self.model.step_launches(sizes), times))
    }

    /// The host's time for the driver's calls alone that the launches of a measured step take: the
    /// median of several; `None` where there is no driver.
    ///
    /// # Errors
    /// When a call fails.
    pub fn bare_submit(&mut self, record: &StepRecord) -> Result<Option<Duration>, MeasureError> {
        let StepRecord { mode, sizes, fallback, .. } = *record;
        let mut times = Vec::with_capacity(BARE_SUBMITS);
        for _ in 0..BARE_SUBMITS {
            times.extend(self.model.bare_submit(Dispatch { mode, sizes, fallback })?);
        }
        times.sort_unstable();
        Ok(times.get(times.len() / 2).copied())
    }

    /// The launches of a whole step of these sizes, in order; see
    /// [`CompiledModel::step_launches`](crate::steps::CompiledModel::step_launches).
    pub fn step_launches(&self, sizes: StepSizes) -> Vec<StepLaunch> {
        self.model.step_launches(sizes)
    }

    /// Leaves launches out of every program and drops every graph: steps compute something else
    /// from then on. Returns how many launches are left out, over all sizes.
    pub fn leave_out(&mut self, is_left_out: &dyn Fn(&StepLaunch) -> bool) -> usize {
        self.model.leave_out(is_left_out)
    }

    /// How fast the device reads its memory, measured now.
    ///
    /// # Errors
    /// When memory is short or the device fails.
    pub fn read_bandwidth(&mut self) -> Result<ReadBandwidth, MeasureError> {
        Ok(self.model.device_mut().read_bandwidth()?)
    }

    /// The device's free memory; `None` where its driver does not count it.
    pub fn free_bytes(&self) -> Option<u64> {
        let device = self.model.device();
        device.counts_free_bytes().then(|| device.free_bytes())
    }

    /// Gives the memory of each part back, one after the other, and tells by how much the driver's
    /// figure of free memory grew; `None` where there is none.
    ///
    /// # Errors
    /// When work before failed, or memory can't be given back.
    pub fn give_back(mut self) -> Result<Option<HeldBytes>, MeasureError> {
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

    /// The model: what it was compiled from, what was compiled and chosen, and its memory.
    pub fn model(&self) -> &CompiledModel {
        &self.model
    }

    /// Bytes of the device's last cache; 0 where unknown.
    pub fn cache_bytes(&self) -> u64 {
        self.model.device().cache_bytes()
    }

    /// Versions of what figures of the device depend on besides this program, by name, as far as they
    /// are in use by now.
    pub fn versions(&self) -> Versions {
        self.model.device().versions()
    }

    /// The model of the device alone: what is measured on one of them holds for others.
    pub fn device_model(&self) -> String {
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
