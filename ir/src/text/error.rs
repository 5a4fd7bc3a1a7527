//! What the parser reports: every error with its place and a caret under it.

use std::fmt;
use std::ops::Range;

/// Errors after which the parser gives up on the rest of the text.
pub(super) const MAX_ERRORS: usize = 64;
/// Characters of a line that an excerpt shows at most.
const EXCERPT_WIDTH: usize = 100;

/// Why a piece of text does not parse.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "a field is what the message calls it")]
pub enum ParseErrorKind {
    /// A character that no token starts with.
    #[error("unexpected character {0:?}")]
    Character(char),
    /// A string without its end, or an escape that does not exist.
    #[error("{0}")]
    String(&'static str),
    /// Another token than the grammar has here.
    #[error("expected {expected}, found {found}")]
    Expected {
        /// What the grammar has here.
        expected: String,
        found: String,
    },
    /// A name that nothing before it defines.
    #[error("{what} `{name}` is not defined; {help}")]
    Unknown { what: &'static str, name: String, help: &'static str },
    /// A name given twice.
    #[error("{what} `{name}` is given twice; drop or rename one of them")]
    Duplicate { what: &'static str, name: String },
    /// An id out of its sequence.
    #[error("expected `{expected}`, found `{found}`: ids count up from 0 without gaps")]
    Sequence {
        /// The next id of the sequence.
        expected: String,
        /// The id in the text.
        found: String,
    },
    /// A number that its place can't hold.
    #[error("`{text}` is not {expected}")]
    Number { text: String, expected: String },
    /// An op name that the op table does not have.
    #[error("there is no op `{0}`; docs/ir.md lists them, and others are written `custom \"{0}\"`")]
    Op(String),
    /// Attributes that do not fit the op.
    #[error("`{op}` {problem}")]
    Attribute {
        op: String,
        /// What is wrong, and what would fit.
        problem: String,
    },
    /// A `mut` where the op mutates nothing, or the lack of one.
    #[error("`{op}` {}", if *.mutates { "mutates this operand: write `mut` before it" } else { "does not mutate this operand: drop `mut`" })]
    Mutation {
        op: String,
        /// Whether the operand is mutated.
        mutates: bool,
    },
    /// A type that contradicts what it is written for.
    #[error("{what} has type {expected}, not {found}")]
    Type {
        what: String,
        expected: String,
        /// The type in the text.
        found: String,
    },
    /// A literal of too many elements.
    #[error(
        "a literal has at most {limit} elements; make larger constants a weight, or an op of smaller ones"
    )]
    LiteralSize { limit: usize },
    /// Regions, recipes or graphs nested too deep.
    #[error("nested deeper than {limit} levels")]
    Depth { limit: usize },
    /// A graph that would take far more memory than its text.
    #[error(
        "the regions repeat more types and symbols than a text of this size may; declare fewer"
    )]
    Size,
    /// Something after the end of a document or a block, or out of its place.
    #[error("{0}")]
    Structure(String),
}

/// An error and its place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParseError {
    /// What the parser could not take, without the place.
    pub kind: ParseErrorKind,
    /// The line, counted from 1.
    pub line: usize,
    /// The character in the line, counted from 1.
    pub column: usize,
    /// Part of the line around the place, and the characters of it that are marked.
    excerpt: (String, Range<usize>),
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (text, marked) = &self.excerpt;
        let carets = "^".repeat(marked.len().max(1));
        writeln!(f, "error at {}:{}: {}", self.line, self.column, self.kind)?;
        writeln!(f, "  | {text}")?;
        write!(f, "  | {:indent$}{carets}", "", indent = marked.start)
    }
}

impl std::error::Error for ParseError {}

/// Everything wrong with a text, in the order of places; never empty.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParseErrors {
    /// In the order of the text; never empty.
    pub items: Vec<ParseError>,
    /// Whether the parser gave up before the end of the text.
    pub gave_up: bool,
}

impl fmt::Display for ParseErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for item in &self.items {
            writeln!(f, "{item}")?;
        }
        let plural = if self.items.len() == 1 { "" } else { "s" };
        let more = if self.gave_up { "; the rest of the text was not read" } else { "" };
        write!(f, "{} error{plural}{more}", self.items.len())
    }
}

impl std::error::Error for ParseErrors {}

/// An error by byte range, before its line is known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Spanned {
    pub(super) span: Range<usize>,
    pub(super) kind: ParseErrorKind,
}

/// Sorts errors by place and gives each its line.
pub(super) fn locate(text: &str, mut errors: Vec<Spanned>, gave_up: bool) -> ParseErrors {
    errors.sort_by_key(|e| e.span.start);
    let line_starts: Vec<usize> =
        std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
    let items = errors
        .into_iter()
        .map(|error| {
            let line = line_starts.partition_point(|&start| start <= error.span.start) - 1;
            let start = line_starts[line];
            let end = line_starts.get(line + 1).map_or(text.len(), |&next| next - 1);
            let from = error.span.start.min(end);
            let column = text[start..from].chars().count();
            let width = text[from..error.span.end.clamp(from, end)].chars().count();
            ParseError {
                kind: error.kind,
                line: line + 1,
                column: column + 1,
                excerpt: excerpt(&text[start..end], column, width),
            }
        })
        .collect();
    ParseErrors { items, gave_up }
}

/// The part of `line` around the `width` characters at `column`, and where they are in it.
fn excerpt(line: &str, column: usize, width: usize) -> (String, Range<usize>) {
    let skipped = if column + width <= EXCERPT_WIDTH { 0 } else { column.saturating_sub(20) };
    let shown: String = line
        .chars()
        .skip(skipped)
        .take(EXCERPT_WIDTH)
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    let start = column - skipped;
    let end = (start + width).min(shown.chars().count()).max(start);
    (shown.trim_end().to_owned(), start..end)
}
