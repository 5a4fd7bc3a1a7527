//! Declarations: symbols, names, padding, recipes, extents.

use super::integrity::declared;
use crate::diagnostic::{Anchor, Diagnostics};
use crate::graph::Graph;
use crate::types::TensorType;
use crate::weight::Recipe;
use std::collections::BTreeSet;

/// Sizes and counts are `i32` on the device.
const MAX_SIZE: u64 = i32::MAX as u64;

pub(super) fn check(graph: &Graph, found: &mut Diagnostics) {
    symbol_bounds(graph, found);
    names(graph, found);
    inputs(graph, found);
    recipes(graph, found);
    extents(graph, found);
}

pub(super) fn symbol_bounds(graph: &Graph, found: &mut Diagnostics) {
    for (symbol, decl) in graph.symbols().iter() {
        if decl.min > decl.max || decl.max == 0 || decl.max > MAX_SIZE {
            let message = format!(
                "`{}` is declared in [{}..{}]; bounds must hold min <= max and 1 <= max <= {MAX_SIZE}",
                decl.name, decl.min, decl.max
            );
            found.push("V0101", Anchor::Symbol(symbol), message);
        }
    }
}

fn names(graph: &Graph, found: &mut Diagnostics) {
    let mut seen = BTreeSet::new();
    let mut unique = |kind: &'static str, name: &str, at: Anchor| {
        if !seen.insert((kind, name.to_owned())) {
            let message = format!("another {kind} is named `{name}` already; rename one");
            found.push("V0102", at, message);
        }
    };
    for (symbol, decl) in graph.symbols().iter() {
        unique("symbol", &decl.name, Anchor::Symbol(symbol));
    }
    for input in graph.inputs() {
        unique("input", &input.name, Anchor::Value(input.value));
    }
    for state in graph.states() {
        unique("state", &state.name, Anchor::Value(state.value));
    }
}

fn inputs(graph: &Graph, found: &mut Diagnostics) {
    for input in graph.inputs() {
        let dtype = graph.ty(input.value).dtype;
        if dtype.is_narrow() {
            let message = format!(
                "input %{} is {dtype}, a form that weights are kept in; bring it in a wider dtype",
                input.name
            );
            found.push("V0109", Anchor::Value(input.value), message);
        }
        match input.padding {
            None if dtype.is_index() => {
                let message = format!(
                    "input %{} is {dtype}, which may be used as an index, but has no padding value; give one that is safe (0, or -1 for slots)",
                    input.name
                );
                found.push("V0103", Anchor::Value(input.value), message);
            }
            Some(padding) if padding.dtype != dtype => {
                let message = format!(
                    "input %{} is {dtype}, but its padding value is {}",
                    input.name, padding.dtype
                );
                found.push("V0104", Anchor::Value(input.value), message);
            }
            _ => {}
        }
    }
}

pub(super) fn recipes(graph: &Graph, found: &mut Diagnostics) {
    for (i, weight) in graph.weights().iter().enumerate() {
        let at = Anchor::Value(weight.value);
        if let Some(message) = recipe_graphs(&weight.recipe) {
            found.push("V0106", at, format!("the recipe of w{i} has a faulty graph: {message}"));
            continue;
        }
        let declared = graph.ty(weight.value);
        let shown = declared.display(graph.symbols());
        match weight.recipe.ty() {
            Err(reason) => {
                found.push("V0105", at, format!("the recipe of w{i} is faulty: {reason}"));
            }
            Ok(made) if made.static_elements().is_none() => {
                let message = format!("the recipe of w{i} has a symbolic or overflowing shape");
                found.push("V0105", at, message);
            }
            Ok(made) if made != *declared => {
                let made = made.display(graph.symbols()).to_string();
                let message = format!("w{i} is declared {shown}, but its recipe makes {made}");
                found.push("V0105", at, message);
            }
            Ok(_) => {}
        }
    }
}

/// The findings about the graphs in a recipe, on one line.
fn recipe_graphs(recipe: &Recipe) -> Option<String> {
    match recipe {
        Recipe::Graph(graph) => {
            super::graph::verify_graph(graph).err().map(|e| e.to_string().replace('\n', "; "))
        }
        other => other.parts().iter().find_map(recipe_graphs),
    }
}

/// V0107, V0108 and V0109 for every value that the program has.
pub(super) fn extents(graph: &Graph, found: &mut Diagnostics) {
    let symbols = graph.symbols();
    let mut check = |ty: &TensorType, at: Anchor| {
        let shown = ty.display(symbols);
        if let Some(axis) = ty.shape.iter().position(|dim| dim.min(symbols) < 0) {
            let message = format!(
                "dimension {axis} of {shown} is negative at the smallest sizes; raise the bounds"
            );
            found.push("V0107", at, message);
        } else if ty.max_bytes(symbols) > i64::MAX as u64 {
            let message = format!("{shown} does not fit into 2^63 bytes at the largest sizes");
            found.push("V0108", at, message);
        } else if ty.dtype.is_packed()
            && ty.shape.last().is_none_or(|dim| dim.as_constant().is_none())
        {
            let message =
                format!("{shown} has no static innermost axis, along which bytes are shared");
            found.push("V0109", at, message);
        }
    };
    for (value, _) in declared(graph) {
        check(graph.ty(value), Anchor::Value(value));
    }
    for node in graph.nodes() {
        for &result in &graph.node(node).results {
            check(graph.ty(result), Anchor::Value(result));
        }
    }
}
