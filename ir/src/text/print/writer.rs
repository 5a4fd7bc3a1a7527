//! Lines, indentation, and where in the text each thing stands.

use crate::diagnostic::Anchor;
use crate::dim::{Dim, Symbols};
use crate::entity::{Entity, Symbol};
use crate::text::names::printed_word;
use crate::types::TensorType;
use std::collections::BTreeMap;
use std::fmt::{Display, Write};

/// What the text is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in crate::text) enum Mode {
    /// To be read, and parsed back.
    #[default]
    Listing,
    /// To be hashed: without names, roles, places and bounds.
    Canonical,
}

/// A stretch of one line of the text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::text) struct Span {
    /// The line, counted from 0.
    pub(in crate::text) line: usize,
    /// Byte offset of its start in the line.
    pub(in crate::text) start: usize,
    /// Byte offset of its end in the line.
    pub(in crate::text) end: usize,
}

#[derive(Debug, Default)]
pub(in crate::text) struct Printer {
    pub(super) mode: Mode,
    out: String,
    indent: usize,
    line: usize,
    line_start: usize,
    spans: BTreeMap<Anchor, Span>,
    /// In canonical mode, the symbols of the current graph in the order of their first use.
    pub(super) seen_symbols: Vec<Symbol>,
    /// In canonical mode, the numbers of the checkpoint tensors.
    pub(super) sources: BTreeMap<String, usize>,
}

impl Printer {
    pub(in crate::text) fn new(mode: Mode) -> Self {
        Self { mode, ..Self::default() }
    }

    /// A printer for hashing; `sources` numbers the checkpoint tensors.
    pub(in crate::text) fn canonical(sources: BTreeMap<String, usize>) -> Self {
        Self { sources, ..Self::new(Mode::Canonical) }
    }

    pub(in crate::text) fn finish(self) -> String {
        self.out
    }

    /// The text and where each anchor stands in it.
    pub(in crate::text) fn finish_with_spans(self) -> (String, BTreeMap<Anchor, Span>) {
        (self.out, self.spans)
    }

    /// Appends to the current line.
    pub(in crate::text) fn put(&mut self, text: impl Display) {
        // Writing to a String never fails.
        let _ = write!(self.out, "{text}");
    }

    /// Indents the line that begins here.
    pub(in crate::text) fn begin(&mut self) {
        for _ in 0..self.indent {
            self.out.push_str("  ");
        }
    }

    /// Also counts the line, for the places of spans.
    pub(in crate::text) fn end(&mut self) {
        self.out.push('\n');
        self.line += 1;
        self.line_start = self.out.len();
    }

    pub(super) fn line(&mut self, text: impl Display) {
        self.begin();
        self.put(text);
        self.end();
    }

    pub(super) fn indented(&mut self, body: impl FnOnce(&mut Self)) {
        self.indent += 1;
        body(self);
        self.indent -= 1;
    }

    /// The place in the current line.
    pub(super) fn column(&self) -> usize {
        self.out.len() - self.line_start
    }

    /// Remembers that `anchor` stands from `start` to here; the first place of an anchor counts.
    /// What began on an earlier line is cut to the current one.
    pub(super) fn mark(&mut self, anchor: Option<Anchor>, start: (usize, usize)) {
        let (line, column) = start;
        let (line, column) = if line == self.line { (line, column) } else { (self.line, 0) };
        if let Some(anchor) = anchor {
            let span = Span { line, start: column, end: self.column() };
            self.spans.entry(anchor).or_insert(span);
        }
    }

    /// The current place, for [`Self::mark`].
    pub(super) fn here(&self) -> (usize, usize) {
        (self.line, self.column())
    }

    /// Items with commas between them.
    pub(super) fn list<T>(
        &mut self,
        items: impl IntoIterator<Item = T>,
        mut item: impl FnMut(&mut Self, T),
    ) {
        for (i, x) in items.into_iter().enumerate() {
            if i > 0 {
                self.put(", ");
            }
            item(self, x);
        }
    }

    pub(in crate::text) fn symbol(&mut self, symbols: &Symbols, symbol: Symbol) {
        if self.mode == Mode::Canonical {
            let index = self.canonical_symbol(symbol);
            self.put(format_args!("d{index}"));
        } else if let Some(decl) = symbols.get(symbol) {
            self.put(printed_word(&decl.name));
        } else {
            self.put(format_args!("?{symbol}"));
        }
    }

    fn canonical_symbol(&mut self, symbol: Symbol) -> usize {
        self.seen_symbols.iter().position(|&s| s == symbol).unwrap_or_else(|| {
            self.seen_symbols.push(symbol);
            self.seen_symbols.len() - 1
        })
    }

    fn dim(&mut self, symbols: &Symbols, dim: &Dim) {
        let mut terms = dim.terms().to_vec();
        if self.mode == Mode::Canonical {
            terms.sort_by_cached_key(|&(symbol, _)| self.canonical_symbol(symbol));
        }
        for (i, &(symbol, coefficient)) in terms.iter().enumerate() {
            if i > 0 && coefficient >= 0 {
                self.put('+');
            }
            if coefficient != 1 {
                self.put(format_args!("{coefficient}*"));
            }
            self.symbol(symbols, symbol);
        }
        match dim.constant_part() {
            constant if terms.is_empty() => self.put(constant),
            0 => {}
            constant => self.put(format_args!("{constant:+}")),
        }
    }

    pub(super) fn ty(&mut self, symbols: &Symbols, ty: &TensorType) {
        self.put(format_args!("{}[", ty.dtype));
        for (i, dim) in ty.shape.iter().enumerate() {
            if i > 0 {
                self.put(',');
            }
            self.dim(symbols, dim);
        }
        self.put(']');
    }
}

/// The name of the entity `index` of a kind that the text numbers.
pub(super) fn numbered(prefix: char, index: usize) -> String {
    format!("{prefix}{index}")
}

/// The name of an entity that the text does not define: an error that the listing shows.
pub(in crate::text) fn undefined(entity: impl Entity) -> String {
    format!("?{entity:?}")
}
