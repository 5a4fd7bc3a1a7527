//! What is counted, for those who watch from outside: a registry of metrics that a server adds its
//! own to, and a line for logs.
//!
//! A step counts into [`Statistics`] alone. What others read is a copy that the engine publishes now
//! and then, so that no step waits for a reader.

use super::exposition::{counter, distribution, gauge, histogram};
use super::process::of_this_process;
use super::requests::RequestMetrics;
use super::stats::{Histogram, Statistics};
use crate::words::{EngineLoad, FallbackReason, Ledger};
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Registry, TextEncoder};
use std::collections::HashMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// How a step runs, in the order of [`Statistics::gpu_time`].
const MODES: [&str; 3] = ["none", "piecewise", "full"];

/// How often an engine publishes while it works.
pub(crate) const PUBLISH_EVERY: Duration = Duration::from_millis(100);

/// Everything that is counted, at one time.
#[derive(Clone, PartialEq, Debug, Default, serde::Serialize)]
pub struct Snapshot {
    /// What the model counted since it was built.
    pub statistics: Statistics,
    /// What it holds in memory.
    pub memory: Ledger,
    /// Graphs that are ready to replay.
    pub graphs: u64,
    /// What the engine has in hand.
    pub load: EngineLoad,
}

/// The metrics of an engine, in a registry that others add theirs to. Clones are the same.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Registry,
    published: Published,
}

#[derive(Clone, Debug, Default)]
struct Published {
    /// Behind a lock that nobody holds for longer than it takes to exchange a pointer.
    snapshot: Arc<Mutex<Arc<Snapshot>>>,
    requests: Arc<OnceLock<RequestMetrics>>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// Metrics that have counted nothing, in a registry of their own.
    pub fn new() -> Self {
        let (registry, published) = (Registry::new(), Published::default());
        // A registry that is new has no other collector of the same names.
        let registered = registry.register(Box::new(published.clone()));
        assert!(registered.is_ok(), "{registered:?}");
        Self { registry, published }
    }

    /// What is counted of requests from now on, under vLLM's names and for a model of this name; once
    /// asked for, they go on counting, and under the name of that time.
    pub fn requests(&self, model_name: &str) -> &RequestMetrics {
        self.published.requests.get_or_init(|| RequestMetrics::new(model_name))
    }

    /// A client asks for so many answers to each of some prompts; counted where requests are.
    pub fn asked(&self, prompts: usize, choices: u64) {
        if let Some(requests) = self.published.requests.get() {
            (0..prompts).for_each(|_| requests.asked(choices));
        }
    }

    /// The registry: what is registered here shows beside the engine's own metrics, which begin with
    /// `piecewise_`.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Shows a count that something else keeps, as it is whenever somebody asks.
    ///
    /// # Errors
    /// When no metric may have the name, or one has it already.
    pub fn count(
        &self,
        name: &str,
        help: &str,
        value: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Result<(), prometheus::Error> {
        let desc = Desc::new(name.to_owned(), help.to_owned(), Vec::new(), HashMap::new())?;
        self.registry.register(Box::new(Count { desc, value }))
    }

    /// Shows this from now on.
    pub fn publish(&self, snapshot: Snapshot) {
        let mut shown = Arc::new(snapshot);
        // What was shown before is dropped without the lock.
        std::mem::swap(&mut *self.published.lock(), &mut shown);
    }

    /// What was published last; zeros before that.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::clone(&self.published.shown())
    }

    /// Everything in the registry in the classic text format of Prometheus; times in seconds, memory
    /// in bytes.
    ///
    /// # Errors
    /// When a metric that somebody registered can't be written.
    pub fn text(&self) -> Result<String, prometheus::Error> {
        TextEncoder::new().encode_to_string(&self.registry.gather())
    }
}

impl Published {
    fn lock(&self) -> MutexGuard<'_, Arc<Snapshot>> {
        self.snapshot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shown(&self) -> Arc<Snapshot> {
        Arc::clone(&self.lock())
    }
}

/// A count that something else keeps.
struct Count<Value> {
    desc: Desc,
    value: Value,
}

impl<Value: Fn() -> u64 + Send + Sync> Collector for Count<Value> {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.desc]
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let Desc { fq_name: name, help, .. } = &self.desc;
        vec![counter(name, help, vec![(Vec::new(), (self.value)() as f64)])]
    }
}

impl Collector for Published {
    fn desc(&self) -> Vec<&Desc> {
        Vec::new()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let snapshot = self.shown();
        let mut families = families(&snapshot);
        families.extend(of_this_process());
        if let Some(requests) = self.requests.get() {
            families.extend(requests.families(&snapshot.load, &snapshot.statistics));
        }
        families
    }
}

/// The metrics of what was published.
fn families(snapshot: &Snapshot) -> Vec<MetricFamily> {
    let Snapshot { statistics: stats, memory, graphs, load } = snapshot;
    let one = |value: u64| vec![(Vec::new(), value as f64)];
    let seconds = |value: Duration| vec![(Vec::new(), value.as_secs_f64())];
    let by = |label: &'static str, values: Vec<(&str, u64)>| {
        let labelled = |(value, n): (&str, u64)| (vec![(label, value.to_owned())], n as f64);
        values.into_iter().map(labelled).collect::<Vec<_>>()
    };
    let kinds = stats.steps_by_kind.iter().filter(|(_, n)| **n > 0).map(|(kind, n)| {
        let mode = ("mode", kind.mode.name().to_owned());
        (vec![mode, ("size", kind.size_name())], *n as f64)
    });
    let replays = stats.piece_replays.iter().filter(|(_, n)| **n > 0);
    let replays = replays.map(|(size, n)| (vec![("size", size.to_string())], *n as f64));
    let misses = stats.misses.iter().map(|(reason, n)| (*reason, *n)).collect();
    let padding = stats.padded_tokens - stats.real_tokens;
    let parts = vec![
        ("arena", memory.slots),
        ("scratch", memory.scratch),
        ("states", memory.states),
        ("weights", memory.weights),
        ("modules", memory.modules),
        ("graphs", memory.graphs),
    ];
    let build = vec![
        ("sources", piecewise_backend::SOURCE_DIGEST.to_owned()),
        ("version", env!("CARGO_PKG_VERSION").to_owned()),
    ];
    let requests = vec![("running", load.running), ("waiting", load.waiting), ("kept", load.kept)];
    let made = [("compiler", &stats.compile.compiled), ("cache", &stats.compile.reused)];
    let made = made.into_iter().flat_map(|(from, counts)| {
        let sample = move |(kind, n): (&&str, &u64)| {
            (vec![("kind", (*kind).to_owned()), ("from", from.to_owned())], *n as f64)
        };
        counts.iter().map(sample)
    });
    vec![
        counter(
            "piecewise_steps_total",
            "Steps by how they ran and at which size.",
            kinds.collect(),
        ),
        counter(
            "piecewise_step_hits_total",
            "Steps that replayed captured graphs.",
            one(stats.hits()),
        ),
        counter(
            "piecewise_step_misses_total",
            "Steps that were launched, by reason; graph_mode is no failure.",
            by("reason", misses),
        ),
        counter("piecewise_piece_replays_total", "Replays of pieces by size.", replays.collect()),
        counter("piecewise_tokens_total", "Tokens that steps brought.", one(stats.real_tokens)),
        counter(
            "piecewise_padding_tokens_total",
            "Rows that steps ran beyond their tokens.",
            one(padding),
        ),
        step_times(
            "piecewise_step_gpu_seconds",
            "From the first copy of a step's inputs to the last of its outputs on the device.",
            &stats.gpu_time,
        ),
        step_times(
            "piecewise_step_wall_seconds",
            "From the submit of a step, or the end of the one before, to its outputs.",
            &stats.wall_time,
        ),
        counter(
            "piecewise_submit_seconds_total",
            "Time of the host in submits.",
            seconds(stats.submit_time),
        ),
        counter("piecewise_captures_total", "Graphs captured.", one(stats.captures)),
        counter(
            "piecewise_capture_failures_total",
            "Captures that failed.",
            one(stats.capture_failures),
        ),
        counter(
            "piecewise_capture_seconds_total",
            "Time that captures took.",
            seconds(stats.capture_time),
        ),
        counter("piecewise_recaptures_total", "Graphs captured again.", one(stats.recaptures)),
        counter(
            "piecewise_address_changes_total",
            "Times that memory of the model had moved and everything was bound anew.",
            one(stats.address_changes),
        ),
        counter(
            "piecewise_recapture_limit_total",
            "Times that memory had moved beyond recapture_limit and graphs were captured no more.",
            one(stats.recapture_limit_hits),
        ),
        counter(
            "piecewise_refused_replays_total",
            "Replays that the device refused, which were launched.",
            one(stats.refused_replays),
        ),
        counter(
            "piecewise_pieces_for_padding_total",
            "Steps in pieces since a whole graph, padded, takes longer.",
            one(stats.pieces_for_padding),
        ),
        counter(
            "piecewise_device_recoveries_total",
            "Times that the device was opened anew.",
            one(stats.recoveries),
        ),
        gauge(
            "piecewise_build_info",
            "The program: its version, and what it compiles by.",
            vec![(build, 1.0)],
        ),
        gauge("piecewise_graphs", "Captured graphs that are ready.", one(*graphs)),
        counter(
            "piecewise_artifacts_total",
            "Pieces and kernels by where they came from.",
            made.collect(),
        ),
        gauge("piecewise_memory_bytes", "Device memory that the model holds.", by("part", parts)),
        gauge(
            "piecewise_pinned_memory_bytes",
            "Pinned memory of the host that steps are staged through.",
            one(memory.pinned),
        ),
        gauge("piecewise_requests", "Requests by state.", by("state", requests)),
        gauge(
            "piecewise_kv_cache_usage_ratio",
            "The share of the KV pool's pages that is taken.",
            vec![(Vec::new(), load.kv_share())],
        ),
        gauge("piecewise_kv_cache_pages", "Pages of the KV pool.", one(load.kv_pages)),
        gauge(
            "piecewise_prefix_cache_pages",
            "Pages of the KV pool that are found by what they hold.",
            one(load.cached_kv_pages),
        ),
        counter(
            "piecewise_preemptions_total",
            "Sequences that lost their pages and were computed again.",
            one(load.preemptions),
        ),
        counter(
            "piecewise_bad_logits_total",
            "Requests that ended since their logits were NaN or had no finite largest value.",
            one(load.bad_logits),
        ),
        counter(
            "piecewise_prefix_cache_queries_total",
            "Tokens of prompts that were looked for in the prefix cache.",
            one(load.prefix.queries),
        ),
        counter(
            "piecewise_prefix_cache_hits_total",
            "Tokens of prompts whose keys and values the prefix cache had.",
            one(load.prefix.hits),
        ),
    ]
    .into_iter()
    .filter(|family| !family.get_metric().is_empty())
    .collect()
}

/// How long steps took, by mode.
fn step_times(name: &str, help: &str, by_mode: &[Histogram; 3]) -> MetricFamily {
    let by_mode = MODES.into_iter().zip(by_mode).filter(|(_, times)| times.count() > 0);
    let metric = |(mode, times): (&'static str, &Histogram)| {
        let bounds = Histogram::BOUNDS.iter().map(Duration::as_secs_f64);
        distribution(
            vec![("mode", mode.to_owned())],
            bounds,
            &times.buckets,
            times.sum.as_secs_f64(),
        )
    };
    histogram(name, help, by_mode.map(metric).collect())
}

/// The share of steps that replay where sizes fit the traffic.
const TARGET_HIT_SHARE: f64 = 0.95;

/// Says every so often what has happened since.
#[derive(Debug)]
pub(crate) struct Ticker {
    every: Duration,
    since: Instant,
    before: Statistics,
}

impl Ticker {
    /// A line every so often, the first after one interval.
    pub(crate) fn new(every: Duration) -> Self {
        Self { every, since: Instant::now(), before: Statistics::default() }
    }

    /// The line, if it is due and steps have run since the one before; and a warning where fewer than
    /// [`TARGET_HIT_SHARE`] of the steps replayed that the graph mode would have replay.
    pub(crate) fn line(
        &mut self,
        stats: &Statistics,
        load: EngineLoad,
    ) -> Option<(String, Option<String>)> {
        let now = Instant::now();
        let passed = now.saturating_duration_since(self.since);
        if passed < self.every || stats.steps == self.before.steps {
            return None;
        }
        let said = (line_of(&self.before, stats, load, passed), warning_of(&self.before, stats));
        (self.since, self.before) = (now, stats.clone());
        Some(said)
    }
}

fn line_of(before: &Statistics, stats: &Statistics, load: EngineLoad, passed: Duration) -> String {
    let steps = stats.steps - before.steps;
    let share = |part: u64, whole: u64| 100.0 * part as f64 / whole.max(1) as f64;
    let hits = share(stats.hits() - before.hits(), steps);
    let real = stats.real_tokens - before.real_tokens;
    let padded = stats.padded_tokens - before.padded_tokens;
    let rate = real as f64 / passed.as_secs_f64().max(1e-9);
    let mut line = format!(
        "{steps} steps: {hits:.1}% replayed, {:.1}% padding, {rate:.0} tokens/s; {} running, \
         {} waiting, {:.1}% of the KV pool",
        share(padded - real, padded),
        load.running,
        load.waiting,
        100.0 * load.kv_share(),
    );
    for (reason, n) in &stats.misses {
        let n = n - before.misses.get(reason).copied().unwrap_or(0);
        if n > 0 {
            // Writing to a string does not fail.
            let _ = write!(line, "; {n} launched: {reason}");
        }
    }
    line
}

fn warning_of(before: &Statistics, stats: &Statistics) -> Option<String> {
    let since =
        |reason: &&'static str, n: u64| n - before.misses.get(*reason).copied().unwrap_or(0);
    let missed = stats.misses.iter().map(|(reason, n)| (*reason, since(reason, *n)));
    let chosen = FallbackReason::ALL.iter().filter(|reason| reason.is_chosen());
    let chosen: Vec<_> = chosen.map(|reason| reason.name()).collect();
    let missed = missed
        .filter(|(reason, _)| *reason != Statistics::LAUNCHED_BY_MODE && !chosen.contains(reason));
    let (most, _) = missed.clone().max_by_key(|(_, n)| *n)?;
    let missed: u64 = missed.map(|(_, n)| n).sum();
    let hits = stats.hits() - before.hits();
    let share = hits as f64 / (hits + missed).max(1) as f64;
    (missed > 0 && share < TARGET_HIT_SHARE).then(|| {
        format!(
            "{:.1}% of {} steps that could replay did, under {:.0}%: most of the others for {most}; \
             `piecewise plan --log` finds sizes from an iteration log",
            100.0 * share,
            hits + missed,
            100.0 * TARGET_HIT_SHARE,
        )
    })
}

#[cfg(test)]
mod tests;
