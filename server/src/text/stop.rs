//! Ends of a text by strings in it.

use std::sync::Arc;

/// The strings that end a text, which the answers of a request share; none by default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StopStrings {
    strings: Arc<[String]>,
    keeps: bool,
}

/// A stop string that can't be one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("stop string {place} is empty; it would end every text at once")]
pub struct StopError {
    /// Its place in the list, from 0.
    pub place: usize,
}

impl StopStrings {
    /// A text ends with the first of `strings` in it: the one that ends first, and of two that end
    /// together the longer. `keeps` is whether the text keeps it.
    ///
    /// # Errors
    /// When a string is empty.
    pub fn new(strings: Vec<String>, keeps: bool) -> Result<Self, StopError> {
        match strings.iter().position(String::is_empty) {
            Some(place) => Err(StopError { place }),
            None => Ok(Self { strings: strings.into(), keeps }),
        }
    }
}

/// Lets a text through up to its first stop string.
#[derive(Debug)]
pub struct StopFilter {
    stops: StopStrings,
    /// What may be the beginning of a stop string.
    held: String,
    stopped: bool,
}

impl StopFilter {
    /// A filter at the start of a text.
    pub fn new(stops: StopStrings) -> Self {
        Self { stops, held: String::new(), stopped: false }
    }

    pub(super) fn keeps_stops(&self) -> bool {
        self.stops.keeps
    }

    /// Whether there is nothing to look for.
    pub(super) fn lets_all_through(&self) -> bool {
        self.stops.strings.is_empty()
    }

    /// The text that is now certain, and the stop string that ended it, if one did.
    pub fn push(&mut self, text: &str) -> (String, Option<String>) {
        if self.stopped || self.lets_all_through() {
            return (if self.stopped { String::new() } else { text.to_owned() }, None);
        }
        let seen = self.held.len();
        self.held.push_str(text);
        for (start, character) in self.held[seen..].char_indices() {
            let end = seen + start + character.len_utf8();
            let ended = self.stops.strings.iter().filter(|s| self.held[..end].ends_with(*s));
            let Some(stop) = ended.max_by_key(|stop| stop.len()) else { continue };
            self.stopped = true;
            let kept = if self.stops.keeps { end } else { end - stop.len() };
            let stop = stop.clone();
            self.held.truncate(kept);
            return (std::mem::take(&mut self.held), Some(stop));
        }
        let certain = self.held.len() - self.beginning();
        let rest = self.held.split_off(certain);
        (std::mem::replace(&mut self.held, rest), None)
    }

    /// Bytes at the end of what is held that a stop string may begin with.
    fn beginning(&self) -> usize {
        let longest = self.stops.strings.iter().map(String::len).max().unwrap_or(0);
        let starts = self.held.char_indices().map(|(start, _)| start);
        let starts = starts.skip_while(|start| self.held.len() - start >= longest);
        let begins = |start: &usize| {
            self.stops.strings.iter().any(|stop| stop.starts_with(&self.held[*start..]))
        };
        starts.into_iter().find(begins).map_or(0, |start| self.held.len() - start)
    }

    /// What is held back when no more text comes.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}
