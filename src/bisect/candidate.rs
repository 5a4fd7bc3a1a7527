//! A graph compiled with a part of its passes, and what came of it.

use super::bisection::Bisection;
use crate::trial::{TrialError, differences, run_on_device};
use piecewise_ir::graph::Graph;
use piecewise_ir::text::print_module;
use piecewise_passes::manager::panic_text;
use piecewise_passes::rewrite::Rewrites;
use piecewise_runtime::pipeline::{PassLimits, Planner};
use piecewise_runtime::words::CompileLevel;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What came of a candidate.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Outcome {
    Right,
    /// The first output that is not, in words.
    Wrong(String),
    /// It can't be compiled or run, or something panicked.
    Failed(String),
}

impl Outcome {
    pub(super) fn is_right(&self) -> bool {
        *self == Self::Right
    }

    /// What is wrong, if anything is.
    pub(super) fn said(&self) -> Option<&str> {
        match self {
            Self::Right => None,
            Self::Wrong(said) | Self::Failed(said) => Some(said),
        }
    }
}

/// A graph after some passes.
pub(super) struct Passed {
    pub(super) graph: Graph,
    /// Its text, with as much of a plan as there is; empty where a pass did not end.
    pub(super) text: String,
    /// Nothing where a pass did not end.
    pub(super) rewrites: Option<Rewrites>,
}

impl Passed {
    /// The rewrites of all its passes.
    pub(super) fn done(&self) -> u64 {
        self.rewrites.as_ref().map_or(0, Rewrites::done)
    }
}

impl Bisection<'_> {
    /// Compiles and runs the graph; at the level of the configuration where none is given.
    pub(super) fn outcome(&self, level: Option<CompileLevel>, limits: PassLimits) -> Outcome {
        let run = || -> Result<Outcome, TrialError> {
            let (subject, graph) = (&self.trial.subject, self.trial.graph());
            let mut assembly = subject.assembly(graph.clone())?;
            if let Some(level) = level {
                assembly = assembly.level(level);
            }
            if let Some(passes) = limits.passes {
                assembly = assembly.only_first(passes);
            }
            if let Some(rewrites) = limits.rewrites {
                assembly = assembly.only_rewrites(rewrites);
            }
            let found = self.trial.outputs(run_on_device(assembly, graph, &self.feed)?);
            let wrong = differences(&self.expected, &found, self.tolerance)?;
            Ok(wrong.first().map_or(Outcome::Right, |wrong| Outcome::Wrong(wrong.to_string())))
        };
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(error)) => Outcome::Failed(error.to_string()),
            Err(panic) => Outcome::Failed(format!("it panicked: {}", panic_text(&*panic))),
        }
    }

    /// The graph after the first passes of the pipeline alone, where all of them do so many rewrites.
    pub(super) fn passed(&self, first: usize, rewrites: Option<u64>) -> Result<Passed, TrialError> {
        let subject = &self.trial.subject;
        let mut pipeline = subject.pipeline()?;
        pipeline.passes.truncate(first);
        let planner = Planner {
            level: CompileLevel::Compile,
            pipeline: &pipeline,
            registry: &subject.registries.passes,
            split_ops: subject.config().splitting_ops.as_deref(),
            defs: subject.registries.ops.defs(),
            limits: PassLimits { passes: None, rewrites },
        };
        let graph = &subject.graph;
        let run = || planner.plan(graph.clone(), Vec::new()).ok();
        Ok(match catch_unwind(AssertUnwindSafe(run)) {
            Ok(Some((module, report))) => Passed {
                text: print_module(&module),
                graph: module.into_graph(),
                rewrites: Some(report.rewrites),
            },
            Ok(None) | Err(_) => {
                Passed { graph: graph.clone(), text: String::new(), rewrites: None }
            }
        })
    }
}
