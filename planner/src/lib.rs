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
//! let log = "tokens,steps\n16,5\n60,9\n64,1\n";
//! let traffic = read_log(log.as_bytes(), ReadOptions::default())?.traffic;
//! let request = PlanRequest {
//!     objective: Objective::Padding,
//!     max_graphs: Some(2),
//!     ..PlanRequest::default()
//! };
//! let plan = plan(request.on(&traffic, &ModelledCosts::default().costs()?))?;
//! assert_eq!(plan.sizes.capture_num_tokens, [16, 64]);
//! assert_eq!(plan.outcome.padding_tokens, 9 * 4);
//! # Ok::<(), piecewise_planner::PlannerError>(())
//! ```

mod axis;
mod budget;
mod budget_by_count;
mod budgeted;
mod capture_sizes;
mod check;
mod comparison;
mod cost_path;
mod costs;
mod default_lists;
mod dynamic_program;
mod error;
mod evaluate;
mod head;
mod histogram_csv;
mod json_line;
mod lengths;
mod log_line;
pub mod mode;
mod planner;
mod problem;
mod reader;
mod record;
mod request;
mod simulator;
pub mod sizes;
mod tradeoff;
mod traffic;
mod worst_case;

pub use capture_sizes::{CaptureSizes, ListKind, MAX_GRAPHS};
pub use check::{CheckReport, ConfiguredSizes, Finding, check, read_configured_sizes};
pub use comparison::{Comparison, compare};
pub use costs::{
    CostPath, CostPoint, ModelledCosts, MonotoneCurve, PathCosts, StepCosts, read_costs,
    read_costs_file,
};
pub use default_lists::Stack;
pub use error::PlannerError;
pub use evaluate::{Coverage, Outcome, Replay, Service, Share, SizeUse, evaluate, serve};
pub use head::LogHead;
pub use lengths::Lengths;
pub use log_line::MalformedLine;
pub use mode::{GraphMode, StepMode};
pub use planner::{DEFAULT_CURVE_GRAPHS, Plan, PlanWarning, plan};
pub use reader::{ReadLog, ReadOptions, read_log, read_log_file};
pub use record::{IterationLogWriter, IterationRecord};
pub use request::{Objective, PlanRequest, Question};
pub use simulator::{Simulation, TrafficShape};
pub use tradeoff::CurvePoint;
pub use traffic::{MAX_STEP_TOKENS, MAX_STEPS, ObservedModes, StepKind, Steps, Traffic};
pub use worst_case::{BoundedLists, bounded_lists};
