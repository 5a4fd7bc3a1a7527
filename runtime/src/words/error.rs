//! What can go wrong while a model is built or stepped.

use super::symbols::SymbolError;
use piecewise_backend::compiler::CompileError;
use piecewise_backend::device::{Address, DeviceError};
use piecewise_ir::diagnostic::Diagnostics;

/// Why a model could not be built or a step could not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "a field is what the message calls it")]
pub enum ModelError {
    /// The module has no plan.
    #[error("the module has no {part}; run the pipeline to its end before compiling")]
    Unplanned { part: &'static str },
    /// A symbol that nothing binds.
    #[error(transparent)]
    Role(#[from] SymbolError),
    /// A piece did not compile.
    #[error("piece {piece}: {source}")]
    Compile { piece: String, source: Box<CompileError> },
    /// The launches of the artifacts break the plan.
    #[error("the launches break the plan:\n{0}")]
    Launches(Diagnostics),
    /// The device could not load, run or read something.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// An input of a step does not fit.
    #[error("input %{input}: {reason}")]
    Input {
        input: String,
        /// What does not fit, and what would.
        reason: String,
    },
    /// An input of a step could not be filled; nothing was submitted.
    #[error(transparent)]
    Fill(#[from] FillError),
    /// A count beyond its bound.
    #[error(
        "a step brings {count} {what}, more than the model's {bound}; split the step or raise {option}"
    )]
    TooMany {
        what: &'static str,
        count: u64,
        bound: u64,
        /// The configuration key to raise.
        option: &'static str,
    },
    /// Rows of the graph's own kind beyond the bound of their symbol.
    #[error(
        "a step brings {count} rows of symbol {symbol}, which goes up to {bound}; split the step, or \
         declare the symbol up to more"
    )]
    TooManyOwn { symbol: String, count: u64, bound: u64 },
    /// A count that is not as many times another as the symbols' roles say.
    #[error(
        "a step brings {count} rows of symbol {symbol}, which is tied to another by its role and \
         must be {expected}"
    )]
    Tied {
        symbol: String,
        count: u64,
        /// How many there must be.
        expected: u64,
    },
    /// The device was lost and is not opened anew.
    #[error("the device was lost, and steps are refused until it is opened anew")]
    Lost,
    /// A ticket whose outputs were overwritten.
    #[error("the outputs of step {step} are gone: they last until the second submit after it")]
    Expired { step: u64 },
    /// An output that was not there yet when it was read.
    #[error(
        "check poison: output {output} of step {step} was read before it was copied: the wait for its copy \
         came back too early, which is the backend's or the driver's fault; run the step again with another \
         driver, or on the CPU"
    )]
    ReadEarly { step: u64, output: usize },
    /// An output that the model was not built to read back.
    #[error("output {output} is not read back; list it in the build options")]
    NotRead { output: usize },
    /// A step that did not replay, in strict mode.
    #[error("strict: a step of {tokens} tokens did not replay ({reason})")]
    Strict { tokens: u64, reason: &'static str },
    /// A model that gave its memory back.
    #[error("the model is suspended and has no memory; resume it first")]
    Suspended,
    /// A size that was lowered while the model ran, and has no room in its arena.
    #[error(
        "{size} tokens take {scratch} bytes of scratch, and the arena was made for {room}; with \
         `memory_budget` sizes are lowered before it is"
    )]
    LateScratch { size: u64, scratch: u64, room: u64 },
    /// Graphs beyond what the model may take.
    #[error(
        "{what} would make it {needed} bytes with its graphs, more than {from} = {limit}; {fits}"
    )]
    BeyondLimit {
        /// What was about to be captured.
        what: String,
        needed: u64,
        /// The key that says how much there is, with what it comes from.
        from: &'static str,
        limit: u64,
        /// What would fit, in words.
        fits: String,
    },
    /// A layer that is not to be captured and is not there.
    #[error("capture_exclude: no layer is called `{layer}`; layers are called {known}, ..")]
    NoLayer { layer: String, known: String },
    /// A graph mode that can't be.
    #[error("graph mode {mode} is not possible: {reason}")]
    Mode { mode: &'static str, reason: String },
    /// A graph holds an address at which nothing that it was captured for lies.
    #[error(
        "check addresses: launch `{launch}` was captured with {operand} at {address}, where \
         {expected} lies now; a buffer was swapped after the capture: capture again"
    )]
    StaleAddress {
        launch: String,
        /// What it reads or writes there.
        operand: String,
        /// The address that the graph holds.
        address: Address,
        expected: String,
    },
    /// A step whose inputs disagree about pages.
    #[error("check addresses: {0}")]
    Pages(#[from] PageFault),
    /// A replay wrote something else than launches of the same step.
    #[error(
        "check compare: {value} differs between the {mode} replay and launches of the same step, \
         first at byte {byte} (row {row}): {replayed:02x?} replayed, {launched:02x?} launched"
    )]
    ReplayDiffers {
        /// What differs first: the value and who writes it, or the state.
        value: String,
        /// How the step was replayed.
        mode: &'static str,
        /// The first byte that differs.
        byte: u64,
        row: u64,
        replayed: u8,
        launched: u8,
    },
}

impl ModelError {
    /// Whether the device was lost: nothing works before [`crate::steps::CompiledModel::recover`].
    pub fn is_lost(&self) -> bool {
        match self {
            Self::Lost => true,
            Self::Device(error) => error.is_lost(),
            _ => false,
        }
    }

    /// Whether nothing works any more in this process ([`DeviceError::needs_new_process`]).
    pub fn needs_new_process(&self) -> bool {
        matches!(self, Self::Device(error) if error.needs_new_process())
    }
}

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

/// Where block tables, lengths and rows of the pool contradict each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[expect(missing_docs, reason = "a field is what the message calls it")]
pub enum PageFault {
    /// A token does not write where the table says.
    #[error(
        "token {token} of sequence {sequence} writes row {slot} of the pool, but its block table \
         has page {page} for position {position}: the table or the rows are of another step"
    )]
    Slot { sequence: usize, token: usize, slot: i32, page: i32, position: i32 },
    /// A length that its last token does not make.
    #[error(
        "sequence {sequence} is said to have {length} keys, but its last token is at position \
         {position}: the length is of another step"
    )]
    Length { sequence: usize, length: i32, position: i32 },
    /// A page of two sequences, not full before the step for both.
    #[error(
        "sequences {first} and {second} both have page {page}, which is not full: pages are shared \
         only once nobody writes them any more"
    )]
    Shared { first: usize, second: usize, page: i32 },
    /// Tokens of a sequence that are not there.
    #[error("sequence {sequence} begins at token {start} and has {tokens}, beyond the step's")]
    Tokens { sequence: usize, start: i32, tokens: i32 },
}
