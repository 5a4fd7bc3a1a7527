//! A model's own chat template: messages in, the text of a prompt out.

use std::path::{Path, PathBuf};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Value};
use serde_json::Map;

use super::messages::{normalized, with_written_arguments};
use super::strftime::strftime;
use super::template_error::TemplateError;
use super::template_files::{Sources, TemplateFileError};
use super::{calls, filters, methods, python};

/// What stands at the end of a final message that goes on, as in transformers.
const GOES_ON: &str = "CONTINUE_FINAL_MESSAGE_TAG ";
/// The names that a message's reasoning goes under; the first is the one that templates read.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// What a conversation's prompt is made of: OpenAI's JSON, as the template sees it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ChatPrompt {
    /// Messages, objects each.
    pub messages: Vec<serde_json::Value>,
    /// Tools that may be called.
    pub tools: Option<Vec<serde_json::Value>>,
    /// Documents to answer from, where a template knows them.
    pub documents: Option<Vec<serde_json::Value>>,
    /// Whether the prompt ends with the beginning of a reply.
    pub add_generation_prompt: bool,
    /// Whether the reply goes on from the last message.
    pub continue_final_message: bool,
    /// Variables of the template, such as `enable_thinking`.
    pub kwargs: Map<String, serde_json::Value>,
}

/// The chat templates of a model, rendered as transformers' `apply_chat_template` does.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    sources: Sources,
    /// Whether the template itself walks a content of parts.
    takes_parts: bool,
}

/// What `raise_exception` was given.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

impl ChatTemplate {
    /// Reads the templates of a model folder: `chat_template.jinja` and `additional_chat_templates`,
    /// else the `chat_template` of `tokenizer_config.json`, else `chat_template.json`. `file` is a
    /// template instead of those, Jinja or JSON. `None` where there is none.
    ///
    /// # Errors
    /// When a file can't be read, or is no template.
    pub fn load(folder: &Path, file: Option<&Path>) -> Result<Option<Self>, TemplateFileError> {
        match Sources::read(folder, file)? {
            Some(sources) => Self::of(sources).map(Some),
            None => Ok(None),
        }
    }

    /// One template; `special_tokens` are its variables such as `bos_token`.
    ///
    /// # Errors
    /// When it is no template.
    pub fn parse(
        template: &str,
        special_tokens: Map<String, serde_json::Value>,
    ) -> Result<Self, TemplateFileError> {
        Self::of(Sources::one(template, special_tokens))
    }

    fn of(sources: Sources) -> Result<Self, TemplateFileError> {
        let mut environment = environment();
        for (name, (file, source)) in &sources.templates {
            let source = calls::with_calls(&without_generation_tags(&with_plain_lines(source)));
            environment.add_template_owned(name.clone(), source).map_err(|error| {
                TemplateFileError::Syntax { file: file.clone(), message: shown(&error) }
            })?;
        }
        let mut template = Self { environment, sources, takes_parts: false };
        template.takes_parts = template.renders_parts();
        Ok(template)
    }

    /// Where the default template is from; empty for one that was given as text.
    pub fn file(&self) -> PathBuf {
        self.sources.templates.get("default").map(|(file, _)| file.clone()).unwrap_or_default()
    }

    /// The text of the templates, which shows how the model writes thoughts and tool calls.
    pub fn source(&self) -> String {
        self.sources.templates.values().map(|(_, source)| source.as_str()).collect()
    }

    /// Whether a content of one part becomes what its text alone becomes.
    fn renders_parts(&self) -> bool {
        let text = "vqx";
        let render = |content: serde_json::Value| {
            let message = serde_json::json!({"role": "user", "content": content});
            self.rendered(&ChatPrompt { messages: vec![message], ..ChatPrompt::default() }).ok()
        };
        let part = render(serde_json::json!([{"type": "text", "text": text}]));
        part.is_some_and(|part| render(text.into()) == Some(part))
    }

    /// The text of the prompt, special tokens written out.
    ///
    /// Contents of several texts are joined where the template does not walk them, and
    /// arguments of tool calls, which come as text, are objects to the template unless it wants
    /// the text.
    ///
    /// # Errors
    /// When the template refuses the messages or can't render them.
    pub fn render(&self, prompt: &ChatPrompt) -> Result<String, TemplateError> {
        if prompt.messages.is_empty() {
            let message = "give at least one message".to_owned();
            return Err(TemplateError::Field { field: "messages", message });
        }
        if prompt.continue_final_message && prompt.add_generation_prompt {
            let message = "it can't be asked for together with add_generation_prompt".to_owned();
            return Err(TemplateError::Field { field: "continue_final_message", message });
        }
        let knows_developers =
            self.sources.templates.values().any(|(_, source)| source.contains("developer"));
        let messages = normalized(&prompt.messages, self.takes_parts, knows_developers)?;
        let given = ChatPrompt { messages, ..prompt.clone() };
        let result = self.rendered(&given);
        if let Err(TemplateError::Template(_)) = result
            && let Some(messages) = with_written_arguments(&given.messages)
        {
            return self.rendered(&ChatPrompt { messages, ..given });
        }
        result
    }

    fn rendered(&self, prompt: &ChatPrompt) -> Result<String, TemplateError> {
        let mut messages = prompt.messages.iter().map(message).collect::<Result<Vec<_>, _>>()?;
        let last = match prompt.continue_final_message {
            true => Some(mark_last(&mut messages)?),
            false => None,
        };
        let mut variables = self.sources.special_tokens.clone();
        variables.extend(prompt.kwargs.clone());
        let add_generation_prompt = prompt.add_generation_prompt;
        let own = serde_json::json!({
            "messages": messages, "tools": prompt.tools, "documents": prompt.documents,
            "add_generation_prompt": add_generation_prompt,
        });
        if let serde_json::Value::Object(own) = own {
            variables.extend(own);
        }
        let name = if prompt.tools.is_some() && self.sources.templates.contains_key("tool_use") {
            "tool_use"
        } else {
            "default"
        };
        let template = self.environment.get_template(name).map_err(|_| {
            TemplateError::NoDefault { names: self.sources.templates.keys().cloned().collect() }
        })?;
        let text = template.render(Value::from(Serde(&variables))).map_err(failed)?;
        match last {
            None => Ok(text),
            Some(last) => up_to_mark(text, &last),
        }
    }
}

/// A message as transformers hands it on: without fields that are null, and with its reasoning
/// under every name.
fn message(message: &serde_json::Value) -> Result<Map<String, serde_json::Value>, TemplateError> {
    let Some(fields) = message.as_object() else {
        let message = "each message is an object with a role and a content".to_owned();
        return Err(TemplateError::Field { field: "messages", message });
    };
    let mut fields: Map<String, serde_json::Value> =
        fields.iter().filter(|(_, v)| !v.is_null()).map(|(k, v)| (k.clone(), v.clone())).collect();
    if let Some(reasoning) = REASONING.iter().find_map(|name| fields.get(*name)).cloned() {
        fields.entry("thinking").or_insert_with(|| reasoning.clone());
        fields.insert("reasoning_content".to_owned(), reasoning);
    }
    Ok(fields)
}

/// Marks where the last message ends, and gives its text.
fn mark_last(messages: &mut [Map<String, serde_json::Value>]) -> Result<String, TemplateError> {
    let lacking = || TemplateError::Field {
        field: "continue_final_message",
        message: "the last message has no text to go on from".to_owned(),
    };
    let content = messages.last_mut().and_then(|message| message.get_mut("content"));
    let text = match content.ok_or_else(lacking)? {
        serde_json::Value::String(text) => text,
        serde_json::Value::Array(parts) => {
            let texts = parts.iter_mut().rev().filter_map(|part| part.get_mut("text"));
            let last = texts.filter_map(|text| match text {
                serde_json::Value::String(text) => Some(text),
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
fn up_to_mark(mut text: String, last: &str) -> Result<String, TemplateError> {
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

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    if let Ok(syntax) = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build() {
        environment.set_syntax(syntax);
    }
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_unknown_method_callback(methods::method);
    environment.set_formatter(|out, _, value| match value.kind() {
        ValueKind::Undefined => Ok(()),
        _ => out.write_str(&python::str(value)).map_err(Error::from),
    });
    filters::install(&mut environment);
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        let error = Error::new(ErrorKind::InvalidOperation, message.clone());
        Err(error.with_source(Raised(message)))
    });
    calls::add_functions(&mut environment);
    environment.add_function("strftime_now", |format: String| {
        strftime(&format, chrono::Local::now().naive_local())
    });
    environment
}

/// Jinja reads the end of a line however it is written, in texts of the template, too.
fn with_plain_lines(source: &str) -> String {
    source.replace("\r\n", "\n").replace('\r', "\n")
}

/// transformers marks what a model is trained on by `{% generation %}`; it changes no text.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        // One `%` does not open and close.
        let Some(length) = rest[start + 2..].find("%}") else { break };
        let (tag, end) = (&rest[start + 2..start + 2 + length], start + length + 4);
        let is_dash = |c: char| c == '-' || c == '+';
        let left = tag.strip_prefix(is_dash).map_or("", |_| &tag[..1]);
        let right = tag.strip_suffix(is_dash).map_or("", |_| &tag[tag.len() - 1..]);
        let replaced = match tag.trim_matches(|c: char| is_dash(c) || c.is_whitespace()) {
            "generation" => Some("if true"),
            "endgeneration" => Some("endif"),
            _ => None,
        };
        match replaced {
            Some(name) => {
                out.push_str(&rest[..start]);
                out.push_str(&format!("{{%{left} {name} {right}%}}"));
            }
            None => out.push_str(&rest[..end]),
        }
        rest = &rest[end..];
    }
    out.push_str(rest);
    out
}

fn failed(error: Error) -> TemplateError {
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        if let Some(Raised(message)) = cause.downcast_ref::<Raised>() {
            return TemplateError::Refused(message.clone());
        }
        source = cause.source();
    }
    TemplateError::Template(shown(&error))
}

/// An error of the template engine with its line.
fn shown(error: &Error) -> String {
    let kind = error.kind();
    let detail = error.detail().map_or_else(|| kind.to_string(), |d| format!("{kind}: {d}"));
    match error.line() {
        Some(line) => format!("{detail} (line {line})"),
        None => detail,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rendered(template: &str, message: serde_json::Value) -> String {
        let template = ChatTemplate::parse(template, Map::new()).unwrap();
        template.render(&ChatPrompt { messages: vec![message], ..ChatPrompt::default() }).unwrap()
    }

    #[test]
    fn ends_of_lines_of_a_template_are_plain_and_those_of_messages_stay() {
        for end in ["\r\n", "\r", "\n"] {
            let lines =
                ["{% for m in messages %}", "<{{ m.content }}>", "{{ 'a", "b' }}", "{% endfor %}"];
            let found = rendered(&lines.join(end), json!({"role": "user", "content": "hi\r\nyou"}));
            assert_eq!(found, "<hi\r\nyou>\na\nb\n", "{end:?}");
        }
    }

    #[test]
    fn what_is_not_there_has_no_length() {
        let template =
            "{% for m in messages %}{{ m.content|length }} {{ m.content|count }}{% endfor %}";
        for (message, expected) in [
            (json!({"role": "assistant"}), "0 0"),
            (json!({"role": "assistant", "content": null}), "0 0"),
            (json!({"role": "assistant", "content": "four"}), "4 4"),
        ] {
            assert_eq!(rendered(template, message), expected);
        }
    }
}
