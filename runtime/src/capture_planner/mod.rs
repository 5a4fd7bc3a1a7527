//! The capture planner: chooses capture sizes from real traffic.
//!
//! A log of steps ([`IterationRecord`], [`read_log`]) becomes a histogram ([`Traffic`]). With the
//! cost of a step at a size ([`StepCosts`], measured or modelled) and a [`PlanRequest`], [`plan`]
//! chooses `capture_num_tokens` and `decode_batch_sizes`; [`evaluate`] says what any lists cost.
//! Pure functions of their arguments: nothing here runs a model or needs a device.

mod axis;
mod budget;
mod costs;
mod dynamic_program;
mod error;
mod evaluate;
mod histogram_csv;
mod json_line;
mod planner;
mod problem;
mod reader;
mod record;
mod request;
mod sizes;
mod tradeoff;
mod traffic;

pub use costs::{
    CostPath, CostPoint, ModelledCosts, MonotoneCurve, PathCosts, StepCosts, read_costs,
    read_costs_file,
};
pub use error::PlannerError;
pub use evaluate::{Coverage, Outcome, Share, SizeList, SizeUse, evaluate};
pub use planner::{DEFAULT_CURVE_GRAPHS, MAX_GRAPHS, Plan, PlanWarning, plan};
pub use reader::{MalformedLine, ReadLog, ReadOptions, read_log, read_log_file};
pub use record::{IterationLogWriter, IterationRecord, StepMode};
pub use request::{GraphMode, Objective, PlanRequest};
pub use sizes::CaptureSizes;
pub use tradeoff::CurvePoint;
pub use traffic::{MAX_STEP_TOKENS, MAX_STEPS, ObservedModes, StepKind, Traffic};
