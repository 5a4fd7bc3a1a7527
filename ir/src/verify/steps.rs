//! Steps: every node once, in an order that keeps data and effects.

use crate::diagnostic::{Anchor, Diagnostics};
use crate::entity::{Entity, Node, PieceId, Value};
use crate::graph::{Graph, ValueDef};
use crate::module::{Step, Stitch};
use crate::op::Op;
use crate::text::Names;

/// Checks P0101 to P0107 and returns the node order, if it is one: P0101 to P0103 hold.
pub(super) fn check(graph: &Graph, stitch: &Stitch, found: &mut Diagnostics) -> Option<Vec<Node>> {
    let before = found.items.len();
    members(stitch, found);
    if found.items.len() > before {
        return None;
    }
    let names = Names::of(graph);
    coverage(graph, &names, stitch, found);
    if found.items.len() > before {
        return None;
    }
    let order = stitch.node_order();
    let mut position = vec![usize::MAX; graph.node_count()];
    for (i, &node) in order.iter().enumerate() {
        position[node.index()] = i;
    }
    data_order(graph, &names, stitch, &position, found);
    effect_order(graph, &names, &position, found);
    kinds(graph, stitch, found);
    Some(order)
}

fn members(stitch: &Stitch, found: &mut Diagnostics) {
    let mut steps = vec![0usize; stitch.uses.len()];
    for step in &stitch.steps {
        match steps.get_mut(step.id().index()) {
            Some(n) => *n += 1,
            None => {
                let message = format!("a step names {}, which the stitch does not have", step.id());
                found.push("P0101", Anchor::Graph, message);
            }
        }
    }
    for (id, piece) in stitch.uses.iter() {
        let n = steps[id.index()];
        if n != 1 {
            let message = format!("{id} is in {n} steps; it must be in exactly one");
            found.push("P0101", Anchor::Piece(id), message);
        }
        if stitch.unique.get(piece.unique).is_none() {
            let message = format!("{id} uses {}, which the stitch does not have", piece.unique);
            found.push("P0102", Anchor::Piece(id), message);
        }
    }
}

fn coverage(graph: &Graph, names: &Names<'_>, stitch: &Stitch, found: &mut Diagnostics) {
    let mut live = vec![false; graph.node_count()];
    graph.nodes().for_each(|n| live[n.index()] = true);
    let mut owner: Vec<Option<PieceId>> = vec![None; graph.node_count()];
    for (id, piece) in stitch.uses.iter() {
        for &node in &piece.nodes {
            let message = match (live.get(node.index()), owner.get(node.index())) {
                (Some(true), Some(Some(other))) => {
                    format!("{} is in {other} and again in {id}; an op runs once", names.node(node))
                }
                (Some(true), _) => {
                    owner[node.index()] = Some(id);
                    continue;
                }
                _ => format!("{id} has {}, which is not in the program", names.node(node)),
            };
            found.push("P0103", Anchor::Piece(id), message);
        }
    }
    for node in graph.nodes() {
        if owner[node.index()].is_none() {
            let message = format!("{} is in no step, so it never runs", names.node(node));
            found.push("P0103", Anchor::Node(node), message);
        }
    }
}

fn data_order(
    graph: &Graph,
    names: &Names<'_>,
    stitch: &Stitch,
    position: &[usize],
    found: &mut Diagnostics,
) {
    for (id, piece) in stitch.uses.iter() {
        for &node in &piece.nodes {
            for &operand in &graph.node(node).operands {
                if let Some(def) = graph.defining_node(operand)
                    && position[def.index()] >= position[node.index()]
                {
                    let message = format!(
                        "{} of {id} reads {}, which is defined later in the step",
                        names.node(node),
                        names.value(operand)
                    );
                    found.push("P0104", Anchor::Piece(id), message);
                }
            }
        }
    }
}

/// Two nodes that touch one state keep their order if one of them mutates it.
fn effect_order(graph: &Graph, names: &Names<'_>, position: &[usize], found: &mut Diagnostics) {
    for state in graph.states() {
        let (mut last_touch, mut last_write): (Option<Node>, Option<Node>) = (None, None);
        for node in graph.nodes() {
            let data = graph.node(node);
            if !data.operands.contains(&state.value) {
                continue;
            }
            let writes =
                data.op.mutated_operands().iter().any(|&i| data.operands[i] == state.value);
            let earlier = if writes { last_touch } else { last_write };
            if let Some(earlier) = earlier
                && position[earlier.index()] > position[node.index()]
            {
                let message = format!(
                    "{} touches the state \"{}\" before {} in the step, but after it in the program, and one of them mutates it",
                    names.node(node),
                    state.name,
                    names.node(earlier)
                );
                found.push("P0105", Anchor::Node(node), message);
            }
            let latest = |last: Option<Node>| match last {
                Some(l) if position[l.index()] > position[node.index()] => Some(l),
                _ => Some(node),
            };
            last_touch = latest(last_touch);
            if writes {
                last_write = latest(last_write);
            }
        }
    }
}

fn kinds(graph: &Graph, stitch: &Stitch, found: &mut Diagnostics) {
    let mut begun = false;
    // Whether a value follows from inputs through prologue ops alone.
    let mut early = vec![false; graph.value_count()];
    graph.inputs().iter().for_each(|i| early[i.value.index()] = true);
    for step in &stitch.steps {
        let nodes = &stitch.uses[step.id()].nodes;
        let at = Anchor::Piece(step.id());
        match step {
            Step::Piece(_) => begun = true,
            Step::Split(id) => {
                begun = true;
                if let Some(problem) = split_problem(graph, nodes) {
                    found.push("P0107", at, format!("{id} is a split step, but {problem}"));
                }
            }
            Step::Prologue(id) => {
                if let Some(problem) = prologue_problem(graph, nodes, &early, begun) {
                    found.push("P0106", at, format!("{id} is a prologue step, but {problem}"));
                }
                let results = nodes.iter().flat_map(|&n| &graph.node(n).results);
                results.for_each(|r| early[r.index()] = true);
            }
        }
    }
}

/// A split step is one op, after regions that make nothing but what it may absorb, and before regions
/// that alone read what it makes there.
fn split_problem(graph: &Graph, nodes: &[Node]) -> Option<String> {
    let is_custom = |&&node: &&Node| matches!(graph.node(node).op, Op::Custom(_));
    let Some(&op) = nodes.iter().find(is_custom).or(nodes.last()) else {
        return Some("it has no op".to_owned());
    };
    let others = nodes.iter().filter(|&&node| node != op);
    let others = others.filter(|&&region| !is_absorbable(graph, region, op)).count();
    (others > 0)
        .then(|| format!("it has {others} ops besides one op and the regions that it may absorb"))
}

/// Whether `region` makes nothing but operands that the custom op `op` may absorb, or alone reads
/// results that it may.
fn is_absorbable(graph: &Graph, region: Node, op: Node) -> bool {
    let (beside, data) = (graph.node(region), graph.node(op));
    let (Op::Region(_), Op::Custom(call)) = (&beside.op, &data.op) else { return false };
    let arguments = || data.operands.iter().chain(&data.results).enumerate();
    let is_only_read = |value: &Value, reader: Node| {
        let read = |node: Node| graph.node(node).operands.contains(value);
        arguments().all(|(i, v)| v != value || call.absorbs.contains(&i))
            && graph.nodes().filter(|&n| read(n)).eq([reader])
            && !graph.outputs().contains(value)
    };
    let feeds = beside.results.iter().all(|value| is_only_read(value, op));
    let read = data.results.iter().filter(|value| beside.operands.contains(value));
    let follows =
        read.clone().next().is_some() && read.clone().all(|value| is_only_read(value, region));
    !beside.op.has_effect() && (!beside.results.is_empty() && feeds || follows)
}

fn prologue_problem(
    graph: &Graph,
    nodes: &[Node],
    early: &[bool],
    begun: bool,
) -> Option<&'static str> {
    if begun {
        return Some("it does not come before all pieces and split ops");
    }
    let &[node] = nodes else { return Some("it is not one op") };
    let data = graph.node(node);
    let is_early = |v: &Value| early[v.index()] && !matches!(graph.def(*v), ValueDef::State(_));
    match () {
        () if !matches!(data.op, Op::Custom(_)) => Some("its op is no custom op"),
        () if data.op.has_effect() => Some("its op mutates a state"),
        () if !data.operands.iter().all(is_early) => Some("its op reads more than inputs"),
        () => None,
    }
}
