//! Marks such as `<think>` as wholes, however the text of a reply is cut.

/// Characters that a mark may have.
const LONGEST: usize = 40;

/// Cuts a text so that a mark is in one segment, and holds back what may be the beginning of one.
///
/// Parsers of replies look for marks in what they are given at once; most tokenizers have a token
/// for a mark, but a reply can spell it.
#[derive(Debug, Default)]
pub(super) struct Tags {
    held: String,
}

impl Tags {
    /// The segments that are now certain.
    pub(super) fn push(&mut self, text: &str) -> Vec<String> {
        let mut segments = Vec::new();
        let mut plain = String::new();
        for character in text.chars() {
            let opens = matches!(character, '<' | '◁');
            if self.held.is_empty() && !opens {
                plain.push(character);
                continue;
            }
            if opens {
                // What was held is none: marks are not nested.
                plain.push_str(&std::mem::take(&mut self.held));
            }
            self.held.push(character);
            if matches!(character, '>' | '▷') {
                segments.extend((!plain.is_empty()).then(|| std::mem::take(&mut plain)));
                segments.push(std::mem::take(&mut self.held));
            } else if character.is_whitespace() || self.held.chars().count() > LONGEST {
                plain.push_str(&std::mem::take(&mut self.held));
            }
        }
        segments.extend((!plain.is_empty()).then_some(plain));
        segments
    }

    /// What was held back, once the text is over.
    pub(super) fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}
