//! Rewriting: local rules that have a name, and the editor for what is no local rule.
//!
//! [`rewrite`] applies rules to a graph until none applies any more. It counts each application for a
//! bisection, and names the rule that does not end or gives what does not fit.

mod editor;
mod rule;
mod walk;

pub use crate::manager::Rewrites;
pub use editor::Editor;
pub use rule::{New, Rule, Site};
pub use walk::{RulePass, rewrite};
