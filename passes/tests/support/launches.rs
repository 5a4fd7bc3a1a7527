//! Launch lists of two lowerings: node by node, and one that gives regions to matmuls and to custom
//! ops that may absorb.

use piecewise_ir::entity::{Node, Value};
use piecewise_ir::graph::{Graph, ValueDef};
use piecewise_ir::module::Module;
use piecewise_ir::op::Op;
use piecewise_passes::check::{LaunchAccess, MemberLaunches};
use std::collections::BTreeSet;

/// One launch for each node.
pub(crate) fn plain(module: &Module) -> Vec<MemberLaunches> {
    members(module, |graph, nodes| nodes.iter().map(|&n| launch(graph, &[n], &|_| true)).collect())
}

/// One launch for each node that absorbs with the regions right before it (computed again where
/// several read them) and right after it, where what else those read is there already.
pub(crate) fn absorbing(module: &Module) -> Vec<MemberLaunches> {
    members(module, absorbing_launches)
}

fn members(
    module: &Module,
    lower: impl Fn(&Graph, &[Node]) -> Vec<LaunchAccess>,
) -> Vec<MemberLaunches> {
    let stitch = module.stitch().expect("split");
    let ids = stitch.steps.iter().map(|s| s.id());
    ids.map(|member| {
        let launches = lower(module.graph(), &stitch.uses[member].nodes);
        MemberLaunches { member, scratch: 0, launches }
    })
    .collect()
}

/// What `nodes` in one launch read from memory, and what of theirs `is_needed` there.
fn launch(graph: &Graph, nodes: &[Node], is_needed: &dyn Fn(Value) -> bool) -> LaunchAccess {
    let results: BTreeSet<Value> =
        nodes.iter().flat_map(|&n| graph.node(n).results.iter().copied()).collect();
    let operands = nodes.iter().flat_map(|&n| graph.node(n).operands.iter().copied());
    let name = nodes.iter().map(|n| n.to_string()).collect::<Vec<_>>().join("+");
    let reads: BTreeSet<Value> = operands.filter(|v| !results.contains(v)).collect();
    let mut writes: Vec<Value> = results.into_iter().filter(|&v| is_needed(v)).collect();
    for &node in nodes {
        let data = graph.node(node);
        writes.extend(data.op.mutated_operands().into_iter().map(|i| data.operands[i]));
    }
    LaunchAccess { name, reads: reads.into_iter().collect(), writes, ..LaunchAccess::default() }
}

fn absorbing_launches(graph: &Graph, nodes: &[Node]) -> Vec<LaunchAccess> {
    let absorbs = |n: Node| match &graph.node(n).op {
        Op::MatMul { .. } => true,
        Op::Custom(call) => !call.absorbs.is_empty(),
        _ => false,
    };
    let is_region = |n: Node| matches!(graph.node(n).op, Op::Region(_));
    let reads = |n: Node, of: Node| {
        graph.node(n).operands.iter().any(|v| graph.node(of).results.contains(v))
    };
    let inside: BTreeSet<Value> =
        nodes.iter().flat_map(|&n| graph.node(n).results.iter().copied()).collect();

    // Which launches run each node, by the position of what absorbs it or of the node itself.
    let mut groups: Vec<Vec<Node>> = nodes.iter().map(|&n| vec![n]).collect();
    let mut absorbed: BTreeSet<Node> = BTreeSet::new();
    let mut there: BTreeSet<Value> = BTreeSet::new();
    for (at, &node) in nodes.iter().enumerate() {
        there.extend(graph.node(node).results.iter().copied());
        if !absorbs(node) {
            continue;
        }
        for &after in &nodes[at + 1..] {
            let ready = graph.node(after).operands.iter().all(|v| {
                there.contains(v)
                    || !inside.contains(v)
                    || matches!(graph.def(*v), ValueDef::Weight(_))
            });
            if is_region(after) && reads(after, node) && ready && !absorbed.contains(&after) {
                groups[at].push(after);
                absorbed.insert(after);
                there.extend(graph.node(after).results.iter().copied());
                break;
            }
        }
    }
    // A region that only feeds what absorbs and has no effect runs in each of them.
    for (at, &node) in nodes.iter().enumerate() {
        let readers: Vec<Node> = nodes.iter().copied().filter(|&n| reads(n, node)).collect();
        let pure = !graph.node(node).op.has_effect();
        let results = graph.node(node).results.iter();
        let is_inside = !readers.is_empty() && readers.iter().all(|&n| absorbs(n));
        if is_region(node) && pure && is_inside && !absorbed.contains(&node) {
            let leaves = results.clone().any(|v| leaves(graph, nodes, *v));
            if !leaves {
                for reader in readers {
                    let group = nodes.iter().position(|&n| n == reader).expect("inside");
                    groups[group].insert(0, node);
                }
                groups[at].clear();
            }
        }
    }
    for (at, node) in nodes.iter().enumerate() {
        if absorbed.contains(node) {
            groups[at].clear();
        }
    }
    let launches = groups.iter().filter(|group| !group.is_empty());
    launches
        .map(|group| {
            let needed = |v: Value| {
                let elsewhere = groups
                    .iter()
                    .filter(|g| *g != group)
                    .flatten()
                    .any(|&n| graph.node(n).operands.contains(&v));
                elsewhere || leaves(graph, nodes, v)
            };
            launch(graph, group, &needed)
        })
        .collect()
}

/// Whether a node outside of `nodes` reads `value`, or the graph returns it.
fn leaves(graph: &Graph, nodes: &[Node], value: Value) -> bool {
    graph.outputs().contains(&value)
        || graph.nodes().any(|n| !nodes.contains(&n) && graph.node(n).operands.contains(&value))
}
