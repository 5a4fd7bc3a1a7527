//! Why a graph could not be tried.

use crate::assembly::AssemblyError;
use piecewise_backend::weights::WeightError;
use piecewise_ir::eval::EvalError;
use piecewise_runtime::batch::RoleError;
use piecewise_runtime::words::{FillError, ModelError};

/// Why a graph could not be tried.
#[derive(thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "a field is what the message calls it")]
pub enum TrialError {
    /// It could not be put together.
    #[error(transparent)]
    Assembly(Box<AssemblyError>),
    /// A step failed.
    #[error(transparent)]
    Step(Box<ModelError>),
    /// The reference evaluator can't run it.
    #[error("the reference evaluator can't run the graph: {0}")]
    Reference(Box<EvalError>),
    /// A weight of the reference evaluator.
    #[error(transparent)]
    Weight(#[from] WeightError),
    /// Ids for a graph that no engine could run.
    #[error("ids can't be given to this graph: {0}; give arrays by the names of its inputs")]
    Ids(RoleError),
    /// An input that ids can't fill.
    #[error(transparent)]
    Fill(#[from] FillError),
    /// More ids than the graph has room for.
    #[error("{ids} ids are more than the graph keeps of a sequence; give fewer")]
    TooManyIds { ids: usize },
    /// A list of ids that is empty: nothing would run.
    #[error("there is no id; give at least one")]
    NoIds,
    /// An input that the graph has not.
    #[error("the graph has no input %{input}; it has: {known}")]
    UnknownInput {
        input: String,
        /// The names that there are.
        known: String,
    },
    /// An array that does not fit its input.
    #[error("input %{input} is {declared}, and what is given is {given}: {reason}")]
    Input { input: String, declared: String, given: String, reason: String },
    /// Results that can't be held against each other.
    #[error("{name} is {found} in one run and {expected} in the other; are both of one graph?")]
    Shapes { name: String, expected: String, found: String },
}

impl From<AssemblyError> for TrialError {
    fn from(error: AssemblyError) -> Self {
        Self::Assembly(Box::new(error))
    }
}

impl From<ModelError> for TrialError {
    fn from(error: ModelError) -> Self {
        Self::Step(Box::new(error))
    }
}

impl From<EvalError> for TrialError {
    fn from(error: EvalError) -> Self {
        Self::Reference(Box::new(error))
    }
}

/// As it is displayed: a `main` that returns it prints this.
impl std::fmt::Debug for TrialError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Assembly(error) => write!(f, "{error:?}"),
            other => write!(f, "{other}"),
        }
    }
}
