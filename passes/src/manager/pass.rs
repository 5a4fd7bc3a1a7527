//! What a pass is, what it is given and what it reports.

use super::budget::Rewrites;
use super::error::PassError;
use piecewise_ir::custom::OpDefs;
use piecewise_ir::module::Module;
use std::collections::BTreeMap;

/// One rewriting of a module.
pub trait Pass {
    /// Its name in pipelines, dumps and reports.
    fn name(&self) -> &str;

    /// Whether later stages can't do without it, so that a bisection never skips it.
    fn is_required(&self) -> bool {
        false
    }

    /// Rewrites `module`. Dead nodes may stay in the graph: the manager compacts it.
    ///
    /// # Errors
    /// When the module lacks what the pass works on, or can't be rewritten; the module is then
    /// only good for a dump.
    fn run(&self, module: &mut Module, cx: &mut PassContext) -> Result<PassReport, PassError>;
}

/// What every pass of a run may use.
#[derive(Clone, Default, Debug)]
pub struct PassContext {
    /// The known custom op definitions, which calls are held against before the first pass and after
    /// each one. A call carries its signature, so most passes do without.
    pub defs: OpDefs,
    /// Counts what rules and passes rewrite, and ends it where a bisection says so.
    pub rewrites: Rewrites,
}

impl PassContext {
    /// A run in which these custom ops are known, and everything is rewritten.
    pub fn of(defs: OpDefs) -> Self {
        Self { defs, rewrites: Rewrites::default() }
    }
}

/// What a pass matched, and why it left alone what it left.
#[derive(Clone, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct PassReport {
    /// How often each kind of rewrite was done.
    pub matched: BTreeMap<&'static str, usize>,
    /// What a reader may wonder about, in the order of the graph.
    pub remarks: Vec<Remark>,
}

impl PassReport {
    /// Counts one rewrite of `kind`.
    pub fn count(&mut self, kind: &'static str) {
        self.count_many(kind, 1);
    }

    /// Counts `n` rewrites of `kind`.
    pub fn count_many(&mut self, kind: &'static str, n: usize) {
        if n > 0 {
            *self.matched.entry(kind).or_default() += n;
        }
    }

    /// How often `kind` was done.
    pub fn matches(&self, kind: &str) -> usize {
        self.matched.get(kind).copied().unwrap_or(0)
    }

    /// The number of rewrites of all kinds.
    pub fn total(&self) -> usize {
        self.matched.values().sum()
    }

    /// Adds a [`Remark`]: what was or was not done, to what, and why.
    pub fn remark(
        &mut self,
        what: impl Into<String>,
        place: impl Into<String>,
        why: impl Into<String>,
    ) {
        self.remarks.push(Remark { what: what.into(), place: place.into(), why: why.into() });
    }
}

/// One decision of a pass that its result alone does not explain.
#[derive(Clone, PartialEq, Eq, Hash, Debug, derive_more::Display, serde::Serialize)]
#[display("{place}: {what}: {why}")]
pub struct Remark {
    /// What was or was not done.
    pub what: String,
    /// To what: the op and its builder scope.
    #[serde(rename = "where")]
    pub place: String,
    /// Why it did, or left it: what a person would want to read.
    pub why: String,
}
