//! What those who watch an engine get to see, and when.

use super::{BatchingEngine, Engine, TraceObserver};
use crate::kv::KvObserver;
use crate::metrics::{EngineLoad, Metrics, PUBLISH_EVERY, Snapshot, Ticker};
use crate::model::Model;
use piecewise_backend::device::Device;
use std::time::Instant;

/// Who watches an engine.
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
    pub(super) fn load_now(&self) -> EngineLoad {
        EngineLoad {
            running: self.running.len() as u64,
            waiting: self.waiting.len() as u64,
            kept: self.kept.len() as u64,
            kv_pages: self.pool.pages() as u64,
            free_kv_pages: self.pool.free_pages() as u64,
            cached_kv_pages: self.pool.cached_pages() as u64,
            preemptions: self.preemptions,
            prefix: self.prefix_counts,
        }
    }

    pub(super) fn snapshot_now(&self) -> Snapshot {
        Snapshot {
            statistics: self.model.statistics().clone(),
            memory: self.model.memory().ledger,
            graphs: self.model.captured_graphs() as u64,
            load: self.load_now(),
        }
    }

    pub(super) fn metrics_now(&mut self) -> Metrics {
        self.model.time_steps(true);
        let metrics = self.watchers.metrics.get_or_insert_default().clone();
        metrics.publish(self.snapshot_now());
        metrics
    }

    /// Publishes and says what is due after a step.
    pub(super) fn tell_watchers(&mut self) {
        if let Some(observer) = &mut self.watchers.traces {
            self.model.take_traces().into_iter().for_each(observer);
        }
        let load = self.load_now();
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
            metrics.publish(self.snapshot_now());
            self.watchers.published = Some(Instant::now());
        }
    }
}
