//! Names and strings: bare where the lexer reads them back as one word, quoted otherwise.

use std::fmt::{self, Write};

/// Whether `c` may start a word: a keyword, a symbol, an op.
pub(super) fn starts_word(c: char) -> bool {
    c.is_ascii_alphabetic() || c == '_'
}

/// Whether `c` may continue a word.
pub(super) fn continues_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// Whether `c` may occur in a bare name after `%` or `@`.
pub(super) fn continues_name(c: char) -> bool {
    continues_word(c) || c == '.'
}

/// A symbol or an attribute key: a word, or a string if it is none.
pub(super) struct Word<'a>(pub(super) &'a str);

impl fmt::Display for Word<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bare = self.0.starts_with(starts_word) && self.0.chars().all(continues_word);
        if bare { f.write_str(self.0) } else { Quoted(self.0).fmt(f) }
    }
}

/// What follows `%` or `@`: a bare name, or a string if it is none.
pub(super) struct Name<'a>(pub(super) &'a str);

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bare = !self.0.is_empty() && self.0.chars().all(continues_name);
        if bare { f.write_str(self.0) } else { Quoted(self.0).fmt(f) }
    }
}

/// A string in quotes, with escapes where the lexer needs them.
pub(super) struct Quoted<'a>(pub(super) &'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for c in self.0.chars() {
            match c {
                '"' => f.write_str("\\\"")?,
                '\\' => f.write_str("\\\\")?,
                '\n' => f.write_str("\\n")?,
                '\r' => f.write_str("\\r")?,
                '\t' => f.write_str("\\t")?,
                c if c.is_control() => write!(f, "\\u{{{:x}}}", u32::from(c))?,
                c => f.write_char(c)?,
            }
        }
        f.write_char('"')
    }
}
