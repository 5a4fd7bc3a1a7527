//! Facts derived from a graph: users, effects, and the order that they impose.
//!
//! Nothing here is kept across a rewrite: each pass derives what it needs anew.

use petgraph::graph::{DiGraph, NodeIndex};
use piecewise_ir::entity::{Entity, Node, Value};
use piecewise_ir::graph::{Graph, ValueDef};
use piecewise_ir::op::Op;

/// Which nodes read each value, and whether the graph returns it.
#[derive(Clone, Debug)]
pub struct Users {
    users: Vec<Vec<(Node, usize)>>,
    returned: Vec<bool>,
}

impl Users {
    /// The users of every value of `graph`.
    pub fn of(graph: &Graph) -> Self {
        let mut users = vec![Vec::new(); graph.value_count()];
        let mut returned = vec![false; graph.value_count()];
        for node in graph.nodes() {
            for (position, &operand) in graph.node(node).operands.iter().enumerate() {
                users[operand.index()].push((node, position));
            }
        }
        for output in graph.outputs() {
            returned[output.index()] = true;
        }
        Self { users, returned }
    }

    /// The nodes that read `value` with the operand position, in program order.
    pub fn nodes(&self, value: Value) -> &[(Node, usize)] {
        &self.users[value.index()]
    }

    /// Whether the graph returns `value`.
    pub fn is_returned(&self, value: Value) -> bool {
        self.returned[value.index()]
    }
}

/// Whether `value` is a state.
pub fn is_state(graph: &Graph, value: Value) -> bool {
    matches!(graph.def(value), ValueDef::State(_))
}

/// The states that `node` mutates and those that it reads. A mutated operand counts as both
/// only if it is named twice.
pub fn states_touched(graph: &Graph, node: Node) -> (Vec<Value>, Vec<Value>) {
    let data = graph.node(node);
    let mutated = data.op.mutated_operands();
    let (mut writes, mut reads) = (Vec::new(), Vec::new());
    for (position, &operand) in data.operands.iter().enumerate() {
        if is_state(graph, operand) {
            let list = if mutated.contains(&position) { &mut writes } else { &mut reads };
            if !list.contains(&operand) {
                list.push(operand);
            }
        }
    }
    (writes, reads)
}

/// How often each state was mutated so far: what tells two reads of a state apart.
#[derive(Clone, Debug)]
pub struct StateVersions {
    version: Vec<u32>,
}

impl StateVersions {
    /// The versions before the first node: no state was mutated.
    pub fn new(graph: &Graph) -> Self {
        Self { version: vec![0; graph.value_count()] }
    }

    /// Goes past `node`: each state that it mutates has another version then.
    pub fn advance(&mut self, graph: &Graph, node: Node) {
        for state in states_touched(graph, node).0 {
            self.version[state.index()] += 1;
        }
    }

    /// The versions of the states among `operands`, in their order.
    pub fn of(&self, graph: &Graph, operands: &[Value]) -> Vec<u32> {
        let states = operands.iter().filter(|&&v| is_state(graph, v));
        states.map(|v| self.version[v.index()]).collect()
    }
}

/// Why one node must stay after another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dependence {
    /// It reads a result of the other.
    Data,
    /// Both touch a state, and one of them mutates it.
    Effect,
}

/// The dependences between the nodes of a graph: data, and the order of effects on each state.
/// Vertices are indexed by position in program order.
pub fn dependences(graph: &Graph) -> DiGraph<Node, Dependence> {
    let mut deps = DiGraph::with_capacity(graph.order().len(), 2 * graph.order().len());
    let mut vertex = vec![NodeIndex::end(); graph.node_count()];
    let mut writer: Vec<Option<NodeIndex>> = vec![None; graph.value_count()];
    let mut readers: Vec<Vec<NodeIndex>> = vec![Vec::new(); graph.value_count()];
    for node in graph.nodes() {
        let here = deps.add_node(node);
        vertex[node.index()] = here;
        for &operand in &graph.node(node).operands {
            let def = graph.defining_node(operand).map(|def| vertex[def.index()]);
            if let Some(def) = def.filter(|&def| def != NodeIndex::end()) {
                deps.update_edge(def, here, Dependence::Data);
            }
        }
        let effect = |deps: &mut DiGraph<_, _>, from| {
            if deps.find_edge(from, here).is_none() {
                deps.add_edge(from, here, Dependence::Effect);
            }
        };
        let (writes, reads) = states_touched(graph, node);
        for state in &reads {
            if let Some(from) = writer[state.index()] {
                effect(&mut deps, from);
            }
        }
        for state in &writes {
            writer[state.index()].into_iter().for_each(|from| effect(&mut deps, from));
            for from in std::mem::take(&mut readers[state.index()]) {
                effect(&mut deps, from);
            }
            writer[state.index()] = Some(here);
        }
        for state in reads.into_iter().filter(|state| !writes.contains(state)) {
            readers[state.index()].push(here);
        }
    }
    deps
}

/// The scalar that every element of `value` is, if it is a literal of equal elements, seen
/// through broadcasts, reshapes and slices.
pub fn splat(graph: &Graph, value: Value) -> Option<piecewise_ir::literal::Scalar> {
    let mut value = value;
    loop {
        let data = graph.node(graph.defining_node(value)?);
        match &data.op {
            Op::Literal(literal) => {
                let mut scalars = literal.scalars();
                let first = scalars.next()?;
                return scalars.all(|s| s == first).then_some(first);
            }
            Op::Broadcast | Op::Reshape | Op::Slice { .. } => value = data.operands[0],
            _ => return None,
        }
    }
}

/// The names of values in the text of a graph, for remarks on it.
#[derive(Clone, Debug)]
pub struct Names {
    of_values: Vec<Option<String>>,
}

impl Names {
    /// The names in the text of `graph` as it is now; values made later have none.
    pub fn of(graph: &Graph) -> Self {
        Self { of_values: piecewise_ir::text::value_names(graph) }
    }

    /// A value for people: its name, or `?` if it was made later.
    pub fn value(&self, value: Value) -> &str {
        self.of_values.get(value.index()).and_then(Option::as_deref).unwrap_or("?")
    }

    /// A node for people: its op and the builder scope in which it was written.
    pub fn node(&self, graph: &Graph, node: Node) -> String {
        let data = graph.node(node);
        let op = data.op.name();
        let result = data.results.first().and_then(|v| self.of_values.get(v.index())?.as_deref());
        let result = result.map(|name| format!("{name} = ")).unwrap_or_default();
        match (data.loc.scope.as_str(), data.loc.source.as_str()) {
            ("", "") => format!("{result}{op}"),
            ("", place) | (place, _) => format!("{result}{op} at {place}"),
        }
    }
}
