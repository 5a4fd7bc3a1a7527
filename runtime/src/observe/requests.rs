//! What is counted of a server's requests, and the load of its engine, under the names that routers,
//! autoscalers and dashboards know from vLLM.

use super::exposition::{Labels, Sample, counter, distribution, gauge, histogram};
use crate::words::{EngineLoad, FinishReason, Usage};
use piecewise_kernels::attention::PAGE_ROWS;
use prometheus::proto::MetricFamily;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const FIRST_TOKEN_BOUNDS: [f64; 22] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];
const NEXT_TOKEN_BOUNDS: [f64; 22] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
    5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
];
const WHOLE_BOUNDS: [f64; 22] = [
    0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0,
    240.0, 480.0, 960.0, 1920.0, 7680.0,
];

/// Why requests end, as vLLM calls it; each shows from the start.
const ENDS: [&str; 4] = ["stop", "length", "abort", "error"];

/// When a request came, and when its last token did.
#[derive(Clone, Copy, Debug)]
pub struct RequestTimes {
    submitted: Instant,
    last_token: Option<Instant>,
}

impl RequestTimes {
    /// Of a request that came at `submitted` and has no token yet.
    pub fn new(submitted: Instant) -> Self {
        Self { submitted, last_token: None }
    }
}

/// Counted without a lock, so that whoever reads makes no step wait.
#[derive(Debug, Default)]
struct Count(AtomicU64);

impl Count {
    fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
struct Times {
    bounds: [f64; 22],
    /// One for each bound, and one for what is above all of them.
    counts: [Count; 23],
    nanoseconds: Count,
}

impl Times {
    fn new(bounds: [f64; 22]) -> Self {
        Self { bounds, counts: Default::default(), nanoseconds: Count::default() }
    }

    fn note(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        self.counts[self.bounds.partition_point(|&bound| bound < seconds)].add(1);
        self.nanoseconds.add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    fn family(&self, name: &str, help: &str, labels: Labels) -> MetricFamily {
        let counts = self.counts.each_ref().map(Count::get);
        let sum = Duration::from_nanos(self.nanoseconds.get());
        let bounds = self.bounds.iter().copied();
        histogram(name, help, vec![distribution(labels, bounds, &counts, sum)])
    }
}

#[derive(Debug)]
struct Counts {
    first_token: Times,
    next_token: Times,
    whole: Times,
    prompt_tokens: Count,
    generated_tokens: Count,
    ends: [Count; ENDS.len()],
}

/// What is counted of requests; clones are the same.
#[derive(Clone, Debug)]
pub struct RequestMetrics {
    counts: Arc<Counts>,
    model_name: Arc<str>,
}

impl RequestMetrics {
    pub(super) fn new(model_name: &str) -> Self {
        let counts = Counts {
            first_token: Times::new(FIRST_TOKEN_BOUNDS),
            next_token: Times::new(NEXT_TOKEN_BOUNDS),
            whole: Times::new(WHOLE_BOUNDS),
            prompt_tokens: Count::default(),
            generated_tokens: Count::default(),
            ends: Default::default(),
        };
        Self { counts: Arc::new(counts), model_name: model_name.into() }
    }

    /// Counts a token of a request, and the time since its last one; of the first, since it was
    /// submitted.
    pub fn token(&self, times: &mut RequestTimes, now: Instant) {
        let counts = &self.counts;
        counts.generated_tokens.add(1);
        match times.last_token.replace(now) {
            None => counts.first_token.note(now.saturating_duration_since(times.submitted)),
            Some(last) => counts.next_token.note(now.saturating_duration_since(last)),
        }
    }

    /// A request has its answer.
    pub fn finished(&self, times: &RequestTimes, reason: FinishReason, usage: Usage, now: Instant) {
        let end = match reason {
            FinishReason::Stop => 0,
            FinishReason::Length => 1,
            FinishReason::Deadline => 2,
            FinishReason::ConstraintFailed | FinishReason::RowsLost | FinishReason::BadLogits => 3,
        };
        let counts = &self.counts;
        counts.prompt_tokens.add(usage.prompt);
        counts.whole.note(now.saturating_duration_since(times.submitted));
        counts.ends[end].add(1);
    }

    /// Nobody waits for a request any more.
    pub fn cancelled(&self) {
        self.counts.ends[2].add(1);
    }

    /// A request ended without an answer.
    pub fn failed(&self) {
        self.counts.ends[3].add(1);
    }

    /// All of it, and the load of the engine.
    pub(super) fn families(&self, load: &EngineLoad) -> Vec<MetricFamily> {
        let labels = |more: &[(&'static str, String)]| {
            let model = ("model_name", self.model_name.to_string());
            let mut labels = [&[("engine", "0".to_owned()), model], more].concat();
            labels.sort();
            labels
        };
        let one = |value: f64| -> Vec<Sample> { vec![(labels(&[]), value)] };
        let counts = &self.counts;
        let ends = ENDS
            .iter()
            .zip(&counts.ends)
            .map(|(end, n)| (labels(&[("finished_reason", (*end).to_owned())]), n.get() as f64));
        let cache = labels(&[
            ("block_size", PAGE_ROWS.to_string()),
            ("num_gpu_blocks", load.kv_pages.to_string()),
        ]);
        vec![
            gauge(
                "vllm:num_requests_running",
                "Requests that take part in steps.",
                one(load.running as f64),
            ),
            gauge(
                "vllm:num_requests_waiting",
                "Requests that wait for room.",
                one(load.waiting as f64),
            ),
            gauge(
                "vllm:kv_cache_usage_perc",
                "The share of the KV pool's pages that is taken, 1 for all.",
                one(load.kv_share()),
            ),
            gauge(
                "vllm:cache_config_info",
                "Rows of a page of the KV pool, and its pages.",
                vec![(cache, 1.0)],
            ),
            counter(
                "vllm:num_preemptions_total",
                "Sequences that lost their pages and were computed again.",
                one(load.preemptions as f64),
            ),
            counter(
                "vllm:prefix_cache_queries_total",
                "Tokens of prompts that were looked for in the prefix cache.",
                one(load.prefix.queries as f64),
            ),
            counter(
                "vllm:prefix_cache_hits_total",
                "Tokens of prompts whose keys and values the prefix cache had.",
                one(load.prefix.hits as f64),
            ),
            counts.first_token.family(
                "vllm:time_to_first_token_seconds",
                "From a request's arrival to its first token.",
                labels(&[]),
            ),
            counts.next_token.family(
                "vllm:inter_token_latency_seconds",
                "From a token of a request to its next.",
                labels(&[]),
            ),
            counts.whole.family(
                "vllm:e2e_request_latency_seconds",
                "From a request's arrival to its end.",
                labels(&[]),
            ),
            counter(
                "vllm:prompt_tokens_total",
                "Tokens of the prompts of requests that were answered.",
                one(counts.prompt_tokens.get() as f64),
            ),
            counter(
                "vllm:generation_tokens_total",
                "Tokens generated.",
                one(counts.generated_tokens.get() as f64),
            ),
            counter(
                "vllm:request_success_total",
                "Requests that ended, by reason.",
                ends.collect(),
            ),
        ]
    }
}
