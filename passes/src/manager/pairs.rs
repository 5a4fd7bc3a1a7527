//! Which values of a graph before a rewrite are which after it.

use piecewise_ir::entity::Value;
use piecewise_ir::graph::{Graph, Loc};
use similar::{Algorithm, DiffOp, capture_diff_slices};

/// Of two forms of one graph, the values that should be equal, in the order of `after`: nodes that are
/// the same but for their operands are matched as lines of a diff are; among those that are not, values
/// of one type that were written at one place, and of several the last.
pub fn paired_values(before: &Graph, after: &Graph) -> Vec<(Value, Value)> {
    let lines = |graph: &Graph| {
        let line = |node| {
            let data = graph.node(node);
            format!("{:?} {:?} {:?}", data.op, graph.result_types(node), data.loc)
        };
        Vec::from_iter(graph.nodes().map(line))
    };
    let results = |graph: &Graph, at: usize| graph.node(graph.order()[at]).results.clone();
    let mut pairs = Vec::new();
    for op in capture_diff_slices(Algorithm::Histogram, &lines(before), &lines(after)) {
        let (old, new) = (op.old_range(), op.new_range());
        if let DiffOp::Equal { .. } = op {
            for (old, new) in old.zip(new) {
                pairs.extend(results(before, old).into_iter().zip(results(after, new)));
            }
            continue;
        }
        let mut left = Vec::from_iter(old.flat_map(|at| results(before, at)));
        let mut found = Vec::new();
        for value in new.flat_map(|at| results(after, at)).rev() {
            let is_like = |&old: &Value| {
                before.ty(old) == after.ty(value) && place(before, old) == place(after, value)
            };
            if let Some(at) = left.iter().rposition(is_like) {
                found.push((left.remove(at), value));
            }
        }
        pairs.extend(found.into_iter().rev());
    }
    pairs
}

/// Where a value was written.
fn place(graph: &Graph, value: Value) -> Option<&Loc> {
    graph.defining_node(value).map(|node| &graph.node(node).loc)
}

#[cfg(test)]
mod tests {
    use super::*;
    use piecewise_ir::text::{parse_graph, value_names};

    #[test]
    fn what_a_rewrite_replaced_is_what_came_in_its_place() {
        let graph = |middle: &str| {
            let begin = "graph @g {\n  dim T in [1..8] role \"tokens\"\n  input %x: f32[T]\n";
            let text = format!("{begin}  v0: f32[T] = neg %x  #\"\" @\"m.rs:1\"\n{middle}}}\n");
            parse_graph(&text).unwrap_or_else(|error| panic!("{error}"))
        };
        let line = |text: &str, line: u32| format!("  {text}  #\"\" @\"m.rs:{line}\"\n");
        let before = line("v1: f32[T] = sub v0, %x", 2) + &line("v2: f32[T] = exp v1", 3);
        let before = graph(&(before + "  ret v2\n"));
        let after = line("v1: f32[T] = neg v0", 2) + &line("v2: f32[T] = add v1, %x", 2);
        let after = graph(&(after + &line("v3: f32[T] = exp v2", 3) + "  ret v3\n"));
        let names = |graph: &Graph, value: Value| {
            let names = value_names(graph);
            names[piecewise_ir::entity::Entity::index(value)].clone().unwrap_or_default()
        };
        let pairs = paired_values(&before, &after);
        let named =
            pairs.iter().map(|&(a, b)| format!("{}={}", names(&before, a), names(&after, b)));
        assert_eq!(Vec::from_iter(named), ["v0=v0", "v1=v2", "v2=v3"]);
    }
}
