//! The parser: recursive descent over the tokens, recovering at line ends.
//!
//! It checks what the data types can't represent; whether operands fit their op is the
//! verifier's business. Whatever the text, it neither panics, nor recurses without bound, nor
//! allocates far more than the text is long.

mod cursor;
mod graph;
mod op;
mod plan;
mod recipe;
mod region;
mod types;

use super::error::{ParseErrorKind, ParseErrors, locate};
use super::lexer::Token;
use crate::graph::Graph;
use crate::module::Module;
use cursor::Parser;

/// The graph of a text that is a graph document alone.
///
/// # Errors
/// Every syntax error that could be told apart, with its place.
pub fn parse_graph(text: &str) -> Result<Graph, ParseErrors> {
    let mut parser = Parser::new(text);
    let graph = parser.graph_document();
    parser.skip_newlines();
    if graph.is_ok() && *parser.peek() != Token::End {
        let what = match parser.peek() {
            Token::Word("plan") => "a plan follows the graph: this is the text of a module",
            _ => "nothing may follow the graph",
        };
        let _ = parser.fail::<()>(ParseErrorKind::Structure(what.to_owned()));
    }
    finish(text, parser, graph)
}

/// The module of a text: a graph document, and a plan document if one follows.
///
/// # Errors
/// Every syntax error that could be told apart, with its place.
pub fn parse_module(text: &str) -> Result<Module, ParseErrors> {
    let mut parser = Parser::new(text);
    let module = parser.module_document();
    finish(text, parser, module)
}

fn finish<T>(text: &str, parser: Parser<'_>, parsed: cursor::Parsed<T>) -> Result<T, ParseErrors> {
    match parsed {
        Ok(value) if parser.errors.is_empty() => Ok(value),
        _ => Err(locate(text, parser.errors, parser.gave_up)),
    }
}
