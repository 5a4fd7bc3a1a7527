//! Where a reply's thoughts begin and end.

use reasoning_parser::ParserFactory;

use super::formats::ReplyFormat;
use super::thought_reader::ThoughtReader;
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
/// What thoughts begin with where more than one mark may end them.
const BEGINS: [(&str, &str); 2] =
    [("inkling", "<|content_thinking|>"), ("kimi_k3", "<|open|>think<|sep|>")];

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
        let begun = self.thought_reader(prompt)?.is_within();
        (begun || !prompt.trim_end().ends_with(marks.end)).then_some(Thoughts { begun, ..marks })
    }

    /// What reads the thoughts of the reply to `prompt`.
    pub(super) fn thought_reader(&self, prompt: &str) -> Option<ThoughtReader> {
        let (name, prompt, marks) = (self.reasoning()?, prompt.trim_end(), self.marks());
        let begin = BEGINS.iter().find(|(parser, _)| *parser == name).map(|(_, begin)| *begin);
        let begin = marks.map(|marks| marks.begin).or(begin);
        let prompted = begin.is_some_and(|begin| prompt.ends_with(begin));
        let parser = ParserFactory::new().registry().create_parser(name)?;
        let reader = ThoughtReader::new(name, marks, prompted, parser);
        // Some would begin within thoughts whatever the prompt says.
        let ended = marks.is_some_and(|marks| prompt.ends_with(marks.end));
        let ended = ended && !prompted && reader.is_within();
        (!ended).then_some(reader)
    }
}
