//! Destination passing: every input and every result gets a slot that its writer writes in place,
//! and a lifetime over the order of the step.
//!
//! An index remap outside a region gets a slot of its own: it is a copy, never a view, so that
//! no two slots share bytes while both are live.

mod lifetime;

pub use lifetime::read_by_repeated_members;

use crate::manager::PassError;
use lifetime::Lifetimes;
use piecewise_ir::entity::{Arena, Entity, Node, Slot, Value};
use piecewise_ir::graph::Graph;
use piecewise_ir::module::{LiveRange, Module, SlotData, SlotKind, SlotTable, Stitch};
use std::collections::BTreeSet;

/// How many slots values got, by what the slots are for.
#[derive(Clone, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct SlotReport {
    /// Slots that the host stages.
    pub inputs: usize,
    /// Slots of values that cross from one member to another.
    pub boundaries: usize,
    /// Slots of values of one member alone.
    pub locals: usize,
    /// Slots of what the graph returns.
    pub outputs: usize,
    /// Index remaps outside regions: each copies its operand into a slot of its own.
    pub copies: Vec<Node>,
}

/// Gives every input and every result a slot with its lifetime. Offsets are dropped.
///
/// # Errors
/// When the module is not split.
pub fn assign_slots(module: &mut Module) -> Result<SlotReport, PassError> {
    let (pass, needs, run_first) = ("destination", "the order of the step", "split");
    let stitch = module.stitch().ok_or_else(|| PassError::Missing {
        pass: pass.to_owned(),
        needs,
        run_first,
    })?;
    let graph = module.graph();
    let order = stitch.node_order();
    let lifetimes = Lifetimes::of(graph, stitch);
    let crosses = crossing_values(graph, stitch);
    let last = order.len().saturating_sub(1);

    let mut report = SlotReport::default();
    let mut slots: Arena<Slot, SlotData> = Arena::new();
    for input in graph.inputs() {
        let live = LiveRange { start: 0, end: last };
        slots.push(SlotData { value: input.value, kind: SlotKind::Input, live });
        report.inputs += 1;
    }
    for &node in &order {
        let data = graph.node(node);
        for &value in &data.results {
            let mut live = lifetimes.live(value);
            let kind = if graph.outputs().contains(&value) {
                live.end = last;
                report.outputs += 1;
                SlotKind::Output
            } else if crosses[value.index()] {
                report.boundaries += 1;
                SlotKind::Boundary
            } else {
                report.locals += 1;
                SlotKind::Local
            };
            slots.push(SlotData { value, kind, live });
        }
        if data.op.is_remap() {
            report.copies.push(node);
        }
    }
    module.set_slots(SlotTable { slots });
    Ok(report)
}

/// By value: whether another member than its own reads it.
fn crossing_values(graph: &Graph, stitch: &Stitch) -> Vec<bool> {
    let mut crosses = vec![false; graph.value_count()];
    for usage in stitch.uses.values() {
        let own: BTreeSet<Value> =
            usage.nodes.iter().flat_map(|&n| graph.node(n).results.iter().copied()).collect();
        for &operand in usage.nodes.iter().flat_map(|&n| &graph.node(n).operands) {
            crosses[operand.index()] |= !own.contains(&operand);
        }
    }
    crosses
}
