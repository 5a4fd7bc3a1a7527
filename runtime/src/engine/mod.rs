//! The engine: requests in, tokens out, by continuous batching over a compiled model.
//!
//! Each step mixes what its sequences need next: one token of those that decode, then chunks of
//! prompts, then prompts of waiting requests, up to the bound on tokens. Where the model feeds
//! sampled ids back on the device, a step is submitted before the one before it is read; tokens
//! past a stop id are dropped.
//!
//! The KV pool is shared. A request is admitted when its prompt fits with a page to spare for
//! each running sequence; when pages run out all the same, pages of idle sequences are reclaimed
//! first (kept conversations, oldest first), then the sequence admitted last is preempted: it
//! waits, and its tokens are computed again. So nobody pays for tokens that are never generated,
//! and the oldest sequence always goes on.

mod dyn_engine;
mod error;
mod idle;
mod logits;
mod record;
mod request;
mod schedule;
mod sequence;
mod step;

pub use dyn_engine::DynEngine;
pub use error::EngineError;
pub use record::StepObserver;
pub use request::{EngineOptions, Event, FinishReason, Request, RequestId};

use crate::batch::{BatchBuffers, RoleMap};
use crate::checks::KvPoison;
use crate::kv::PagePool;
use crate::model::CompiledModel;
use piecewise_backend::device::Device;
use sequence::Sequence;
use std::collections::{BTreeMap, VecDeque};
use step::InFlight;

/// Serves requests with a compiled model.
pub struct Engine<D: Device> {
    model: CompiledModel<D>,
    options: EngineOptions,
    roles: RoleMap,
    batch: BatchBuffers,
    pool: PagePool,
    /// Entries of the state of sampled ids that no running sequence has.
    entries: Vec<u32>,
    sequences: BTreeMap<RequestId, Sequence>,
    /// In the order of admission.
    running: Vec<RequestId>,
    waiting: VecDeque<RequestId>,
    /// Finished and kept, the longest idle first.
    kept: Vec<RequestId>,
    in_flight: VecDeque<InFlight>,
    spare: Vec<InFlight>,
    plan: Vec<schedule::Planned>,
    next_id: u64,
    preemptions: u64,
    poison: Option<KvPoison>,
    observer: Option<StepObserver>,
    last_done: Option<std::time::Instant>,
}

impl<D: Device> Engine<D> {
    /// Serves with `model`.
    ///
    /// # Errors
    /// When the graph's roles do not fit, or an option is beyond what the model was built for.
    pub fn new(model: CompiledModel<D>, options: EngineOptions) -> Result<Self, EngineError> {
        let graph = model.module().graph();
        let roles = RoleMap::resolve(graph, model.symbols())?;
        let options = options.checked(&model, &roles)?;
        let entries = match roles.sampled_entries {
            0 => 0,
            entries => u32::try_from(entries).unwrap_or(u32::MAX),
        };
        let poison = model.checks().poison.then(|| KvPoison::new(graph, model.memory()));
        let seqs = options.max_num_seqs as usize;
        Ok(Self {
            batch: BatchBuffers::new(roles.clone()),
            pool: PagePool::new(roles.kv_rows),
            entries: (0..entries).rev().collect(),
            sequences: BTreeMap::new(),
            running: Vec::with_capacity(seqs),
            waiting: VecDeque::new(),
            kept: Vec::new(),
            in_flight: VecDeque::with_capacity(2),
            spare: Vec::with_capacity(2),
            plan: Vec::with_capacity(seqs),
            next_id: 0,
            preemptions: 0,
            poison,
            observer: None,
            last_done: None,
            model,
            options,
            roles,
        })
    }

    /// The model.
    pub fn model(&self) -> &CompiledModel<D> {
        &self.model
    }

    /// The model, to inspect memory or recapture between steps.
    pub fn model_mut(&mut self) -> &mut CompiledModel<D> {
        &mut self.model
    }

    /// The bounds in force.
    pub fn options(&self) -> &EngineOptions {
        &self.options
    }

    /// Pages of the KV pool.
    pub fn pool(&self) -> &PagePool {
        &self.pool
    }

    /// How often a sequence lost its pages and was computed again.
    pub fn preemptions(&self) -> u64 {
        self.preemptions
    }

    /// Calls `observer` with every step that was read back.
    pub fn observe(&mut self, observer: StepObserver) {
        self.observer = Some(observer);
    }

    /// Whether a step would do anything.
    pub fn has_work(&self) -> bool {
        !(self.running.is_empty() && self.waiting.is_empty() && self.in_flight.is_empty())
    }

    /// The ids of a request so far: prompt and generated.
    pub fn ids(&self, request: RequestId) -> Option<&[u32]> {
        self.sequences.get(&request).map(|sequence| sequence.ids.as_slice())
    }

    /// Takes a request; it runs when there is room.
    ///
    /// # Errors
    /// When the prompt is empty, too long, or holds ids that the model has not, or a parameter
    /// is out of range.
    pub fn add(&mut self, request: Request) -> Result<RequestId, EngineError> {
        request.check(&self.options, &self.roles)?;
        self.check_length(request.prompt.len())?;
        let id = RequestId(self.next_id);
        self.next_id += 1;
        let sequence = Sequence::new(request, self.options.max_seq_len, &self.roles);
        self.sequences.insert(id, sequence);
        self.waiting.push_back(id);
        Ok(id)
    }

    /// Continues a finished request that was kept: `request.prompt` is appended to its ids, and
    /// what its pages still hold is not computed again.
    ///
    /// # Errors
    /// When the request is not there or not finished, or as for [`Self::add`].
    pub fn extend(&mut self, id: RequestId, request: Request) -> Result<(), EngineError> {
        let Some(at) = self.kept.iter().position(|&kept| kept == id) else {
            return Err(EngineError::NotKept { request: id });
        };
        request.check(&self.options, &self.roles)?;
        let ids = self.ids(id).map_or(0, <[u32]>::len);
        self.check_length(ids.saturating_add(request.prompt.len()))?;
        self.kept.remove(at);
        if let Some(sequence) = self.sequences.get_mut(&id) {
            sequence.extend(request, self.options.max_seq_len);
        }
        self.waiting.push_back(id);
        Ok(())
    }

    fn check_length(&self, length: usize) -> Result<(), EngineError> {
        let bound = self.options.max_seq_len;
        if length as u64 >= bound {
            return Err(EngineError::TooLong { length, bound });
        }
        Ok(())
    }

    /// Forgets a request, wherever it is. What it had in flight is dropped.
    ///
    /// # Errors
    /// When there is no such request.
    pub fn remove(&mut self, id: RequestId) -> Result<(), EngineError> {
        let mut sequence =
            self.sequences.remove(&id).ok_or(EngineError::UnknownRequest { request: id })?;
        sequence.table.release(&mut self.pool);
        self.entries.extend(sequence.entry.take());
        self.running.retain(|&other| other != id);
        self.waiting.retain(|&other| other != id);
        self.kept.retain(|&other| other != id);
        Ok(())
    }
}

impl<D: Device> std::fmt::Debug for Engine<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("model", &self.model)
            .field("options", &self.options)
            .field("running", &self.running)
            .field("waiting", &self.waiting)
            .field("kept", &self.kept)
            .field("free_pages", &self.pool.free_pages())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
