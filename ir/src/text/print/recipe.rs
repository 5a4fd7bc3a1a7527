//! Recipes: how the bytes of a weight come about.

use super::graph::{Anchors, Scope};
use super::writer::Printer;
use crate::graph::{Graph, WeightDecl};
use crate::text::names::quoted;
use crate::weight::Recipe;

impl Printer {
    /// The recipe of a weight; the type of a plain checkpoint tensor is left out where it is the
    /// declared one.
    pub(super) fn weight_recipe(&mut self, scope: &Scope<'_>, weight: &WeightDecl) {
        match &weight.recipe {
            Recipe::Checkpoint { name, ty } if ty == scope.graph.ty(weight.value) => {
                self.source(name);
            }
            recipe => self.recipe(scope, recipe),
        }
    }

    fn recipe(&mut self, scope: &Scope<'_>, recipe: &Recipe) {
        match recipe {
            Recipe::Checkpoint { name, ty } => {
                self.source(name);
                self.put(": ");
                self.ty(scope.symbols(), ty);
            }
            Recipe::Concat { axis, parts } => {
                self.put(format_args!("concat{{axis={axis}}}("));
                self.list(parts, |p, part| p.recipe(scope, part));
                self.put(')');
            }
            Recipe::Slice { axis, start, len, of } => {
                self.put(format_args!("slice{{axis={axis}, start={start}, len={len}}}("));
                self.recipe(scope, of);
                self.put(')');
            }
            Recipe::Transpose { perm, of } => {
                self.put(format_args!("transpose{{perm={perm:?}}}("));
                self.recipe(scope, of);
                self.put(')');
            }
            Recipe::Cast { to, of } => {
                self.put(format_args!("cast{{to={to}}}("));
                self.recipe(scope, of);
                self.put(')');
            }
            Recipe::Reshape { shape, of } => {
                self.put(format_args!("reshape{{shape={shape:?}}}("));
                self.recipe(scope, of);
                self.put(')');
            }
            Recipe::Broadcast { shape, of } => {
                self.put(format_args!("broadcast{{shape={shape:?}}}("));
                self.recipe(scope, of);
                self.put(')');
            }
            Recipe::Unpack { axis, order, less, len, of } => {
                self.put(format_args!(
                    "unpack{{axis={axis}, order={order:?}, less={less}, len={len}}}("
                ));
                self.recipe(scope, of);
                self.put(')');
            }
            Recipe::Graph(graph) => self.recipe_graph(graph),
        }
    }

    fn source(&mut self, name: &str) {
        match self.sources.get(name).copied() {
            Some(number) => self.put(format_args!("\"{number}\"")),
            None => self.put(quoted(name)),
        }
    }

    fn recipe_graph(&mut self, graph: &Graph) {
        self.put("graph");
        self.graph_name(graph);
        self.put(" {");
        self.end();
        // Its symbols are its own.
        let outer = std::mem::take(&mut self.seen_symbols);
        self.graph_block(graph, Anchors::None);
        self.seen_symbols = outer;
        self.begin();
        self.put('}');
    }
}
