//! A model's own chat template: messages in, the text of a prompt out.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::ValueKind;
use minijinja::{Environment, Error, ErrorKind, Template, Value};
use serde_json::{Map, json};

use super::messages::{
    REASONING, handed_on, mark_last, normalize, up_to_mark, with_written_arguments,
};
use super::strftime::strftime;
use super::template_error::TemplateError;
use super::template_files::{Sources, TemplateFileError};
use super::values::{StillWanted, value_of};
use super::{calls, filters, methods, python};

/// The steps of the template engine that a prompt may take: some seconds. A template takes some hundred for
/// a message.
pub const MOST_STEPS: u64 = 100_000_000;
/// Of one that is tried when it is loaded.
const STEPS_OF_TRIAL: u64 = 1 << 20;

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

/// How long a prompt may become, and for whom.
#[derive(Clone, derive_more::Debug)]
pub struct RenderBounds {
    /// The most bytes of its text.
    pub bytes: usize,
    /// Whether somebody still waits for it. It is asked again and again.
    #[debug(skip)]
    pub wanted: StillWanted,
}

impl Default for RenderBounds {
    /// A text of any length, that is wanted.
    fn default() -> Self {
        Self { bytes: usize::MAX, wanted: Arc::new(|| true) }
    }
}

/// The chat templates of a model, rendered as transformers' `apply_chat_template` does.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    sources: Sources,
    /// The words of the templates: a field whose name is not of these is read by none.
    words: HashSet<String>,
    /// Whether the template itself walks a content of parts.
    takes_parts: bool,
    /// Whether it shows fields of messages that it does not name.
    shows_all: bool,
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
        let named = sources.templates.values().flat_map(|(_, source)| words(source));
        let words = named.map(str::to_owned).collect();
        let mut template =
            Self { environment, sources, words, takes_parts: false, shows_all: true };
        template.environment.set_fuel(Some(STEPS_OF_TRIAL));
        template.takes_parts = template.renders_parts();
        template.shows_all = template.renders_all();
        template.environment.set_fuel(Some(MOST_STEPS));
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
        let render = |content| self.tried(vec![json!({"role": "user", "content": content})]);
        let part = render(json!([{"type": "text", "text": text}]));
        part.is_some_and(|part| render(text.into()) == Some(part))
    }

    /// Whether a field of a message is shown that no template names, as where a message is written as JSON.
    fn renders_all(&self) -> bool {
        let name = "vqx_zj";
        let calls = json!([{"id": "vqxvqxvqx", "type": "function", "function": {"name": "f", "arguments": {}}}]);
        let message = |role| json!({"role": role, "content": "vqx", name: name});
        let mut calling = message("assistant");
        calling["tool_calls"] = calls;
        let mut result = message("tool");
        result["tool_call_id"] = "vqxvqxvqx".into();
        let user = || message("user");
        let tried = [
            vec![user()],
            vec![message("system"), user()],
            vec![user(), message("assistant")],
            vec![user(), calling.clone()],
            vec![user(), calling, result],
        ];
        tried
            .into_iter()
            .any(|messages| self.tried(messages).is_some_and(|text| text.contains(name)))
    }

    fn tried(&self, messages: Vec<serde_json::Value>) -> Option<String> {
        let prompt = ChatPrompt { messages, ..ChatPrompt::default() };
        self.rendered(prompt, &RenderBounds::default()).ok()
    }

    /// Whether a template may read a field or a variable of this name.
    fn reads(&self, name: &str) -> bool {
        words(name).all(|word| self.words.contains(word))
    }

    /// The text of the prompt, special tokens written out.
    ///
    /// Contents of several texts are joined where the template does not walk them, and
    /// arguments of tool calls, which come as text, are objects to the template unless it wants
    /// the text.
    ///
    /// # Errors
    /// When the template refuses the messages or can't render them.
    pub fn render(&self, prompt: ChatPrompt) -> Result<String, TemplateError> {
        self.render_within(prompt, &RenderBounds::default())
    }

    /// As [`Self::render`], no further than the bounds. The prompt becomes what the template sees, so that
    /// there is one of both.
    ///
    /// # Errors
    /// As there, and where it goes past a bound.
    pub fn render_within(
        &self,
        mut prompt: ChatPrompt,
        bounds: &RenderBounds,
    ) -> Result<String, TemplateError> {
        if prompt.messages.is_empty() {
            let message = "give at least one message".to_owned();
            return Err(TemplateError::Field { field: "messages", message });
        }
        if prompt.continue_final_message && prompt.add_generation_prompt {
            let message = "it can't be asked for together with add_generation_prompt".to_owned();
            return Err(TemplateError::Field { field: "continue_final_message", message });
        }
        normalize(&mut prompt.messages, self.takes_parts, self.reads("developer"))?;
        if !self.shows_all {
            let messages = prompt.messages.iter_mut().filter_map(|message| message.as_object_mut());
            messages.for_each(|message| {
                message.retain(|name, _| REASONING.contains(&name.as_str()) || self.reads(name));
            });
        }
        self.rendered(prompt, bounds)
    }

    fn rendered(&self, prompt: ChatPrompt, bounds: &RenderBounds) -> Result<String, TemplateError> {
        let ChatPrompt { mut messages, tools, documents, add_generation_prompt, .. } = prompt;
        let last = prompt.continue_final_message.then(|| mark_last(&mut messages)).transpose()?;
        let is_of_tools = tools.is_some() && self.sources.templates.contains_key("tool_use");
        let name = if is_of_tools { "tool_use" } else { "default" };
        let template = self.environment.get_template(name).map_err(|_| {
            TemplateError::NoDefault { names: self.sources.templates.keys().cloned().collect() }
        })?;
        let wanted = &bounds.wanted;
        let messages = messages.into_iter().map(|message| handed_on(message, wanted));
        let messages = messages.collect::<Result<Vec<_>, _>>()?;
        let given = self.sources.special_tokens.clone().into_iter().chain(prompt.kwargs);
        let given = given.filter(|(name, _)| self.reads(name));
        let given = given.map(|(name, value)| (name, value_of(value, wanted)));
        let own = [("tools", tools), ("documents", documents)].map(|(name, list)| {
            let list = list.filter(|_| self.reads(name));
            (name, Value::from(list.map(|list| value_of(list.into(), wanted))))
        });
        let own = own.into_iter().chain([("add_generation_prompt", add_generation_prompt.into())]);
        let own = own.map(|(name, value)| (name.to_owned(), value));
        let variables = Vec::from_iter(given.chain(own));
        let text = |messages: &[Value]| {
            let messages = ("messages".to_owned(), Value::from(messages));
            let variables = variables.iter().cloned().chain([messages]);
            self.written(&template, Value::from_pairs(variables), bounds)
        };
        let mut result = text(&messages);
        if let Err(TemplateError::Template(_)) = result
            && let Some(messages) = with_written_arguments(&messages)
        {
            result = text(&messages);
        }
        match last {
            None => result,
            Some(last) => up_to_mark(result?, &last),
        }
    }

    /// The text that a template makes of its variables.
    fn written(
        &self,
        template: &Template<'_, '_>,
        variables: Value,
        bounds: &RenderBounds,
    ) -> Result<String, TemplateError> {
        let mut text = Text { bytes: Vec::new(), bounds, is_full: false };
        let result = template.render_captured_to(variables, &mut text).map(drop);
        match result {
            Ok(()) => String::from_utf8(text.bytes)
                .map_err(|error| TemplateError::Template(error.to_string())),
            Err(_) if !(bounds.wanted)() => Err(TemplateError::Unwanted),
            Err(_) if text.is_full => Err(TemplateError::TooLong { most: bounds.bytes }),
            Err(error) => Err(failed(&error, self.environment.fuel().unwrap_or(u64::MAX))),
        }
    }
}

/// The words of a text, as templates write names.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// A text that grows within its bounds.
struct Text<'b> {
    bytes: Vec<u8>,
    bounds: &'b RenderBounds,
    is_full: bool,
}

impl io::Write for Text<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.is_full = bytes.len() > self.bounds.bytes - self.bytes.len();
        if self.is_full || !(self.bounds.wanted)() {
            return Err(io::Error::other("there is to be no more of it"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    if let Ok(syntax) = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build() {
        environment.set_syntax(syntax);
    }
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_unknown_method_callback(methods::method);
    environment.set_formatter(|out, _, value| match (value.kind(), value.as_str()) {
        (ValueKind::Undefined, _) => Ok(()),
        (_, Some(text)) => out.write_str(text).map_err(Error::from),
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

/// `most` is how many steps it might take.
fn failed(error: &Error, most: u64) -> TemplateError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(found) = cause {
        if let Some(Raised(message)) = found.downcast_ref::<Raised>() {
            return TemplateError::Refused(message.clone());
        }
        let kind = found.downcast_ref::<Error>().map(Error::kind);
        if kind == Some(ErrorKind::OutOfFuel) {
            return TemplateError::TooManySteps { most };
        }
        cause = found.source();
    }
    TemplateError::Template(shown(error))
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
    use std::sync::atomic::{AtomicU64, Ordering};

    fn rendered(template: &str, message: serde_json::Value) -> String {
        let template = ChatTemplate::parse(template, Map::new()).unwrap();
        template.render(ChatPrompt { messages: vec![message], ..ChatPrompt::default() }).unwrap()
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

    /// A field that none names is not kept for it, unless it shows whole messages.
    #[test]
    fn a_template_has_the_fields_that_it_reads() {
        let message = json!({
            "role": "user", "content": "x", "else": [{"": 0}], "reasoning": "why", "my-key": 3,
        });
        let shown = |template: &str| rendered(template, message.clone());
        let names = "{% for m in messages %}{{ m|list|join(' ') }}{% endfor %}";
        assert_eq!(shown(names), "role content else reasoning my-key thinking reasoning_content");
        let reads =
            "{{ messages[0]|length }} {{ messages[0]['my-key'] }} {{ messages[0].content }}";
        assert_eq!(shown(reads), "5 3 x", "content, my-key and three names of the reasoning");
        let whole = "{{ messages[0].role }}{% if messages[-1].role == 'tool' %}{{ messages[-1]|tojson }}{% endif %}";
        let template = ChatTemplate::parse(whole, Map::new()).unwrap();
        assert!(template.shows_all && !ChatTemplate::parse(reads, Map::new()).unwrap().shows_all);
    }

    #[test]
    fn no_template_goes_on_for_ever() {
        let endless =
            "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}";
        let mut template = ChatTemplate::parse(endless, Map::new()).unwrap();
        template.environment.set_fuel(Some(10_000));
        let messages = vec![json!({"role": "user", "content": "x"})];
        let prompt = || ChatPrompt { messages: messages.clone(), ..ChatPrompt::default() };
        let error = template.render(prompt()).unwrap_err();
        assert!(matches!(error, TemplateError::TooManySteps { most: 10_000 }), "{error}");
        assert!(error.to_string().contains("more than 10000 steps"), "{error}");
        let long = "{% for i in range(1000) %}{{ messages[0].content }}{% endfor %}";
        let template = ChatTemplate::parse(long, Map::new()).unwrap();
        let bounds = |bytes| RenderBounds { bytes, ..RenderBounds::default() };
        assert_eq!(template.render_within(prompt(), &bounds(1000)).unwrap().len(), 1000);
        let error = template.render_within(prompt(), &bounds(999)).unwrap_err();
        assert!(matches!(error, TemplateError::TooLong { most: 999 }), "{error}");
    }

    /// Whether it writes or only appends to a text of its own.
    #[test]
    fn a_template_ends_when_nobody_waits() {
        let long = vec![json!({"role": "user", "content": "x"}); 1000];
        for appends in [
            "{% set ns = namespace(t='') %}{% for m in messages %}{% set ns.t = ns.t ~ m.content %}{% endfor %}",
            "{% set ns = namespace(t='') %}{% for m in messages[1:] %}{% set ns.t = ns.t + m['content'] %}{% endfor %}",
            "{% for m in messages %}x{% endfor %}",
        ] {
            let template = ChatTemplate::parse(appends, Map::new()).unwrap();
            let asked = Arc::new(AtomicU64::new(0));
            let counted = Arc::clone(&asked);
            let wanted = move || counted.fetch_add(1, Ordering::Relaxed) < 10;
            let bounds = RenderBounds { bytes: usize::MAX, wanted: Arc::new(wanted) };
            let prompt = ChatPrompt { messages: long.clone(), ..ChatPrompt::default() };
            let error = template.render_within(prompt, &bounds).unwrap_err();
            assert!(matches!(error, TemplateError::Unwanted), "{appends}: {error}");
            assert!(asked.load(Ordering::Relaxed) <= 12, "{appends}: {asked:?}");
        }
    }
}
