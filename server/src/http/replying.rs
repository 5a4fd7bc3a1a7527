//! A reply to a conversation, from the fields of the chat on to what is generated, for whoever shows it.

use super::body::Held;
use super::chat_prompt;
use super::error::ApiError;
use super::fields::Fields;
use super::generation::{Generation, Part};
use super::logprobs::{bounded, count};
use super::params::{Params, top_logprobs};
use super::state::State;
use crate::chat::{ReplyParser, ToolChoice};
use serde_json::{Value, json};
use std::sync::Arc;

/// Replies that have begun.
pub(crate) struct Replying {
    pub(crate) params: Params,
    /// The prompt's ids.
    pub(crate) ids: Arc<[u32]>,
    pub(crate) generation: Generation,
    /// What turns the text of each into a message, in the order of their numbers.
    pub(crate) parsers: Vec<ReplyParser>,
    pub(crate) wants_logprobs: bool,
    pub(crate) shows_thoughts: bool,
    /// The memory of a whole answer.
    pub(crate) held: Held,
}

/// What a request asks for.
pub(crate) struct Asked {
    params: Params,
    logprobs: Option<u32>,
    conversation: chat_prompt::Asked,
    shows_thoughts: bool,
    held: Held,
}

impl Asked {
    /// Takes what the chat takes, and refuses the rest.
    pub(crate) fn take(state: &State, mut fields: Fields) -> Result<Self, ApiError> {
        let served = state.served()?;
        fields.rename("max_completion_tokens", "max_tokens");
        let mut params = Params::take(&mut fields, served, &state.limits)?;
        let logprobs = logprobs(&mut fields)?;
        let conversation = chat_prompt::take(&mut fields)?;
        match (conversation.tools.structure(), &params.structure) {
            (None, _) => {}
            (Some(structure), None) => {
                params.structure = Some(Arc::new(("tools".to_owned(), structure)));
            }
            (Some(_), Some(_)) => {
                let why = "a call that must be made has a structure of its own: ask for no other";
                return Err(ApiError::field("tool_choice", why));
            }
        }
        let shows_thoughts = fields.flag_or("include_reasoning", true)?;
        fields.refuse(&[
            ("functions", json!([]), "use `tools`"),
            ("function_call", json!("none"), "use `tool_choice`"),
            ("modalities", json!(["text"]), "answers are text"),
            ("audio", Value::Null, "answers are text"),
            ("prediction", Value::Null, "leave it out"),
            ("verbosity", Value::Null, "ask in the messages"),
            ("web_search_options", Value::Null, "nothing is searched"),
            ("echo", json!(false), "set `continue_final_message`"),
        ])?;
        let held = fields.finish()?;
        Ok(Self { params, logprobs, conversation, shows_thoughts, held })
    }
}

impl Replying {
    pub(crate) async fn begin(state: &Arc<State>, asked: Asked) -> Result<Self, ApiError> {
        let served = state.served()?;
        let Asked { params, logprobs, conversation, shows_thoughts, held } = asked;
        let tools = conversation.tools.clone();
        let (mut ids, text) = chat_prompt::encode(state, &held, conversation).await?;
        if let Some(most) = params.most(served) {
            ids.drain(..ids.len().saturating_sub(most));
        }
        served.room.check_ids("messages", ids.len())?;
        let room = served.engine.options().max_seq_len.saturating_sub(ids.len() as u64).max(1);
        if !params.stream {
            // What comes without a bound is counted as it comes.
            let most = params.max_tokens.unwrap_or(0).min(room);
            let of_replies = count(most.saturating_mul(params.choices as u64), logprobs);
            let told = of_replies + count(ids.len() as u64, params.prompt_logprobs);
            bounded(told, state.limits.logprobs)?;
        }
        let calls = tools.choice() != &ToolChoice::None;
        let special = served.format.needs_special_tokens(calls);
        let prompt: Arc<[u32]> = ids.as_slice().into();
        let (mut parts, mut parsers) = (Vec::new(), Vec::new());
        for number in 0..params.choices {
            let mut request = params.request(Arc::clone(&prompt), number, room);
            request.logprobs = logprobs;
            // The prompt is the same for all.
            request.prompt_logprobs = request.prompt_logprobs.filter(|_| number == 0);
            let reply = params.output(served, "messages", &ids, special)?;
            let named_stops = Arc::clone(&params.named_stops);
            parts.push(Part { request, text: reply, named_stops, is_of_prompt: false });
            let parser = served.format.parser(&tools, &text);
            parsers.push(parser.map_err(|error| ApiError::field("tools", error))?);
        }
        params.constrain(state, &mut parts, served.format.thoughts(&text)).await?;
        let held = held.for_answer(0)?;
        let unread = held.another();
        let generation = Generation::start(&served.engine, parts, params.choices, unread).await;
        let generation = generation.map_err(|error| error.of_field("prompt", "messages"))?;
        let wants_logprobs = logprobs.is_some();
        Ok(Self { params, ids: prompt, generation, parsers, wants_logprobs, shows_thoughts, held })
    }
}

/// Of how many of the likeliest ids the log-probabilities come beside a token's own, where they do.
fn logprobs(fields: &mut Fields) -> Result<Option<u32>, ApiError> {
    let logprobs = fields.flag("logprobs")?;
    match fields.take("top_logprobs") {
        None => Ok(logprobs.then_some(0)),
        Some(value) => match top_logprobs("top_logprobs", &value)? {
            most if logprobs => Ok(Some(most)),
            0 => Ok(None),
            _ => Err(ApiError::field("top_logprobs", "needs `logprobs`")),
        },
    }
}
