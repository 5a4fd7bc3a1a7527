//! Calls of custom ops, against themselves and against their definitions.

use crate::custom::{CustomCall, OpDefs};
use crate::diagnostic::{Anchor, Diagnostics};
use crate::entity::Node;
use crate::graph::Graph;

pub(super) fn check(
    graph: &Graph,
    node: Node,
    call: &CustomCall,
    ops: &OpDefs,
    found: &mut Diagnostics,
) {
    let operands = graph.node(node).operands.len();
    let positions = operands + graph.node(node).results.len();
    let name = &call.name;
    let ascend = |list: &[usize]| list.is_sorted_by(|a, b| a < b);
    if !ascend(&call.mutates) || call.mutates.iter().any(|&i| i >= operands) {
        let message = format!(
            "\"{name}\" says that it mutates operands {:?} of {operands}; positions must ascend and be in range",
            call.mutates
        );
        found.push("V0501", Anchor::Node(node), message);
        return;
    }
    let is_absorbable = |i: &usize| *i < positions && !call.mutates.contains(i);
    if !ascend(&call.absorbs) || !call.absorbs.iter().all(is_absorbable) {
        let message = format!(
            "\"{name}\" says that it absorbs at {:?} of {positions} operands and results; positions must ascend, be in range and be none that it mutates",
            call.absorbs
        );
        found.push("V0501", Anchor::Node(node), message);
        return;
    }
    let operand = |i: usize| graph.node(node).operands.get(i);
    let is_slots = |i: usize| operand(i).is_some_and(|&slots| graph.ty(slots).dtype.is_index());
    if !call.scatters.iter().all(|&(state, at)| call.mutates.contains(&state) && is_slots(at)) {
        let message = format!(
            "\"{name}\" says that it scatters at {:?} of {operands} operands; each names a state that it mutates and i32 or i64 slots",
            call.scatters
        );
        found.push("V0501", Anchor::Node(node), message);
        return;
    }
    let Some(def) = ops.get(name) else { return };
    let mut differs = |what: &str, call: String, def: String| {
        if call != def {
            let message =
                format!("this call of \"{name}\" says {what} {call}, but its definition {def}");
            found.push("V0502", Anchor::Node(node), message);
        }
    };
    differs("mutates", format!("{:?}", call.mutates), format!("{:?}", def.mutates()));
    differs("rows", call.rows.name().to_owned(), def.rows().name().to_owned());
    differs("splits", call.splits.to_string(), def.splits().to_string());
    differs("absorbs", format!("{:?}", call.absorbs), format!("{:?}", def.absorbs()));
    // A call that mutates other operands can't but scatter into others, too.
    if call.mutates == def.mutates() {
        differs("scatters", format!("{:?}", call.scatters), format!("{:?}", def.scatters()));
    }
    match def.infer(&graph.operand_types(node), &call.attrs) {
        Err(reason) => {
            let message = format!("\"{name}\" does not take these operands: {reason}");
            found.push("V0503", Anchor::Node(node), message);
        }
        Ok(inferred) if inferred != graph.result_types(node) => {
            let shown: Vec<String> =
                inferred.iter().map(|ty| ty.display(graph.symbols()).to_string()).collect();
            let message = format!("\"{name}\" gives ({}) for these operands", shown.join(", "));
            found.push("V0503", Anchor::Node(node), message);
        }
        Ok(_) => {}
    }
}
