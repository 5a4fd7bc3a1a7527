//! What an engine sends after a step. Written without serde: this is for every token.

use piecewise_runtime::engine::TokenLogprobs;
use piecewise_runtime::words::EngineLoad;
use rmp::encode::{
    write_array_len, write_bool, write_ext_meta, write_f64, write_map_len, write_nil, write_pfix,
    write_str, write_u32, write_u64,
};
use std::sync::{Arc, LazyLock};
use std::time::Instant;

/// What became of a request in a step.
#[derive(Debug)]
pub(crate) struct Output {
    pub request: Arc<str>,
    pub ids: Vec<u32>,
    /// Of each id, or empty.
    pub logprobs: Vec<TokenLogprobs>,
    /// Of the prompt's ids from the second on, which stand first, with the first output.
    pub prompt_logprobs: Vec<(u32, TokenLogprobs)>,
    /// How many ids of the prompt were computed and found, with the first id; `None` after it.
    pub prefill: Option<Prefill>,
    /// What happened to the request since its output before.
    pub events: Vec<Event>,
    pub finish: Option<Finish>,
}

impl Output {
    /// Of a request that there is nothing to tell of yet.
    pub(crate) fn of(request: Arc<str>) -> Self {
        let (ids, logprobs, prompt_logprobs) = (Vec::new(), Vec::new(), Vec::new());
        let (prefill, events, finish) = (None, Vec::new(), None);
        Self { request, ids, logprobs, prompt_logprobs, prefill, events, finish }
    }
}

/// What was computed of a prompt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prefill {
    pub prompt: u64,
    pub cached: u64,
}

/// What happened to a request in the scheduler, and when: seconds as of [`monotonic`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Event {
    pub kind: EventKind,
    pub at: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventKind {
    Queued = 1,
    Scheduled = 2,
    Preempted = 3,
}

impl Event {
    pub(crate) fn now(kind: EventKind) -> Self {
        Self { kind, at: monotonic() }
    }
}

/// Why a request ended, with what the front end tells its client of that.
#[derive(Debug)]
pub(crate) struct Finish {
    pub reason: Reason,
    /// The id that the request named as one to stop at.
    pub stop_id: Option<u32>,
    pub error: Option<OutputError>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    Stop = 0,
    Length = 1,
    Abort = 2,
    Error = 3,
}

/// What went wrong; a client gets it as a bad request, or as unavailable where it can try again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OutputError {
    pub message: String,
    pub retryable: bool,
}

/// What the scheduler says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Stats {
    pub steps: u64,
    pub running: u64,
    pub waiting: u64,
    pub kv_usage: f64,
    /// Since the last message: requests let in, ids that they started from, and those of them that
    /// were found.
    pub requests: u64,
    pub queries: u64,
    pub hits: u64,
}

impl Stats {
    /// What is different since `before`, which becomes what is.
    pub(crate) fn since(
        before: &mut EngineLoad,
        now: EngineLoad,
        requests: u64,
        steps: u64,
    ) -> Self {
        let queries = now.prefix.queries.saturating_sub(before.prefix.queries);
        let hits = now.prefix.hits.saturating_sub(before.prefix.hits);
        *before = now;
        let EngineLoad { running, waiting, .. } = now;
        Self { steps, running, waiting, kv_usage: now.kv_share(), requests, queries, hits }
    }
}

/// Seconds on a clock that does not jump.
pub(crate) fn monotonic() -> f64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed().as_secs_f64()
}

/// A message with what became of requests, and what the scheduler says.
pub(crate) fn outputs(rank: u16, outputs: &[Output], stats: Option<&Stats>) -> Vec<u8> {
    let mut to = Vec::with_capacity(192 + 96 * outputs.len());
    write_outputs(&mut to, rank, outputs, stats);
    to
}

// Writing to a vector does not fail.
#[expect(unused_must_use, reason = "a vector takes every byte")]
fn write_outputs(to: &mut Vec<u8>, rank: u16, outputs: &[Output], stats: Option<&Stats>) {
    write_array_len(to, 4);
    write_u32(to, u32::from(rank));
    write_array_len(to, outputs.len() as u32);
    outputs.iter().for_each(|output| write_output(to, output));
    match stats {
        Some(stats) => write_stats(to, stats),
        None => write_nil(to).unwrap_or_default(),
    }
    write_f64(to, monotonic());
}

#[expect(unused_must_use, reason = "a vector takes every byte")]
fn write_output(to: &mut Vec<u8>, output: &Output) {
    let error = output.finish.as_ref().and_then(|finish| finish.error.as_ref());
    // What is left out at the end has its default.
    let fields = match output {
        _ if error.is_some() => 19,
        Output { prefill: Some(_), .. } => 12,
        Output { events, .. } if !events.is_empty() => 8,
        Output { finish: None, prompt_logprobs, .. } if prompt_logprobs.is_empty() => 3,
        _ => 7,
    };
    write_array_len(to, fields);
    write_str(to, &output.request);
    write_array_len(to, output.ids.len() as u32);
    output.ids.iter().for_each(|&id| drop(rmp::encode::write_uint(to, u64::from(id))));
    write_logprobs(to, output.ids.iter().copied().zip(&output.logprobs));
    if fields == 3 {
        return;
    }
    write_logprobs(to, output.prompt_logprobs.iter().map(|(id, logprobs)| (*id, logprobs)));
    nils(to, 1);
    match &output.finish {
        Some(finish) => write_pfix(to, finish.reason as u8),
        None => write_nil(to),
    };
    match output.finish.as_ref().and_then(|finish| finish.stop_id) {
        Some(id) => write_u32(to, id).unwrap_or_default(),
        None => write_nil(to).unwrap_or_default(),
    }
    if fields == 7 {
        return;
    }
    write_events(to, &output.events);
    if fields == 8 {
        return;
    }
    nils(to, 3);
    match output.prefill {
        Some(Prefill { prompt, cached }) => {
            let numbers = [
                ("num_prompt_tokens", prompt),
                ("num_computed_tokens", prompt - cached.min(prompt)),
                ("num_cached_tokens", cached),
                ("num_local_cached_tokens", cached),
                ("num_external_cached_tokens", 0),
            ];
            write_numbers(to, &numbers, numbers.len());
        }
        None => nils(to, 1),
    }
    let Some(OutputError { message, retryable }) = error else { return };
    nils(to, 1);
    write_pfix(to, 0);
    nils(to, 4);
    write_map_len(to, 3);
    write_str(to, "code");
    write_str(to, if *retryable { "unavailable" } else { "validation_error" });
    write_str(to, "message");
    write_str(to, message);
    write_str(to, "retryable");
    write_bool(to, *retryable);
}

#[expect(unused_must_use, reason = "a vector takes every byte")]
fn write_events(to: &mut Vec<u8>, events: &[Event]) {
    if events.is_empty() {
        return nils(to, 1);
    }
    write_array_len(to, events.len() as u32);
    for event in events {
        write_map_len(to, 2);
        write_str(to, "type");
        write_pfix(to, event.kind as u8);
        write_str(to, "timestamp");
        write_f64(to, event.at);
    }
}

fn nils(to: &mut Vec<u8>, count: usize) {
    (0..count).for_each(|_| drop(write_nil(to)));
}

#[expect(unused_must_use, reason = "a vector takes every byte")]
fn write_numbers(to: &mut Vec<u8>, numbers: &[(&str, u64)], entries: usize) {
    write_map_len(to, entries as u32);
    for &(name, number) in numbers {
        write_str(to, name);
        write_u64(to, number);
    }
}

/// Three arrays as NumPy has them: for each position the ids, its own first, their
/// log-probabilities, and the rank of its own.
#[expect(unused_must_use, reason = "a vector takes every byte")]
fn write_logprobs<'a>(to: &mut Vec<u8>, positions: impl Iterator<Item = (u32, &'a TokenLogprobs)>) {
    let (mut ids, mut values, mut ranks) = (Vec::new(), Vec::new(), Vec::new());
    let (mut rows, mut columns) = (0, 0);
    for (id, logprobs) in positions {
        let own = (id, logprobs.logprob);
        for (id, logprob) in std::iter::once(own).chain(logprobs.top.iter().copied()) {
            ids.extend(i64::from(id).to_le_bytes());
            values.extend(logprob.to_le_bytes());
        }
        ranks.extend(i64::from(logprobs.rank).to_le_bytes());
        (rows, columns) = (rows + 1, logprobs.top.len() + 1);
    }
    if rows == 0 {
        write_nil(to);
        return;
    }
    write_array_len(to, 4);
    write_array(to, "<i8", &[rows, columns], &ids);
    write_array(to, "<f4", &[rows, columns], &values);
    write_array(to, "<i8", &[rows], &ranks);
    write_nil(to);
}

/// The type of a msgpack extension that is an array's bytes.
const RAW_VIEW: i8 = 3;

#[expect(unused_must_use, reason = "a vector takes every byte")]
fn write_array(to: &mut Vec<u8>, dtype: &str, shape: &[usize], bytes: &[u8]) {
    write_array_len(to, 3);
    write_str(to, dtype);
    write_array_len(to, shape.len() as u32);
    shape.iter().for_each(|&size| drop(write_u64(to, size as u64)));
    write_ext_meta(to, bytes.len() as u32, RAW_VIEW);
    to.extend_from_slice(bytes);
}

#[expect(unused_must_use, reason = "a vector takes every byte")]
fn write_stats(to: &mut Vec<u8>, stats: &Stats) {
    let numbers = [
        ("num_running_reqs", stats.running),
        ("num_waiting_reqs", stats.waiting),
        ("num_skipped_waiting_reqs", 0),
        ("step_counter", stats.steps),
        ("current_wave", 0),
    ];
    write_numbers(to, &numbers, numbers.len() + 3);
    write_str(to, "kv_cache_usage");
    write_f64(to, stats.kv_usage);
    write_str(to, "prefix_cache_stats");
    let counts = [
        ("requests", stats.requests),
        ("queries", stats.queries),
        ("hits", stats.hits),
        ("preempted_requests", 0),
        ("preempted_queries", 0),
        ("preempted_hits", 0),
    ];
    write_numbers(to, &counts, counts.len() + 1);
    write_str(to, "reset");
    write_bool(to, false);
    write_str(to, "kv_cache_eviction_events");
    write_array_len(to, 0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn output(finish: Option<Finish>, prefill: Option<Prefill>) -> Output {
        Output { ids: vec![7, 300], prefill, finish, ..Output::of("r".into()) }
    }

    fn unpacked(step: &[Output], stats: Option<&Stats>) -> Value {
        rmp_serde::from_slice(&outputs(3, step, stats)).unwrap()
    }

    #[test]
    fn an_output_has_its_fields_in_their_places_and_nothing_behind_the_last() {
        let stop = || Some(Finish { reason: Reason::Stop, stop_id: Some(9), error: None });
        let prefill = Some(Prefill { prompt: 40, cached: 32 });
        let error = OutputError { message: "no".to_owned(), retryable: true };
        let refused = Some(Finish { reason: Reason::Error, stop_id: None, error: Some(error) });
        let events = vec![Event { kind: EventKind::Preempted, at: 1.5 }];
        let step = [
            output(None, None),
            output(stop(), None),
            output(stop(), prefill),
            output(refused, None),
            Output { events, ..output(None, None) },
        ];
        let found = unpacked(&step, None);
        assert_eq!((&found[0], &found[2]), (&json!(3), &Value::Null));
        let found = &found[1];
        assert_eq!(found[0], json!(["r", [7, 300], null]));
        assert_eq!(found[1], json!(["r", [7, 300], null, null, null, 0, 9]));
        assert_eq!(found[2][11]["num_prompt_tokens"], json!(40));
        assert_eq!(found[2][11]["num_computed_tokens"], json!(8));
        assert_eq!(found[2].as_array().unwrap().len(), 12);
        let events = json!([{"type": 3, "timestamp": 1.5}]);
        assert_eq!(found[4], json!(["r", [7, 300], null, null, null, null, null, events]));
        assert_eq!((&found[3][5], &found[3][14]), (&json!(3), &Value::Null));
        assert_eq!(
            found[3][18],
            json!({"code": "unavailable", "message": "no", "retryable": true})
        );
    }

    #[test]
    fn counts_of_the_prefix_cache_are_those_since_the_last_message() {
        let mut before = EngineLoad::default();
        let mut now = EngineLoad { running: 2, kv_pages: 8, free_kv_pages: 6, ..before };
        (now.prefix.queries, now.prefix.hits) = (100, 64);
        let stats = Stats::since(&mut before, now, 1, 5);
        let found = &unpacked(&[], Some(&stats))[2];
        assert_eq!(found["kv_cache_usage"], json!(0.25));
        assert_eq!((&found["num_running_reqs"], &found["step_counter"]), (&json!(2), &json!(5)));
        assert_eq!(found["prefix_cache_stats"]["hits"], json!(64));
        now.prefix.queries += 10;
        let stats = Stats::since(&mut before, now, 1, 6);
        assert_eq!((stats.queries, stats.hits), (10, 0));
    }
}
