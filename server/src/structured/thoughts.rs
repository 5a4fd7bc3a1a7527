//! Structures that begin where a reply's thoughts end.

use std::sync::Arc;

use piecewise::models::Vocabulary;
use piecewise_runtime::engine::TokenConstraint;

use super::restraint::{allow, allow_all, clear};

/// How a reply has thoughts before what it says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thoughts {
    /// The text that thoughts begin with.
    pub begin: &'static str,
    /// The text that ends them: the reply itself is what follows.
    pub end: &'static str,
    /// Texts that end them as well, but for something else than the reply.
    pub breaks: &'static [&'static str],
    /// Whether the reply begins within them.
    pub begun: bool,
}

/// What a model's ids have to do with the marks of thoughts.
#[derive(Debug)]
pub(super) struct MarkIds {
    /// Which marks; where a reply begins is nothing to them.
    of: Thoughts,
    /// Ids that begin thoughts.
    begins: Vec<u32>,
    /// Ids whose text may complete a mark.
    closing: Vec<u32>,
}

impl MarkIds {
    /// Looks at every id, which takes a millisecond for a large vocabulary.
    pub(super) fn find(thoughts: Thoughts, vocabulary: &Vocabulary) -> Self {
        let ids = || 0..u32::try_from(vocabulary.len()).unwrap_or(u32::MAX);
        let begins = ids().filter(|id| vocabulary.bytes(*id) == thoughts.begin.as_bytes());
        let lasts = marks(&thoughts).filter_map(|mark| mark.as_bytes().last().copied());
        let lasts = Vec::from_iter(lasts);
        let closes = |id: &u32| vocabulary.bytes(*id).iter().any(|byte| lasts.contains(byte));
        Self { of: thoughts, begins: begins.collect(), closing: ids().filter(closes).collect() }
    }

    /// Whether those of `thoughts` are the same.
    pub(super) fn is_of(&self, thoughts: Thoughts) -> bool {
        thoughts == Thoughts { begun: thoughts.begun, ..self.of }
    }
}

/// Lets thoughts be, and begins its structure behind them.
#[derive(Clone, derive_more::Debug)]
#[debug("AfterThoughts {{ place: {place:?}, .. }}")]
pub(super) struct AfterThoughts {
    marks: Arc<MarkIds>,
    vocabulary: Vocabulary,
    /// Ids that end a reply.
    ends: Arc<[u32]>,
    place: Place,
    /// The end of the thoughts, as much of it as a mark may have begun in.
    said: Vec<u8>,
    structure: Box<dyn TokenConstraint>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Start,
    Thoughts,
    Reply,
}

/// What an id does to thoughts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Within,
    Ends,
    /// It ends them and says more, or ends them for something else.
    Breaks,
}

impl AfterThoughts {
    /// Of a reply that begins within thoughts if they have `begun`.
    pub(super) fn new(
        begun: bool,
        marks: Arc<MarkIds>,
        vocabulary: Vocabulary,
        ends: Arc<[u32]>,
        structure: Box<dyn TokenConstraint>,
    ) -> Self {
        let place = if begun { Place::Thoughts } else { Place::Start };
        Self { marks, vocabulary, ends, place, said: Vec::new(), structure }
    }

    fn step(&self, id: u32) -> Step {
        let before = self.said.len();
        let text = [&self.said, self.vocabulary.bytes(id)].concat();
        let end_of = |mark: &str| {
            let places = text.windows(mark.len()).enumerate();
            let mut ends = places.filter(|(_, part)| *part == mark.as_bytes());
            ends.find_map(|(at, _)| Some(at + mark.len()).filter(|end| *end > before))
        };
        match marks(&self.marks.of).filter_map(end_of).min() {
            None => Step::Within,
            Some(end) if end == text.len() && text.ends_with(self.marks.of.end.as_bytes()) => {
                Step::Ends
            }
            Some(_) => Step::Breaks,
        }
    }
}

fn marks(thoughts: &Thoughts) -> impl Iterator<Item = &'static str> {
    thoughts.breaks.iter().copied().chain([thoughts.end])
}

impl TokenConstraint for AfterThoughts {
    fn duplicate(&self) -> Box<dyn TokenConstraint> {
        Box::new(self.clone())
    }

    fn allowed(&mut self, mask: &mut [u32]) -> Result<(), String> {
        match self.place {
            Place::Reply => self.structure.allowed(mask),
            Place::Start => {
                self.structure.allowed(mask)?;
                self.marks.begins.iter().for_each(|id| allow(mask, *id));
                Ok(())
            }
            Place::Thoughts => {
                allow_all(mask, self.vocabulary.len() as u64);
                // A reply that ended here would have nothing that keeps to the structure.
                self.ends.iter().for_each(|id| clear(mask, *id));
                let broken = self.marks.closing.iter().filter(|id| self.step(**id) == Step::Breaks);
                broken.for_each(|id| clear(mask, *id));
                Ok(())
            }
        }
    }

    fn accept(&mut self, id: u32) -> Result<bool, String> {
        match self.place {
            Place::Start if self.marks.begins.contains(&id) => self.place = Place::Thoughts,
            Place::Start | Place::Reply => {
                self.place = Place::Reply;
                return self.structure.accept(id);
            }
            Place::Thoughts => match self.step(id) {
                Step::Ends => self.place = Place::Reply,
                Step::Breaks => return Err(format!("{id} breaks off the thoughts")),
                Step::Within => {
                    self.said.extend(self.vocabulary.bytes(id));
                    let longest = marks(&self.marks.of).map(str::len).max().unwrap_or(0);
                    self.said.drain(..self.said.len().saturating_sub(longest));
                }
            },
        }
        Ok(false)
    }
}
