//! Mistakes in model code, each with its source line.

use crate::graph::Loc;

/// A call of the builder that makes no graph, with the author's line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BuildError {
    /// What does not fit, and what would.
    pub message: String,
    /// Where the author wrote it.
    pub loc: Loc,
}

impl std::fmt::Display for BuildError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.loc.source, self.message)?;
        if self.loc.scope.is_empty() { Ok(()) } else { write!(f, " (in {})", self.loc.scope) }
    }
}

/// All mistakes of a graph, in the order in which they were made.
#[derive(Clone, PartialEq, Eq)]
pub struct BuildErrors(pub Vec<BuildError>);

impl std::fmt::Display for BuildErrors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let count = self.0.len();
        write!(f, "{count} mistake{} in the model code", if count == 1 { "" } else { "s" })?;
        self.0.iter().try_for_each(|error| write!(f, "\n  {error}"))
    }
}

/// As it is displayed: a `main` that returns it prints this.
impl std::fmt::Debug for BuildErrors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

impl std::error::Error for BuildErrors {}
