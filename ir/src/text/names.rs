//! Names and strings: bare where the lexer reads them back as one word, quoted otherwise.

use std::fmt::{self, Display, Write};

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
pub(super) fn printed_word(text: &str) -> impl Display {
    let bare = text.starts_with(starts_word) && text.chars().all(continues_word);
    fmt::from_fn(move |f| if bare { f.write_str(text) } else { quoted(text).fmt(f) })
}

/// What follows `%` or `@`: a bare name, or a string if it is none.
pub(super) fn printed_name(text: &str) -> impl Display {
    let bare = !text.is_empty() && text.chars().all(continues_name);
    fmt::from_fn(move |f| if bare { f.write_str(text) } else { quoted(text).fmt(f) })
}

/// A string in quotes, with escapes where the lexer needs them.
pub(super) fn quoted(text: &str) -> impl Display {
    fmt::from_fn(move |f| {
        f.write_char('"')?;
        for c in text.chars() {
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
    })
}
