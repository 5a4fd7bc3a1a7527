//! A conversation as ids, for replies and for those who count its tokens.

use super::body::Held;
use super::error::ApiError;
use super::fields::{Field, Fields, field, schema};
use super::state::{State, needed};
use crate::chat::{ChatPrompt, Tools};
use crate::structured::Wanted;
use serde_json::Value;
use std::sync::Arc;

/// The fields of a conversation besides its tools.
pub(crate) const FIELDS: &[Field] = &[
    field("messages", schema::OBJECTS, "The conversation."),
    field(
        "add_generation_prompt",
        schema::FLAG_THAT_IS_SET,
        "Whether the prompt ends with the beginning of a reply.",
    ),
    field(
        "continue_final_message",
        schema::FLAG,
        "Whether the reply goes on from the last message.",
    ),
    field(
        "add_special_tokens",
        schema::FLAG,
        "Whether the tokenizer's own special tokens are added to what the template has written, which has its own as a rule.",
    ),
    field("tools", schema::OBJECTS, "Functions that the reply may call."),
    field(
        "tool_choice",
        r#"{"anyOf":[{"type":"string"},{"type":"object"}]}"#,
        "`none`, `auto`, `required`, or the one to call.",
    ),
    field("parallel_tool_calls", schema::FLAG, "Whether there may be several calls."),
    field("documents", schema::OBJECTS, "Texts for the template."),
    field(
        "chat_template_kwargs",
        schema::OBJECT,
        "Variables of the template, such as `enable_thinking`.",
    ),
    field(
        "reasoning_effort",
        schema::TEXT,
        "A variable of that name for the template, unless `chat_template_kwargs` has it.",
    ),
];

/// A conversation that was asked about.
pub(crate) struct Asked {
    pub(crate) tools: Tools,
    prompt: ChatPrompt,
    adds_special: bool,
}

/// Takes a conversation out of the fields.
pub(crate) fn take(fields: &mut Fields) -> Result<Asked, ApiError> {
    let instead = "a template is the operator's: --chat-template; its variables are in \
                   `chat_template_kwargs`";
    fields.refuse(&[("chat_template", Value::Null, instead)])?;
    let tools = Tools::read(fields.object())?;
    fields.ignore(&["tools", "tool_choice", "parallel_tool_calls"]);
    let mut prompt = ChatPrompt {
        messages: fields
            .typed("messages", "must be a list")?
            .ok_or_else(|| ApiError::field("messages", "is missing"))?,
        tools: tools.for_template(),
        documents: fields.typed("documents", "must be a list")?,
        continue_final_message: fields.flag("continue_final_message")?,
        add_generation_prompt: fields.flag_or("add_generation_prompt", true)?,
        kwargs: fields.typed("chat_template_kwargs", "must be an object")?.unwrap_or_default(),
    };
    if let Some(effort) = fields.text("reasoning_effort")? {
        prompt.kwargs.entry("reasoning_effort").or_insert_with(|| effort.into());
    }
    Ok(Asked { tools, prompt, adds_special: fields.flag("add_special_tokens")? })
}

/// The ids of a conversation and their text, off the threads that others wait for.
pub(crate) async fn encode(
    state: &Arc<State>,
    held: &Held,
    Asked { prompt, adds_special, .. }: Asked,
) -> Result<(Vec<u32>, String), ApiError> {
    let shared = Arc::clone(state);
    let encode = move |is_wanted: Wanted<'_>| -> Result<_, ApiError> {
        let served = shared.served()?;
        let tokenizer = needed(&served.tokenizer, "messages")?;
        let instead = "this model has no chat template: use /v1/completions, or --chat-template";
        let template = served.template.as_ref();
        let template = template.ok_or_else(|| ApiError::field("messages", instead))?;
        let text = template.render(&prompt);
        let text = text.map_err(|error| ApiError::field(error.field(), &error))?;
        served.room.check_text("messages", &text)?;
        let ids = served.room.encode(tokenizer, "messages", (&text, adds_special), is_wanted)?;
        Ok((ids, text))
    };
    state.read_texts(held, encode).await
}
