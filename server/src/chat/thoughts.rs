//! Where a reply's thoughts begin and end.

use reasoning_parser::{ParserFactory, ReasoningParser};

use super::formats::ReplyFormat;
use crate::structured::Thoughts;

const USUAL: Thoughts = Thoughts { begin: "<think>", end: "</think>", breaks: &[], begun: false };
/// How the parsers have them that have them otherwise.
const OTHERS: [(&str, Thoughts); 5] = [
    ("minimax_m3", Thoughts { begin: "<mm:think>", end: "</mm:think>", ..USUAL }),
    ("cohere_cmd", Thoughts { begin: "<|START_THINKING|>", end: "<|END_THINKING|>", ..USUAL }),
    ("kimi", Thoughts { begin: "◁think▷", end: "◁/think▷", ..USUAL }),
    (
        "gemma4",
        Thoughts {
            begin: "<|channel>thought",
            end: "<channel|>",
            breaks: &["<|tool_call>"],
            ..USUAL
        },
    ),
    ("deepseek_v41", Thoughts { breaks: &["<｜DSML｜ calls>"], ..USUAL }),
];
/// Parsers without thoughts, or with more than one mark between them and the reply.
const WITHOUT: [&str; 3] = ["passthrough", "inkling", "kimi_k3"];

impl ReplyFormat {
    /// What is around thoughts, where they are between two marks.
    pub fn marks(&self) -> Option<Thoughts> {
        let name = self.reasoning().filter(|name| !WITHOUT.contains(name))?;
        let other = OTHERS.iter().find(|(parser, _)| *parser == name);
        Some(other.map_or(USUAL, |(_, thoughts)| *thoughts))
    }

    /// The thoughts that the reply to `prompt`, the text that the chat template rendered, may begin
    /// with: none where the prompt has ended them.
    pub fn thoughts(&self, prompt: &str) -> Option<Thoughts> {
        let marks = self.marks()?;
        let begun = self.reasoner(prompt)?.is_in_reasoning();
        (begun || !prompt.trim_end().ends_with(marks.end)).then_some(Thoughts { begun, ..marks })
    }

    /// The parser of the thoughts of the reply to `prompt`.
    pub(super) fn reasoner(&self, prompt: &str) -> Option<Box<dyn ReasoningParser>> {
        let mut parser = ParserFactory::new().registry().create_parser(self.reasoning()?)?;
        let (prompt, marks) = (prompt.trim_end(), self.marks());
        if marks.is_some_and(|marks| prompt.ends_with(marks.begin)) {
            parser.mark_reasoning_started();
            parser.mark_think_start_stripped();
        } else if marks.is_some_and(|marks| prompt.ends_with(marks.end)) {
            // Some would begin within thoughts whatever the prompt says.
            return Some(parser).filter(|parser| !parser.is_in_reasoning());
        }
        Some(parser)
    }
}
