//! What a subscriber wants to hear.

use std::collections::BTreeSet;

/// The beginnings of the one topic there is that a subscriber wants, by their lengths. Of another topic
/// nothing comes, so that nothing is kept of a wish for it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Wishes(BTreeSet<usize>);

impl Wishes {
    /// Takes a message of a subscriber: 1 and what topics begin with that it wants from now on, or 0 and
    /// what those begin with that it wants no longer.
    pub(crate) fn hear(&mut self, message: &[Vec<u8>], topic: &[u8]) {
        match message.first().and_then(|frame| frame.split_first()) {
            Some((1, begins)) if topic.starts_with(begins) => drop(self.0.insert(begins.len())),
            Some((0, begins)) if topic.starts_with(begins) => drop(self.0.remove(&begins.len())),
            _ => {}
        }
    }

    /// Whether the topic is wanted.
    pub(crate) fn is_some(&self) -> bool {
        !self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_is_wanted_by_what_it_begins_with() {
        let mut wishes = Wishes::default();
        for (said, wants) in [
            (&b"\x01kv@else"[..], false),
            (b"\x02kv", false),
            (b"\x01kv", true),
            (b"\x01", true),
            (b"\x00kv", true),
            (b"\x00kv@else", true),
            (b"", true),
            (b"\x00", false),
            (b"\x01kv@tiny and more", false),
        ] {
            wishes.hear(&[said.to_vec()], b"kv@tiny");
            assert_eq!(wishes.is_some(), wants, "{said:?}");
        }
        wishes.hear(&[], b"kv@tiny");
    }

    #[test]
    fn wishes_without_an_end_are_few() {
        let (mut wishes, topic) = (Wishes::default(), b"kv@tiny");
        for number in 0_u32..10_000 {
            wishes.hear(&[[&[1][..], &number.to_be_bytes()].concat()], topic);
            wishes.hear(&[[&[1][..], &topic[..number as usize % 8]].concat()], topic);
        }
        assert_eq!(wishes.0.len(), topic.len() + 1);
    }
}
