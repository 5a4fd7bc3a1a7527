//! The textual IR: a graph document and a plan document that share one lexer.
//!
//! Text is exact: printing, parsing and printing again gives the same bytes. Values are numbered
//! by the printer in program order, so a graph need not be compacted first. The language is
//! described in `docs/ir.md`.

mod canonical;
mod names;
mod print;
mod scalar;
mod syntax;

pub use canonical::canonical_piece;
pub use print::{print_graph, print_module};
