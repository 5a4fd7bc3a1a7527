//! Structures that begin where a reply's thoughts end.

use std::collections::BTreeSet;
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
    /// Every way in which a mark may have begun, from none on.
    tails: Vec<Tail>,
}

/// What thoughts end with, as much of it as a mark may have begun in.
#[derive(Debug)]
struct Tail {
    text: Vec<u8>,
    /// A mask of the ids that may follow.
    allowed: Vec<u32>,
}

impl MarkIds {
    /// Looks at every id, some of them once for each way in which a mark may have begun, which takes
    /// some milliseconds for a large vocabulary. `ends` end a reply.
    pub(super) fn find(thoughts: Thoughts, vocabulary: &Vocabulary, ends: &[u32]) -> Self {
        let ids = || 0..u32::try_from(vocabulary.len()).unwrap_or(u32::MAX);
        let begins = ids().filter(|id| vocabulary.bytes(*id) == thoughts.begin.as_bytes());
        let lasts = Vec::from_iter(marks(&thoughts).filter_map(|mark| mark.bytes().last()));
        let closes = |id: &u32| vocabulary.bytes(*id).iter().any(|byte| lasts.contains(byte));
        let closing = Vec::from_iter(ids().filter(closes));
        let mut all = vec![0; vocabulary.len().div_ceil(32)];
        allow_all(&mut all, vocabulary.len() as u64);
        // A reply that ended here would have nothing that keeps to the structure.
        ends.iter().for_each(|id| clear(&mut all, *id));
        let begun =
            marks(&thoughts).flat_map(|mark| (0..mark.len()).map(|end| &mark.as_bytes()[..end]));
        let tails = BTreeSet::from_iter(begun).into_iter().map(|text| {
            let mut allowed = all.clone();
            let breaks = |id: &&u32| step(&thoughts, text, vocabulary.bytes(**id)) == Step::Breaks;
            closing.iter().filter(breaks).for_each(|id| clear(&mut allowed, *id));
            Tail { text: text.to_vec(), allowed }
        });
        let tails = tails.collect();
        Self { of: thoughts, begins: begins.collect(), tails }
    }

    /// Whether those of `thoughts` are the same.
    pub(super) fn is_of(&self, thoughts: Thoughts) -> bool {
        thoughts == Thoughts { begun: thoughts.begun, ..self.of }
    }

    /// The longest tail of a text.
    fn tail(&self, text: &[u8]) -> usize {
        let tails = self.tails.iter().enumerate().filter(|(_, tail)| text.ends_with(&tail.text));
        tails.max_by_key(|(_, tail)| tail.text.len()).map_or(0, |(number, _)| number)
    }
}

/// What a text does to thoughts that end with `tail`.
fn step(thoughts: &Thoughts, tail: &[u8], more: &[u8]) -> Step {
    let text = [tail, more].concat();
    let end_of = |mark: &str| {
        let places = text.windows(mark.len()).enumerate();
        let mut ends = places.filter(|(_, part)| *part == mark.as_bytes());
        ends.find_map(|(at, _)| Some(at + mark.len()).filter(|end| *end > tail.len()))
    };
    match marks(thoughts).filter_map(end_of).min() {
        None => Step::Within,
        Some(end) if end == text.len() && text.ends_with(thoughts.end.as_bytes()) => Step::Ends,
        Some(_) => Step::Breaks,
    }
}

/// Lets thoughts be, and begins its structure behind them.
#[derive(Clone, derive_more::Debug)]
#[debug("AfterThoughts {{ place: {place:?}, .. }}")]
pub(super) struct AfterThoughts {
    marks: Arc<MarkIds>,
    vocabulary: Vocabulary,
    place: Place,
    /// The number of the [`Tail`] that the thoughts have now.
    tail: usize,
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
        structure: Box<dyn TokenConstraint>,
    ) -> Self {
        let place = if begun { Place::Thoughts } else { Place::Start };
        let tail = marks.tail(b"");
        Self { marks, vocabulary, place, tail, structure }
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
                let allowed = &self.marks.tails[self.tail].allowed;
                mask.iter_mut().zip(allowed).for_each(|(word, allowed)| *word = *allowed);
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
            Place::Thoughts => {
                let (tail, more) = (&self.marks.tails[self.tail].text, self.vocabulary.bytes(id));
                match step(&self.marks.of, tail, more) {
                    Step::Ends => self.place = Place::Reply,
                    Step::Breaks => return Err(format!("{id} breaks off the thoughts")),
                    Step::Within => self.tail = self.marks.tail(&[tail, more].concat()),
                }
            }
        }
        Ok(false)
    }
}
