//! Slots: one for each value that memory must hold, of the right kind, for long enough.

use super::rows::crossing;
use crate::diagnostic::{Anchor, Diagnostics};
use crate::entity::{Entity, Node, Value};
use crate::graph::{Graph, ValueDef};
use crate::module::{SlotKind, SlotTable, Stitch};
use crate::text::Names;

/// What a value needs of its slot.
#[derive(Clone, Copy)]
struct Need {
    kind: SlotKind,
    /// The position of the defining node; 0 for inputs.
    defined: usize,
    /// The position of the last reader.
    read: usize,
}

/// Checks P0402 to P0406.
pub(super) fn check(
    graph: &Graph,
    stitch: &Stitch,
    order: &[Node],
    table: &SlotTable,
    found: &mut Diagnostics,
) {
    let needs = needs(graph, stitch, order);
    let names = Names::of(graph);
    let mut slot_of = vec![None; graph.value_count()];
    for (slot, data) in table.slots.iter() {
        let at = Anchor::Slot(slot);
        let Some(&Some(need)) = needs.get(data.value.index()) else {
            let message = format!(
                "{slot} holds {}, which is neither an input nor a result of the step",
                names.value(data.value)
            );
            found.push("P0402", at, message);
            continue;
        };
        if let Some(other) = slot_of[data.value.index()].replace(slot) {
            let value = names.value(data.value);
            let message = format!("{slot} holds {value}, which {other} holds already");
            found.push("P0403", at, message);
        }
        if data.kind != need.kind {
            let message = format!(
                "{slot} is declared `{}`, but {} is `{}`",
                data.kind.name(),
                names.value(data.value),
                need.kind.name()
            );
            found.push("P0405", at, message);
        }
        if data.live.start > need.defined || data.live.end < need.read {
            let message = format!(
                "{slot} lives in {}..={}, but {} is in use in {}..={}",
                data.live.start,
                data.live.end,
                names.value(data.value),
                need.defined,
                need.read
            );
            found.push("P0406", at, message);
        }
    }
    for (index, need) in needs.iter().enumerate() {
        let value = Value::new(index);
        if let (Some(need), None) = (need, slot_of[index]) {
            let message =
                format!("{} has no slot, but is `{}`", names.value(value), need.kind.name());
            found.push("P0404", Anchor::Value(value), message);
        }
    }
}

fn needs(graph: &Graph, stitch: &Stitch, order: &[Node]) -> Vec<Option<Need>> {
    let end = order.len().saturating_sub(1);
    let mut needs = vec![None; graph.value_count()];
    for input in graph.inputs() {
        needs[input.value.index()] = Some(Need { kind: SlotKind::Input, defined: 0, read: end });
    }
    for (at, &node) in order.iter().enumerate() {
        for &result in &graph.node(node).results {
            needs[result.index()] = Some(Need { kind: SlotKind::Local, defined: at, read: at });
        }
        for &operand in &graph.node(node).operands {
            if let Some(need) = &mut needs[operand.index()] {
                need.read = need.read.max(at);
            }
        }
    }
    let result = |v: Value| matches!(graph.def(v), ValueDef::Result { .. });
    for value in crossing(graph, stitch).into_iter().filter(|&v| result(v)) {
        if let Some(need) = &mut needs[value.index()] {
            need.kind = SlotKind::Boundary;
        }
    }
    for &output in graph.outputs().iter().filter(|&&v| result(v)) {
        if let Some(need) = &mut needs[output.index()] {
            *need = Need { kind: SlotKind::Output, read: end, ..*need };
        }
    }
    needs
}
