//! The engine: what it has in hand, and what is asked of it.

use super::error::EngineError;
use super::masks::Masks;
use super::order::Turns;
use super::request::{EngineOptions, Request, RequestEvent, check_length};
use super::sequence::{Planned, Sequence};
use crate::batch::{BatchBuffers, RoleMap};
use crate::memory::{EmbeddingPool, KvObserver, KvPoison, PagePool, SampleStates, SlotPool};
use crate::observe::{KeptTrace, Metrics, Ticker};
use crate::steps::{CompiledModel, Ticket};
use crate::words::{
    EngineLoad, ModelError, PrefixCounts, RequestId, StepTrace, Usage, narrowest_range,
};
use piecewise_backend::device::DeviceError;
use piecewise_ir::dtype::DType;
use piecewise_planner::IterationRecord;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::ControlFlow;
use std::time::Instant;

/// Is called with every step that was read back, with its wall time and the device's (see
/// [`StepTimes`](crate::words::StepTimes)).
pub type StepObserver = Box<dyn FnMut(&IterationRecord) + Send>;

/// Is called with every traced step that was read back, until it says that it wants no more.
pub type TraceObserver = Box<dyn FnMut(StepTrace) -> ControlFlow<()> + Send>;

#[derive(Default, derive_more::Debug)]
#[debug("Watchers")]
pub(super) struct Watchers {
    pub(super) ticker: Option<Ticker>,
    pub(super) metrics: Option<Metrics>,
    pub(super) published: Option<Instant>,
    pub(super) kv: Option<KvObserver>,
    pub(super) traces: Option<TraceObserver>,
    pub(super) profile: Option<KeptTrace>,
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

/// Serves requests with a compiled model: requests are added, continued and removed at any time
/// between two steps, and each step says what it brought about.
#[derive(derive_more::Debug)]
#[debug("Engine of {options:?}, {} running, {} waiting, {model:?}", running.len(), waiting.len())]
pub struct Engine {
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

impl Engine {
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
        let computes_in = narrowest_range(graph);
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

    /// Takes a request; it runs when there is room.
    ///
    /// # Errors
    /// When the prompt is empty, too long, or holds ids that the model has not, or a parameter
    /// is out of range.
    pub fn add(&mut self, request: Request) -> Result<RequestId, EngineError> {
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

    /// Continues a finished request that was kept: `request.prompt` is appended to its ids, and
    /// what its pages and slot still hold is not computed again.
    ///
    /// # Errors
    /// When the request is not there or not finished, or as for [`Self::add`].
    pub fn extend(&mut self, id: RequestId, request: Request) -> Result<(), EngineError> {
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

    /// Forgets a request, wherever it is. Its pages and its slot are free at once; what it had in
    /// flight is dropped.
    ///
    /// # Errors
    /// When there is no such request.
    pub fn remove(&mut self, id: RequestId) -> Result<(), EngineError> {
        if !self.sequences.contains_key(&id) {
            return Err(EngineError::UnknownRequest { request: id });
        }
        self.forget(id);
        Ok(())
    }

    /// The ids of a request so far, prompts and generated; `None` where it is not there.
    pub fn ids(&self, id: RequestId) -> Option<&[u32]> {
        self.sequences.get(&id).map(|sequence| sequence.ids.as_slice())
    }

    /// What the present or last turn of a request has taken so far; `None` where it is not there.
    pub fn usage(&self, id: RequestId) -> Option<Usage> {
        self.sequences.get(&id).map(Sequence::usage)
    }

    /// The requests that have finished and were kept, the longest idle first.
    pub fn kept(&self) -> &[RequestId] {
        &self.kept
    }

    /// Whether a step would do anything.
    pub fn has_work(&self) -> bool {
        !(self.running.is_empty() && self.waiting.is_empty() && self.in_flight.is_empty())
    }

    /// Submits the next step, if anybody has tokens for one, and reads what is due; appends what
    /// happened to `events`. Returns whether there is more to do.
    ///
    /// # Errors
    /// When an input can't be filled, the model fails, the pool can't hold even one sequence, no step
    /// can be planned for a request though nothing is on its way, or what was sampled is no id
    /// (then that request is removed and the others go on). What the device
    /// fails at is tried again, after it was opened anew where it was lost; an error of it comes out
    /// where it can't be opened, or after three failures without a step between them. Requests stay
    /// whatever happens, and the next call tries them again.
    pub fn step(&mut self, events: &mut Vec<RequestEvent>) -> Result<bool, EngineError> {
        if self.model.suspended().is_some() {
            return Err(ModelError::Suspended.into());
        }
        let result = self.step_over_failures(events);
        self.tell_kv_observer();
        result
    }

    /// Steps until nothing is left to do.
    ///
    /// # Errors
    /// As for [`Self::step`].
    pub fn run(&mut self, events: &mut Vec<RequestEvent>) -> Result<(), EngineError> {
        while self.step(events)? {}
        Ok(())
    }

    /// How many steps failed on a device that goes on, and were tried again.
    pub fn retried_steps(&self) -> u64 {
        self.retried_steps
    }

    /// The model: what it was compiled from, what it counted, its memory and its graphs.
    pub fn model(&self) -> &CompiledModel {
        &self.model
    }

    /// What the engine has in hand.
    pub fn load(&self) -> EngineLoad {
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

    /// The bounds that it was built with, and how it runs steps.
    pub fn options(&self) -> &EngineOptions {
        &self.options
    }

    /// Slots of the states that each sequence has a row of.
    pub fn slots(&self) -> &SlotPool {
        &self.slots
    }
}
