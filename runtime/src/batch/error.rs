//! What can be wrong with the roles of a graph.

use piecewise_kernels::op::{InputConflict, RowsConflict};

/// Why the inputs of a step could not be filled; nothing was submitted.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FillError {
    /// What an op gives for an input of its own does not fit it.
    #[error("input %{input} of `{op}` can't be filled: {reason}")]
    Input {
        /// The op that declared the input.
        op: String,
        /// The input as the graph names it.
        input: String,
        /// What the function that fills it says, or does wrong.
        reason: String,
    },
    /// More rows of a kind of the graph's own than a step has room for.
    #[error(
        "the batch brings {count} rows of role \"{role}\", by which inputs of {ops} are shaped, but \
         symbol {symbol} goes up to {bound}; count fewer in the function given to \
         `OpRegistry::declare_rows`, or declare the symbol up to more"
    )]
    Rows {
        /// The role of the rows, as it was declared.
        role: String,
        /// The symbol that they would be a size of.
        symbol: String,
        /// The ops that declared inputs shaped by them.
        ops: String,
        /// What the function that counts them says.
        count: u64,
        /// The most rows of a step.
        bound: u64,
    },
}

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
