//! Nodes: program order, types, literals, mutation.

use super::{custom, integrity, region};
use crate::custom::OpDefs;
use crate::diagnostic::{Anchor, Diagnostics};
use crate::entity::{Entity, Node, Value};
use crate::graph::{Graph, ValueDef};
use crate::literal::Literal;
use crate::op::{Op, check_narrow, check_types, infer_type};
use crate::text::Names;

/// Checks V02xx to V05xx.
pub(super) fn check(graph: &Graph, names: &Names<'_>, ops: &OpDefs, found: &mut Diagnostics) {
    let mut defined = vec![false; graph.value_count()];
    for (value, _) in integrity::declared(graph) {
        defined[value.index()] = true;
    }
    for node in graph.nodes() {
        let data = graph.node(node);
        for (i, &operand) in data.operands.iter().enumerate() {
            if !defined[operand.index()] {
                undefined_operand(graph, names, node, i, operand, found);
            }
        }
        types(graph, names, node, found);
        mutation(graph, names, node, found);
        match &data.op {
            Op::Region(r) => region::check(graph, names, node, r, found),
            Op::Custom(call) => custom::check(graph, node, call, ops, found),
            _ => {}
        }
        for &result in &data.results {
            defined[result.index()] = true;
        }
    }
    for (i, &output) in graph.outputs().iter().enumerate() {
        if !defined[output.index()] {
            let message = format!(
                "output {i} is {}, which no op of the program defines",
                names.value(output)
            );
            found.push("V0202", Anchor::Outputs, message);
        }
    }
}

fn undefined_operand(
    graph: &Graph,
    names: &Names<'_>,
    node: Node,
    i: usize,
    operand: Value,
    found: &mut Diagnostics,
) {
    let later = graph.defining_node(operand).filter(|def| graph.order().contains(def));
    let operand = names.value(operand);
    let reader = names.node(node);
    let message = match later {
        Some(def) if def == node => format!("{operand} is read by {reader}, which defines it"),
        Some(def) => {
            let def = names.node(def);
            format!("{operand} is read before it is defined; move {def} before {reader}")
        }
        None => format!("{operand} is read, but the op that defines it is not in the program"),
    };
    found.push("V0201", Anchor::Operand(node, i), message);
}

fn types(graph: &Graph, names: &Names<'_>, node: Node, found: &mut Diagnostics) {
    let data = graph.node(node);
    if let Op::Literal(literal) = &data.op
        && literal.len() > Literal::MAX_ELEMENTS
    {
        let message = format!(
            "a literal of {} elements; at most {} stay exact and readable in text, so make it a weight or a recipe's graph",
            literal.len(),
            Literal::MAX_ELEMENTS
        );
        found.push("V0302", Anchor::Node(node), message);
    }
    let (operands, results) = (graph.operand_types(node), graph.result_types(node));
    if let Err(error) = check_narrow(&data.op, &operands, &results) {
        found.push("V0305", Anchor::Node(node), error.to_string());
    } else if let Err(error) = check_types(&data.op, &operands, &results) {
        let symbols = graph.symbols();
        let describe = |(i, &v): (usize, &Value)| {
            let ty = graph.ty(v).display(symbols);
            let name = names.value(v);
            let Some(def) = graph.defining_node(v) else {
                return format!("operand {i} is {name}: {ty}");
            };
            let (op, scope) = (graph.node(def).op.mnemonic(), &graph.node(def).loc.scope);
            let at = if scope.is_empty() { String::new() } else { format!(" at #\"{scope}\"") };
            format!("operand {i} is {name}: {ty}, defined by `{op}`{at}")
        };
        let mut notes: Vec<String> = data.operands.iter().enumerate().map(describe).collect();
        for (i, &v) in data.results.iter().enumerate() {
            let ty = graph.ty(v).display(symbols);
            notes.push(format!("result {i} is {}: {ty}", names.value(v)));
        }
        if let Ok(Some(fits)) = infer_type(&data.op, &operands)
            && results.first() != Some(&fits)
        {
            notes.push(format!("{} would fit", fits.display(symbols)));
        }
        found.push_with_notes("V0301", Anchor::Node(node), error.to_string(), notes);
    }
}

fn mutation(graph: &Graph, names: &Names<'_>, node: Node, found: &mut Diagnostics) {
    let data = graph.node(node);
    for i in data.op.mutated_operands() {
        // A position out of range is a finding of the op's own rules.
        let Some(&operand) = data.operands.get(i) else { continue };
        let at = Anchor::Operand(node, i);
        if !matches!(graph.def(operand), ValueDef::State(_)) {
            let message = format!(
                "`{}` mutates {}, which is no state; only states can be mutated",
                data.op.mnemonic(),
                names.value(operand)
            );
            found.push("V0303", at, message);
        } else if data.operands.iter().filter(|&&v| v == operand).count() > 1 {
            let message = format!(
                "`{}` mutates {} and has it as another operand too, so what it reads there is unclear; split the op",
                data.op.mnemonic(),
                names.value(operand)
            );
            found.push("V0304", at, message);
        }
    }
}
