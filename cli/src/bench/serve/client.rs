//! A client of OpenAI's interface that notes when things come.

use super::args::ServeBenchArgs;
use crate::http_client::client;
use anyhow::{Context, bail};
use piecewise_cache::without_secrets;
use reqwest::{Client, RequestBuilder};
use serde_json::{Map, Value};
use std::time::{Duration, Instant};

/// A body to send.
pub(super) type Body = Map<String, Value>;

/// The largest line of a stream.
const LONGEST_LINE: usize = 16 << 20;

/// A server, and what is asked of it.
#[derive(Clone, Debug)]
pub(super) struct Target {
    client: Client,
    base: String,
    path: &'static str,
    key: Option<String>,
    pub(super) model: String,
}

/// What became of a request; times are from when it was sent.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Outcome {
    /// From the start of the load.
    pub(super) sent: Duration,
    /// When pieces of the answer came.
    pub(super) pieces: Vec<Duration>,
    pub(super) end: Duration,
    /// As the server counts.
    pub(super) prompt_tokens: Option<u64>,
    pub(super) output_tokens: Option<u64>,
    pub(super) error: Option<String>,
}

impl Target {
    /// The server of the flags, with the model that it serves where none is named.
    pub(super) async fn of(args: &ServeBenchArgs) -> anyhow::Result<Self> {
        let base = args.url.trim_end_matches('/');
        let base = base.strip_suffix("/v1").unwrap_or(base).to_owned();
        let path = if args.chat { "/v1/chat/completions" } else { "/v1/completions" };
        let key = std::env::var(&args.api_key_variable).ok().filter(|key| !key.is_empty());
        let client = client(Duration::from_secs_f64(args.timeout))?;
        let model = args.model.clone().unwrap_or_default();
        let mut target = Self { client, base, path, key, model };
        if args.model.is_none() {
            target.model = target.first_model().await.with_context(|| {
                format!("{} lists no model; name one by --model", target.shown())
            })?;
        }
        Ok(target)
    }

    /// Its address without what authorizes anybody.
    pub(super) fn shown(&self) -> String {
        without_secrets(&self.base)
    }

    fn with_key(&self, request: RequestBuilder) -> RequestBuilder {
        match &self.key {
            Some(key) => request.bearer_auth(key),
            None => request,
        }
    }

    async fn first_model(&self) -> anyhow::Result<String> {
        let request = self.with_key(self.client.get(format!("{}/v1/models", self.base)));
        let answer = request.send().await?.error_for_status()?.text().await?;
        let answer: Value = serde_json::from_str(&answer)?;
        match answer["data"][0]["id"].as_str() {
            Some(name) => Ok(name.to_owned()),
            None => bail!("there is no `id` in what it says"),
        }
    }

    /// Asks, and notes when the answer comes. `started` is when the load did.
    pub(super) async fn ask(&self, body: &Body, started: Instant) -> Outcome {
        let sent = Instant::now();
        let mut outcome = Outcome { sent: sent - started, ..Outcome::default() };
        let asked = self.stream(body, sent, &mut outcome).await;
        outcome.end = sent.elapsed();
        outcome.error = asked.err().map(|error| format!("{error:#}"));
        outcome
    }

    async fn stream(
        &self,
        body: &Body,
        sent: Instant,
        outcome: &mut Outcome,
    ) -> anyhow::Result<()> {
        let request = self.client.post(format!("{}{}", self.base, self.path));
        let request = request.header("content-type", "application/json");
        let body = serde_json::to_vec(body)?;
        let mut answer = self.with_key(request).body(body).send().await?;
        let status = answer.status();
        if !status.is_success() {
            let text = answer.text().await.unwrap_or_default();
            let text: String = text.chars().take(400).collect();
            bail!("{status}: {}", text.trim());
        }
        let mut lines = Lines::default();
        while let Some(bytes) = answer.chunk().await? {
            let now = sent.elapsed();
            lines.add(&bytes)?;
            while let Some(line) = lines.next() {
                let Some(data) = line.strip_prefix("data:") else { continue };
                if data.trim() == "[DONE]" {
                    return Ok(());
                }
                note(&serde_json::from_str(data).context("an event is no JSON")?, now, outcome)?;
            }
        }
        bail!("the stream ended before `data: [DONE]`")
    }
}

/// What an event of a stream says.
fn note(event: &Value, now: Duration, outcome: &mut Outcome) -> anyhow::Result<()> {
    if let Some(error) = event.get("error").filter(|error| !error.is_null()) {
        let message = error["message"].as_str().map_or_else(|| error.to_string(), str::to_owned);
        bail!("in the stream: {message}");
    }
    let choice = &event["choices"][0];
    let delta = &choice["delta"];
    let is_there = |value: &Value| match value {
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        _ => false,
    };
    let parts = [
        &choice["text"],
        &choice["token_ids"],
        &delta["content"],
        &delta["reasoning_content"],
        &delta["reasoning"],
        &delta["tool_calls"],
    ];
    if parts.into_iter().any(is_there) {
        outcome.pieces.push(now);
    }
    let usage = &event["usage"];
    outcome.prompt_tokens = usage["prompt_tokens"].as_u64().or(outcome.prompt_tokens);
    outcome.output_tokens = usage["completion_tokens"].as_u64().or(outcome.output_tokens);
    Ok(())
}

/// The lines of a stream, as its bytes come.
#[derive(Default)]
struct Lines {
    bytes: Vec<u8>,
    /// Up to where they were given.
    given: usize,
}

impl Lines {
    fn add(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        self.bytes.drain(..self.given);
        self.given = 0;
        self.bytes.extend_from_slice(bytes);
        if self.bytes.len() > LONGEST_LINE {
            bail!("a line of the stream has more than {LONGEST_LINE} bytes");
        }
        Ok(())
    }

    fn next(&mut self) -> Option<String> {
        let rest = &self.bytes[self.given..];
        let end = rest.iter().position(|byte| *byte == b'\n')?;
        let line = String::from_utf8_lossy(&rest[..end]).trim_end_matches('\r').to_owned();
        self.given += end + 1;
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn lines_come_whole_however_their_bytes_do() {
        let text = "data: {\"a\": \"é\"}\r\n\ndata: [DONE]\n";
        for size in 1..text.len() {
            let (mut lines, mut found) = (Lines::default(), Vec::new());
            for bytes in text.as_bytes().chunks(size) {
                lines.add(bytes).unwrap();
                while let Some(line) = lines.next() {
                    found.push(line);
                }
            }
            assert_eq!(found, ["data: {\"a\": \"é\"}", "", "data: [DONE]"], "{size}");
        }
    }

    #[test]
    fn what_has_text_is_a_piece_and_usage_counts_tokens() {
        let mut outcome = Outcome::default();
        let ms = Duration::from_millis;
        for (at, event) in [
            (1, json!({"choices": [{"delta": {"role": "assistant", "content": ""}}]})),
            (2, json!({"choices": [{"delta": {"reasoning_content": "hm"}}]})),
            (3, json!({"choices": [{"delta": {"content": "a"}}]})),
            (4, json!({"choices": [{"text": "b"}], "usage": null})),
            (5, json!({"choices": [{"text": "", "finish_reason": "stop"}]})),
            (6, json!({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 4}})),
        ] {
            note(&event, ms(at), &mut outcome).unwrap();
        }
        assert_eq!(outcome.pieces, [ms(2), ms(3), ms(4)]);
        assert_eq!((outcome.prompt_tokens, outcome.output_tokens), (Some(7), Some(4)));
        let error = json!({"error": {"message": "too slow"}});
        let error = note(&error, ms(7), &mut outcome).unwrap_err().to_string();
        assert_eq!(error, "in the stream: too slow");
    }
}
