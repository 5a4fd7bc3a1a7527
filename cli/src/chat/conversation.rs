//! Messages, and the KV that is kept of them.

use super::interrupt::Interrupt;
use anyhow::bail;
use piecewise::models::TextTokenizer;
use piecewise_runtime::batch::Sampling;
use piecewise_runtime::engine::{Engine, Request, RequestEvent};
use piecewise_runtime::words::RequestId;
use piecewise_runtime::words::{FinishReason, Usage};
use piecewise_server::chat::{ChatPrompt, ChatTemplate, ReplyDelta, ReplyFormat, Tools};
use piecewise_server::text::{OutputText, StopStrings};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A conversation with a model.
pub(super) struct Conversation {
    pub tokenizer: Arc<TextTokenizer>,
    pub template: ChatTemplate,
    pub format: ReplyFormat,
    pub kwargs: Map<String, Value>,
    pub sampling: Sampling,
    pub max_tokens: Option<u64>,
    pub stop_ids: Vec<u32>,
    pub engine: Engine,
    pub messages: Vec<Value>,
    /// The request whose KV holds the messages so far.
    pub kept: Option<RequestId>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    /// The model ended it.
    Whole,
    /// A bound on tokens did.
    Cut,
    /// Ctrl-C did.
    Stopped,
}

#[derive(Debug)]
pub(super) struct Turn {
    pub outcome: Outcome,
    usage: Usage,
    first: Option<Duration>,
    elapsed: Duration,
    context: u64,
}

impl Turn {
    /// Tokens of the reply, and how long it took.
    pub(super) fn taken(&self) -> (usize, Duration) {
        (usize::try_from(self.usage.generated).unwrap_or(usize::MAX), self.elapsed)
    }
}

impl std::fmt::Display for Turn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Usage { prompt, cached, generated, .. } = self.usage;
        let rate = generated as f64 / self.elapsed.as_secs_f64().max(1e-9);
        writeln!(f, "prompt     {prompt} tokens, {cached} of them kept from before")?;
        writeln!(f, "reply      {generated} tokens, {rate:.1} per second")?;
        if let Some(first) = self.first {
            writeln!(f, "first      after {first:.1?}")?;
        }
        write!(f, "context    {} of {} tokens", prompt + generated, self.context)
    }
}

impl Conversation {
    /// Forgets what was said, and starts with `system`.
    pub(super) fn reset(&mut self, system: Option<&str>) -> anyhow::Result<()> {
        if let Some(id) = self.kept.take() {
            self.engine.remove(id)?;
        }
        let system = system.map(|text| json!({"role": "system", "content": text}));
        self.messages = system.into_iter().collect();
        Ok(())
    }

    /// The reply to `said`, given piece by piece to `show` as thoughts and text. What fails leaves
    /// the conversation as it was.
    pub(super) fn reply(
        &mut self,
        said: &str,
        interrupt: &Interrupt,
        mut show: impl FnMut(&str, &str) -> std::io::Result<()>,
    ) -> anyhow::Result<Turn> {
        let before = self.messages.len();
        self.messages.push(json!({"role": "user", "content": said}));
        interrupt.begin();
        let result = self.answer(interrupt, &mut show);
        interrupt.end();
        match result {
            Ok((message, turn)) => {
                self.messages.push(message);
                self.sampling.seed = self.sampling.seed.wrapping_add(1);
                Ok(turn)
            }
            Err(error) => {
                self.messages.truncate(before);
                if let Some(id) = self.kept.take() {
                    // What failed may have taken it already.
                    let _ = self.engine.remove(id);
                }
                Err(error)
            }
        }
    }

    fn answer(
        &mut self,
        interrupt: &Interrupt,
        show: &mut dyn FnMut(&str, &str) -> std::io::Result<()>,
    ) -> anyhow::Result<(Value, Turn)> {
        let started = Instant::now();
        let prompt = self.template.render(ChatPrompt {
            messages: self.messages.clone(),
            add_generation_prompt: true,
            kwargs: self.kwargs.clone(),
            ..ChatPrompt::default()
        })?;
        let ids = self.tokenizer.encode_more(&prompt)?;
        let special = self.format.needs_special_tokens(false);
        let mut output =
            OutputText::new(self.tokenizer.clone(), &ids, StopStrings::default(), special)?;
        let mut parser = self.format.parser(&Tools::default(), &prompt)?;
        let id = self.submit(ids)?;
        let mut turn = Turn {
            outcome: Outcome::Stopped,
            usage: Usage::default(),
            first: None,
            elapsed: Duration::ZERO,
            context: self.engine.options().max_seq_len,
        };
        let (mut thoughts, mut content) = (String::new(), String::new());
        let mut take = |delta: ReplyDelta| {
            thoughts.push_str(&delta.reasoning);
            content.push_str(&delta.content);
            show(&delta.reasoning, &delta.content)
        };
        let mut events = Vec::new();
        let (mut is_over, mut failure) = (false, None);
        while !is_over && !interrupt.is_asked() {
            self.engine.step(&mut events)?;
            for event in events.drain(..) {
                match event {
                    RequestEvent::Token { id, .. } => {
                        turn.first.get_or_insert_with(|| started.elapsed());
                        if !self.stop_ids.contains(&id) {
                            take(parser.push(&output.push(id)?.text)?)?;
                        }
                    }
                    RequestEvent::Finished { reason, message, usage, .. } => {
                        is_over = true;
                        if reason.is_failure() {
                            failure = Some(message.unwrap_or_else(|| "its rows were lost".into()));
                        }
                        turn.usage = usage;
                        turn.outcome = match reason {
                            FinishReason::Stop => Outcome::Whole,
                            _ => Outcome::Cut,
                        };
                    }
                    _ => {}
                }
            }
        }
        if !is_over {
            turn.usage = self.engine.usage(id).unwrap_or_default();
            self.engine.remove(id)?;
            self.kept = None;
        }
        if let Some(failure) = failure {
            bail!("the reply ended: {failure}");
        }
        take(parser.push(&output.finish()?.text)?)?;
        take(parser.finish()?)?;
        turn.elapsed = started.elapsed();
        let mut message = json!({"role": "assistant", "content": content});
        if !thoughts.is_empty() {
            message["reasoning_content"] = thoughts.into();
        }
        Ok((message, turn))
    }

    /// Asks for a reply to `ids`; where they go on from what is kept, only the rest is computed.
    fn submit(&mut self, mut ids: Vec<u32>) -> anyhow::Result<RequestId> {
        let context = self.engine.options().max_seq_len;
        let room = context.saturating_sub(ids.len() as u64);
        if room == 0 {
            bail!(
                "the conversation has {} tokens, but the context {context}; /reset starts anew, \
                 --max-seq-len makes it longer",
                ids.len()
            );
        }
        let kept = self.kept.and_then(|id| Some((id, self.engine.ids(id)?)));
        let goes_on = kept.filter(|(_, old)| old.len() < ids.len() && ids.starts_with(old));
        let length = goes_on.map(|(id, old)| (id, old.len()));
        if let Some((_, length)) = length {
            ids.drain(..length);
        }
        let request = Request {
            stop_ids: self.stop_ids.as_slice().into(),
            sampling: self.sampling,
            keep: true,
            ..Request::new(ids, self.max_tokens.unwrap_or(room).min(room))
        };
        if let Some((id, _)) = length {
            self.engine.extend(id, request)?;
            return Ok(id);
        }
        if let Some(id) = self.kept.take() {
            self.engine.remove(id)?;
        }
        let id = self.engine.add(request)?;
        self.kept = Some(id);
        Ok(id)
    }
}
