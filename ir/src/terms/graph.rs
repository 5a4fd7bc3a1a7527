//! The graph: SSA values over tensors and a node list in program order.
//!
//! Order matters because ops can mutate states, so the node list is the truth; the def-use graph
//! is derived from it where a pass needs one.

use crate::dim::{SymbolDecl, Symbols};
use crate::entity::{Arena, Entity, Node, Symbol, Value};
use crate::literal::Scalar;
use crate::op::Op;
use crate::types::TensorType;
use crate::weight::Recipe;

/// Where a value comes from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, serde::Serialize, serde::Deserialize)]
pub enum ValueDef {
    /// The input at this position.
    Input(usize),
    /// The weight at this position.
    Weight(usize),
    /// The state at this position.
    State(usize),
    /// A result of a node.
    Result {
        /// The op whose result it is.
        node: Node,
        /// The position among its results.
        index: usize,
    },
}

/// An input: what a step brings.
#[derive(Clone, PartialEq, Debug, serde::Serialize, serde::Deserialize)]
pub struct InputDecl {
    /// Its name in text, after `%`; unique among inputs.
    pub name: String,
    /// What ops read it by.
    pub value: Value,
    /// What padding rows hold. Index-typed inputs need one that is safe to use.
    pub padding: Option<Scalar>,
    /// What the runtime puts there; carried and printed, never interpreted here.
    pub role: Option<String>,
}

/// A weight: bytes that are made once at load.
#[derive(Clone, PartialEq, Debug, serde::Serialize, serde::Deserialize)]
pub struct WeightDecl {
    /// What ops read it by.
    pub value: Value,
    /// How its bytes come about.
    pub recipe: Recipe,
}

/// A state: memory that ops mutate and that lives from step to step.
#[derive(Clone, PartialEq, Debug, serde::Serialize, serde::Deserialize)]
pub struct StateDecl {
    /// Its name, unique among states: `model.layers.0.k`.
    pub name: String,
    /// What ops read it by, and mutate.
    pub value: Value,
    /// What the runtime does with it; carried and printed, never interpreted here.
    pub role: Option<String>,
}

/// Where a node was written: for people, never part of a piece's identity.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Loc {
    /// The builder's scope: `model.layers.3.mlp`.
    pub scope: String,
    /// The author's source line: `src/models/decoder.rs:42`.
    pub source: String,
}

/// An op with its operands and results: one line of a graph's text.
#[derive(Clone, PartialEq, Debug, serde::Serialize, serde::Deserialize)]
pub struct NodeData {
    /// The op, with its attributes.
    pub op: Op,
    /// What it reads, and states that it mutates.
    pub operands: Vec<Value>,
    /// The values that it defines, one for each result of the op.
    pub results: Vec<Value>,
    /// Scope and source line of the author's call.
    pub loc: Loc,
}

#[derive(Clone, PartialEq, Debug, serde::Serialize, serde::Deserialize)]
struct ValueData {
    ty: TensorType,
    def: ValueDef,
}

/// A tensor program: symbols, inputs, weights, states, nodes in program order, outputs.
#[derive(Clone, PartialEq, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Graph {
    /// Its name in text, after `@`.
    pub name: String,
    symbols: Symbols,
    values: Arena<Value, ValueData>,
    inputs: Vec<InputDecl>,
    weights: Vec<WeightDecl>,
    states: Vec<StateDecl>,
    nodes: Arena<Node, NodeData>,
    order: Vec<Node>,
    outputs: Vec<Value>,
}

impl Graph {
    /// A graph of this name without symbols, values or nodes.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// An empty graph with the same symbols under the same ids, as a region's body needs it.
    pub fn with_symbols_of(name: impl Into<String>, other: &Self) -> Self {
        Self { name: name.into(), symbols: other.symbols.clone(), ..Self::default() }
    }

    /// Declares a symbol with inclusive bounds.
    pub fn add_symbol(&mut self, decl: SymbolDecl) -> Symbol {
        self.symbols.push(decl)
    }

    /// Adds an input of type `ty`, after those that there are, and returns its value.
    pub fn add_input(
        &mut self,
        name: impl Into<String>,
        ty: TensorType,
        padding: Option<Scalar>,
        role: Option<String>,
    ) -> Value {
        let value = self.values.push(ValueData { ty, def: ValueDef::Input(self.inputs.len()) });
        self.inputs.push(InputDecl { name: name.into(), value, padding, role });
        value
    }

    /// Gives an input or a state a role; `false` where `value` is neither.
    pub(crate) fn set_role(&mut self, value: Value, role: &str) -> bool {
        let declared = match self.values[value].def {
            ValueDef::Input(i) => &mut self.inputs[i].role,
            ValueDef::State(i) => &mut self.states[i].role,
            ValueDef::Weight(_) | ValueDef::Result { .. } => return false,
        };
        *declared = Some(role.to_owned());
        true
    }

    /// Says what padding rows of an input hold; `false` where `value` is none.
    pub(crate) fn set_padding(&mut self, value: Value, padding: Scalar) -> bool {
        let ValueDef::Input(i) = self.values[value].def else { return false };
        self.inputs[i].padding = Some(padding);
        true
    }

    /// Adds a weight of type `ty`, which the verifier holds against the recipe's.
    pub fn add_weight(&mut self, ty: TensorType, recipe: Recipe) -> Value {
        let value = self.values.push(ValueData { ty, def: ValueDef::Weight(self.weights.len()) });
        self.weights.push(WeightDecl { value, recipe });
        value
    }

    /// Adds a state of type `ty`, after those that there are, and returns its value.
    pub fn add_state(
        &mut self,
        name: impl Into<String>,
        ty: TensorType,
        role: Option<String>,
    ) -> Value {
        let value = self.values.push(ValueData { ty, def: ValueDef::State(self.states.len()) });
        self.states.push(StateDecl { name: name.into(), value, role });
        value
    }

    /// Appends a node and returns it; its results have the types `results`, which the verifier
    /// holds against the op.
    pub fn push_node(
        &mut self,
        op: Op,
        operands: Vec<Value>,
        results: Vec<TensorType>,
        loc: Loc,
    ) -> Node {
        let node = Node::new(self.nodes.len());
        let results = results
            .into_iter()
            .enumerate()
            .map(|(index, ty)| {
                self.values.push(ValueData { ty, def: ValueDef::Result { node, index } })
            })
            .collect();
        self.order.push(node);
        self.nodes.push(NodeData { op, operands, results, loc })
    }

    /// Appends a node of one result and returns that.
    pub fn push(&mut self, op: Op, operands: Vec<Value>, result: TensorType, loc: Loc) -> Value {
        let node = self.push_node(op, operands, vec![result], loc);
        self.nodes[node].results[0]
    }

    /// Replaces what the graph returns.
    pub fn set_outputs(&mut self, outputs: Vec<Value>) {
        self.outputs = outputs;
    }

    /// Replaces the program order. A node left out is dead until [`Self::compact`] drops it.
    pub fn set_order(&mut self, order: Vec<Node>) {
        self.order = order;
    }

    /// The declared symbols with their bounds, in the order of declaration.
    pub fn symbols(&self) -> &Symbols {
        &self.symbols
    }

    /// Looks a declared symbol up; `None` where nothing is called so.
    pub fn symbol_named(&self, name: &str) -> Option<Symbol> {
        self.symbols.iter().find(|(_, decl)| decl.name == name).map(|(symbol, _)| symbol)
    }

    /// Changes a symbol's bounds; used when a limit is configured.
    pub fn set_symbol_bounds(&mut self, symbol: Symbol, min: u64, max: u64) {
        self.symbols[symbol].min = min;
        self.symbols[symbol].max = max;
    }

    /// The inputs as declared: [`ValueDef::Input`] is a position in them.
    pub fn inputs(&self) -> &[InputDecl] {
        &self.inputs
    }

    /// The weights as declared: [`ValueDef::Weight`] is a position in them.
    pub fn weights(&self) -> &[WeightDecl] {
        &self.weights
    }

    /// The states as declared: [`ValueDef::State`] is a position in them.
    pub fn states(&self) -> &[StateDecl] {
        &self.states
    }

    /// The returned values in order; one may occur twice.
    pub fn outputs(&self) -> &[Value] {
        &self.outputs
    }

    /// The nodes in program order.
    pub fn nodes(&self) -> impl DoubleEndedIterator<Item = Node> + ExactSizeIterator + '_ {
        self.order.iter().copied()
    }

    /// The nodes in the order in which they run: it is the truth, since ops mutate states.
    pub fn order(&self) -> &[Node] {
        &self.order
    }

    /// A node's op, operands, results and place.
    pub fn node(&self, node: Node) -> &NodeData {
        &self.nodes[node]
    }

    /// A node, to change its op, operands or location in place.
    pub fn node_mut(&mut self, node: Node) -> &mut NodeData {
        &mut self.nodes[node]
    }

    /// Whether `value` belongs to this graph.
    pub fn has_value(&self, value: Value) -> bool {
        value.index() < self.values.len()
    }

    /// The number of values, dead ones included: a bound for side tables.
    pub fn value_count(&self) -> usize {
        self.values.len()
    }

    /// The number of nodes, dead ones included: a bound for side tables.
    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// The dtype and shape of a value.
    pub fn ty(&self, value: Value) -> &TensorType {
        &self.values[value].ty
    }

    /// Where a value comes from.
    pub fn def(&self, value: Value) -> ValueDef {
        self.values[value].def
    }

    /// The node that defines `value`, if one does.
    pub fn defining_node(&self, value: Value) -> Option<Node> {
        match self.values[value].def {
            ValueDef::Result { node, .. } => Some(node),
            _ => None,
        }
    }

    /// What a node scatters into which state at which slots; in a region, slots that its body computes
    /// are `None`. A custom op may write other rows of the state, too.
    pub fn scatters(&self, node: Node) -> Vec<(Value, Option<Value>)> {
        let data = self.node(node);
        match &data.op {
            Op::Scatter => vec![(data.operands[0], Some(data.operands[1]))],
            Op::Region(region) => {
                let body = &region.body;
                let outside = |value: Value| match body.def(value) {
                    ValueDef::Input(i) => data.operands.get(i).copied(),
                    _ => None,
                };
                let nodes = body.nodes().map(|node| body.node(node));
                let scatters = nodes.filter(|inner| inner.op == Op::Scatter);
                scatters
                    .filter_map(|at| Some((outside(at.operands[0])?, outside(at.operands[1]))))
                    .collect()
            }
            Op::Custom(call) => {
                let operand = |i: usize| data.operands.get(i).copied();
                let scatters = call.scatters.iter();
                scatters.filter_map(|&(state, at)| Some((operand(state)?, operand(at)))).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The first result of `node`.
    pub fn result(&self, node: Node) -> Value {
        self.nodes[node].results[0]
    }

    /// The types of a node's operands.
    pub fn operand_types(&self, node: Node) -> Vec<TensorType> {
        self.nodes[node].operands.iter().map(|&v| self.values[v].ty.clone()).collect()
    }

    /// The types of a node's results.
    pub fn result_types(&self, node: Node) -> Vec<TensorType> {
        self.nodes[node].results.iter().map(|&v| self.values[v].ty.clone()).collect()
    }

    /// Drops dead nodes and renumbers values and nodes in the order in which text shows them.
    /// Inputs and states stay, used or not, for they are the caller's; unused weights go.
    pub fn compact(&mut self) {
        let mut used = vec![false; self.values.len()];
        for &node in &self.order {
            for operand in &self.nodes[node].operands {
                used[operand.index()] = true;
            }
        }
        for output in &self.outputs {
            used[output.index()] = true;
        }
        let mut fresh = Self::new(std::mem::take(&mut self.name));
        fresh.symbols = std::mem::take(&mut self.symbols);
        let mut map = vec![None; self.values.len()];
        for input in &self.inputs {
            let ty = self.values[input.value].ty.clone();
            map[input.value.index()] =
                Some(fresh.add_input(input.name.clone(), ty, input.padding, input.role.clone()));
        }
        for weight in &self.weights {
            if used[weight.value.index()] {
                let ty = self.values[weight.value].ty.clone();
                map[weight.value.index()] = Some(fresh.add_weight(ty, weight.recipe.clone()));
            }
        }
        for state in &self.states {
            let ty = self.values[state.value].ty.clone();
            map[state.value.index()] =
                Some(fresh.add_state(state.name.clone(), ty, state.role.clone()));
        }
        let renamed = |map: &[Option<Value>], v: Value| map[v.index()].unwrap_or(v);
        for &node in &self.order {
            let data = &self.nodes[node];
            let operands = data.operands.iter().map(|&v| renamed(&map, v)).collect();
            let types = data.results.iter().map(|&v| self.values[v].ty.clone()).collect();
            let new = fresh.push_node(data.op.clone(), operands, types, data.loc.clone());
            for (&old, &now) in data.results.iter().zip(&fresh.nodes[new].results) {
                map[old.index()] = Some(now);
            }
        }
        fresh.outputs = self.outputs.iter().map(|&v| renamed(&map, v)).collect();
        *self = fresh;
    }
}
