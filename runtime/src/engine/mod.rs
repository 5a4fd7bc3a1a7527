//! The engine: requests in, tokens out, by continuous batching over a compiled model.
//!
//! Each step mixes what its sequences need next: one token of those that decode, then chunks of
//! prompts, then prompts of waiting requests, up to the bound on tokens. Where the model feeds
//! sampled ids back on the device, a step is submitted before the one before it is read; tokens
//! past a stop id are dropped.
//!
//! What the device fails at costs time and no request: a step that failed is taken back and tried
//! again, and after an error that loses the device it is opened anew, and every request is computed
//! again from its tokens.
//!
//! The KV pool is shared, and so are the slots of states that a sequence has one row of: a slot is
//! given at admission, filled with zeros, and taken back with the pages. A request is admitted when
//! its prompt fits with a page to spare for each running sequence; when pages run out all the same,
//! pages of idle sequences are reclaimed first (kept conversations, oldest first), then the
//! sequence admitted last of those that matter least is preempted: it waits, and its tokens are
//! computed again. So nobody pays for tokens that are never generated, and the oldest sequence of
//! the first priority always goes on.
//!
//! Full pages are found by their ids and all before them, as long as nothing else needs them, so a
//! prompt that begins as another did is computed from where they part. Only the ids must say what a
//! page holds: requests that bring rows or values share none, and a model with states of one row a
//! sequence has no such cache.

mod bad_logits;
mod batching;
mod constraint;
mod controls;
mod error;
mod finish;
mod idle;
mod in_flight;
mod interface;
mod logits;
mod masks;
mod order;
mod own_rows;
mod prefix;
mod record;
mod recover;
mod request;
mod rows;
mod schedule;
mod sequence;
mod step;
mod turn_controls;
mod watch;

pub use constraint::{TokenConstraint, TokenLogprobs};
pub use controls::{MAX_LOGIT_BIASES, MAX_TOP_LOGPROBS};
pub use error::EngineError;
pub use interface::Engine;
pub use record::{StepObserver, TraceObserver};
pub use request::{EngineOptions, GivenRows, Request, RequestEvent, RequestId, RowSource};

pub use crate::batch::TokenValues;
use crate::batch::{BatchBuffers, RoleMap};
use crate::memory::KvPoison;
pub use crate::memory::{KvEvent, KvObserver, PageHash, RowsError, RowsId};
pub use crate::words::{FinishReason, PrefixCounts, Usage};

use crate::memory::{EmbeddingPool, PagePool, SampleStates, SlotPool};
use crate::observe::Ticker;
use crate::steps::{CompiledModel, Model};
use in_flight::InFlight;
use masks::Masks;
use piecewise_backend::device::{Device, DeviceError};
use piecewise_ir::dtype::DType;
use sequence::{Planned, Sequence};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;
use watch::Watchers;

/// The [`Engine`] of a device: continuous batching.
#[derive(derive_more::Debug)]
#[debug("BatchingEngine of {options:?}, {} running, {} waiting, {model:?}", running.len(), waiting.len())]
pub struct BatchingEngine<D: Device> {
    model: CompiledModel<D>,
    options: EngineOptions,
    roles: RoleMap,
    batch: BatchBuffers,
    pool: PagePool,
    slots: SlotPool,
    embeddings: EmbeddingPool,
    /// Where the graph does what requests may ask of sampling.
    sample_states: Option<SampleStates<D>>,
    masks: Masks,
    /// Entries of the state of sampled ids that no running sequence has.
    entries: Vec<u32>,
    sequences: BTreeMap<RequestId, Sequence>,
    /// In the order of their priorities, and of admission within one.
    running: Vec<RequestId>,
    /// In the order of their priorities, and of arrival within one.
    waiting: VecDeque<RequestId>,
    /// Of those that run or wait.
    deadlines: BTreeSet<(Instant, RequestId)>,
    /// Finished and kept, the longest idle first.
    kept: Vec<RequestId>,
    in_flight: VecDeque<InFlight>,
    spare: Vec<InFlight>,
    plan: Vec<Planned>,
    next_id: u64,
    preemptions: u64,
    prefix_counts: PrefixCounts,
    retried_steps: u64,
    /// Requests that ended since their logits gave no id.
    bad_logits: u64,
    /// What is named where they do.
    computes_in: DType,
    /// Failures since a step was read.
    failures: u32,
    poison: Option<KvPoison>,
    observer: Option<StepObserver>,
    watchers: Watchers,
}

impl<D: Device> BatchingEngine<D> {
    /// Serves with `model`, whose graph's roles are `roles`.
    ///
    /// # Errors
    /// When an option is beyond what the model was built for.
    pub fn new(
        mut model: CompiledModel<D>,
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
    fn sample_states(
        model: &mut CompiledModel<D>,
        roles: &RoleMap,
    ) -> Result<Option<SampleStates<D>>, DeviceError> {
        let logits = roles.logits.filter(|_| roles.has_controls());
        let (device, lies) = model.device_beside();
        SampleStates::new(device, lies, logits.map(|(_, vocabulary)| vocabulary))
    }

    /// What steps run on; the engine alone steps it.
    pub fn model(&self) -> &CompiledModel<D> {
        &self.model
    }

    /// The model, to inspect memory or recapture between steps.
    pub fn model_mut(&mut self) -> &mut CompiledModel<D> {
        &mut self.model
    }
}

#[cfg(test)]
mod tests;
