//! Regions: a body against the node around it.

use super::{declarations, integrity, nodes};
use crate::custom::OpDefs;
use crate::diagnostic::{Anchor, Diagnostics};
use crate::entity::Node;
use crate::graph::{Graph, ValueDef};
use crate::op::Op;
use crate::region::{ParamMode, Region};
use crate::text::Names;
use crate::types::TensorType;

pub(super) fn check(
    graph: &Graph,
    names: &Names<'_>,
    node: Node,
    region: &Region,
    found: &mut Diagnostics,
) {
    let body = &region.body;
    let at = Anchor::Node(node);
    let mut inner = Diagnostics::default();
    let own_names = Names::of_body(body);
    let sound = integrity::check(body, &own_names, &mut inner);
    if sound {
        declarations::extents(body, &mut inner);
        nodes::check(body, &own_names, &OpDefs::new(), &mut inner);
        // Parameters are mutated through `mut`, not as states of the body.
        inner.items.retain(|item| item.code != "V0303");
    }
    for mut item in inner.items {
        item.at = match item.at {
            Anchor::Node(n) | Anchor::Operand(n, _) => Anchor::Body(node, n),
            Anchor::Value(v) => body.defining_node(v).map_or(at, |n| Anchor::Body(node, n)),
            _ => at,
        };
        item.message = format!("in the region's body: {}", item.message);
        found.items.push(item);
    }
    if !sound {
        return;
    }
    if !body.weights().is_empty() || !body.states().is_empty() {
        let message = format!(
            "the region's body declares {} weights and {} states; pass them as operands",
            body.weights().len(),
            body.states().len()
        );
        found.push("V0403", at, message);
    }
    let symbols = |g: &Graph| g.symbols().values().map(|s| s.name.clone()).collect::<Vec<_>>();
    if symbols(body) != symbols(graph) {
        let message = "the region's body has other symbols than the graph around it";
        found.push("V0408", at, message);
        return;
    }
    outputs(graph, names, node, region, found);
    if params(graph, names, node, region, found) {
        statements(node, region, found);
    }
}

/// Says whether there is one mode and one parameter for each operand.
fn params(
    graph: &Graph,
    names: &Names<'_>,
    node: Node,
    region: &Region,
    found: &mut Diagnostics,
) -> bool {
    let operands = &graph.node(node).operands;
    let (modes, inputs) = (region.params.len(), region.body.inputs().len());
    if modes != operands.len() || inputs != operands.len() {
        let message = format!(
            "the region has {} operands, {modes} modes and {inputs} parameters; there must be one of each",
            operands.len()
        );
        found.push("V0401", Anchor::Node(node), message);
        return false;
    }
    for (i, (&operand, mode)) in operands.iter().zip(&region.params).enumerate() {
        let ty = graph.ty(operand);
        let at = Anchor::Operand(node, i);
        let symbols = graph.symbols();
        let param = &region.body.inputs()[i];
        let expected = match mode {
            ParamMode::Row if ty.outer_symbol() != Some(region.over) => {
                let message = format!(
                    "parameter %{} takes rows, but {} is {}, whose outermost dimension is not the region's symbol",
                    param.name,
                    names.value(operand),
                    ty.display(symbols)
                );
                found.push("V0402", at, message);
                continue;
            }
            ParamMode::Row => ty.row(),
            ParamMode::Whole | ParamMode::Mut => ty.clone(),
        };
        let declared = region.body.ty(param.value);
        if *declared != expected {
            let message = format!(
                "parameter %{} is {}, but {} gives {}",
                param.name,
                declared.display(symbols),
                names.value(operand),
                expected.display(symbols)
            );
            found.push("V0402", at, message);
        }
    }
    true
}

fn outputs(graph: &Graph, names: &Names<'_>, node: Node, region: &Region, found: &mut Diagnostics) {
    let results = &graph.node(node).results;
    let outputs = region.body.outputs();
    if results.len() != outputs.len() {
        let message = format!(
            "the region's body returns {} values, but the region has {} results",
            outputs.len(),
            results.len()
        );
        found.push("V0405", Anchor::Node(node), message);
        return;
    }
    for (&result, &output) in results.iter().zip(outputs) {
        let (whole, row) = (graph.ty(result), region.body.ty(output));
        if whole.outer_symbol() != Some(region.over) || whole.row() != *row {
            let message = format!(
                "{} is {}, but the body returns rows {} over `{}`",
                names.value(result),
                whole.display(graph.symbols()),
                row.display(graph.symbols()),
                graph.symbols()[region.over].name
            );
            found.push("V0405", Anchor::Node(node), message);
        }
    }
}

fn statements(node: Node, region: &Region, found: &mut Diagnostics) {
    let body = &region.body;
    let names = Names::of_body(body);
    let is_mut = |value| match body.def(value) {
        ValueDef::Input(i) => region.params.get(i) == Some(&ParamMode::Mut),
        _ => false,
    };
    for statement in body.nodes() {
        let data = body.node(statement);
        let at = Anchor::Body(node, statement);
        if matches!(
            data.op,
            Op::MatMul { .. } | Op::ScaledMatMul { .. } | Op::Custom(_) | Op::Region(_)
        ) {
            let message =
                format!("a region's body can't have `{}`; leave it outside", data.op.mnemonic());
            found.push("V0404", at, message);
        }
        for (i, &operand) in data.operands.iter().enumerate() {
            let destination = matches!(data.op, Op::Scatter) && i == 0;
            match (destination, is_mut(operand)) {
                (true, false) => {
                    let operand = names.value(operand);
                    let message = format!("scatters into {operand}, which is no `mut` parameter");
                    found.push("V0406", at, message);
                }
                (false, true) => {
                    let message = format!(
                        "reads {}, a `mut` parameter that other rows write at the same time; cut the region before the read",
                        names.value(operand)
                    );
                    found.push("V0407", at, message);
                }
                _ => {}
            }
        }
        for &result in &data.results {
            let ty: &TensorType = body.ty(result);
            if ty.mentions(region.over) {
                let message = format!(
                    "{} is {}, but a body computes one row of `{}`",
                    names.value(result),
                    ty.display(body.symbols()),
                    body.symbols()[region.over].name
                );
                found.push("V0409", at, message);
            }
        }
    }
    if body.outputs().iter().any(|&output| is_mut(output)) {
        let message =
            "the region's body returns a `mut` parameter; read the state after the region";
        found.push("V0407", Anchor::Node(node), message);
    }
}
