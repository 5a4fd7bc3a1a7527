//! What the members of a step are called, and where the model's code made them.

use indexmap::IndexSet;
use piecewise_ir::entity::Node;
use piecewise_ir::graph::Graph;
use piecewise_ir::module::{Module, Step, Stitch};
use piecewise_ir::op::Op;

/// What stands between scopes of the model's code.
pub(crate) const SCOPES: &str = " + ";

/// What a member of a step is called: `p3`, or the op's name.
pub(crate) fn label(graph: &Graph, stitch: &Stitch, step: Step) -> String {
    let usage = &stitch.uses[step.id()];
    let name = |&node: &Node| match &graph.node(node).op {
        Op::Custom(call) => Some(call.name.clone()),
        _ => None,
    };
    let op = match step {
        Step::Prologue(_) | Step::Split(_) => usage.nodes.iter().find_map(name),
        Step::Piece(_) => None,
    };
    op.unwrap_or_else(|| step.id().to_string())
}

/// Where the model's code made these nodes, each scope once.
pub(crate) fn scopes(graph: &Graph, nodes: impl Iterator<Item = Node>) -> String {
    let scopes = nodes.map(|node| graph.node(node).loc.scope.as_str());
    let scopes: IndexSet<&str> = scopes.filter(|scope| !scope.is_empty()).collect();
    Vec::from_iter(scopes).join(SCOPES)
}

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
        let part = |&step: &Step| {
            let nodes = stitch.uses[step.id()].nodes.iter().copied();
            Self { name: label(graph, stitch, step), kind: step.kind(), path: scopes(graph, nodes) }
        };
        stitch.steps.iter().map(part).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use piecewise_ir::text::parse_graph;
    use piecewise_passes::split::{SplitOptions, split};

    #[test]
    fn a_split_op_has_its_name_also_among_regions() {
        let region = |made, read| {
            format!(
                "{made}: f32[T,8] = region over T (%a: row {read}) {{\na0: f32[8] = exp %a\nret a0\n}}\n"
            )
        };
        let op = "v1: f32[T,8] = custom \"any.turn\" v0 rows mixed split absorbs [0, 1]\n";
        let text = format!(
            "graph @g {{\ndim T in [1..16]\ninput %x: f32[T,8]\n{}{op}{}ret v2\n}}",
            region("v0", "%x"),
            region("v2", "v1")
        );
        let mut module = Module::new(parse_graph(&text).unwrap());
        split(&mut module, &SplitOptions::default()).unwrap();
        let parts = StepPart::of(&module);
        let names: Vec<_> = parts.iter().map(|part| (part.name.as_str(), part.kind)).collect();
        assert_eq!(names, [("any.turn", "split op")]);
    }
}
