//! What those who watch an engine get to see, and when.

use super::batching::{Engine, StepObserver, TraceObserver};
use super::error::EngineError;
use crate::memory::KvObserver;
use crate::observe::{Metrics, PUBLISH_EVERY, Snapshot};
use std::time::Instant;

impl Engine {
    /// Calls `observer` with every step that was read back.
    pub fn observe(&mut self, observer: StepObserver) {
        self.model.time_steps(true);
        self.observer = Some(observer);
    }

    /// Empties the prefix cache, and calls `observer` with everything that becomes of it from now on.
    pub fn observe_kv(&mut self, observer: KvObserver) {
        self.pool.note_events();
        self.pool.forget_all();
        self.watchers.kv = Some(observer);
        self.tell_kv_observer();
    }

    /// Lets no page be found by what it holds any more.
    pub fn clear_prefix_cache(&mut self) {
        self.pool.forget_all();
        self.tell_kv_observer();
    }

    /// The metrics of this engine, in a registry that a server adds its own to. From the first call
    /// on they are published while the engine works, and steps are timed by the device's clock.
    pub fn metrics(&mut self) -> Metrics {
        self.model.time_steps(true);
        let metrics = self.watchers.metrics.get_or_insert_default().clone();
        metrics.publish(self.snapshot());
        metrics
    }

    /// Traces the steps to come and calls `observer` with each, or traces no longer; see
    /// [`StepTraceWriter`](crate::observe::StepTraceWriter). A trace ends where the device is lost.
    ///
    /// # Errors
    /// When work before failed.
    pub fn observe_traces(&mut self, observer: Option<TraceObserver>) -> Result<(), EngineError> {
        self.model.trace_steps(observer.is_some())?;
        self.watchers.traces = observer;
        Ok(())
    }

    /// Everything that is counted, now.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            statistics: self.model.statistics().clone(),
            memory: self.model.memory().ledger,
            graphs: self.model.captured_graphs() as u64,
            load: self.load(),
        }
    }

    /// Publishes and says what is due after a step.
    pub(super) fn tell_watchers(&mut self) {
        if let Some(observer) = &mut self.watchers.traces
            && self.model.take_traces().into_iter().try_for_each(observer).is_break()
            && let Err(error) = self.observe_traces(None)
        {
            // The next step meets the same error.
            tracing::debug!("steps are traced on: {error}");
        }
        let load = self.load();
        if let Some(ticker) = &mut self.watchers.ticker
            && let Some((line, warning)) = ticker.line(self.model.statistics(), load)
        {
            tracing::info!(target: "piecewise::stats", "{line}");
            if let Some(warning) = warning {
                tracing::warn!(target: "piecewise::stats", "{warning}");
            }
        }
        let Some(metrics) = &self.watchers.metrics else { return };
        let is_due = self.watchers.published.is_none_or(|at| at.elapsed() >= PUBLISH_EVERY);
        if is_due || !self.has_work() {
            metrics.publish(self.snapshot());
            self.watchers.published = Some(Instant::now());
        }
    }

    /// Tells the observer what has changed.
    pub(super) fn tell_kv_observer(&mut self) {
        if let Some(observer) = &mut self.watchers.kv {
            self.pool.take_events().iter().for_each(observer);
        }
    }
}
