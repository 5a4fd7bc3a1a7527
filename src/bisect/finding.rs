//! What a bisection found.

use crate::trial::Difference;
use serde::Serialize;

/// What a bisection found.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Finding {
    /// What is wrong with the whole; nothing where it is as it should be.
    pub wrong: Option<String>,
    /// What is at fault.
    pub culprit: Culprit,
    /// How often the graph was compiled and run.
    pub runs: usize,
}

/// What is at fault.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Culprit {
    /// Nothing is wrong.
    Nothing,
    /// Launched it is right, and replayed it is not.
    Replay {
        /// What the check of replays against launches says.
        said: String,
    },
    /// With the pass it is wrong, and without it right.
    Pass(Box<PassFault>),
    /// No pass, but a kernel.
    Kernel(WrongValue),
    /// No pass, and each kernel alone does what its op says.
    Unknown {
        /// What was seen.
        because: String,
    },
}

/// A pass with which the graph is wrong, and without which it is right.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct PassFault {
    /// Its place in the pipeline, from 1 on, as files of a dump are numbered.
    pub number: usize,
    /// Its name in the pipeline.
    pub name: String,
    /// The one rewrite of the pass, where it counts them.
    pub rewrite: Option<RewriteFault>,
    /// What it did, as text; empty where it did not end.
    pub diff: String,
    /// Whether what it did is wrong.
    pub verdict: Verdict,
    /// The first value that is another than before.
    pub first_wrong: Option<WrongValue>,
}

/// One application of a rule, with which a graph is wrong.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct RewriteFault {
    /// Its number among those of all passes, from 1 on.
    pub number: u64,
    /// How many there are up to the end of its pass.
    pub of: u64,
    /// By name, as reports and diffs have it.
    pub rule: String,
    /// To what it was done.
    pub place: String,
}

/// What is known of a rewrite with which a graph is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It changes what the graph computes, by the reference evaluator.
    WrongRewrite,
    /// It does not: what is wrong is a kernel that is made of it.
    WrongKernel,
    /// The reference evaluator can't tell.
    Unknown,
    /// It does not end, or what it leaves can't be compiled.
    Failed,
}

/// A value that is not as it should be.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct WrongValue {
    /// The line of the graph's text that makes it.
    pub line: String,
    /// The builder's scope that it was written in; empty where nobody said.
    pub scope: String,
    /// The source line of the model's code; empty where nobody said.
    pub source: String,
    /// How far it is off, and the first element that is.
    pub difference: Difference,
}
