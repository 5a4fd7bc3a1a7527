//! How a model writes its thoughts and its tool calls. The parsers are named after families.

use reasoning_parser::ParserFactory as ReasoningFactory;

use super::tool_calls;

/// vLLM's names of parsers beside those that they have here.
const REASONING_ALIASES: [(&str, &str); 6] = [
    ("deepseek_v3", "deepseek_v31"),
    ("kimi_k2", "kimi_thinking"),
    ("minimax_m2", "minimax"),
    ("cohere_command3", "cohere_cmd"),
    ("nemotron_v3", "nano_v3"),
    ("hunyuan_v4", "hy_v4"),
];
const TOOL_ALIASES: [(&str, &str); 12] = [
    ("hermes", "qwen"),
    ("llama3_json", "llama"),
    ("llama4_json", "llama"),
    ("llama4_pythonic", "pythonic"),
    ("qwen3_coder", "qwen_coder"),
    ("qwen3_xml", "qwen_xml"),
    ("deepseek_v3", "deepseek"),
    ("deepseek_v31", "deepseek31"),
    ("deepseek_v32", "deepseek32"),
    ("glm45", "glm45_moe"),
    ("glm47", "glm47_moe"),
    ("kimi_k2", "kimik2"),
];

/// What a chat template has that writes thoughts so; the first that it has says which parser.
const REASONING_SIGNS: [(&str, &str); 5] = [
    ("<mm:think>", "minimax_m3"),
    ("<|START_THINKING|>", "cohere_cmd"),
    ("◁think▷", "kimi"),
    ("<|channel>thought", "gemma4"),
    ("<think>", "qwen3"),
];
/// The same of tool calls.
const TOOL_SIGNS: [(&str, &str); 11] = [
    ("<|tool_calls_section_begin|>", "kimik2"),
    ("｜DSML｜", "deepseek32"),
    ("<minimax:tool_call>", "minimax_m2"),
    ("<arg_key>", "glm45_moe"),
    ("<|tool_call>call:", "gemma4"),
    ("[TOOL_CALLS]", "mistral"),
    ("<|python_tag|>", "llama"),
    ("<function=", "qwen_coder"),
    ("<tool_call>", "qwen"),
    ("<|START_ACTION|>", "cohere"),
    // What Llama 3.2 and 4 are told, whose templates have no mark.
    ("\"parameters\": dictionary of argument name and its value", "llama"),
];

/// Formats whose thoughts are between special tokens.
const SPECIAL_REASONING: [&str; 4] = ["cohere_cmd", "gemma4", "inkling", "kimi_k3"];

/// A name that no parser has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no {what} parser {name:?}; there are {}", known.join(", "))]
pub struct UnknownParser {
    what: &'static str,
    name: String,
    known: Vec<String>,
}

/// How a model writes its thoughts and its tool calls, by the names of their parsers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReplyFormat {
    reasoning: Option<String>,
    tools: Option<String>,
}

impl ReplyFormat {
    /// The parsers that an operator names, as in vLLM or as they are called here; `none` is none,
    /// and without a name, or with `auto`, the model's chat template says how it writes.
    ///
    /// # Errors
    /// When no parser has such a name.
    pub fn new(
        reasoning: Option<&str>,
        tools: Option<&str>,
        template: &str,
    ) -> Result<Self, UnknownParser> {
        let reasoning = chosen(
            "reasoning",
            reasoning,
            ReasoningFactory::new().list_parsers(),
            &REASONING_ALIASES,
            sign(template, &REASONING_SIGNS),
        )?;
        let guess = match sign(template, &TOOL_SIGNS) {
            None if template.contains("<｜tool▁calls▁begin｜>") => {
                // The later of two formats has no block of code around the arguments.
                Some(if template.contains("```json") { "deepseek" } else { "deepseek31" })
            }
            guess => guess,
        };
        let tools = chosen("tool call", tools, tool_calls::names(), &TOOL_ALIASES, guess)?;
        Ok(Self { reasoning, tools })
    }

    /// The name of the parser of thoughts; `None` where replies have none.
    pub fn reasoning(&self) -> Option<&str> {
        self.reasoning.as_deref()
    }

    /// The parser of tool calls.
    pub fn tools(&self) -> Option<&str> {
        self.tools.as_deref()
    }

    /// Whether the text of a reply must have its special tokens; `calls` is whether it may call
    /// tools.
    pub fn needs_special_tokens(&self, calls: bool) -> bool {
        let by_reasoning = self.reasoning().is_some_and(|name| SPECIAL_REASONING.contains(&name));
        by_reasoning || (calls && self.tools.is_some())
    }

    /// The id of a call, such as templates of the family take back.
    pub(super) fn call_id(&self, name: &str, index: usize) -> String {
        let random = || {
            use std::hash::{BuildHasher, Hasher};
            std::collections::hash_map::RandomState::new().build_hasher().finish()
        };
        match self.tools() {
            Some("mistral") => format!("{:09x}", random() & 0xF_FFFF_FFFF),
            Some("kimik2") => format!("functions.{name}:{index}"),
            _ => format!("call_{:016x}{:08x}", random(), random() >> 32),
        }
    }
}

fn sign<'a>(template: &str, signs: &[(&str, &'a str)]) -> Option<&'a str> {
    signs.iter().find(|(sign, _)| template.contains(sign)).map(|(_, parser)| *parser)
}

fn chosen(
    what: &'static str,
    name: Option<&str>,
    mut known: Vec<String>,
    aliases: &[(&str, &str)],
    guess: Option<&str>,
) -> Result<Option<String>, UnknownParser> {
    let Some(name) = name.filter(|name| *name != "auto") else {
        return Ok(guess.filter(|guess| known.iter().any(|k| k == guess)).map(str::to_owned));
    };
    if name == "none" {
        return Ok(None);
    }
    // An operator's name is vLLM's where both have it.
    let own = known.iter().any(|known| known == name).then_some(name);
    let alias = aliases.iter().find(|(alias, _)| *alias == name).map(|(_, parser)| *parser);
    match alias.or(own) {
        Some(parser) => Ok(Some(parser.to_owned())),
        None => {
            known.extend(aliases.iter().map(|(alias, _)| (*alias).to_owned()));
            known.push("none".to_owned());
            known.sort();
            known.dedup();
            Err(UnknownParser { what, name: name.to_owned(), known })
        }
    }
}
