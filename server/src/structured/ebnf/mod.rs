//! Grammars as vLLM's users write them (`root ::= ..`, the form of llama.cpp and XGrammar), in
//! llguidance's form of Lark.
//!
//! Lark here cuts a text into terminals, the longest that fit, before rules are looked at; EBNF knows
//! no terminals. So as much as can be becomes one terminal: what refers to nothing that comes within
//! itself is an expression as a whole, and its ambiguities are resolved within it.

mod lark;
mod rules;
mod syntax;

use rules::Rules;

/// Whether a grammar is written in EBNF: its first definition is by `::=`.
pub(super) fn is_ebnf(grammar: &str) -> bool {
    syntax::begins_with_definition(grammar)
}

/// The same grammar in Lark.
///
/// # Errors
/// What is wrong, by its line.
pub(super) fn to_lark(grammar: &str) -> Result<String, String> {
    let rules: Rules = syntax::read(grammar)?;
    Ok(lark::write(rules))
}
