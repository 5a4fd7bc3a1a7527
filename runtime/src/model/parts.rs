//! What the members of a step are called, and where the model's code made them.

use piecewise_ir::module::{Module, Step};
use piecewise_ir::op::Op;

/// What stands between the scopes of a member.
const SCOPES: &str = " + ";

/// A member of the step, for people.
#[derive(Debug)]
pub(crate) struct StepPart {
    pub name: String,
    pub kind: &'static str,
    /// The scopes of the model's code that it computes parts of.
    pub path: String,
}

impl StepPart {
    /// The members of a module's step, in order.
    pub(crate) fn of(module: &Module) -> Vec<Self> {
        let Some(stitch) = module.stitch() else { return Vec::new() };
        let graph = module.graph();
        let part = |step: &Step| {
            let nodes = &stitch.uses[step.id()].nodes;
            let mut scopes: Vec<&str> = Vec::new();
            for &node in nodes {
                let scope = graph.node(node).loc.scope.as_str();
                if !scope.is_empty() && !scopes.contains(&scope) {
                    scopes.push(scope);
                }
            }
            let (kind, op) = match step {
                Step::Piece(_) => ("piece", None),
                Step::Split(_) => ("split op", nodes.last()),
                Step::Prologue(_) => ("prologue", nodes.first()),
            };
            let op = op.and_then(|&node| match &graph.node(node).op {
                Op::Custom(call) => Some(call.name.clone()),
                _ => None,
            });
            let name = op.unwrap_or_else(|| step.id().to_string());
            Self { name, kind, path: scopes.join(SCOPES) }
        };
        stitch.steps.iter().map(part).collect()
    }
}
