//! From the fields of a request for messages to those of the chat.

use super::super::error::ApiError;
use super::super::fields::{Field, Fields, MODEL, field, schema};
use super::content;
use serde_json::{Map, Value, json};

/// The fields of a conversation, which `count_tokens` has too.
pub(crate) const SHARED_FIELDS: &[Field] = &[
    MODEL,
    field("messages", schema::OBJECTS, "The turns, of texts or of blocks."),
    field(
        "system",
        r#"{"anyOf":[{"type":"string"},{"type":"array","items":{"type":"object"}}]}"#,
        "The system prompt, a text or blocks of text.",
    ),
    field("tools", schema::OBJECTS, "Tools that the reply may use, by name and `input_schema`."),
    field("tool_choice", schema::OBJECT, "Of the type `auto`, `any`, `tool` or `none`."),
    field(
        "thinking",
        schema::OBJECT,
        "Whether the reply begins with thoughts, for chat templates that can say so; `budget_tokens` is not kept to.",
    ),
    field(
        "output_config",
        schema::OBJECT,
        "`format`, a JSON schema that the reply keeps to, and `effort`, a variable of the chat template.",
    ),
    field(
        "chat_template_kwargs",
        schema::OBJECT,
        "Variables of the template, such as `enable_thinking`.",
    ),
    field("cache_control", schema::OBJECT, "Taken, and not looked at: all prompts are cached."),
    field("context_management", schema::OBJECT, "Taken, and not looked at."),
    field("speed", schema::TEXT, "Taken, and not looked at."),
];

/// The fields of a reply besides.
pub(crate) const FIELDS: &[Field] = &[
    field("max_tokens", schema::COUNT, "The most tokens to generate."),
    field("stream", schema::FLAG, "Answer piece by piece, as server-sent events."),
    field("stop_sequences", schema::TEXTS, "Texts that end the reply; they are not part of it."),
    field("temperature", schema::TEMPERATURE, "0 takes the likeliest token."),
    field("top_p", schema::SHARE, "Sample among the likeliest tokens that make up this share."),
    field(
        "top_k",
        schema::BOUND,
        "Sample among so many of the likeliest tokens; -1 and 0 are off.",
    ),
    field("min_p", schema::SHARE, "As in the chat."),
    field("seed", schema::WHOLE, "As in the chat."),
    field("cache_salt", schema::TEXT, "As in the chat."),
    field("structured_outputs", schema::OBJECT, "As in the chat."),
    field("priority", schema::WHOLE, "As in the chat."),
    field("deadline_seconds", r#"{"type":"number"}"#, "As in the chat."),
    field("metadata", schema::OBJECT, "Taken, and not looked at."),
    field("service_tier", schema::TEXT, "Taken, and not looked at."),
    field("inference_geo", schema::TEXT, "Taken, and not looked at."),
    field("diagnostics", schema::OBJECT, "Taken, and not looked at."),
];

/// What the chat takes under the same name.
const OF_CHAT: [&str; 12] = [
    "chat_template_kwargs",
    "max_tokens",
    "stream",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "cache_salt",
    "structured_outputs",
    "priority",
    "deadline_seconds",
];

/// Ours of what the chat has under another name, for errors.
const RENAMED: [(&str, &str); 4] = [
    ("stop", "stop_sequences"),
    ("response_format", "output_config.format"),
    ("response_format.json_schema.schema", "output_config.format.schema"),
    ("continue_final_message", "messages"),
];

/// An error of the chat as who asked for messages knows its fields.
pub(super) fn in_its_words(error: ApiError) -> ApiError {
    RENAMED.iter().fold(error, |error, (of_chat, own)| error.of_field(of_chat, own))
}

/// The fields of the chat for a reply.
pub(super) fn of_reply(mut fields: Fields) -> Result<Fields, ApiError> {
    fields.ignore(&["metadata", "service_tier", "inference_geo", "diagnostics"]);
    fields.refuse(&[
        ("container", Value::Null, "nothing is run here; give tools of your own"),
        ("mcp_servers", json!([]), "servers of tools are asked by the client"),
    ])?;
    let mut chat = Map::new();
    let mut given = |fields: &mut Fields, from: &str, to: &str| {
        chat.extend(fields.take(from).map(|value| (to.to_owned(), value)));
    };
    OF_CHAT.iter().for_each(|name| given(&mut fields, name, name));
    given(&mut fields, "stop_sequences", "stop");
    let conversation = Conversation::take(&mut fields)?;
    let fields = fields.become_others(Map::new())?;
    if !chat.contains_key("max_tokens") {
        return Err(ApiError::field("max_tokens", "is missing"));
    }
    conversation.add_to(&mut chat)?;
    fields.become_others(chat)
}

/// The fields of the chat for a count.
pub(super) fn of_count(mut fields: Fields) -> Result<Fields, ApiError> {
    let mut chat = Map::new();
    let name = "chat_template_kwargs";
    chat.extend(fields.take(name).map(|value| (name.to_owned(), value)));
    let conversation = Conversation::take(&mut fields)?;
    let fields = fields.become_others(Map::new())?;
    conversation.add_to(&mut chat)?;
    // They are of the reply alone.
    ["response_format", "include_reasoning"].iter().for_each(|name| drop(chat.remove(*name)));
    fields.become_others(chat)
}

/// A conversation as it came.
struct Conversation {
    messages: Option<Vec<Value>>,
    system: Option<Value>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<Map<String, Value>>,
    thinking: Option<Map<String, Value>>,
    output: Option<Map<String, Value>>,
}

impl Conversation {
    fn take(fields: &mut Fields) -> Result<Self, ApiError> {
        fields.ignore(&["cache_control", "context_management", "speed"]);
        fields.pass_within("output_config", &["effort", "format"]);
        let object = "must be an object";
        Ok(Self {
            messages: fields.typed("messages", "must be a list")?,
            system: fields.take("system"),
            tools: fields.typed("tools", "must be a list")?,
            tool_choice: fields.typed("tool_choice", object)?,
            thinking: fields.typed("thinking", object)?,
            output: fields.typed("output_config", object)?,
        })
    }

    /// Says the same in fields of the chat.
    fn add_to(self, chat: &mut Map<String, Value>) -> Result<(), ApiError> {
        let Self { messages, system, tools, tool_choice, thinking, output } = self;
        let messages = messages.ok_or_else(|| ApiError::field("messages", "is missing"))?;
        let messages = content::messages(system, messages)?;
        // A reply goes on from what is put into its mouth.
        if messages.last().is_some_and(|message| message["role"] == "assistant") {
            chat.insert("continue_final_message".to_owned(), true.into());
            chat.insert("add_generation_prompt".to_owned(), false.into());
        }
        chat.insert("messages".to_owned(), messages.into());
        if let Some(tools) = tools {
            let tools = tools.into_iter().enumerate().map(|(place, given)| tool(place, given));
            chat.insert("tools".to_owned(), tools.collect::<Result<Vec<_>, _>>()?.into());
        }
        tool_choice.map_or(Ok(()), |choice| choose(chat, choice))?;
        thinking.map_or(Ok(()), |thinking| think(chat, thinking))?;
        output.map_or(Ok(()), |output| configure(chat, output))
    }
}

fn tool(place: usize, mut given: Value) -> Result<Value, ApiError> {
    let at = |name: &str| format!("tools[{place}].{name}");
    match given["type"].as_str() {
        None | Some("custom") => {}
        Some(kind) => {
            let kind: String = kind.chars().take(80).collect();
            let why =
                format!("`{kind}` is no tool of this server; give its `input_schema` instead");
            return Err(ApiError::field(&at("type"), why));
        }
    }
    if !given["input_schema"].is_object() {
        return Err(ApiError::field(&at("input_schema"), "a JSON schema is needed, an object"));
    }
    if given["name"].as_str().is_none_or(str::is_empty) {
        return Err(ApiError::field(&at("name"), "a tool needs a name"));
    }
    let mut function = Map::new();
    for (from, to) in
        [("name", "name"), ("description", "description"), ("input_schema", "parameters")]
    {
        let value = given[from].take();
        function.extend((!value.is_null()).then(|| (to.to_owned(), value)));
    }
    // `json!` would copy it.
    Ok(Value::from_iter([("type", Value::from("function")), ("function", function.into())]))
}

fn choose(chat: &mut Map<String, Value>, choice: Map<String, Value>) -> Result<(), ApiError> {
    let kind = choice.get("type").and_then(Value::as_str).unwrap_or_default();
    let chosen = match kind {
        "auto" | "none" => kind.into(),
        "any" => "required".into(),
        "tool" => json!({"type": "function", "function": {"name": choice.get("name")}}),
        _ => {
            let must = "must be `auto`, `any`, `tool` or `none`";
            return Err(ApiError::field("tool_choice.type", must));
        }
    };
    chat.insert("tool_choice".to_owned(), chosen);
    if choice.get("disable_parallel_tool_use") == Some(&Value::Bool(true)) {
        chat.insert("parallel_tool_calls".to_owned(), false.into());
    }
    Ok(())
}

/// Templates know the one name or the other for it; a client's own word goes before both.
fn think(chat: &mut Map<String, Value>, thinking: Map<String, Value>) -> Result<(), ApiError> {
    let thinks = match thinking.get("type").and_then(Value::as_str) {
        Some("enabled") => Some(true),
        Some("disabled") => Some(false),
        // The model decides.
        Some("adaptive" | "between_tools") => None,
        _ => {
            let must = "must be `enabled`, `disabled` or `adaptive`";
            return Err(ApiError::field("thinking.type", must));
        }
    };
    if thinking.get("display").is_some_and(|display| display == "omitted") {
        chat.insert("include_reasoning".to_owned(), false.into());
    }
    let Some(thinks) = thinks else { return Ok(()) };
    match chat.entry("chat_template_kwargs").or_insert_with(|| json!({})) {
        Value::Object(variables) => {
            for name in ["enable_thinking", "thinking"] {
                variables.entry(name).or_insert(thinks.into());
            }
            Ok(())
        }
        _ => Err(ApiError::field("chat_template_kwargs", "must be an object")),
    }
}

fn configure(chat: &mut Map<String, Value>, output: Map<String, Value>) -> Result<(), ApiError> {
    for (name, mut value) in output {
        match name.as_str() {
            _ if value.is_null() => {}
            "effort" => drop(chat.insert("reasoning_effort".to_owned(), value)),
            "format" if value["type"] == "json_schema" => {
                let schema = value["schema"].take();
                let schema = Value::from_iter([("schema", schema)]);
                let format = [("type", "json_schema".into()), ("json_schema", schema)];
                chat.insert("response_format".to_owned(), format.into_iter().collect());
            }
            "format" => {
                return Err(ApiError::field("output_config.format.type", "must be `json_schema`"));
            }
            _ => return Err(ApiError::unknown(&format!("output_config.{name}"))),
        }
    }
    Ok(())
}
