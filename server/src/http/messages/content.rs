//! From a conversation in blocks to the messages of the chat.

use super::super::error::ApiError;
use serde_json::{Map, Value, json};

/// What Claude Code begins its system prompt with: it differs in every request, and is no text for a
/// model. With it no two prompts would begin alike.
const BILLING: &str = "x-anthropic-billing-header";

/// The messages of the chat for a system prompt and turns. Turns of one role behind each other are one.
pub(super) fn messages(system: Option<Value>, turns: Vec<Value>) -> Result<Vec<Value>, ApiError> {
    let mut chat = Chat::default();
    if let Some(system) = system {
        chat.add("system", "system", system)?;
    }
    for (place, mut turn) in turns.into_iter().enumerate() {
        let at = format!("messages[{place}]");
        let role = match turn["role"].as_str() {
            Some("user") => "user",
            Some("assistant") => "assistant",
            Some("system") => "system",
            _ => {
                let must = "must be `user` or `assistant`";
                return Err(ApiError::field(&format!("{at}.role"), must));
            }
        };
        let content = turn.get_mut("content").map(Value::take).unwrap_or_default();
        chat.add(role, &format!("{at}.content"), content)?;
    }
    chat.close();
    Ok(chat.done)
}

#[derive(Default)]
struct Chat {
    done: Vec<Value>,
    open: Turn,
}

/// What one role says until another does.
#[derive(Default)]
struct Turn {
    role: &'static str,
    texts: Vec<Value>,
    calls: Vec<Value>,
    thoughts: String,
}

impl Chat {
    fn add(&mut self, role: &'static str, at: &str, content: Value) -> Result<(), ApiError> {
        if self.open.role != role {
            self.close();
            self.open.role = role;
        }
        for (place, block) in blocks(at, content)?.into_iter().enumerate() {
            let at = format!("{at}[{place}]");
            match (block["type"].as_str(), role) {
                (Some("text"), _) => {
                    let text = text(&at, &block)?;
                    let is_billing = role == "system" && text.starts_with(BILLING);
                    self.open.texts.extend((!is_billing).then(|| part(text)));
                }
                (Some("thinking"), "assistant") => {
                    self.open.thoughts.push_str(block["thinking"].as_str().unwrap_or_default());
                }
                // Only who wrote them can read them.
                (Some("redacted_thinking"), "assistant") => {}
                (Some("tool_use"), "assistant") => self.open.calls.push(call(&at, block)?),
                (Some("tool_result"), "user") => {
                    let result = result(&at, block)?;
                    self.close();
                    self.open.role = role;
                    self.done.push(result);
                }
                (kind, _) => return Err(no_block(&at, kind.unwrap_or_default(), role)),
            }
        }
        Ok(())
    }

    fn close(&mut self) {
        let Turn { role, texts, calls, thoughts } = std::mem::take(&mut self.open);
        let mut message = Map::new();
        if !texts.is_empty() {
            message.insert("content".to_owned(), texts.into());
        }
        if !thoughts.is_empty() {
            message.insert("reasoning_content".to_owned(), thoughts.into());
        }
        if !calls.is_empty() {
            message.insert("tool_calls".to_owned(), calls.into());
        }
        if !message.is_empty() {
            message.insert("role".to_owned(), role.into());
            self.done.push(message.into());
        }
    }
}

/// The blocks of a content; a text is one.
fn blocks(at: &str, content: Value) -> Result<Vec<Value>, ApiError> {
    match content {
        Value::String(text) => Ok(vec![part(&text)]),
        Value::Array(blocks) => Ok(blocks),
        _ => Err(ApiError::field(at, "must be a text or a list of blocks")),
    }
}

fn part(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

fn text<'b>(at: &str, block: &'b Value) -> Result<&'b str, ApiError> {
    block["text"].as_str().ok_or_else(|| ApiError::field(at, "a block of text has no text"))
}

fn call(at: &str, mut block: Value) -> Result<Value, ApiError> {
    if !(block["id"].is_string() && block["name"].is_string()) {
        return Err(ApiError::field(at, "a block of tool_use needs an id and a name"));
    }
    let arguments = match block["input"].take() {
        Value::Null => json!({}),
        object @ Value::Object(_) => object,
        _ => return Err(ApiError::field(at, "the input of a tool is an object")),
    };
    // `json!` would copy them.
    let function = Value::from_iter([("name", block["name"].take()), ("arguments", arguments)]);
    let call = [("id", block["id"].take()), ("type", "function".into()), ("function", function)];
    Ok(call.into_iter().collect())
}

fn result(at: &str, mut block: Value) -> Result<Value, ApiError> {
    if !block["tool_use_id"].is_string() {
        return Err(ApiError::field(at, "a block of tool_result needs a tool_use_id"));
    }
    let at = format!("{at}.content");
    let content = match block["content"].take() {
        Value::Null => Vec::new(),
        content => blocks(&at, content)?,
    };
    let mut texts = Vec::new();
    for (place, block) in content.iter().enumerate() {
        let at = format!("{at}[{place}]");
        match block["type"].as_str() {
            Some("text") => texts.push(part(text(&at, block)?)),
            kind => return Err(no_block(&at, kind.unwrap_or_default(), "tool")),
        }
    }
    let id = block["tool_use_id"].take();
    let result = [("role", "tool".into()), ("tool_call_id", id), ("content", texts.into())];
    Ok(result.into_iter().collect())
}

fn no_block(at: &str, kind: &str, role: &str) -> ApiError {
    let why = match (kind, role) {
        ("image", _) => "images are not read here; say in words what they show".to_owned(),
        ("document", _) => "documents are not read here; give their text".to_owned(),
        ("thinking" | "redacted_thinking" | "tool_use", _) => {
            format!("a block of type `{kind}` is for the role `assistant`")
        }
        ("tool_result", _) => "a block of type `tool_result` is for the role `user`".to_owned(),
        _ => {
            let kind: String = kind.chars().take(80).collect();
            format!(
                "a block of type `{kind}` is not supported; `text`, `thinking`, `tool_use` and \
                 `tool_result` are"
            )
        }
    };
    ApiError::field(at, why)
}
