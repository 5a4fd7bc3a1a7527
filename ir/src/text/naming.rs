//! What messages about a graph call its values and ops: what its text calls them.

use super::print::{names_in, undefined};
use crate::diagnostic::{Anchor, Diagnostics};
use crate::entity::{Entity, Node, Value};
use crate::graph::{Graph, ValueDef};
use crate::op::Op;
use std::cell::OnceCell;

/// The names that the text of a graph gives, made when the first message needs one.
#[derive(Debug)]
pub struct Names<'g> {
    graph: &'g Graph,
    /// What numbers of unnamed results begin with.
    results: char,
    values: OnceCell<Vec<Option<String>>>,
}

impl<'g> Names<'g> {
    /// The names in the text of `graph`.
    pub fn of(graph: &'g Graph) -> Self {
        Self { graph, results: 'v', values: OnceCell::new() }
    }

    /// The names in the body of a region.
    pub fn of_body(body: &'g Graph) -> Self {
        Self { results: 'a', ..Self::of(body) }
    }

    /// A value: `%ids`, `w0`, `s0`, `v12`; `?` and its id where the text defines none.
    pub fn value(&self, value: Value) -> String {
        let names = self.values.get_or_init(|| names_in(self.graph, self.results));
        names.get(value.index()).cloned().flatten().unwrap_or_else(|| undefined(value))
    }

    /// An op by how its line begins: `v3 = matmul`, or `scatter mut s0` where it has no result.
    pub fn node(&self, node: Node) -> String {
        if node.index() >= self.graph.node_count() {
            return format!("`{}`", undefined(node));
        }
        let data = self.graph.node(node);
        let op = data.op.name();
        match (data.results.first(), data.operands.first()) {
            (Some(&result), _) => format!("`{} = {op}`", self.value(result)),
            (None, Some(&operand)) => {
                let mutated = if data.op.mutated_operands().contains(&0) { "mut " } else { "" };
                format!("`{op} {mutated}{}`", self.value(operand))
            }
            (None, None) => format!("`{op}`"),
        }
    }

    /// What defines a value, in words: a declaration by its name, or a result by its node.
    pub fn definition(&self, def: ValueDef) -> String {
        let declared = |kind: &str, value: Option<Value>| match value {
            Some(value) => format!("{kind} {}", self.value(value)),
            None => format!("a {kind} that is not declared"),
        };
        match def {
            ValueDef::Input(i) => {
                declared("input", self.graph.inputs().get(i).map(|input| input.value))
            }
            ValueDef::Weight(i) => {
                declared("weight", self.graph.weights().get(i).map(|weight| weight.value))
            }
            ValueDef::State(i) => {
                declared("state", self.graph.states().get(i).map(|state| state.value))
            }
            ValueDef::Result { node, index } => format!("result {index} of {}", self.node(node)),
        }
    }

    /// What a finding is about.
    pub fn place(&self, anchor: Anchor) -> String {
        match anchor {
            Anchor::Graph => "the graph".to_owned(),
            Anchor::Symbol(symbol) => match self.graph.symbols().get(symbol) {
                Some(decl) => format!("`dim {}`", decl.name),
                None => format!("`dim {}`", undefined(symbol)),
            },
            Anchor::Value(value) => self.value(value),
            Anchor::Node(node) => self.node(node),
            Anchor::Operand(node, operand) => format!("operand {operand} of {}", self.node(node)),
            Anchor::Body(node, statement) => {
                let is_there = node.index() < self.graph.node_count();
                match is_there.then(|| &self.graph.node(node).op) {
                    Some(Op::Region(region)) => {
                        let body = Names::of_body(&region.body);
                        format!("{} of {}", body.node(statement), self.node(node))
                    }
                    _ => self.node(node),
                }
            }
            Anchor::Outputs => "`ret`".to_owned(),
            Anchor::Piece(piece) => piece.to_string(),
            Anchor::Slot(slot) => slot.to_string(),
        }
    }

    /// Where its author wrote a node, where that is known: `src/model.rs:72`.
    pub fn source(&self, node: Node) -> Option<&'g str> {
        let is_there = node.index() < self.graph.node_count();
        let source = is_there.then(|| self.graph.node(node).loc.source.as_str());
        source.filter(|source| !source.is_empty())
    }

    /// Says in words where each finding is, for those who see no listing.
    pub fn locate(&self, found: &mut Diagnostics) {
        for item in found.items.iter_mut().filter(|item| item.place.is_empty()) {
            item.place = self.place(item.at);
            if let Anchor::Node(node) | Anchor::Operand(node, _) | Anchor::Body(node, _) = item.at
                && let Some(source) = self.source(node)
            {
                item.place += &format!(" ({source})");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entity::{PieceId, Slot, Symbol};
    use crate::text::parse_graph;

    #[test]
    fn messages_call_things_what_the_text_calls_them() {
        let text = r#"graph @g {
  dim T in [1..8]
  input %x: f32[T,4]
  input %slots: i32[T] pad -1
  weight w0: f32[4] = "w"
  state s0: f32[16,4] = "kv"
  v0: f32[T,4] = region over T (%a: row %x) {
    a0: f32[4] = neg %a
    ret a0
  }
  v1: f32[T,4] = add v0, v0
  scatter mut s0, %slots, v1
  ret v1
}
"#;
        let graph = parse_graph(text).unwrap();
        let names = Names::of(&graph);
        let nodes: Vec<Node> = graph.nodes().collect();
        let shown: Vec<String> = nodes.iter().map(|&node| names.node(node)).collect();
        assert_eq!(shown, ["`v0 = region`", "`v1 = add`", "`scatter mut s0`"]);
        let operands = &graph.node(nodes[2]).operands;
        let values: Vec<String> = operands.iter().map(|&value| names.value(value)).collect();
        assert_eq!(values, ["s0", "%slots", "v1"]);
        let (region, add) = (nodes[0], nodes[1]);
        assert_eq!(names.place(Anchor::Operand(add, 1)), "operand 1 of `v1 = add`");
        assert_eq!(names.place(Anchor::Body(region, Node(0))), "`a0 = neg` of `v0 = region`");
        assert_eq!(names.place(Anchor::Symbol(Symbol(0))), "`dim T`");
        assert_eq!(names.place(Anchor::Piece(PieceId(2))), "p2");
        assert_eq!(names.place(Anchor::Slot(Slot(3))), "b3");
        assert_eq!(names.definition(ValueDef::Input(1)), "input %slots");
        assert_eq!(names.definition(ValueDef::Weight(9)), "a weight that is not declared");
        assert_eq!(names.value(Value(99)), "?v99");
        assert_eq!(names.node(Node(99)), "`?n99`");
    }
}
