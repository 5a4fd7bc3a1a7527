//! What those who watch an engine get to see, and when.

use super::batching::BatchingEngine;
use super::interface::Engine;
use crate::observe::PUBLISH_EVERY;
use std::time::Instant;

impl BatchingEngine {
    /// Publishes and says what is due after a step.
    pub(super) fn tell_watchers(&mut self) {
        if let Some(observer) = &mut self.watchers.traces {
            self.model.take_traces().into_iter().for_each(observer);
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
