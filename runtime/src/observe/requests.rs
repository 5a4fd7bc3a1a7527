//! What is counted of a server's requests, and the load of its engine, under the names that routers,
//! autoscalers and dashboards know from vLLM.

use super::exposition::{Sample, counter, gauge, histogram};
use super::spread::{Count, Spread};
use super::stats::Statistics;
use crate::words::{EngineLoad, FinishReason, Usage};
use piecewise_kernels::attention::PAGE_ROWS;
use prometheus::proto::MetricFamily;
use std::sync::Arc;
use std::time::{Duration, Instant};

const FIRST_TOKEN_BOUNDS: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];
const NEXT_TOKEN_BOUNDS: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
    5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
];
const WHOLE_BOUNDS: &[f64] = &[
    0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0,
    240.0, 480.0, 960.0, 1920.0, 7680.0,
];

/// Of tokens of a request.
const TOKEN_BOUNDS: &[f64] = &[
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5,
    5e5,
];
const CHOICE_BOUNDS: &[f64] = &[1.0, 2.0, 5.0, 10.0, 20.0];

/// Why requests end, as vLLM calls it; each shows from the start.
const ENDS: [&str; 4] = ["stop", "length", "abort", "error"];

/// When a request came, and when its first and its last token did.
#[derive(Clone, Copy, Debug)]
pub struct RequestTimes {
    submitted: Instant,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
    max_tokens: u64,
}

impl RequestTimes {
    /// Of a request that came at `submitted`, may have `max_tokens` and has none yet.
    pub fn new(submitted: Instant, max_tokens: u64) -> Self {
        Self { submitted, first_token: None, last_token: None, max_tokens }
    }
}

#[derive(Debug)]
struct Counts {
    first_token: Spread,
    next_token: Spread,
    whole: Spread,
    queue: Spread,
    prefill: Spread,
    decode: Spread,
    inference: Spread,
    mean_next_token: Spread,
    prompt: Spread,
    generation: Spread,
    max_tokens: Spread,
    choices: Spread,
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
        let whole = || Spread::of_times(WHOLE_BOUNDS);
        let tokens = || Spread::of_numbers(TOKEN_BOUNDS);
        let counts = Counts {
            first_token: Spread::of_times(FIRST_TOKEN_BOUNDS),
            next_token: Spread::of_times(NEXT_TOKEN_BOUNDS),
            whole: whole(),
            queue: whole(),
            prefill: whole(),
            decode: whole(),
            inference: whole(),
            mean_next_token: Spread::of_times(NEXT_TOKEN_BOUNDS),
            prompt: tokens(),
            generation: tokens(),
            max_tokens: tokens(),
            choices: Spread::of_numbers(CHOICE_BOUNDS),
            prompt_tokens: Count::default(),
            generated_tokens: Count::default(),
            ends: Default::default(),
        };
        Self { counts: Arc::new(counts), model_name: model_name.into() }
    }

    /// A client asks for so many answers to a prompt.
    pub fn asked(&self, choices: u64) {
        self.counts.choices.number(choices);
    }

    /// Counts a token of a request, and the time since its last one; of the first, since it was
    /// submitted.
    pub fn token(&self, times: &mut RequestTimes, now: Instant) {
        let counts = &self.counts;
        counts.generated_tokens.add(1);
        times.first_token.get_or_insert(now);
        match times.last_token.replace(now) {
            None => counts.first_token.time(now.saturating_duration_since(times.submitted)),
            Some(last) => counts.next_token.time(now.saturating_duration_since(last)),
        }
    }

    /// A request has its answer. It waits until it is first let in, then its prompt is computed until the
    /// first token is there, and then it decodes until the last.
    pub fn finished(&self, times: &RequestTimes, reason: FinishReason, usage: Usage, now: Instant) {
        let end = match reason {
            FinishReason::Stop => 0,
            FinishReason::Length => 1,
            FinishReason::Deadline => 2,
            FinishReason::ConstraintFailed | FinishReason::RowsLost | FinishReason::BadLogits => 3,
        };
        let counts = &self.counts;
        counts.prompt_tokens.add(usage.prompt);
        counts.prompt.number(usage.prompt);
        counts.generation.number(usage.generated);
        counts.max_tokens.number(times.max_tokens);
        counts.queue.time(usage.waited);
        if let (Some(first), Some(last)) = (times.first_token, times.last_token) {
            let begun = times.submitted + usage.waited;
            let decode = last.saturating_duration_since(first);
            counts.prefill.time(first.saturating_duration_since(begun));
            counts.decode.time(decode);
            counts.inference.time(last.saturating_duration_since(begun));
            let others = u32::try_from(usage.generated.saturating_sub(1)).unwrap_or(u32::MAX);
            counts.mean_next_token.time(decode.checked_div(others).unwrap_or(Duration::ZERO));
        }
        counts.whole.time(now.saturating_duration_since(times.submitted));
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
    pub(super) fn families(&self, load: &EngineLoad, statistics: &Statistics) -> Vec<MetricFamily> {
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
            counts.queue.family(
                "vllm:request_queue_time_seconds",
                "What a request waited until it was let in.",
                labels(&[]),
            ),
            counts.prefill.family(
                "vllm:request_prefill_time_seconds",
                "From when a request was let in to its first token.",
                labels(&[]),
            ),
            counts.decode.family(
                "vllm:request_decode_time_seconds",
                "From the first token of a request to its last.",
                labels(&[]),
            ),
            counts.inference.family(
                "vllm:request_inference_time_seconds",
                "From when a request was let in to its last token.",
                labels(&[]),
            ),
            counts.mean_next_token.family(
                "vllm:request_time_per_output_token_seconds",
                "The mean of what a request's tokens behind the first took.",
                labels(&[]),
            ),
            counts.prompt.family(
                "vllm:request_prompt_tokens",
                "Tokens of a request's prompt.",
                labels(&[]),
            ),
            counts.generation.family(
                "vllm:request_generation_tokens",
                "Tokens generated for a request.",
                labels(&[]),
            ),
            counts.max_tokens.family(
                "vllm:request_params_max_tokens",
                "The most tokens that a request may have.",
                labels(&[]),
            ),
            counts.choices.family(
                "vllm:request_params_n",
                "Answers that are asked for to a prompt.",
                labels(&[]),
            ),
            histogram(
                "vllm:iteration_tokens_total",
                "Tokens of a step, of prompts and generated.",
                vec![statistics.step_tokens.metric(labels(&[]), statistics.real_tokens)],
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
