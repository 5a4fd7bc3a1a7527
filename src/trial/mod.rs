//! A graph run on given values, on a device or by the reference evaluator, and what is different between
//! two such runs.
//!
//! What a run reads is a [`Feed`]: ids, as an engine would stage them; arrays by the names of inputs; and
//! random values for what nobody gave.

mod compare;
mod device;
mod error;
mod feed;
mod reference;
mod timing;

pub(crate) use compare::difference;
pub use compare::{Difference, Place, differences, largest_error, tolerance_of};
pub(crate) use device::run_on_device;
pub use error::TrialError;
pub(crate) use feed::batches_of;
pub use feed::{Feed, FeedStep, Given, GivenInput};
pub(crate) use reference::{Reference, run_node};
pub use timing::{Repeats, StepTiming, time_planned};

use crate::assembly::{Assembly, Planned, Subject};
use piecewise_ir::eval::Array;
use piecewise_ir::graph::Graph;
use piecewise_kernels::op::OpRegistry;
use piecewise_runtime::batch::RoleMap;
use piecewise_runtime::words::{CompileLevel, SymbolTable};

/// How a trial computes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TrialLevel {
    /// As configured, or at another level.
    Compiled(Option<CompileLevel>),
    /// By the reference evaluator: each op in f64, its result rounded to its dtype, no pass. It needs no
    /// device.
    Reference,
}

/// A graph that is run again and again on what it is fed.
///
/// ```
/// use piecewise::prelude::*;
/// use piecewise::trial::{Given, Trial, TrialLevel, differences};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let b = Builder::new("softly").weight_dtype(DType::F32);
/// let x = b.input("x", DType::F32, (b.symbol("T", 1, 8), 4));
/// let graph = b.finish([x.silu().linear(b.weight("w", [2, 4]))])?;
/// let weights = InMemoryWeights::new().with("w", [2, 4], vec![0.5f32; 8]);
///
/// let trial = Trial::new(Assembly::graph(graph).weights(weights))?;
/// let feed = trial.feed(&Given::default())?;
/// let exact = trial.run(TrialLevel::Reference, &feed)?;
/// let found = trial.run(TrialLevel::Compiled(None), &feed)?;
/// assert!(differences(&exact, &found, 1e-6)?.is_empty());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Trial {
    pub(crate) subject: Subject,
}

/// What a run returned: an array for each output that is compared, of all its steps together.
#[derive(Clone, PartialEq, Debug)]
pub struct Outputs {
    /// `logits` of a decoder, else `output_0` and on.
    pub names: Vec<String>,
    /// Rows of later steps follow those of earlier ones.
    pub arrays: Vec<Array>,
}

impl Trial {
    /// Builds the graph; no pass runs yet.
    ///
    /// # Errors
    /// As for [`Assembly::plan`] before its first pass.
    pub fn new(assembly: Assembly) -> Result<Self, TrialError> {
        Ok(Self { subject: Subject::of(assembly)? })
    }

    /// The graph as it was given or built, before any pass.
    pub fn graph(&self) -> &Graph {
        &self.subject.graph
    }

    /// Another graph, put together as this one is, with the same weights.
    #[must_use]
    pub fn of_graph(&self, graph: Graph) -> Self {
        Self { subject: self.subject.with_graph(graph) }
    }

    /// What its steps read.
    ///
    /// # Errors
    /// When what is given does not fit the graph.
    pub fn feed(&self, given: &Given) -> Result<Feed, TrialError> {
        Feed::of(self.graph(), &self.subject.registries.ops, given)
    }

    /// Runs the steps of `feed`; states are zeros before the first.
    ///
    /// # Errors
    /// When the graph can't be planned, compiled or evaluated, or a step fails.
    pub fn run(&self, level: TrialLevel, feed: &Feed) -> Result<Outputs, TrialError> {
        let arrays = match level {
            TrialLevel::Reference => self.reference(self.graph(), feed)?,
            TrialLevel::Compiled(level) => {
                let assembly = self.subject.assembly(self.graph().clone())?;
                let assembly = match level {
                    Some(level) => assembly.level(level),
                    None => assembly,
                };
                run_on_device(assembly, self.graph(), feed)?
            }
        };
        Ok(self.outputs(arrays))
    }

    /// All outputs of another graph with the same weights, each step's.
    pub(crate) fn reference(
        &self,
        graph: &Graph,
        feed: &Feed,
    ) -> Result<Vec<Vec<Array>>, TrialError> {
        let ops = self.subject.registries.ops.defs();
        Reference::new(graph, ops, self.subject.weights())?.run(feed)
    }

    /// What is compared of the outputs of all steps: of a decoder the logits alone, for ids follow from
    /// them, and the details of log-probabilities are bits of floats.
    pub(crate) fn outputs(&self, steps: Vec<Vec<Array>>) -> Outputs {
        Outputs::of(steps, logits_of(self.graph(), &self.subject.registries.ops))
    }
}

/// Runs what is planned already, such as a text with its plan; `ops` are those that it was planned with.
///
/// # Errors
/// When it can't be compiled, what is given does not fit, or a step fails.
pub fn run_planned(
    planned: Planned,
    ops: &OpRegistry,
    given: &Given,
) -> Result<Outputs, TrialError> {
    let graph = planned.module().graph().clone();
    let feed = Feed::of(&graph, ops, given)?;
    let steps = device::run_planned(planned, &graph, &feed)?;
    Ok(Outputs::of(steps, logits_of(&graph, ops)))
}

impl Outputs {
    fn of(steps: Vec<Vec<Array>>, logits: Option<usize>) -> Self {
        let mut joined: Vec<Array> = Vec::new();
        for step in steps {
            if joined.is_empty() {
                joined = step;
                continue;
            }
            for (all, more) in joined.iter_mut().zip(step) {
                all.data.extend(more.data);
                if let (Some(rows), Some(more)) = (all.shape.first_mut(), more.shape.first()) {
                    *rows += more;
                }
            }
        }
        match logits {
            Some(output) => {
                Self { names: vec!["logits".to_owned()], arrays: vec![joined.swap_remove(output)] }
            }
            None => Self {
                names: (0..joined.len()).map(|i| format!("output_{i}")).collect(),
                arrays: joined,
            },
        }
    }
}

/// The output that has the logits, of a graph that an engine could run.
fn logits_of(graph: &Graph, ops: &OpRegistry) -> Option<usize> {
    let symbols = SymbolTable::new(graph.symbols()).ok()?;
    RoleMap::resolve(graph, &symbols, ops).ok()?.logits_output().ok()
}
