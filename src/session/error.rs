//! What can go wrong in the steps of a session.

use piecewise_ir::dtype::DType;
use piecewise_runtime::words::ModelError;

/// Why a session can't be stepped, or a step could not run.
#[derive(thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "a field is what the message calls it")]
pub enum SessionError {
    /// The model could not be built, or a step failed.
    #[error(transparent)]
    Model(#[from] Box<ModelError>),
    /// A symbol that a session can't give a value.
    #[error("symbol {symbol} {reason}")]
    Symbol {
        symbol: String,
        /// Why not, and what to do.
        reason: String,
    },
    /// A step brings an input that the graph has not.
    #[error("the graph has no input %{input}; it has: {known}")]
    UnknownInput {
        /// The name that was given.
        input: String,
        /// The names that there are.
        known: String,
    },
    /// A step lacks an input.
    #[error("the step lacks input %{input}: {dtype}; give it with `.input(\"{input}\", ..)`")]
    MissingInput { input: String, dtype: DType },
    /// An input of another element type.
    #[error("input %{input} is declared as {declared}, but the step brings {found}")]
    InputType { input: String, declared: DType, found: DType },
    /// An input whose length makes no shape, or contradicts another input.
    #[error("input %{input} holds {elements} values: {reason}")]
    InputLength {
        input: String,
        /// How many values the step brings.
        elements: usize,
        /// What does not fit, and what would.
        reason: String,
    },
    /// There is no such output.
    #[error("there is no output {output}: the graph returns {outputs}")]
    UnknownOutput {
        /// The position that was asked for.
        output: usize,
        outputs: usize,
    },
    /// An output is read as another element type.
    #[error("output {output} is {declared}, but it is read as {asked}")]
    OutputType {
        output: usize,
        declared: DType,
        /// The element type that it is read as.
        asked: DType,
    },
    /// The bytes of an output are no values of its type: a kernel wrote what it must not.
    #[error("output {output} holds bytes that are no {dtype}; the op that writes it is wrong")]
    OutputBytes { output: usize, dtype: DType },
}

impl From<ModelError> for SessionError {
    fn from(error: ModelError) -> Self {
        Self::Model(Box::new(error))
    }
}

/// As it is displayed: a `main` that returns it prints this.
impl std::fmt::Debug for SessionError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}
