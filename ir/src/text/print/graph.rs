//! Graphs: declarations, statements, what is returned.

use super::writer::{Mode, Printer, numbered, undefined};
use crate::diagnostic::Anchor;
use crate::dim::Symbols;
use crate::dtype::DType;
use crate::entity::{Entity, Node, Symbol, Value};
use crate::graph::{Graph, InputDecl, Loc};
use crate::literal::Scalar;
use crate::text::names::{printed_name, quoted};
use crate::text::scalar;

/// Which findings can point into a graph's text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::text) enum Anchors {
    /// The graph that is verified.
    Graph,
    /// The body of a region of it.
    Body(Node),
    /// A graph inside a recipe or a unique piece.
    None,
}

/// A graph with the names that its text gives to values.
pub(in crate::text) struct Scope<'g> {
    pub(super) graph: &'g Graph,
    pub(super) anchors: Anchors,
    pub(super) names: Vec<Option<String>>,
}

impl<'g> Scope<'g> {
    /// Numbers weights, states and results of `graph`; `results` is the letter of the latter.
    pub(in crate::text) fn new(
        graph: &'g Graph,
        mode: Mode,
        anchors: Anchors,
        results: char,
    ) -> Self {
        let mut scope = Self { graph, anchors, names: vec![None; graph.value_count()] };
        for (i, input) in graph.inputs().iter().enumerate() {
            let name = match mode {
                Mode::Listing => format!("%{}", printed_name(&input.name)),
                Mode::Canonical => format!("%{i}"),
            };
            scope.define(input.value, name);
        }
        for (i, weight) in graph.weights().iter().enumerate() {
            scope.define(weight.value, numbered('w', i));
        }
        for (i, state) in graph.states().iter().enumerate() {
            scope.define(state.value, numbered('s', i));
        }
        let mut next = 0;
        for node in graph.nodes().filter(|n| n.index() < graph.node_count()) {
            for &result in &graph.node(node).results {
                scope.define(result, numbered(results, next));
                next += 1;
            }
        }
        scope
    }

    fn define(&mut self, value: Value, name: String) {
        if let Some(slot) = self.names.get_mut(value.index()) {
            *slot = Some(name);
        }
    }

    pub(super) fn name(&self, value: Value) -> String {
        let name = self.names.get(value.index()).cloned().flatten();
        name.unwrap_or_else(|| undefined(value))
    }

    pub(super) fn symbols(&self) -> &'g Symbols {
        self.graph.symbols()
    }

    fn anchor(&self, anchor: Anchor) -> Option<Anchor> {
        match (self.anchors, anchor) {
            (Anchors::Graph, anchor) => Some(anchor),
            (Anchors::Body(region), Anchor::Node(node)) => Some(Anchor::Body(region, node)),
            _ => None,
        }
    }

    pub(super) fn operand_anchor(&self, node: Node, operand: usize) -> Option<Anchor> {
        self.anchor(Anchor::Operand(node, operand))
    }
}

impl Printer {
    /// `graph @name {` and all that follows.
    pub(in crate::text) fn graph_document(&mut self, graph: &Graph) {
        self.begin();
        let start = self.here();
        self.put("graph");
        self.graph_name(graph);
        self.mark(Some(Anchor::Graph), start);
        self.put(" {");
        self.end();
        self.graph_block(graph, Anchors::Graph);
        self.line("}");
    }

    /// ` @name`, if the graph has one that counts.
    pub(super) fn graph_name(&mut self, graph: &Graph) {
        if self.mode == Mode::Listing && !graph.name.is_empty() {
            self.put(format_args!(" @{}", printed_name(&graph.name)));
        }
    }

    /// What stands between the braces of a graph that declares its own symbols.
    pub(in crate::text) fn graph_block(&mut self, graph: &Graph, anchors: Anchors) {
        let scope = Scope::new(graph, self.mode, anchors, 'v');
        self.indented(|p| {
            if p.mode == Mode::Listing {
                for symbol in graph.symbols().keys() {
                    p.symbol_decl(&scope, symbol);
                }
            }
            for input in graph.inputs() {
                p.input_decl(&scope, input);
            }
            p.rest_of_block(&scope);
        });
    }

    /// Weights, states, statements and the `ret` line.
    pub(super) fn rest_of_block(&mut self, scope: &Scope<'_>) {
        let graph = scope.graph;
        for weight in graph.weights() {
            self.begin();
            self.declared(scope, "weight", weight.value);
            self.put(" = ");
            self.weight_recipe(scope, weight);
            self.end();
        }
        for state in graph.states() {
            self.begin();
            self.declared(scope, "state", state.value);
            if self.mode == Mode::Listing {
                self.put(format_args!(" = {}", quoted(&state.name)));
            }
            self.role(state.role.as_deref());
            self.end();
        }
        for node in graph.nodes() {
            self.statement(scope, node);
        }
        self.begin();
        let start = self.here();
        self.put("ret");
        for (i, &output) in graph.outputs().iter().enumerate() {
            self.put(if i == 0 { " " } else { ", " });
            self.put(scope.name(output));
        }
        self.mark(scope.anchor(Anchor::Outputs), start);
        self.end();
    }

    fn symbol_decl(&mut self, scope: &Scope<'_>, symbol: Symbol) {
        let decl = &scope.graph.symbols()[symbol];
        self.begin();
        self.put("dim ");
        let start = self.here();
        self.symbol(scope.graph.symbols(), symbol);
        self.put(format_args!(" in [{}..{}]", decl.min, decl.max));
        self.mark(scope.anchor(Anchor::Symbol(symbol)), start);
        self.role(decl.role.as_deref());
        self.end();
    }

    fn input_decl(&mut self, scope: &Scope<'_>, input: &InputDecl) {
        self.begin();
        self.declared(scope, "input", input.value);
        self.padding_and_role(scope.graph.ty(input.value).dtype, input);
        self.end();
    }

    pub(super) fn padding_and_role(&mut self, dtype: DType, input: &InputDecl) {
        if let Some(padding) = input.padding {
            self.put(" pad ");
            self.scalar(padding, dtype);
        }
        self.role(input.role.as_deref());
    }

    pub(super) fn scalar(&mut self, value: Scalar, context: DType) {
        self.put(scalar::print(value, context));
    }

    fn role(&mut self, role: Option<&str>) {
        if let (Mode::Listing, Some(role)) = (self.mode, role) {
            self.put(format_args!(" role {}", quoted(role)));
        }
    }

    fn declared(&mut self, scope: &Scope<'_>, keyword: &str, value: Value) {
        self.put(keyword);
        self.put(' ');
        self.typed(scope, value);
    }

    /// `v0: bf16[T,64]`
    pub(super) fn typed(&mut self, scope: &Scope<'_>, value: Value) {
        let start = self.here();
        self.put(scope.name(value));
        self.put(": ");
        if scope.graph.has_value(value) {
            self.ty(scope.symbols(), scope.graph.ty(value));
        }
        self.mark(scope.anchor(Anchor::Value(value)), start);
    }

    fn statement(&mut self, scope: &Scope<'_>, node: Node) {
        self.begin();
        if node.index() >= scope.graph.node_count() {
            self.put(undefined(node));
            self.end();
            return;
        }
        let data = scope.graph.node(node);
        if !data.results.is_empty() {
            self.list(&data.results, |p, &result| p.typed(scope, result));
            self.put(" = ");
        }
        self.op(scope, node, scope.anchor(Anchor::Node(node)));
        self.end();
    }

    /// `  #"scope" @"file:line"`, as much as there is.
    pub(super) fn loc(&mut self, loc: &Loc) {
        if self.mode == Mode::Canonical {
            return;
        }
        if !loc.scope.is_empty() {
            self.put(format_args!("  #{}", quoted(&loc.scope)));
        }
        if !loc.source.is_empty() {
            self.put(format_args!("  @{}", quoted(&loc.source)));
        }
    }
}
