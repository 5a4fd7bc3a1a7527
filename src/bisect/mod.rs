//! What makes a graph wrong: a pass, one of its rewrites, a kernel, or a replay.
//!
//! A [`Bisection`] runs a graph again and again, with fewer of its passes and rewrites, and holds what
//! comes out against what should: the passes are halved first, then the rewrites of the pass that is
//! found. Where no pass is at fault, or the rewrite is right, each kernel is held against the definition
//! of its op on the operands that it had.

mod bisection;
mod candidate;
mod finding;
mod kernels;
mod reduce;
mod search;
mod values;

pub use bisection::Bisection;
pub use finding::{Culprit, Finding, PassFault, RewriteFault, Verdict, WrongValue};
pub use reduce::{Reduction, reduce};
