//! Rewriting rules, pass manager, optimizations, fusion, splitter, destination passing, buffer planner, plan checker.

pub mod analysis;
pub mod check;
pub mod dedupe;
pub mod destination;
pub mod fuse;
pub mod manager;
pub mod optimize;
pub mod pipeline;
pub mod plan;
pub mod rewrite;
pub mod split;
mod stages;
mod standard;

pub use manager::{
    AfterPass, Observer, Pass, PassContext, PassError, PassManager, PassReport, PassRun, Registry,
    Remark, RunReport,
};
pub use pipeline::{Pipeline, PipelineError};
pub use stages::{DestinationPass, PlanPass, SplitPass};
