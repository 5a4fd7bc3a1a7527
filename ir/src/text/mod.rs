//! The textual IR: a graph document and a plan document that share one lexer.
//!
//! Text is exact: printing, parsing and printing again gives the same bytes. Values are numbered
//! by the printer in program order, so a graph need not be compacted first. The language is
//! described in `docs/ir.md`.

mod canonical;
mod document;
mod error;
mod lexer;
mod names;
mod naming;
mod parse;
mod print;
mod render;
mod scalar;
mod syntax;

pub use canonical::canonical_piece;
pub use document::op_table_markdown;
pub use error::{ParseError, ParseErrorKind, ParseErrors};
pub use naming::Names;
pub use parse::{parse_graph, parse_module};
pub use print::{print_graph, print_module, value_names};
pub use render::{Listing, render};
