//! What those who watch an engine get to see, and when.

use super::BatchingEngine;
use super::interface::Engine;
use super::record::TraceObserver;
use crate::memory::KvObserver;
use crate::observe::{Metrics, PUBLISH_EVERY, Ticker};
use crate::steps::Model;
use piecewise_backend::device::Device;
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

impl<D: Device> BatchingEngine<D> {
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
}
