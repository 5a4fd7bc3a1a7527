//! What is counted of items and steps, path by path, beside what every model counts.

use super::super::statistics::EncoderStatistics;
use piecewise_runtime::observe::Metrics;
use prometheus::{IntCounterVec, Opts};

/// Counters that follow [`EncoderStatistics`].
#[derive(Debug)]
pub(super) struct PathMetrics {
    items: IntCounterVec,
    replays: IntCounterVec,
    launches: IntCounterVec,
    failures: IntCounterVec,
    tokens: IntCounterVec,
}

impl PathMetrics {
    pub(super) fn new(metrics: &Metrics) -> Self {
        let counter = |name: &str, help: &str, labels: &[&str]| {
            let made = IntCounterVec::new(Opts::new(name, help), labels);
            let made = made.and_then(|made| {
                metrics.registry().register(Box::new(made.clone()))?;
                Ok(made)
            });
            // The names are valid, and the registry has no others that begin with them.
            made.unwrap_or_else(|error| unreachable!("{name}: {error}"))
        };
        Self {
            items: counter(
                "piecewise_encoder_items_total",
                "Items by path and outcome: hit (its step replayed a graph), miss, skipped, \
                 failed.",
                &["path", "outcome"],
            ),
            replays: counter(
                "piecewise_encoder_replays_total",
                "Steps that replayed, by path and budget.",
                &["path", "budget"],
            ),
            launches: counter(
                "piecewise_encoder_misses_total",
                "Items whose step was launched, by path and reason.",
                &["path", "reason"],
            ),
            failures: counter(
                "piecewise_encoder_failures_total",
                "Items without outputs, by path and reason.",
                &["path", "reason"],
            ),
            tokens: counter(
                "piecewise_encoder_tokens_total",
                "Tokens that steps ran, by path and kind: those of items, and padding.",
                &["path", "kind"],
            ),
        }
    }

    pub(super) fn publish(&self, statistics: &EncoderStatistics) {
        let show = |counter: &IntCounterVec, labels: [&str; 2], count: u64| {
            let counter = counter.with_label_values(&labels);
            counter.inc_by(count.saturating_sub(counter.get()));
        };
        for path in &statistics.paths {
            let name = path.path.as_str();
            let [misses, failed] = [&path.misses, &path.failed].map(|of| of.values().sum());
            for (outcome, count) in [
                ("hit", path.hits),
                ("miss", misses),
                ("skipped", path.skipped),
                ("failed", failed),
            ] {
                show(&self.items, [name, outcome], count);
            }
            for (budget, &count) in &path.replays {
                show(&self.replays, [name, &budget.to_string()], count);
            }
            for (reason, &count) in &path.misses {
                show(&self.launches, [name, reason], count);
            }
            for (reason, &count) in &path.failed {
                show(&self.failures, [name, reason], count);
            }
            show(&self.tokens, [name, "items"], path.tokens);
            show(&self.tokens, [name, "padding"], path.padded_tokens - path.tokens);
        }
    }
}
