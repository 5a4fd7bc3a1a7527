//! Tells a reply's thoughts from what it says, the same however the reply is cut.

use reasoning_parser::{ParseError, ReasoningParser};

use crate::structured::Thoughts;

/// Parsers with more than the two marks around thoughts, which wait themselves for one that is cut.
/// The others read what they are given at once, and would take the beginning of a mark for
/// something else where a piece ends with it: [`Marked`] reads in their place.
const THEIR_OWN: [&str; 6] =
    ["passthrough", "gemma4", "deepseek_v41", "hy_v4", "inkling", "minimax_m3"];
/// The channels of Kimi K3, whose parser searches the whole reply again at every piece.
const CHANNELS: [Mark; 7] = [
    Mark { text: "<|open|>think<|sep|>", to: Some(true), stays: false },
    Mark { text: "<|close|>think<|sep|>", to: Some(false), stays: false },
    Mark { text: "<|open|>response<|sep|>", to: Some(false), stays: false },
    Mark { text: "<|close|>response<|sep|>", to: Some(false), stays: false },
    // Thoughts are within a message.
    Mark { text: "<|open|>message<|sep|>", to: None, stays: false },
    Mark { text: "<|close|>message<|sep|>", to: Some(false), stays: false },
    Mark { text: "<|open|>tools<|sep|>", to: Some(false), stays: true },
];
/// Ids that channels begin with: what is left of a mark behind one is none of the model's words.
const CHANNEL_IDS: [&str; 2] = ["<|open|>", "<|close|>"];
/// Bytes that a parser gets at a time: it takes a bounded amount at once, and replies may be longer.
const PIECE: usize = 1 << 16;

/// Reads thoughts.
pub(super) enum ThoughtReader {
    Marked(Marked),
    Parser(Box<dyn ReasoningParser>),
}

/// Thoughts between marks.
pub(super) struct Marked {
    marks: Vec<Mark>,
    /// Whether there are thoughts once at most, so that a later mark is part of the text.
    once: bool,
    within: bool,
    /// What may be the beginning of a mark.
    held: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mark {
    text: &'static str,
    /// Whether what follows is a thought; none where it is what was before.
    to: Option<bool>,
    /// Whether it is part of what follows.
    stays: bool,
}

/// Thoughts, and what is none.
#[derive(Default)]
pub(super) struct Told {
    pub(super) thoughts: String,
    pub(super) spoken: String,
}

impl ThoughtReader {
    /// Of the parser `name`; `prompted` is whether the prompt ends with the beginning of thoughts.
    pub(super) fn new(
        name: &str,
        marks: Option<Thoughts>,
        prompted: bool,
        mut parser: Box<dyn ReasoningParser>,
    ) -> Self {
        let of = |marks: Vec<Mark>, once, within| {
            Self::Marked(Marked { marks, once, within, held: String::new() })
        };
        match marks.filter(|_| !THEIR_OWN.contains(&name)) {
            Some(Thoughts { begin, end, .. }) => {
                let begin = Mark { text: begin, to: Some(true), stays: false };
                let end = Mark { text: end, to: Some(false), stays: false };
                let marks = if prompted { vec![end] } else { vec![begin, end] };
                of(marks, true, prompted || parser.is_in_reasoning())
            }
            None if name == "kimi_k3" => of(CHANNELS.to_vec(), false, prompted),
            None => {
                if prompted {
                    parser.mark_reasoning_started();
                    parser.mark_think_start_stripped();
                }
                Self::Parser(parser)
            }
        }
    }

    /// Whether what comes next is a thought.
    pub(super) fn is_within(&self) -> bool {
        match self {
            Self::Marked(marked) => marked.within,
            Self::Parser(parser) => parser.is_in_reasoning(),
        }
    }

    /// What is certain with the next text of the reply.
    ///
    /// # Errors
    /// When a parser gives up.
    pub(super) fn push(&mut self, text: &str) -> Result<Told, ParseError> {
        let mut told = Told::default();
        match self {
            Self::Marked(marked) => marked.push(text, &mut told),
            Self::Parser(parser) => {
                let mut rest = text;
                while !rest.is_empty() {
                    let (piece, behind) = rest.split_at(rest.floor_char_boundary(PIECE));
                    rest = behind;
                    let read = parser.parse_reasoning_streaming_incremental(piece)?;
                    told.thoughts.push_str(&read.reasoning_text);
                    told.spoken.push_str(&read.normal_text);
                }
            }
        }
        Ok(told)
    }

    /// What is left when the reply is over.
    ///
    /// # Errors
    /// When a parser gives up.
    pub(super) fn finish(&mut self) -> Result<Told, ParseError> {
        match self {
            Self::Marked(marked) => {
                let mut told = Told::default();
                let held = std::mem::take(&mut marked.held);
                if !CHANNEL_IDS.iter().any(|id| held.starts_with(id)) {
                    told.add(marked.within, &held);
                }
                Ok(told)
            }
            Self::Parser(parser) => {
                let rest = parser.flush()?;
                Ok(Told { thoughts: rest.reasoning_text, spoken: rest.normal_text })
            }
        }
    }
}

impl Told {
    fn add(&mut self, is_thought: bool, text: &str) {
        if is_thought { &mut self.thoughts } else { &mut self.spoken }.push_str(text);
    }
}

impl Marked {
    fn push(&mut self, text: &str, told: &mut Told) {
        let text = std::mem::take(&mut self.held) + text;
        let mut rest = text.as_str();
        while let Some((at, mark)) = self.mark(rest) {
            told.add(self.within, &rest[..at]);
            self.within = mark.to.unwrap_or(self.within);
            if mark.stays {
                told.add(self.within, mark.text);
            }
            if self.once && self.within {
                self.marks.retain(|other| *other != mark);
            }
            rest = &rest[at + mark.text.len()..];
        }
        let (certain, held) = rest.split_at(rest.len() - self.beginning(rest));
        told.add(self.within, certain);
        self.held = held.to_owned();
    }

    /// The marks that mean something now.
    fn watched(&self) -> impl Iterator<Item = &Mark> {
        let is_open = self.within || !self.once;
        self.marks.iter().filter(move |mark| is_open || mark.to != Some(false))
    }

    /// The first of them in a text, and where it stands.
    fn mark(&self, text: &str) -> Option<(usize, Mark)> {
        let found = |mark: &Mark| Some((text.find(mark.text)?, *mark));
        self.watched().filter_map(found).min_by_key(|(at, _)| *at)
    }

    /// Bytes at the end of a text that one of them may begin with.
    fn beginning(&self, text: &str) -> usize {
        let begins = |mark: &str| {
            let mut ends = (1..mark.len()).rev().filter(|end| mark.is_char_boundary(*end));
            ends.find(|end| text.ends_with(&mark[..*end])).unwrap_or(0)
        };
        self.watched().map(|mark| begins(mark.text)).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::formats::ReplyFormat;
    use super::*;
    use proptest::prelude::*;
    use proptest::sample::select;
    use reasoning_parser::ParserFactory;

    proptest! {
        /// What [`Marked`] finds is what the parser finds that it is in place of, where no mark is cut.
        #[test]
        fn thoughts_are_those_of_the_parsers(
            pieces in prop::collection::vec(select(vec!["+", "-", "hm", " ", "a < b", "é🦀"]), 0..9),
            prompted in any::<bool>(),
        ) {
            for name in ParserFactory::new().list_parsers() {
                let format = ReplyFormat::new(Some(&name), None, "").unwrap();
                let Some(marks) = format.marks() else { continue };
                let parser = || ParserFactory::new().registry().create_parser(&name).unwrap();
                let mut reader = ThoughtReader::new(&name, Some(marks), prompted, parser());
                if !matches!(reader, ThoughtReader::Marked(_)) {
                    continue;
                }
                let mut theirs = parser();
                if prompted {
                    theirs.mark_reasoning_started();
                    theirs.mark_think_start_stripped();
                }
                for piece in &pieces {
                    let piece = match *piece {
                        "+" => marks.begin,
                        "-" => marks.end,
                        text => text,
                    };
                    let told = reader.push(piece).unwrap();
                    let expected = theirs.parse_reasoning_streaming_incremental(piece).unwrap();
                    prop_assert_eq!(
                        (told.thoughts, told.spoken, reader.is_within()),
                        (expected.reasoning_text, expected.normal_text, theirs.is_in_reasoning()),
                        "{} {:?}", name, pieces
                    );
                }
            }
        }
    }
}
