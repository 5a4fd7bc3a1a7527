//! Lifetimes that are too short wherever a launch absorbs.

use piecewise_ir::module::{LiveRange, Module, SlotKind};
use piecewise_passes::destination::{assign_slots, read_by_repeated_members};
use piecewise_passes::manager::PassError;

/// Gives every input and every result a slot that lives from its writer to its last reader. This is
/// **wrong** as soon as a lowering gives a part of a region to another node: it shows that the checks
/// of launches refuse such a plan. Offsets are dropped.
///
/// # Errors
/// When the module is not split.
pub fn assign_node_granular_slots(module: &mut Module) -> Result<(), PassError> {
    assign_slots(module)?;
    let (Some(stitch), Some(slots)) = (module.stitch(), module.slots()) else { return Ok(()) };
    let (graph, order, mut table) = (module.graph(), stitch.node_order(), slots.clone());
    let last = order.len().saturating_sub(1);
    let outlasting = read_by_repeated_members(graph, stitch);
    for slot in table.slots.values_mut().filter(|slot| slot.kind != SlotKind::Input) {
        let value = slot.value;
        let writes = order.iter().position(|&node| graph.node(node).results.contains(&value));
        let reads = order.iter().rposition(|&node| graph.node(node).operands.contains(&value));
        let start = writes.unwrap_or(0);
        let end = reads.unwrap_or(start).max(start);
        let is_last = slot.kind == SlotKind::Output || outlasting.contains(&value);
        slot.live = LiveRange { start, end: if is_last { last } else { end } };
    }
    module.set_slots(table);
    Ok(())
}
