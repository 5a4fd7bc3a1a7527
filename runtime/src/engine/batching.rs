//! The engine of a device: what it has in hand, and its interface.

use super::error::EngineError;
use super::interface::{Engine, StepObserver, TraceObserver};
use super::masks::Masks;
use super::order::Turns;
use super::request::{EngineOptions, Request, RequestEvent, RowSource, check_length};
use super::sequence::{Planned, Sequence};
use crate::batch::{BatchBuffers, RoleMap, full_steps};
use crate::memory::{
    EmbeddingPool, KvObserver, KvPoison, PagePool, RowsId, SampleStates, SlotPool,
};
use crate::observe::{Metrics, Snapshot, Ticker};
use crate::steps::{CompiledModel, Ticket};
use crate::words::{
    EngineLoad, GraphMode, ModelError, PrefixCounts, RequestId, SuspendedWeights, Usage,
};
use piecewise_backend::device::DeviceError;
use piecewise_backend::tuning::TuneMode;
use piecewise_backend::weights::WeightSource;
use piecewise_ir::dtype::DType;
use piecewise_planner::IterationRecord;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

#[derive(Default, derive_more::Debug)]
#[debug("Watchers")]
pub(super) struct Watchers {
    pub(super) ticker: Option<Ticker>,
    pub(super) metrics: Option<Metrics>,
    pub(super) published: Option<Instant>,
    pub(super) kv: Option<KvObserver>,
    pub(super) traces: Option<TraceObserver>,
}

/// A submitted step that is not read yet.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) ticket: Ticket,
    pub(super) record: IterationRecord,
    /// Whose each row of logits is.
    pub(super) rows: Vec<Row>,
    /// The ids that were sampled, and what is told of each; filled when it is read.
    pub(super) sampled: Vec<i32>,
    pub(super) details: Vec<u8>,
    /// Whether some row wants log-probabilities.
    pub(super) wants_logprobs: bool,
}

/// A row of logits of a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) request: RequestId,
    /// The conversation's, so that what an earlier one had in flight is told apart.
    pub(super) turn: u32,
    /// Its position, where it tells of the id of the prompt that follows it; else it samples.
    pub(super) tells: Option<u64>,
}

/// The [`Engine`] of a device: continuous batching.
#[derive(derive_more::Debug)]
#[debug("BatchingEngine of {options:?}, {} running, {} waiting, {model:?}", running.len(), waiting.len())]
pub struct BatchingEngine {
    pub(super) model: CompiledModel,
    pub(super) options: EngineOptions,
    pub(super) roles: RoleMap,
    pub(super) batch: BatchBuffers,
    pub(super) pool: PagePool,
    pub(super) slots: SlotPool,
    pub(super) embeddings: EmbeddingPool,
    /// Where the graph does what requests may ask of sampling.
    pub(super) sample_states: Option<SampleStates>,
    pub(super) masks: Masks,
    /// Entries of the state of sampled ids that no running sequence has.
    pub(super) entries: Vec<u32>,
    pub(super) sequences: BTreeMap<RequestId, Sequence>,
    /// In the order of their priorities, and of admission within one.
    pub(super) running: Vec<RequestId>,
    /// In the order of their priorities, and of their clients' turns within one.
    pub(super) waiting: VecDeque<RequestId>,
    pub(super) turns: Turns,
    /// Of those that run or wait.
    pub(super) deadlines: BTreeSet<(Instant, RequestId)>,
    /// Finished and kept, the longest idle first.
    pub(super) kept: Vec<RequestId>,
    pub(super) in_flight: VecDeque<InFlight>,
    pub(super) spare: Vec<InFlight>,
    pub(super) plan: Vec<Planned>,
    pub(super) next_id: u64,
    pub(super) preemptions: u64,
    pub(super) prefix_counts: PrefixCounts,
    pub(super) retried_steps: u64,
    /// Requests that ended since their logits gave no id.
    pub(super) bad_logits: u64,
    /// What is named where they do.
    pub(super) computes_in: DType,
    /// Failures since a step was read.
    pub(super) failures: u32,
    pub(super) poison: Option<KvPoison>,
    pub(super) observer: Option<StepObserver>,
    pub(super) watchers: Watchers,
}

impl BatchingEngine {
    /// Serves with `model`, whose graph's roles are `roles`.
    ///
    /// # Errors
    /// When an option is beyond what the model was built for.
    pub fn new(
        mut model: CompiledModel,
        roles: RoleMap,
        options: EngineOptions,
    ) -> Result<Self, EngineError> {
        let sample_states = Self::sample_states(&mut model, &roles)?;
        let graph = model.module().graph();
        let computes_in = Self::narrowest(graph);
        let options = options.checked(&model, &roles)?;
        let entries = u32::try_from(roles.sampled_entries).unwrap_or(u32::MAX);
        let poison = model.checks().poison.then(|| KvPoison::new(graph, model.memory()));
        let seqs = options.max_num_seqs as usize;
        let ticker = options.stats_interval.map(Ticker::new);
        Ok(Self {
            batch: BatchBuffers::new(roles.clone()),
            pool: PagePool::new(roles.kv_rows),
            slots: SlotPool::new(graph, model.memory(), roles.state_slots),
            embeddings: EmbeddingPool::new(graph, model.memory()),
            sample_states,
            masks: Masks::default(),
            entries: (0..entries).rev().collect(),
            sequences: BTreeMap::new(),
            running: Vec::with_capacity(seqs),
            waiting: VecDeque::new(),
            turns: Turns::default(),
            deadlines: BTreeSet::new(),
            kept: Vec::new(),
            in_flight: VecDeque::with_capacity(2),
            spare: Vec::with_capacity(2),
            plan: Vec::with_capacity(seqs),
            next_id: 0,
            preemptions: 0,
            prefix_counts: PrefixCounts::default(),
            retried_steps: 0,
            bad_logits: 0,
            computes_in,
            failures: 0,
            poison,
            observer: None,
            watchers: Watchers { ticker, ..Watchers::default() },
            model,
            options,
            roles,
        })
    }

    /// The states that sampling goes by, where the graph is told what rows ask for.
    pub(super) fn sample_states(
        model: &mut CompiledModel,
        roles: &RoleMap,
    ) -> Result<Option<SampleStates>, DeviceError> {
        let logits = roles.logits.filter(|_| roles.has_controls());
        let (device, lies) = model.device_beside();
        SampleStates::new(device, lies, logits.map(|(_, vocabulary)| vocabulary))
    }

    /// The model, to inspect memory or recapture between steps.
    pub fn model_mut(&mut self) -> &mut CompiledModel {
        &mut self.model
    }
}

impl Engine for BatchingEngine {
    fn add(&mut self, request: Request) -> Result<RequestId, EngineError> {
        request.check(&self.options, &self.roles)?;
        check_length(request.prompt.len(), &self.options)?;
        let values = self.values_of(&request)?;
        self.begin_rows(&request);
        let id = RequestId(self.next_id);
        self.next_id += 1;
        let rows = request.rows.clone();
        let mut sequence = Sequence::new(request, self.options.max_seq_len, &self.roles);
        sequence.shares = self.options.prefix_cache && values.is_empty();
        (sequence.values, sequence.rows) = (values, rows);
        self.deadlines.extend(sequence.deadline.map(|deadline| (deadline, id)));
        self.sequences.insert(id, sequence);
        self.wait_last(id);
        Ok(id)
    }

    fn extend(&mut self, id: RequestId, request: Request) -> Result<(), EngineError> {
        let Some(at) = self.kept.iter().position(|&kept| kept == id) else {
            return Err(EngineError::NotKept { request: id });
        };
        request.check(&self.options, &self.roles)?;
        if let Some(given) = request.rows.first() {
            let expected = "only the first request of a conversation brings rows";
            let value = given.rows.to_string();
            return Err(EngineError::Parameter { parameter: "rows", value, expected });
        }
        if let Some(likeliest) = request.prompt_logprobs {
            let expected = "only the first request of a conversation can ask for them";
            let (parameter, value) = ("prompt_logprobs", likeliest.to_string());
            return Err(EngineError::Parameter { parameter, value, expected });
        }
        if let Some(given) = request.values.first() {
            let reason = "only the first request of a conversation brings some".to_owned();
            return Err(EngineError::Values { name: given.name.to_string(), reason });
        }
        let ids = self.ids(id).map_or(0, <[u32]>::len);
        check_length(ids.saturating_add(request.prompt.len()), &self.options)?;
        self.kept.remove(at);
        if let Some(sequence) = self.sequences.get_mut(&id) {
            sequence.extend(request, self.options.max_seq_len);
            self.deadlines.extend(sequence.deadline.map(|deadline| (deadline, id)));
        }
        self.wait_last(id);
        Ok(())
    }

    fn remove(&mut self, id: RequestId) -> Result<(), EngineError> {
        if !self.sequences.contains_key(&id) {
            return Err(EngineError::UnknownRequest { request: id });
        }
        self.forget(id);
        Ok(())
    }

    fn ids(&self, id: RequestId) -> Option<&[u32]> {
        self.sequences.get(&id).map(|sequence| sequence.ids.as_slice())
    }

    fn usage(&self, id: RequestId) -> Option<Usage> {
        self.sequences.get(&id).map(Sequence::usage)
    }

    fn kept(&self) -> &[RequestId] {
        &self.kept
    }

    fn has_work(&self) -> bool {
        !(self.running.is_empty() && self.waiting.is_empty() && self.in_flight.is_empty())
    }

    fn step(&mut self, events: &mut Vec<RequestEvent>) -> Result<bool, EngineError> {
        if self.model.suspended().is_some() {
            return Err(ModelError::Suspended.into());
        }
        let result = self.step_over_failures(events);
        self.tell_kv_observer();
        result
    }

    fn retried_steps(&self) -> u64 {
        self.retried_steps
    }

    fn capture_next(&mut self) -> Result<bool, EngineError> {
        Ok(self.model.capture_next()?)
    }

    fn add_rows(&mut self, source: RowSource<'_>) -> Result<RowsId, EngineError> {
        self.take_rows(source)
    }

    fn remove_rows(&mut self, rows: RowsId) -> Result<(), EngineError> {
        Ok(self.embeddings.remove(rows)?)
    }

    fn free_rows(&self) -> u64 {
        self.embeddings.free_rows()
    }

    fn logits(
        &mut self,
        request: &Request,
        rows: &mut dyn FnMut(u64, &[u8]),
    ) -> Result<(), EngineError> {
        let result = self.logits_of(request, rows);
        if result.as_ref().is_err_and(EngineError::is_lost) {
            self.recover(&mut Vec::new())?;
        }
        self.tell_kv_observer();
        result
    }

    fn observe(&mut self, observer: StepObserver) {
        self.model.time_steps(true);
        self.observer = Some(observer);
    }

    fn observe_kv(&mut self, observer: KvObserver) {
        self.pool.note_events();
        self.pool.forget_all();
        self.watchers.kv = Some(observer);
        self.tell_kv_observer();
    }

    fn clear_prefix_cache(&mut self) {
        self.pool.forget_all();
        self.tell_kv_observer();
    }

    fn model(&self) -> &CompiledModel {
        &self.model
    }

    fn load(&self) -> EngineLoad {
        EngineLoad {
            running: self.running.len() as u64,
            waiting: self.waiting.len() as u64,
            kept: self.kept.len() as u64,
            kv_pages: self.pool.pages() as u64,
            free_kv_pages: self.pool.free_pages() as u64,
            cached_kv_pages: self.pool.cached_pages() as u64,
            preemptions: self.preemptions,
            bad_logits: self.bad_logits,
            prefix: self.prefix_counts,
        }
    }

    fn options(&self) -> &EngineOptions {
        &self.options
    }

    fn slots(&self) -> &SlotPool {
        &self.slots
    }

    fn metrics(&mut self) -> Metrics {
        self.model.time_steps(true);
        let metrics = self.watchers.metrics.get_or_insert_default().clone();
        metrics.publish(self.snapshot());
        metrics
    }

    fn observe_traces(&mut self, observer: Option<TraceObserver>) -> Result<(), EngineError> {
        self.model.trace_steps(observer.is_some())?;
        self.watchers.traces = observer;
        Ok(())
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot {
            statistics: self.model.statistics().clone(),
            memory: self.model.memory().ledger,
            graphs: self.model.captured_graphs() as u64,
            load: self.load(),
        }
    }

    fn set_graph_mode(&mut self, mode: GraphMode) -> Result<(), EngineError> {
        self.model.set_graph_mode(mode, &mut |_| {})?;
        self.measure_launches_if_idle()
    }

    fn enable_graphs(&mut self) -> Result<usize, EngineError> {
        Ok(self.model.enable_graphs()?)
    }

    fn invalidate_graphs(&mut self) {
        self.model.invalidate_graphs();
    }

    fn suspend(
        &mut self,
        weights: SuspendedWeights,
        events: &mut Vec<RequestEvent>,
    ) -> Result<(), EngineError> {
        self.retire_all(events)?;
        self.tell_kv_observer();
        if self.model.suspended().is_none() {
            self.embeddings.save(self.model.device_mut())?;
        }
        Ok(self.model.suspend(weights)?)
    }

    fn resume(&mut self, weights: Option<&dyn WeightSource>) -> Result<(), EngineError> {
        let Some(before) = self.model.suspended() else { return Ok(()) };
        self.model.resume(weights)?;
        if let Err(error) = self.embeddings.restore(self.model.device_mut()) {
            // No step may read rows that are not there yet.
            self.model.suspend(before)?;
            return Err(error.into());
        }
        Ok(())
    }
}

impl BatchingEngine {
    /// Measures which sizes are faster launched, where ways are measured and nobody has a state that the
    /// made-up sequences would overwrite.
    fn measure_launches_if_idle(&mut self) -> Result<(), EngineError> {
        let is_measured = self.model.tune() == TuneMode::Measure;
        if !is_measured || !self.sequences.is_empty() || self.model.suspended().is_some() {
            return Ok(());
        }
        self.retire_all(&mut Vec::new())?;
        self.tell_kv_observer();
        self.embeddings.save(self.model.device_mut())?;
        let steps = full_steps(&self.roles, self.model.dispatcher());
        let measured = self.model.measure_launches(&steps, self.model.launches_budget());
        // States are zeros for those who come, however far it got.
        self.model.suspend(SuspendedWeights::Keep)?;
        self.resume(None)?;
        Ok(measured?)
    }
}
