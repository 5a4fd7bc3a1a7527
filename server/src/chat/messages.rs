//! Messages of a request as templates take them.

use minijinja::Value;
use minijinja::value::ValueKind;
use serde_json::{Map, Value as Json};

use super::template_error::TemplateError;
use super::values::{JsonObject, StillWanted};

/// The names that a message's reasoning goes under; the first is the one that templates read.
pub(super) const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];
/// What stands at the end of a final message that goes on, as in transformers.
const GOES_ON: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

fn bad(place: usize, what: &str) -> TemplateError {
    TemplateError::Field { field: "messages", message: format!("message {place}: {what}") }
}

/// Checks messages and makes their contents and tool calls what templates expect. `takes_parts` is
/// whether the template walks a content of parts.
pub(super) fn normalize(
    messages: &mut [Json],
    takes_parts: bool,
    knows_developers: bool,
) -> Result<(), TemplateError> {
    for (place, message) in messages.iter_mut().enumerate() {
        let Some(fields) = message.as_object_mut() else {
            return Err(bad(place, "it is not an object"));
        };
        match fields.get("role").and_then(Json::as_str) {
            None => return Err(bad(place, "it has no role")),
            Some("developer") if !knows_developers => {
                fields.insert("role".to_owned(), "system".into());
            }
            Some(_) => {}
        }
        if let Some(content) = fields.get_mut("content") {
            normalize_content(content, takes_parts).map_err(|what| bad(place, &what))?;
        }
        if let Some(calls) = fields.get_mut("tool_calls") {
            normalize_calls(calls).map_err(|what| bad(place, &what))?;
        }
    }
    Ok(())
}

fn normalize_content(content: &mut Json, takes_parts: bool) -> Result<(), String> {
    let parts = match content {
        Json::Array(parts) => std::mem::take(parts),
        Json::String(_) | Json::Null => return Ok(()),
        _ => return Err("its content is neither a text nor a list of parts".to_owned()),
    };
    let mut texts = parts.into_iter().map(text_of_part);
    *content = match takes_parts {
        true => {
            let part =
                |text| Json::from_iter([("type", "text".into()), ("text", Json::String(text))]);
            texts.map(|text| text.map(part)).collect::<Result<_, _>>()?
        }
        false => {
            let mut all = texts.next().transpose()?.unwrap_or_default();
            texts.try_for_each(|text| text.map(|text| all.push_str(&text)))?;
            all.into()
        }
    };
    Ok(())
}

fn text_of_part(mut part: Json) -> Result<String, String> {
    let kind = part.get("type").and_then(Json::as_str);
    let text = match kind {
        None | Some("text" | "input_text" | "output_text") => match part {
            Json::String(_) => Some(part),
            mut part => part.get_mut("text").map(Json::take),
        },
        Some("refusal") => part.get_mut("refusal").map(Json::take),
        Some(kind) => {
            return Err(format!("a content part of type `{kind}` is not supported; `text` is"));
        }
    };
    match text {
        Some(Json::String(text)) => Ok(text),
        _ => Err("a content part has no text".to_owned()),
    }
}

fn normalize_calls(calls: &mut Json) -> Result<(), String> {
    let calls = match calls {
        Json::Null => return Ok(()),
        Json::Array(calls) => calls,
        _ => return Err("its tool_calls are not a list".to_owned()),
    };
    for call in calls {
        let Some(function) = call.get_mut("function").and_then(Json::as_object_mut) else {
            return Err("a tool call has no function".to_owned());
        };
        let Some(arguments) = function.get_mut("arguments") else { continue };
        let Json::String(written) = &*arguments else { continue };
        let read = match written.trim().is_empty() {
            true => Some(Map::new()),
            false => serde_json::from_str::<Map<String, Json>>(written).ok(),
        };
        if let Some(read) = read {
            *arguments = read.into();
        }
    }
    Ok(())
}

/// A message as transformers hands it on: without fields that are null, and with its reasoning
/// under every name.
pub(super) fn handed_on(message: Json, wanted: &StillWanted) -> Result<Value, TemplateError> {
    let Json::Object(fields) = message else {
        let message = "each message is an object with a role and a content".to_owned();
        return Err(TemplateError::Field { field: "messages", message });
    };
    let fields = fields.into_iter().filter(|(_, value)| !value.is_null());
    let mut object = JsonObject::new(fields, wanted);
    if let Some(reasoning) = REASONING.iter().find_map(|name| object.get(name)).cloned() {
        if object.get("thinking").is_none() {
            object.insert("thinking", reasoning.clone());
        }
        object.insert("reasoning_content", reasoning);
    }
    Ok(Value::from_object(object))
}

/// The messages with the arguments of tool calls as text; `None` if there are none. All else is shared.
pub(super) fn with_written_arguments(messages: &[Value]) -> Option<Vec<Value>> {
    let of_function = |function: &Value| {
        object(function)?.with("arguments", |arguments| {
            let is_object = arguments.kind() == ValueKind::Map;
            is_object.then(|| super::python::dumps(arguments).into())
        })
    };
    let of_call = |call: &Value| object(call)?.with("function", of_function);
    let of_message = |message: &Value| {
        object(message)?.with("tool_calls", |calls| {
            each(&Vec::from_iter(calls.try_iter().ok()?), of_call).map(Value::from)
        })
    };
    each(messages, of_message)
}

fn object(value: &Value) -> Option<&JsonObject> {
    value.downcast_object_ref()
}

/// The values with what `change` makes of some; `None` where it makes something of none.
fn each(values: &[Value], change: impl Fn(&Value) -> Option<Value>) -> Option<Vec<Value>> {
    let mut has_changed = false;
    let changed = values.iter().map(|value| match change(value) {
        Some(changed) => {
            has_changed = true;
            changed
        }
        None => value.clone(),
    });
    let changed = Vec::from_iter(changed);
    has_changed.then_some(changed)
}

/// Marks where the last message ends, and gives its text.
pub(super) fn mark_last(messages: &mut [Json]) -> Result<String, TemplateError> {
    let lacking = || TemplateError::Field {
        field: "continue_final_message",
        message: "the last message has no text to go on from".to_owned(),
    };
    let content = messages.last_mut().and_then(|message| message.get_mut("content"));
    let text = match content.ok_or_else(lacking)? {
        Json::String(text) => text,
        Json::Array(parts) => {
            let texts = parts.iter_mut().rev().filter_map(|part| part.get_mut("text"));
            let last = texts.filter_map(|text| match text {
                Json::String(text) => Some(text),
                _ => None,
            });
            last.into_iter().next().ok_or_else(lacking)?
        }
        _ => return Err(lacking()),
    };
    let before = text.clone();
    text.push_str(GOES_ON);
    Ok(before)
}

/// The text up to the mark in it.
pub(super) fn up_to_mark(mut text: String, last: &str) -> Result<String, TemplateError> {
    let mark = GOES_ON.trim_end();
    let place = text.rfind(mark).filter(|_| text.contains(last.trim()));
    let Some(place) = place else {
        let message = "the model's chat template leaves out or changes the last message".to_owned();
        return Err(TemplateError::Field { field: "continue_final_message", message });
    };
    let is_whole = text[place..].starts_with(GOES_ON);
    text.truncate(place);
    if !is_whole {
        text.truncate(text.trim_end().len());
    }
    Ok(text)
}
