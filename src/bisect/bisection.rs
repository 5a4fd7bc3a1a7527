//! What is searched in: a graph, and what it should return.

use crate::trial::{Feed, Outputs, Trial};

/// A graph that is wrong, and what it should return.
///
/// ```
/// use piecewise::bisect::{Bisection, Culprit};
/// use piecewise::ir::op::{BinaryOp, Op};
/// use piecewise::passes::rewrite::{New, Rule, RulePass};
/// use piecewise::prelude::*;
/// use piecewise::trial::{Given, Trial, TrialLevel};
///
/// /// `b - a` for `a - b`, which is wrong.
/// const RULES: [Rule; 1] = [Rule::new("turned", |op| *op == Op::Binary(BinaryOp::Sub), |site| {
///     let first = site.definition(0).is_some_and(|made| made.op == Op::Binary(BinaryOp::Mul));
///     let turned = || New::Value(site.operands[0]);
///     first.then(|| site.nodes(Op::Binary(BinaryOp::Add), [New::Value(site.operands[1]), turned()]))
/// })];
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let b = Builder::new("halves");
/// let x = b.input("x", DType::F32, (b.symbol("T", 1, 8), 4));
/// let graph = b.finish([(x * x) - x.exp(), x.exp() - x])?;
/// let pass = |_: &mut OptionReader<'_>| Ok(Box::new(RulePass::new("turn", &RULES)) as Box<dyn Pass>);
///
/// let trial = Trial::new(Assembly::graph(graph).pass_after("canonicalize", "turn", &[], pass))?;
/// let feed = trial.feed(&Given::default())?;
/// let expected = trial.run(TrialLevel::Reference, &feed)?;
/// let bisection = Bisection { trial: &trial, feed, expected, tolerance: 1e-4 };
/// let Culprit::Pass(fault) = bisection.run(&mut |_| {})?.culprit else {
///     return Err("a pass is at fault".into());
/// };
/// assert_eq!((fault.number, fault.name.as_str()), (2, "turn"));
/// assert_eq!(fault.rewrite.ok_or("one rewrite is")?.rule, "turned");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Bisection<'a> {
    /// The graph, with all that it is compiled by.
    pub trial: &'a Trial,
    /// What its steps read.
    pub feed: Feed,
    /// What they should return.
    pub expected: Outputs,
    /// How far elements may be from that: see [`Difference::error`](crate::trial::Difference::error).
    pub tolerance: f64,
}
