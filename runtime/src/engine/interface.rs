//! The interface of an engine, whatever its device.

use super::error::EngineError;
use super::request::{EngineOptions, Request, RequestEvent, RowSource};
use crate::memory::{KvObserver, RowsId, SlotPool};
use crate::observe::{Metrics, Snapshot};
use crate::steps::CompiledModel;
use crate::words::{EngineLoad, GraphMode, RequestId, StepTrace, SuspendedWeights, Usage};
use piecewise_backend::weights::WeightSource;
use piecewise_planner::IterationRecord;
use std::any::Any;

/// Is called with every step that was read back, with its wall time and the device's (see
/// [`StepTimes`](crate::words::StepTimes)).
pub type StepObserver = Box<dyn FnMut(&IterationRecord) + Send>;

/// Is called with every traced step that was read back.
pub type TraceObserver = Box<dyn FnMut(StepTrace) + Send>;

/// Serves requests with a compiled model: requests are added, continued and removed at any time
/// between two steps, and each step says what it brought about.
pub trait Engine: Any + std::fmt::Debug + Send {
    /// Takes a request; it runs when there is room.
    ///
    /// # Errors
    /// When the prompt is empty, too long, or holds ids that the model has not, or a parameter
    /// is out of range.
    fn add(&mut self, request: Request) -> Result<RequestId, EngineError>;

    /// Continues a finished request that was kept: `request.prompt` is appended to its ids, and
    /// what its pages and slot still hold is not computed again.
    ///
    /// # Errors
    /// When the request is not there or not finished, or as for [`Self::add`].
    fn extend(&mut self, id: RequestId, request: Request) -> Result<(), EngineError>;

    /// Forgets a request, wherever it is. Its pages and its slot are free at once; what it had in
    /// flight is dropped.
    ///
    /// # Errors
    /// When there is no such request.
    fn remove(&mut self, id: RequestId) -> Result<(), EngineError>;

    /// The ids of a request so far, prompts and generated; `None` where it is not there.
    fn ids(&self, id: RequestId) -> Option<&[u32]>;

    /// What the present or last turn of a request has taken so far; `None` where it is not there.
    fn usage(&self, id: RequestId) -> Option<Usage>;

    /// The requests that have finished and were kept, the longest idle first.
    fn kept(&self) -> &[RequestId];

    /// Whether a step would do anything.
    fn has_work(&self) -> bool;

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
    fn step(&mut self, events: &mut Vec<RequestEvent>) -> Result<bool, EngineError>;

    /// Steps until nothing is left to do.
    ///
    /// # Errors
    /// As for [`Self::step`].
    fn run(&mut self, events: &mut Vec<RequestEvent>) -> Result<(), EngineError> {
        while self.step(events)? {}
        Ok(())
    }

    /// Takes rows that stand for tokens of requests to come, until they are removed.
    ///
    /// # Errors
    /// When the graph has no state of role `embeddings`, or no room in it, the rows are not of its
    /// width, or the device fails.
    fn add_rows(&mut self, source: RowSource<'_>) -> Result<RowsId, EngineError>;

    /// Says that no request to come brings these rows; they are gone once those that do are.
    ///
    /// # Errors
    /// When they are not there.
    fn remove_rows(&mut self, rows: RowsId) -> Result<(), EngineError>;

    /// How many rows can still be added.
    fn free_rows(&self) -> u64;

    /// Computes the logits of every position of the prompt of `request` and hands them out chunk by chunk: the
    /// position of the first row, and the rows `f32 [rows, vocab]` as little-endian bytes. The
    /// model must have been built to read its logits back.
    ///
    /// # Errors
    /// When the prompt is empty, too long or out of range, what it brings does not fit, requests
    /// run, the pool is too small, the graph returns no logits, or the model fails; a device that
    /// was lost is opened anew then.
    fn logits(
        &mut self,
        request: &Request,
        rows: &mut dyn FnMut(u64, &[u8]),
    ) -> Result<(), EngineError>;

    /// Calls `observer` with every step that was read back.
    fn observe(&mut self, observer: StepObserver);

    /// Empties the prefix cache, and calls `observer` with everything that becomes of it from now on.
    fn observe_kv(&mut self, observer: KvObserver);

    /// Lets no page be found by what it holds any more.
    fn clear_prefix_cache(&mut self);

    /// The model: what it was compiled from, what it counted, its memory and its graphs.
    fn model(&self) -> &CompiledModel;

    /// What the engine has in hand.
    fn load(&self) -> EngineLoad;

    /// The bounds that it was built with, and how it runs steps.
    fn options(&self) -> &EngineOptions;

    /// Slots of the states that each sequence has a row of.
    fn slots(&self) -> &SlotPool;

    /// How many steps failed on a device that goes on, and were tried again.
    fn retried_steps(&self) -> u64;

    /// The metrics of this engine, in a registry that a server adds its own to. From the first call
    /// on they are published while the engine works, and steps are timed by the device's clock.
    fn metrics(&mut self) -> Metrics;

    /// Traces the steps to come and calls `observer` with each, or traces no longer; see
    /// [`StepTraceWriter`](crate::observe::StepTraceWriter). A trace ends where the device is lost.
    ///
    /// # Errors
    /// When work before failed.
    fn observe_traces(&mut self, observer: Option<TraceObserver>) -> Result<(), EngineError>;

    /// Everything that is counted, now.
    fn snapshot(&self) -> Snapshot;

    /// Runs the steps to come in another graph mode; no request notices but by the time it takes. Where
    /// ways are measured and there is no request, it is measured which of the sizes that are captured by
    /// then are faster launched than in pieces, for two seconds at most, and what was cached of prompts
    /// is forgotten; the mode that there is already will do.
    ///
    /// # Errors
    /// When the ops can't be captured for the mode, and nothing has changed; or when a capture fails
    /// and that is an error, and steps whose graph is missing are launched from then on.
    fn set_graph_mode(&mut self, mode: GraphMode) -> Result<(), EngineError>;

    /// Lets graphs be captured again that failures have disabled, and captures what is missing unless
    /// that is done lazily. Returns how many graphs there are then.
    ///
    /// # Errors
    /// When a capture fails, and that is an error.
    fn enable_graphs(&mut self) -> Result<usize, EngineError>;

    /// Drops every graph, for whoever changed what they hold. Each is captured again by the next step
    /// that wants it, or between steps; all of them at once by [`Self::enable_graphs`].
    fn invalidate_graphs(&mut self);

    /// Captures the graph that most steps have wanted, for a moment in which nothing else is to be
    /// done; whether there was one to capture.
    ///
    /// # Errors
    /// When the device is lost.
    fn capture_next(&mut self) -> Result<bool, EngineError>;

    /// Gives the memory of arena and states back, and that of the weights where `weights` says so,
    /// until [`Self::resume`]. Reads what is on its way first and appends what happened to `events`.
    /// No request is lost: their tokens are computed again later. Graphs stay.
    ///
    /// # Errors
    /// When work before failed, or the device does not give memory back.
    fn suspend(
        &mut self,
        weights: SuspendedWeights,
        events: &mut Vec<RequestEvent>,
    ) -> Result<(), EngineError>;

    /// Takes the memory back at the same addresses and goes on; weights that were dropped are made
    /// from `weights`, or else from what the model was built from. Does nothing where the engine is
    /// not suspended.
    ///
    /// # Errors
    /// When memory is short, or dropped weights can't be made; the engine stays suspended.
    fn resume(&mut self, weights: Option<&dyn WeightSource>) -> Result<(), EngineError>;
}
