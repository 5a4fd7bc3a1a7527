//! Messages of a request as templates take them.

use serde_json::{Map, Value, json};

use super::template_error::TemplateError;

fn bad(place: usize, what: &str) -> TemplateError {
    TemplateError::Field { field: "messages", message: format!("message {place}: {what}") }
}

/// Checks messages and makes their contents and tool calls what templates expect. `takes_parts` is
/// whether the template walks a content of parts.
pub(super) fn normalized(
    messages: &[Value],
    takes_parts: bool,
    knows_developers: bool,
) -> Result<Vec<Value>, TemplateError> {
    let mut normal = messages.to_vec();
    for (place, message) in normal.iter_mut().enumerate() {
        let Some(fields) = message.as_object_mut() else {
            return Err(bad(place, "it is not an object"));
        };
        match fields.get("role").and_then(Value::as_str) {
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
    Ok(normal)
}

fn normalize_content(content: &mut Value, takes_parts: bool) -> Result<(), String> {
    let parts = match content {
        Value::Array(parts) => std::mem::take(parts),
        Value::String(_) | Value::Null => return Ok(()),
        _ => return Err("its content is neither a text nor a list of parts".to_owned()),
    };
    let texts = parts.iter().map(text_of_part).collect::<Result<Vec<_>, _>>()?;
    *content = match takes_parts {
        true => texts.iter().map(|text| json!({"type": "text", "text": text})).collect(),
        false => texts.concat().into(),
    };
    Ok(())
}

fn text_of_part(part: &Value) -> Result<&str, String> {
    let kind = part.get("type").and_then(Value::as_str);
    let text = match kind {
        None | Some("text" | "input_text" | "output_text") => {
            part.as_str().or_else(|| part.get("text").and_then(Value::as_str))
        }
        Some("refusal") => part.get("refusal").and_then(Value::as_str),
        Some(kind) => {
            return Err(format!("a content part of type `{kind}` is not supported; `text` is"));
        }
    };
    text.ok_or_else(|| "a content part has no text".to_owned())
}

fn normalize_calls(calls: &mut Value) -> Result<(), String> {
    let calls = match calls {
        Value::Null => return Ok(()),
        Value::Array(calls) => calls,
        _ => return Err("its tool_calls are not a list".to_owned()),
    };
    for call in calls {
        let Some(function) = call.get_mut("function").and_then(Value::as_object_mut) else {
            return Err("a tool call has no function".to_owned());
        };
        let Some(Value::String(written)) = function.get("arguments") else { continue };
        let arguments = match written.trim().is_empty() {
            true => Some(Map::new()),
            false => serde_json::from_str::<Map<String, Value>>(written).ok(),
        };
        if let Some(arguments) = arguments {
            function.insert("arguments".to_owned(), arguments.into());
        }
    }
    Ok(())
}

/// The messages with the arguments of tool calls as text; `None` if there are none.
pub(super) fn with_written_arguments(messages: &[Value]) -> Option<Vec<Value>> {
    let mut written = messages.to_vec();
    let mut has_changed = false;
    for message in &mut written {
        let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
        for call in calls.into_iter().flatten() {
            let Some(arguments) = call.pointer_mut("/function/arguments") else { continue };
            if arguments.is_object() {
                *arguments = super::python::dumps(arguments).into();
                has_changed = true;
            }
        }
    }
    has_changed.then_some(written)
}
