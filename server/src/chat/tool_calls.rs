//! Tool calls in the text of a reply, by the parser of the model's family.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use openai_protocol::common::Tool;
use serde_json::Value;
use tool_parser::{ParserFactory, ToolParser};

use super::reply::{ReplyError, ToolCallDelta};

/// Parsers that the crate has under these names; it does not list them itself.
const NAMES: [&str; 28] = [
    "cohere",
    "deepseek",
    "deepseek31",
    "deepseek32",
    "deepseek_v4",
    "deepseek_v41",
    "gemma4",
    "glm45_moe",
    "glm47_moe",
    "hy_v4",
    "inkling",
    "json",
    "kimi_k3",
    "kimik2",
    "llama",
    "minimax_m2",
    "minimax_m3",
    "mistral",
    "nemotron",
    "passthrough",
    "pythonic",
    "qwen",
    "qwen_coder",
    "qwen_xml",
    "sarashina",
    "step3",
    "minimax",
    "deepseek_v3",
];

pub(super) fn names() -> Vec<String> {
    let factory = ParserFactory::new();
    let registry = factory.registry();
    NAMES.iter().filter(|name| registry.has_parser(name)).map(|name| (*name).to_owned()).collect()
}

/// The calls of one reply.
#[derive(derive_more::Debug)]
#[debug("ToolCalls of {} tools", tools.len())]
pub(super) struct ToolCalls {
    parser: Box<dyn ToolParser>,
    tools: Vec<Tool>,
}

impl ToolCalls {
    pub(super) fn new(name: &str, tools: &[Value]) -> Result<Self, ReplyError> {
        let parser = ParserFactory::new().registry().create_parser(name);
        let parser = parser.ok_or_else(|| ReplyError(format!("no tool call parser {name:?}")))?;
        let tools = tools.iter().map(|tool| serde_json::from_value(tool.clone()));
        let tools = tools.collect::<Result<_, _>>().map_err(|e| ReplyError(e.to_string()))?;
        Ok(Self { parser, tools })
    }

    /// The text beside calls, and what calls gained.
    pub(super) fn push(&mut self, text: &str) -> Result<(String, Vec<ToolCallDelta>), ReplyError> {
        let (mut spoken, mut calls) = (String::new(), Vec::new());
        let mut rest = text;
        // Some parsers read one part of what they hold at a time.
        loop {
            let parsed = at_once(self.parser.parse_incremental(rest, &self.tools))?;
            let parsed = parsed.map_err(|error| ReplyError(error.to_string()))?;
            let is_done = parsed.calls.is_empty();
            spoken.push_str(&parsed.normal_text);
            calls.extend(parsed.calls.into_iter().map(delta));
            if is_done {
                return Ok((spoken, calls));
            }
            rest = "";
        }
    }

    /// What is left when the reply is over.
    pub(super) fn finish(&mut self) -> (String, Vec<ToolCallDelta>) {
        let calls = self.parser.get_unstreamed_tool_args().unwrap_or_default();
        (self.parser.take_unstreamed_normal_text(), calls.into_iter().map(delta).collect())
    }
}

fn delta(item: tool_parser::types::ToolCallItem) -> ToolCallDelta {
    ToolCallDelta { index: item.tool_index, id: None, name: item.name, arguments: item.parameters }
}

/// The parsers are asynchronous by their interface alone: they wait for nothing.
fn at_once<T>(work: impl Future<Output = T>) -> Result<T, ReplyError> {
    match pin!(work).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => Ok(result),
        Poll::Pending => Err(ReplyError("a tool call parser waits for something".to_owned())),
    }
}
