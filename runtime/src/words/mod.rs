//! The words that all of the runtime speaks: sizes and symbols of steps, modes, keys and states of
//! graphs, what a step brings, what a model takes and is told. No behaviour, and nothing above it.

mod compile_counts;
mod dispatch;
mod error;
mod graphs;
mod ledger;
mod mode;
mod options;
mod parts;
mod range;
mod reports;
mod requests;
mod shapes;
mod step_data;
mod symbols;
mod traces;

pub use compile_counts::CompileCounts;
pub use dispatch::{Dispatch, FallbackReason};
pub use error::{FillError, ModelError, PageFault};
pub use graphs::{
    CapturedGraph, GraphCounts, GraphKey, GraphKind, GraphReport, GraphState, GraphTotals,
};
pub use ledger::Ledger;
pub use mode::{CompileLevel, GraphMode, StepMode};
pub(crate) use options::POISON;
pub use options::{CaptureWhen, Checks, OnCaptureFailure, Quantize, SuspendedWeights};
pub(crate) use parts::{SCOPES, StepPart, label, scopes};
pub use piecewise_kernels::roles;
pub use piecewise_planner::sizes;
pub use range::{narrowest_range, out_of_range_advice};
pub use reports::{BuildTimes, Progress, StepTimes};
pub use requests::{EngineLoad, FinishReason, PrefixCounts, RequestId, Usage};
pub use shapes::{LoweringSize, NO_ROWS, StepShape, StepSizes};
pub use step_data::{InputSource, StepData};
pub use symbols::{MAX_OWN, Over, SymbolClass, SymbolError, SymbolTable};
pub use traces::{SpanKind, StepSpan, StepTrace};
