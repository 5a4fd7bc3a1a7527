//! Why a graph could not be split.

use crate::dedupe::DedupeError;

/// Why a graph could not be split.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "a field is what the message calls it")]
pub enum SplitError {
    /// The program order is broken.
    #[error(
        "{reader} reads operand {position} before it is defined; verify the graph to see where the \
         order broke"
    )]
    UseBeforeDefinition {
        /// The reader, as a remark on the graph names it.
        reader: String,
        position: usize,
    },
    /// The graph returns a value that nothing defines.
    #[error("output {position} of the graph is not defined by any node; return a defined value")]
    UndefinedOutput { position: usize },
    /// The unique pieces could not be made.
    #[error(transparent)]
    Dedupe(#[from] DedupeError),
}
