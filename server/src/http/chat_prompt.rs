//! A conversation as ids, for replies and for those who count its tokens.

use super::aside::Waits;
use super::body::Held;
use super::error::ApiError;
use super::fields::{Field, Fields, field, schema};
use super::state::{HUGE, Served, State, needed};
use crate::chat::{ChatPrompt, RenderBounds, TemplateError, Tools};
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
    let of_tools = ["tools", "tool_choice", "parallel_tool_calls"];
    let of_tools = of_tools.iter().filter_map(|&name| Some((name.to_owned(), fields.take(name)?)));
    let tools = Tools::read(of_tools.collect())?;
    fields.take_copies(tools.list(), tools.copies())?;
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
    for message in &prompt.messages {
        let calls = message.get("tool_calls").and_then(Value::as_array).into_iter().flatten();
        for call in calls {
            // It is read for the template.
            let written = call.pointer("/function/arguments").and_then(Value::as_str);
            written.map_or(Ok(()), |written| fields.take_json(written))?;
        }
    }
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
    state.served()?.room.check_messages("messages", prompt.messages.len())?;
    // The template asks for longer than the turn lends its own.
    let waits = Waits::default();
    let (shared, wanted) = (Arc::clone(state), waits.still());
    let render = move |is_wanted: Wanted<'_>| -> Result<_, ApiError> {
        let served = shared.served()?;
        let instead = "this model has no chat template: use /v1/completions, or --chat-template";
        let template = served.template.as_ref();
        let template = template.ok_or_else(|| ApiError::field("messages", instead))?;
        let bounds = RenderBounds { bytes: served.room.bytes(), wanted: Arc::new(wanted) };
        let text = template.render_within(prompt, &bounds).map_err(|error| match error {
            TemplateError::TooLong { most } => served.room.too_long("messages", most),
            error => ApiError::field(error.field(), error),
        })?;
        let ids = match text.len() > HUGE {
            true => None,
            false => Some(ids(served, &text, adds_special, is_wanted)?),
        };
        Ok((ids, text))
    };
    let (read, text) = state.read_texts(held, 0, render).await?;
    let Some(read) = read else {
        let (shared, bytes) = (Arc::clone(state), text.len());
        let encode = move |is_wanted: Wanted<'_>| {
            let ids = ids(shared.served()?, &text, adds_special, is_wanted)?;
            Ok::<_, ApiError>((ids, text))
        };
        return state.read_texts(held, bytes, encode).await;
    };
    Ok((read, text))
}

fn ids(
    served: &Served,
    text: &str,
    adds_special: bool,
    is_wanted: Wanted<'_>,
) -> Result<Vec<u32>, ApiError> {
    let tokenizer = needed(&served.tokenizer, "messages")?;
    served.room.encode(tokenizer, "messages", (text, adds_special), is_wanted)
}
