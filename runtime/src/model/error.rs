//! What can go wrong while a model is built or stepped.

use crate::symbols::SymbolError;
use piecewise_backend::compiler::CompileError;
use piecewise_backend::device::{Address, DeviceError};
use piecewise_ir::diagnostic::Diagnostics;

/// Why a model could not be built or a step could not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The module has no plan.
    #[error("the module has no {part}; run the pipeline to its end before compiling")]
    Unplanned {
        /// The missing part.
        part: &'static str,
    },
    /// A symbol that nothing binds.
    #[error(transparent)]
    Role(#[from] SymbolError),
    /// A piece did not compile.
    #[error("piece {piece}: {source}")]
    Compile {
        /// The unique piece.
        piece: String,
        /// Why.
        source: Box<CompileError>,
    },
    /// The launches of the artifacts break the plan.
    #[error("the launches break the plan:\n{0}")]
    Launches(Diagnostics),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// An input of a step does not fit.
    #[error("input %{input}: {reason}")]
    Input {
        /// The input's name.
        input: String,
        /// What does not fit, and what would.
        reason: String,
    },
    /// A count beyond its bound.
    #[error(
        "a step brings {count} {what}, more than the model's {bound}; split the step or raise {option}"
    )]
    TooMany {
        /// What is counted.
        what: &'static str,
        /// How many there are.
        count: u64,
        /// The bound.
        bound: u64,
        /// The configuration key to raise.
        option: &'static str,
    },
    /// A count that is not as many times another as the symbols' roles say.
    #[error(
        "a step brings {count} rows of symbol {symbol}, which is tied to another by its role and \
         must be {expected}"
    )]
    Tied {
        /// The symbol's name.
        symbol: String,
        /// How many there are.
        count: u64,
        /// How many there must be.
        expected: u64,
    },
    /// A ticket whose outputs were overwritten.
    #[error("the outputs of step {step} are gone: they last until the second submit after it")]
    Expired {
        /// The step's number.
        step: u64,
    },
    /// An output that the model was not built to read back.
    #[error("output {output} is not read back; list it in the build options")]
    NotRead {
        /// Its position.
        output: usize,
    },
    /// A step that did not replay, in strict mode.
    #[error("strict: a step of {tokens} tokens did not replay ({reason})")]
    Strict {
        /// Its tokens.
        tokens: u64,
        /// Why it fell back.
        reason: &'static str,
    },
    /// A layer that is not to be captured and is not there.
    #[error("capture_exclude: no layer is called `{layer}`; layers are called {known}, ..")]
    NoLayer {
        /// The name.
        layer: String,
        /// Some of those that there are.
        known: String,
    },
    /// A graph mode that can't be.
    #[error("graph mode {mode} is not possible: {reason}")]
    Mode {
        /// The mode asked for.
        mode: &'static str,
        /// Why not.
        reason: String,
    },
    /// A graph holds an address at which nothing that it was captured for lies.
    #[error(
        "check addresses: launch `{launch}` was captured with {operand} at {address}, where \
         {expected} lies now; a buffer was swapped after the capture: capture again"
    )]
    StaleAddress {
        /// The launch.
        launch: String,
        /// What it reads or writes there.
        operand: String,
        /// The address that the graph holds.
        address: Address,
        /// What lies there.
        expected: String,
    },
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
        /// The row that it is in.
        row: u64,
        /// What the replay wrote.
        replayed: u8,
        /// What the launches wrote.
        launched: u8,
    },
}
