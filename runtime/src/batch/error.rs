//! What can be wrong with the roles of a graph.

use piecewise_kernels::op::{InputConflict, RowsConflict};

/// Why a graph can't be served.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "a field is what the message calls it")]
pub enum RoleError {
    /// An input without a role.
    #[error("input %{input} has no role, so nothing would fill it; give it one of: {known}")]
    NoRole { input: String, known: String },
    /// An input of a role that nothing fills.
    #[error(
        "input %{input}, read by {readers}, has the role \"{role}\", which nothing fills; declare \
         it with `OpRegistry::declare_inputs`, or give it one of: {known}"
    )]
    Unknown {
        input: String,
        role: String,
        /// The ops that read it.
        readers: String,
        known: String,
    },
    /// An input whose role is declared without a function that fills it.
    #[error(
        "input %{input} of role \"{role}\": `{op}` declares it without a function that fills it; \
         give it one with `StepInput::filled`"
    )]
    NoFill { input: String, role: String, op: String },
    /// Two ops declare a role otherwise.
    #[error(transparent)]
    Conflict(#[from] Box<InputConflict>),
    /// Two ops count the rows of a role.
    #[error(transparent)]
    RowsConflict(#[from] Box<RowsConflict>),
    /// An input whose type or padding is not its role's.
    #[error("input %{input} of role \"{role}\" is {found}, but {expected}")]
    Type {
        input: String,
        role: String,
        /// The type and padding that it has.
        found: String,
        expected: String,
    },
    /// A state of role `sequence.state` without the slots of all.
    #[error(
        "state \"{state}\" has the role \"sequence.state\" but not the slots (one symbol of role \
         \"sequence.slots\" for all such states) as its outermost axis"
    )]
    NoSlots { state: String },
    /// A symbol that nothing counts.
    #[error(
        "symbol {symbol} has the role \"{role}\", which nothing counts; declare it with \
         `OpRegistry::declare_rows`, or tie it to another by a role such as \"4*tokens\""
    )]
    Uncounted { symbol: String, role: String },
    /// A role that no input has although another part of the graph needs it.
    #[error("no input has the role \"{role}\", needed because {because}")]
    Missing { role: &'static str, because: String },
    /// Sampled ids that the next step would not find.
    #[error(
        "the graph has an input of role \"tokens.feedback\", but the next step would not take the ids \
         that it returns: {because}; return what `StepInputs::sample(logits)` gives"
    )]
    Feedback { because: &'static str },
    /// A state that is missing, or of another width.
    #[error(
        "no state of role \"{role}\" has {entries} rows of {words} i32, needed because {because}; sample \
         by `StepInputs::sample_controlled`"
    )]
    NoState {
        role: &'static str,
        /// Rows that it has at least.
        entries: u64,
        /// Of each of its rows.
        words: u64,
        because: &'static str,
    },
    /// Several outputs that could be the logits.
    #[error(
        "outputs {outputs} could all be the logits, f32 [rows, vocabulary], and the sampled ids are not \
         made from one of them; return one"
    )]
    Ambiguous {
        /// Their places.
        outputs: String,
    },
    /// An output that is missing.
    #[error("the graph returns no {what}; return {expected}")]
    NoOutput {
        what: &'static str,
        /// The type that it would have.
        expected: &'static str,
    },
}
