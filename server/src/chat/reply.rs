//! From the text of a reply to thoughts, content and tool calls.

use reasoning_parser::ParseError;

use super::call_list::CallList;
use super::formats::ReplyFormat;
use super::thought_reader::{ThoughtReader, Told};
use super::tool_call::ToolCallDelta;
use super::tool_calls::ToolCalls;
use super::tools::{ToolChoice, Tools};

/// A reply that a parser can't read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the reply can't be read: {0}")]
pub struct ReplyError(pub(super) String);

/// What a piece of text added to a message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReplyDelta {
    /// What it added to the thoughts.
    pub reasoning: String,
    /// What it added to the reply itself.
    pub content: String,
    /// What was added to each, in the order in which they began.
    pub tool_calls: Vec<ToolCallDelta>,
}

impl ReplyDelta {
    /// Whether a client would see nothing of it.
    pub fn is_empty(&self) -> bool {
        self.reasoning.is_empty() && self.content.is_empty() && self.tool_calls.is_empty()
    }
}

/// Reads a reply as it comes; a whole one is pushed at once, with the same outcome.
#[derive(derive_more::Debug)]
#[debug("ReplyParser of {format:?}")]
pub struct ReplyParser {
    format: ReplyFormat,
    thoughts: Option<ThoughtReader>,
    calls: Calls,
    one_call_at_most: bool,
    called: bool,
}

/// Who reads the calls in what is no thought.
enum Calls {
    None,
    /// The reply is the arguments of this tool.
    Arguments {
        name: String,
        begun: bool,
    },
    /// The reply is a list of calls and nothing else.
    List(CallList),
    Parsed(ToolCalls),
}

impl ReplyFormat {
    /// A parser of the reply to `prompt`, the text that the chat template rendered.
    ///
    /// # Errors
    /// When the tools of the request are none that a parser takes.
    pub fn parser(&self, tools: &Tools, prompt: &str) -> Result<ReplyParser, ReplyError> {
        Ok(ReplyParser {
            calls: calls(self, tools)?,
            format: self.clone(),
            thoughts: self.thought_reader(prompt),
            one_call_at_most: tools.one_at_most,
            called: false,
        })
    }
}

fn gave_up(error: ParseError) -> ReplyError {
    ReplyError(error.to_string())
}

fn calls(format: &ReplyFormat, tools: &Tools) -> Result<Calls, ReplyError> {
    match tools.choice() {
        ToolChoice::None => Ok(Calls::None),
        ToolChoice::Named(name) => Ok(Calls::Arguments { name: name.clone(), begun: false }),
        ToolChoice::Required => Ok(Calls::List(CallList::default())),
        ToolChoice::Auto => match format.tools() {
            Some(name) => match ToolCalls::new(name, tools.list()) {
                Some(calls) => Ok(Calls::Parsed(calls)),
                None => Err(ReplyError(format!("there is no tool call parser {name:?}"))),
            },
            None => Ok(Calls::None),
        },
    }
}

impl ReplyParser {
    /// Whether the reply has called a tool: then it is finished for that reason.
    pub fn called_tools(&self) -> bool {
        self.called
    }

    /// Takes the next text of the reply.
    ///
    /// # Errors
    /// When a parser gives up.
    pub fn push(&mut self, text: &str) -> Result<ReplyDelta, ReplyError> {
        let mut delta = ReplyDelta::default();
        match &mut self.thoughts {
            None => self.read_spoken(text, &mut delta),
            Some(thoughts) => {
                let told = thoughts.push(text).map_err(gave_up)?;
                self.read(told, &mut delta);
            }
        }
        Ok(delta)
    }

    /// What is left when the reply is over.
    ///
    /// # Errors
    /// When a parser gives up.
    pub fn finish(&mut self) -> Result<ReplyDelta, ReplyError> {
        let mut delta = ReplyDelta::default();
        if let Some(thoughts) = &mut self.thoughts {
            let told = thoughts.finish().map_err(gave_up)?;
            self.read(told, &mut delta);
        }
        if let Calls::Parsed(calls) = &mut self.calls {
            let (text, calls) = calls.finish();
            delta.content.push_str(&text);
            self.add_calls(calls, &mut delta);
        }
        Ok(delta)
    }

    fn read(&mut self, told: Told, delta: &mut ReplyDelta) {
        delta.reasoning.push_str(&told.thoughts);
        self.read_spoken(&told.spoken, delta);
    }

    /// Reads what is no thought.
    fn read_spoken(&mut self, text: &str, delta: &mut ReplyDelta) {
        if text.is_empty() {
            return;
        }
        match &mut self.calls {
            Calls::None => delta.content.push_str(text),
            Calls::Arguments { name, begun } => {
                let name = (!std::mem::replace(begun, true)).then(|| name.clone());
                let call = ToolCallDelta { name, arguments: text.to_owned(), ..Default::default() };
                self.add_calls(vec![call], delta);
            }
            Calls::List(list) => {
                let calls = list.push(text);
                self.add_calls(calls, delta);
            }
            Calls::Parsed(calls) => {
                let (text, calls) = calls.push(text);
                delta.content.push_str(&text);
                self.add_calls(calls, delta);
            }
        }
    }

    fn add_calls(&mut self, calls: Vec<ToolCallDelta>, delta: &mut ReplyDelta) {
        for mut call in calls {
            if self.one_call_at_most && call.index > 0 {
                continue;
            }
            self.called = true;
            if let Some(name) = &call.name {
                call.id = Some(self.format.call_id(name, call.index));
            }
            match delta.tool_calls.last_mut() {
                Some(last) if last.index == call.index && call.name.is_none() => {
                    last.arguments.push_str(&call.arguments);
                }
                _ => delta.tool_calls.push(call),
            }
        }
    }
}
