//! One JSON line of a log: its head, or a step.

use serde::Deserialize;

use crate::head::LogHead;
use crate::log_line::Line;
use crate::mode::StepMode;
use crate::traffic::{MAX_STEP_TOKENS, StepKind, Traffic};

#[derive(Deserialize)]
struct RawLine {
    log: Option<LogHead>,
    context_tokens: Option<i64>,
    generation_requests: Option<i64>,
    sequences: Option<i64>,
    rows: Option<i64>,
    query_length: Option<i64>,
    tokens: Option<i64>,
    size: Option<i64>,
    mode: Option<StepMode>,
    gpu_us: Option<f64>,
    wall_us: Option<f64>,
}

pub(crate) fn read_json_line(line: &[u8], traffic: &mut Traffic) -> Result<Line, String> {
    let raw: RawLine =
        serde_json::from_slice(line).map_err(|error| format!("no JSON of a step: {error}"))?;
    if let Some(head) = raw.log {
        for (name, bound) in
            [("max_num_tokens", head.max_num_tokens), ("max_num_seqs", head.max_num_seqs)]
        {
            if let Some(bound) = bound.filter(|bound| !(1..=MAX_STEP_TOKENS).contains(bound)) {
                return Err(format!("`{name}` is {bound}: no bound of a step"));
            }
        }
        return Ok(Line::Head(Box::new(head)));
    }
    let (context, generation) = match (raw.context_tokens, raw.generation_requests, raw.tokens) {
        (None, None, Some(tokens)) => (tokens, 0),
        (None, None, None) => {
            return Err("none of `context_tokens`, `generation_requests` and `tokens`".into());
        }
        (context, generation, _) => (context.unwrap_or(0), generation.unwrap_or(0)),
    };
    let context = count("context_tokens", context)?;
    let generation = count("generation_requests", generation)?;
    let sequences = raw.sequences.map(|value| count("sequences", value)).transpose()?;
    raw.rows.map(|value| count("rows", value)).transpose()?;
    raw.size.map(|value| count("size", value)).transpose()?;
    for (name, time) in [("gpu_us", raw.gpu_us), ("wall_us", raw.wall_us)] {
        if let Some(time) = time.filter(|time| !(0.0..1e12).contains(time)) {
            return Err(format!("`{name}` is {time}: no time in microseconds"));
        }
    }
    let query_length = raw.query_length.map(|value| count("query_length", value)).transpose()?;
    let tokens = raw.tokens.map(|value| count("tokens", value)).transpose()?;
    let (kind, size) = classify(context, generation, query_length, tokens)?;
    if size == 0 {
        return Ok(Line::Idle);
    }
    traffic.add(kind, size, 1)?;
    traffic.most_sequences = traffic.most_sequences.max(sequences.unwrap_or(generation));
    if let Some(mode) = raw.mode {
        traffic.observed.known_steps += 1;
        traffic.observed.replayed_steps += u64::from(mode != StepMode::None);
    }
    Ok(Line::Step)
}

fn classify(
    context: u32,
    generation: u32,
    query_length: Option<u32>,
    tokens: Option<u32>,
) -> Result<(StepKind, u32), String> {
    if let Some(query_length) = query_length {
        if query_length == 0 {
            return Err("`query_length` is 0".into());
        }
        if context > 0 {
            return Err(
                "a uniform decode has no context tokens, `query_length` is for those".into()
            );
        }
        if let Some(tokens) = tokens
            && u64::from(tokens) != u64::from(generation) * u64::from(query_length)
        {
            return Err(format!(
                "`tokens` is {tokens}, not {generation} requests of {query_length} tokens"
            ));
        }
        return Ok((StepKind::Decode { query_length }, generation));
    }
    let least = context.checked_add(generation).ok_or("absurd: too many tokens in a step")?;
    let tokens = tokens.unwrap_or(least);
    if tokens < least {
        return Err(format!(
            "`tokens` is {tokens}, below {context} context tokens and {generation} requests"
        ));
    }
    if context == 0 && tokens == generation {
        return Ok((StepKind::Decode { query_length: 1 }, generation));
    }
    Ok((StepKind::Mixed, tokens))
}

fn count(name: &str, value: i64) -> Result<u32, String> {
    if value < 0 {
        return Err(format!("`{name}` is {value}: negative"));
    }
    u32::try_from(value).map_err(|_| format!("`{name}` is {value}: absurd"))
}
