//! Why an evaluation stopped.

use crate::diagnostic::Diagnostics;

/// Why an evaluation stopped. States keep what the nodes before the failing one wrote.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "a field is what the message calls it")]
pub enum EvalError {
    /// The graph breaks a rule that evaluation relies on.
    #[error("the graph can't be evaluated:\n{0}")]
    Invalid(#[from] Diagnostics),
    /// The wrong number of sizes, inputs, weights or states was given.
    #[error("the graph `{graph}` declares {expected} {what}, but {given} were given")]
    Count {
        graph: String,
        /// What was counted: `sizes`, `inputs`, `weights` or `states`.
        what: &'static str,
        /// How many the graph declares.
        expected: usize,
        given: usize,
    },
    /// A size is larger than its symbol's bound.
    #[error("size {size} of `{symbol}` is above its bound {max}")]
    Size { symbol: String, size: u64, max: u64 },
    /// A dimension is negative at the given sizes.
    #[error("dimension {axis} of {what} is {extent} at these sizes; give larger sizes")]
    NegativeDimension {
        what: String,
        axis: usize,
        /// What the dimension comes to.
        extent: i128,
    },
    /// A given array is not of the declared type.
    #[error("{what} is {expected} at these sizes, but the array given is {given}")]
    Array {
        /// Which value, by kind and name.
        what: String,
        /// The declared dtype and shape at the given sizes.
        expected: String,
        /// The array's dtype and shape, or its number of elements where that does not fit.
        given: String,
    },
    /// A value has too many elements to be evaluated.
    #[error("{what} has {elements} elements, more than the evaluator's limit of {limit}")]
    TooLarge {
        what: String,
        /// How many elements it would have, saturating.
        elements: u64,
        /// The most that are evaluated.
        limit: u64,
    },
    /// Rows are gathered from a table without rows.
    #[error("{node} gathers from a table without rows, so no index can be clamped to it")]
    EmptyTable {
        /// The gather, as the graph's text begins its line.
        node: String,
    },
    /// A custom op has no definition.
    #[error(
        "{node} calls a custom op that is not registered with the evaluator; register `{name}`"
    )]
    UnknownOp {
        /// The call, as the graph's text begins its line.
        node: String,
        name: String,
    },
    /// A custom op's definition could not evaluate it, or gave something else than its type.
    #[error("{node} can't be evaluated by the definition of `{name}`: {reason}")]
    Custom {
        /// The call, as the graph's text begins its line.
        node: String,
        name: String,
        reason: String,
    },
    /// A derived weight's recipe does not fit itself.
    #[error("the recipe of a weight is faulty: {reason}")]
    Recipe {
        /// Which part does not fit.
        reason: String,
    },
    /// A constant graph declares something or has not exactly one output.
    #[error("the graph `{graph}` of a constant {problem}")]
    NotConstant {
        graph: String,
        /// What it has that a constant can't have.
        problem: String,
    },
}
