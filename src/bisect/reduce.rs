//! A graph made small that still shows what is wrong.

use piecewise_ir::entity::{Entity, Node, Value};
use piecewise_ir::graph::{Graph, ValueDef};
use piecewise_ir::literal::Scalar;
use piecewise_ir::verify::verify_graph;
use piecewise_passes::optimize::remove_dead;

/// What became of a graph.
#[derive(Clone, PartialEq, Debug)]
pub struct Reduction {
    /// The smallest graph that was found.
    pub graph: Graph,
    /// How many graphs were tried.
    pub tests: usize,
    /// Whether nothing smaller is left to be tried; else the tests were used up.
    pub is_done: bool,
}

/// Shrinks a graph as long as `still` says of what is left that it shows the same, at most `most` times:
/// it returns less, values become inputs, nodes are passed over and effects left out. What it asks of
/// is always a valid graph, which custom ops are not held against their definitions for.
pub fn reduce(graph: &Graph, most: usize, still: &mut dyn FnMut(&Graph) -> bool) -> Reduction {
    let mut shrinking = Shrinking { graph: tidied(graph.clone()), most, tests: 0, still };
    loop {
        let before = size(&shrinking.graph);
        shrinking.return_one();
        shrinking.return_earlier();
        shrinking.cut();
        shrinking.pass_over();
        if size(&shrinking.graph) == before || shrinking.is_spent() {
            let is_done = !shrinking.is_spent();
            return Reduction { graph: shrinking.graph, tests: shrinking.tests, is_done };
        }
    }
}

/// What shrinks: nodes, then outputs, then what is declared.
fn size(graph: &Graph) -> (usize, usize, usize) {
    let declared = graph.inputs().len() + graph.weights().len() + graph.states().len();
    (graph.order().len(), graph.outputs().len(), declared)
}

struct Shrinking<'a> {
    graph: Graph,
    most: usize,
    tests: usize,
    still: &'a mut dyn FnMut(&Graph) -> bool,
}

impl Shrinking<'_> {
    fn is_spent(&self) -> bool {
        self.tests >= self.most
    }

    /// Takes a smaller graph in the place of the one that there is, if it shows the same.
    fn takes(&mut self, graph: Graph) -> bool {
        let graph = tidied(graph);
        if size(&graph) >= size(&self.graph) || self.is_spent() || verify_graph(&graph).is_err() {
            return false;
        }
        self.tests += 1;
        let is_taken = (self.still)(&graph);
        if is_taken {
            self.graph = graph;
        }
        is_taken
    }

    fn returning(&self, value: Value) -> Graph {
        let mut graph = self.graph.clone();
        graph.set_outputs(vec![value]);
        graph
    }

    /// One of the outputs.
    fn return_one(&mut self) {
        for value in self.graph.outputs().to_vec() {
            if self.graph.outputs().len() > 1 && self.takes(self.returning(value)) {
                return;
            }
        }
    }

    /// The first value that shows it, in the place of the one that is returned.
    fn return_earlier(&mut self) {
        let [_] = *self.graph.outputs() else { return };
        let results = |graph: &Graph| {
            let nodes = graph.nodes().flat_map(|node| graph.node(node).results.clone());
            Vec::from_iter(nodes)
        };
        let all = results(&self.graph);
        let (mut low, mut high) = (0, all.len().saturating_sub(1));
        let whole = self.graph.clone();
        while low < high {
            let middle = low.midpoint(high);
            let mut graph = whole.clone();
            graph.set_outputs(vec![all[middle]]);
            match self.takes(graph) {
                true => high = middle,
                false => low = middle + 1,
            }
        }
    }

    /// Results of nodes become inputs: of half of them, then of a quarter, to each alone.
    fn cut(&mut self) {
        let mut length = self.graph.order().len().div_ceil(2);
        while length > 0 && !self.is_spent() {
            let mut start = 0;
            while start < self.graph.order().len() {
                let nodes = self.graph.order();
                let end = nodes.len().min(start + length);
                let chosen = nodes[start..end].to_vec();
                // What is left moves up to where the chosen were.
                if !self.takes(with_inputs(&self.graph, &chosen)) {
                    start = end;
                }
            }
            length /= 2;
        }
    }

    /// A node's result is one of its operands.
    fn pass_over(&mut self) {
        let mut at = 0;
        while let Some(&node) = self.graph.order().get(at) {
            let data = self.graph.node(node);
            let candidates = match *data.results.as_slice() {
                [result] => data
                    .operands
                    .iter()
                    .filter(|&&operand| {
                        let is_state = matches!(self.graph.def(operand), ValueDef::State(_));
                        !is_state && self.graph.ty(operand) == self.graph.ty(result)
                    })
                    .map(|&operand| replaced(&self.graph, &[(result, operand)], &[node]))
                    .collect(),
                // An effect, which is left out.
                [] => vec![replaced(&self.graph, &[], &[node])],
                _ => Vec::new(),
            };
            if !candidates.into_iter().any(|graph| self.takes(graph)) {
                at += 1;
            }
        }
    }
}

/// A graph without some nodes, in which values stand for others.
fn replaced(graph: &Graph, values: &[(Value, Value)], gone: &[Node]) -> Graph {
    let mut graph = graph.clone();
    let now = |value: Value| {
        let found = values.iter().find(|(from, _)| *from == value);
        found.map_or(value, |(_, to)| *to)
    };
    let order = Vec::from_iter(graph.nodes().filter(|node| !gone.contains(node)));
    for &node in &order {
        graph.node_mut(node).operands.iter_mut().for_each(|operand| *operand = now(*operand));
    }
    graph.set_outputs(graph.outputs().iter().map(|&value| now(value)).collect());
    graph.set_order(order);
    graph
}

/// A graph in which an input has the place of each result of these nodes, which are gone.
fn with_inputs(graph: &Graph, nodes: &[Node]) -> Graph {
    let mut with = graph.clone();
    let used = graph.inputs().iter().filter_map(|input| input.name.strip_prefix("cut"));
    let first = used.filter_map(|n| n.parse::<usize>().ok()).max().map_or(0, |n| n + 1);
    let results = nodes.iter().flat_map(|&node| &graph.node(node).results);
    let values = (first..).zip(results).map(|(number, &result)| {
        let ty = graph.ty(result).clone();
        // An index that is safe in every table.
        let padding = ty.dtype.is_index().then(|| Scalar::new(ty.dtype, 0.0));
        (result, with.add_input(format!("cut{number}"), ty, padding, None))
    });
    let values = Vec::from_iter(values);
    replaced(&with, &values, nodes)
}

/// A graph without what nothing reads: nodes, weights, states, and inputs that no role names.
fn tidied(mut graph: Graph) -> Graph {
    remove_dead(&mut graph);
    graph.compact();
    let mut is_used = vec![false; graph.value_count()];
    let operands = graph.nodes().flat_map(|node| graph.node(node).operands.clone());
    operands.chain(graph.outputs().to_vec()).for_each(|value| is_used[value.index()] = true);
    let mut tidy = Graph::with_symbols_of(graph.name.clone(), &graph);
    let mut now: Vec<Option<Value>> = vec![None; graph.value_count()];
    for input in graph.inputs() {
        if is_used[input.value.index()] || input.role.is_some() {
            let ty = graph.ty(input.value).clone();
            let new = tidy.add_input(input.name.clone(), ty, input.padding, input.role.clone());
            now[input.value.index()] = Some(new);
        }
    }
    for weight in graph.weights() {
        let new = tidy.add_weight(graph.ty(weight.value).clone(), weight.recipe.clone());
        now[weight.value.index()] = Some(new);
    }
    for state in graph.states() {
        if is_used[state.value.index()] || state.role.is_some() {
            let ty = graph.ty(state.value).clone();
            let new = tidy.add_state(state.name.clone(), ty, state.role.clone());
            now[state.value.index()] = Some(new);
        }
    }
    for node in graph.nodes() {
        let data = graph.node(node);
        let operands = data.operands.iter().filter_map(|value| now[value.index()]).collect();
        let types = graph.result_types(node);
        let new = tidy.push_node(data.op.clone(), operands, types, data.loc.clone());
        for (old, new) in data.results.iter().zip(tidy.node(new).results.clone()) {
            now[old.index()] = Some(new);
        }
    }
    tidy.set_outputs(graph.outputs().iter().filter_map(|value| now[value.index()]).collect());
    tidy
}

#[cfg(test)]
mod tests {
    use super::*;
    use piecewise_ir::builder::Builder;
    use piecewise_ir::dtype::DType;
    use piecewise_ir::op::{Op, UnaryOp};
    use piecewise_ir::text::print_graph;

    /// What shows a fault is the sine of an exponential, somewhere in the middle of everything.
    #[test]
    fn a_graph_shrinks_to_what_shows_the_fault() {
        let b = Builder::new("large").weight_dtype(DType::F32);
        let t = b.symbol("T", 1, 8);
        let x = b.input("x", DType::F32, (t, 4));
        let (slots, kept) =
            (b.input("slots", DType::I32, [t]).padding(-1.0), b.state("kept", DType::F32, (8, 4)));
        kept.scatter(slots, x.tanh());
        let h = x.linear(b.weight("in", [4, 4])).silu().rms_norm(b.weight("norm", [4]), 1e-5);
        let y = (h.exp().sin() * x + h).linear(b.weight("out", [4, 4]));
        let graph = b.finish([y.tanh(), x + x, kept.reduce_sum([1])]).unwrap();
        let is = |graph: &Graph, value: Value, wanted| {
            graph.defining_node(value).is_some_and(|node| graph.node(node).op == Op::Unary(wanted))
        };
        let shows = |graph: &Graph| {
            graph.nodes().any(|node| {
                let data = graph.node(node);
                data.op == Op::Unary(UnaryOp::Sin) && is(graph, data.operands[0], UnaryOp::Exp)
            })
        };
        let found = reduce(&graph, 1000, &mut |graph| shows(graph));
        assert!(found.is_done && found.tests < 60, "{}", found.tests);
        assert_eq!(found.graph.order().len(), 2, "{}", print_graph(&found.graph));
        assert_eq!(size(&found.graph), (2, 1, 1), "{}", print_graph(&found.graph));
        let few = reduce(&graph, 3, &mut |graph| shows(graph));
        assert!(!few.is_done && few.tests == 3 && shows(&few.graph));
    }
}
