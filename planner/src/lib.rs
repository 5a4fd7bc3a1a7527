//! The capture planner: chooses capture sizes from real traffic.
//!
//! A log of steps ([`IterationRecord`], [`read_log`]) becomes a histogram ([`Traffic`]). With the
//! cost of a step at a size ([`StepCosts`], measured or modelled) and a [`PlanRequest`], [`plan`]
//! chooses `capture_num_tokens` and `decode_batch_sizes`; [`evaluate()`] says what any lists cost.
//! Pure functions of their arguments: nothing here runs a model or needs a device.
//!
//! ```
//! use piecewise_planner::{
//!     ModelledCosts, Objective, PlanRequest, ReadOptions, plan, read_log,
//! };
//!
//! let log = [(16, 5), (60, 9), (64, 1)]
//!     .map(|(tokens, steps)| format!("{{\"context_tokens\":{tokens}}}\n").repeat(steps))
//!     .concat();
//! let traffic = read_log(log.as_bytes(), ReadOptions::default())?.traffic;
//! let request = PlanRequest {
//!     objective: Objective::Padding,
//!     max_graphs: Some(2),
//!     ..PlanRequest::default()
//! };
//! let plan = plan(request.on(&traffic, &ModelledCosts::default().costs()))?;
//! assert_eq!(plan.sizes.capture_num_tokens, [16, 64]);
//! assert_eq!(plan.outcome.padding_tokens, 9 * 4);
//! # Ok::<(), piecewise_planner::PlannerError>(())
//! ```

mod axis;
mod capture_sizes;
mod check;
mod cost_path;
mod costs;
mod dynamic_program;
mod error;
mod evaluate;
mod head;
mod json_line;
mod log_line;
pub mod mode;
mod planner;
mod problem;
mod reader;
mod record;
mod request;
pub mod sizes;
mod tradeoff;
mod traffic;

pub use capture_sizes::{CaptureSizes, ListKind, MAX_GRAPHS};
pub use check::{CheckReport, ConfiguredSizes, Finding, check, read_configured_sizes};
pub use costs::{
    CostPath, CostPoint, ModelledCosts, MonotoneCurve, PathCosts, StepCosts, read_costs,
    read_costs_file,
};
pub use error::PlannerError;
pub use evaluate::{Coverage, Outcome, Share, SizeUse, evaluate};
pub use head::LogHead;
pub use log_line::MalformedLine;
pub use mode::{GraphMode, StepMode};
pub use planner::{Plan, PlanWarning, plan};
pub use reader::{ReadLog, ReadOptions, read_log, read_log_file};
pub use record::{IterationLogWriter, IterationRecord};
pub use request::{Objective, PlanRequest, Question};
pub use tradeoff::CurvePoint;
pub use traffic::{MAX_STEP_TOKENS, MAX_STEPS, ObservedModes, StepKind, Steps, Traffic};
