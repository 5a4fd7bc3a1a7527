//! The plan checker: slots against the graph, offsets against slots.

use super::lifetime::{StepOrder, ids_exist};
use piecewise_ir::diagnostic::{Anchor, Diagnostics};
use piecewise_ir::entity::{Entity, Slot, Value};
use piecewise_ir::graph::{Graph, ValueDef};
use piecewise_ir::module::{ArenaLayout, LiveRange, Module, SlotData, SlotKind, SlotTable};
use piecewise_ir::text::Names;

/// Proves that no two live values of the plan overlap, that everything which memory must hold has
/// a place of its own at the bounds, and that one copy stages a step.
///
/// # Errors
/// All findings, with the codes of [`super`].
pub fn check_plan(module: &Module) -> Result<(), Diagnostics> {
    let mut found = Diagnostics::default();
    let graph = module.graph();
    let (Some(stitch), Some(slots), Some(layout)) =
        (module.stitch(), module.slots(), module.layout())
    else {
        let message = "the module has no whole plan; run `split`, `destination` and `plan` first";
        found.push("B0101", Anchor::Graph, message);
        return Err(found);
    };
    let slots_exist = slots.slots.values().all(|slot| graph.has_value(slot.value));
    if !ids_exist(module, stitch) || !slots_exist {
        let message = "the plan names a value, a node or a member that the module does not have; \
                       make the plan again from this graph";
        found.push("B0102", Anchor::Graph, message);
        return Err(found);
    }
    let order = StepOrder::of(graph, stitch);
    let names = Names::of(graph);
    check_slots(graph, &names, &order, slots, &mut found);
    if check_lists(graph, slots, layout, &mut found) {
        check_extents(graph, &names, slots, layout, &mut found);
        check_staging(graph, &names, slots, layout, &mut found);
        check_overlaps(&names, &order, slots, layout, &mut found);
    }
    names.locate(&mut found);
    found.into_result()
}

fn check_slots(
    graph: &Graph,
    names: &Names<'_>,
    order: &StepOrder<'_>,
    slots: &SlotTable,
    found: &mut Diagnostics,
) {
    let mut slot_of: Vec<Option<Slot>> = vec![None; graph.value_count()];
    for (slot, data) in slots.slots.iter() {
        let value = data.value;
        let name = || names.value(value);
        if let Some(first) = slot_of[value.index()].replace(slot) {
            let message = format!("{} lives in {first} already; give each value one slot", name());
            found.push("B0104", Anchor::Slot(slot), message);
        }
        let Some(needed) = order.lifetime(value) else {
            let message = format!(
                "{} is a weight, a state or no part of the step, so the arena can't hold it",
                name()
            );
            found.push("B0105", Anchor::Slot(slot), message);
            continue;
        };
        let kind = kind_of(graph, order, value);
        if data.kind != kind {
            let message = format!(
                "{} is `{}`, but its slot says `{}`",
                name(),
                kind.name(),
                data.kind.name()
            );
            found.push("B0106", Anchor::Slot(slot), message);
        }
        if data.live.start > needed.start || data.live.end < needed.end {
            let message = format!(
                "{} is live at {}..={}, but its slot says {}..={}; a matmul and the regions \
                 right before and after it are one moment",
                name(),
                needed.start,
                needed.end,
                data.live.start,
                data.live.end
            );
            found.push("B0107", Anchor::Slot(slot), message);
        }
    }
    let results = graph.nodes().flat_map(|n| graph.node(n).results.iter().copied());
    for value in graph.inputs().iter().map(|i| i.value).chain(results) {
        if slot_of[value.index()].is_none() && order.lifetime(value).is_some() {
            let value_name = names.value(value);
            let message = format!("{value_name} has no slot, so nothing can write or read it");
            found.push("B0103", Anchor::Value(value), message);
        }
    }
}

fn kind_of(graph: &Graph, order: &StepOrder<'_>, value: Value) -> SlotKind {
    let ValueDef::Result { node, .. } = graph.def(value) else { return SlotKind::Input };
    if graph.outputs().contains(&value) {
        return SlotKind::Output;
    }
    let own = order.member(node);
    let leaves = order.readers(value).iter().any(|&reader| order.member(reader) != own);
    if leaves { SlotKind::Boundary } else { SlotKind::Local }
}

/// Whether the layout's lists fit the slots, so that the rest can be checked.
fn check_lists(
    graph: &Graph,
    slots: &SlotTable,
    layout: &ArenaLayout,
    found: &mut Diagnostics,
) -> bool {
    let n = slots.slots.len();
    let symbols = graph.symbols();
    if layout.offsets.len() != n || layout.sizes.len() != n || layout.bounds.len() != symbols.len()
    {
        let message = format!(
            "{n} slots and {} symbols, but {} offsets, {} sizes and {} bounds",
            symbols.len(),
            layout.offsets.len(),
            layout.sizes.len(),
            layout.bounds.len()
        );
        found.push("B0205", Anchor::Graph, message);
        return false;
    }
    if !layout.align.is_power_of_two() {
        let message = format!("alignment {} is not a power of two; use 256", layout.align);
        found.push("B0201", Anchor::Graph, message);
        return false;
    }
    for (symbol, decl) in symbols.iter() {
        let bound = layout.bounds[symbol.index()];
        if bound < decl.max {
            let message = format!(
                "the arena was laid out for {} up to {bound}, but it may be {}; plan again",
                decl.name, decl.max
            );
            found.push("B0206", Anchor::Symbol(symbol), message);
        }
    }
    true
}

fn check_extents(
    graph: &Graph,
    names: &Names<'_>,
    slots: &SlotTable,
    layout: &ArenaLayout,
    found: &mut Diagnostics,
) {
    if !layout.bytes.is_multiple_of(layout.align) {
        let message =
            format!("the arena's {} bytes are not a multiple of {}", layout.bytes, layout.align);
        found.push("B0202", Anchor::Graph, message);
    }
    for (slot, data) in slots.slots.iter() {
        let (offset, size) = (layout.offsets[slot.index()], layout.sizes[slot.index()]);
        if !offset.is_multiple_of(layout.align) {
            let message = format!("offset {offset:#x} is not a multiple of {}", layout.align);
            found.push("B0202", Anchor::Slot(slot), message);
        }
        let needed = graph.ty(data.value).max_bytes(graph.symbols());
        if size < needed {
            let value = names.value(data.value);
            let message =
                format!("{value} takes {needed} bytes at the bounds, the slot has {size}");
            found.push("B0204", Anchor::Slot(slot), message);
        }
        let end = offset.checked_add(size.max(needed));
        if end.is_none_or(|end| end > layout.bytes) {
            let message = format!(
                "{size} bytes at {offset:#x} end outside the arena of {} bytes",
                layout.bytes
            );
            found.push("B0203", Anchor::Slot(slot), message);
        }
    }
}

fn check_staging(
    graph: &Graph,
    names: &Names<'_>,
    slots: &SlotTable,
    layout: &ArenaLayout,
    found: &mut Diagnostics,
) {
    let counts_end = layout.counts.saturating_add(4 * graph.symbols().len() as u64);
    if counts_end > layout.staged || !layout.counts.is_multiple_of(4) {
        let message = format!(
            "the true counts at {:#x} are not within the {} staged bytes",
            layout.counts, layout.staged
        );
        found.push("B0401", Anchor::Graph, message);
    }
    for (slot, data) in slots.slots.iter() {
        let range = Bytes::of(layout, slot);
        if range.overlaps(&Bytes { start: layout.counts, end: counts_end }) {
            let message = format!("{} overlaps the true counts", names.value(data.value));
            found.push("B0302", Anchor::Slot(slot), message);
        }
        let is_input = matches!(graph.def(data.value), ValueDef::Input(_));
        if is_input && range.end > layout.staged {
            let message = format!(
                "input {} ends at {:#x}, after the {} bytes that are staged",
                names.value(data.value),
                range.end,
                layout.staged
            );
            found.push("B0402", Anchor::Slot(slot), message);
        }
        if !is_input && range.overlaps(&Bytes { start: 0, end: layout.staged }) {
            let message = format!(
                "{} is inside the {} bytes that staging overwrites",
                names.value(data.value),
                layout.staged
            );
            found.push("B0403", Anchor::Slot(slot), message);
        }
    }
}

struct Bytes {
    start: u64,
    end: u64,
}

impl Bytes {
    fn of(layout: &ArenaLayout, slot: Slot) -> Self {
        let start = layout.offsets[slot.index()];
        Self { start, end: start.saturating_add(layout.sizes[slot.index()]) }
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.start < other.end && other.start < self.end
    }
}

fn check_overlaps(
    names: &Names<'_>,
    order: &StepOrder<'_>,
    slots: &SlotTable,
    layout: &ArenaLayout,
    found: &mut Diagnostics,
) {
    // By start of their bytes, only a slot's neighbours up to its end can overlap it.
    let mut by_start: Vec<(Bytes, Slot, &SlotData, LiveRange)> = slots
        .slots
        .iter()
        .filter_map(|(slot, data)| {
            let live = order.lifetime(data.value)?;
            Some((Bytes::of(layout, slot), slot, data, live))
        })
        .collect();
    by_start.sort_by_key(|(bytes, slot, ..)| (bytes.start, *slot));
    for (i, (bytes, slot, data, live)) in by_start.iter().enumerate() {
        let later = by_start[i + 1..].iter().take_while(|(other, ..)| other.start < bytes.end);
        for (other_bytes, other_slot, other, other_live) in later {
            if bytes.overlaps(other_bytes) && live.overlaps(*other_live) {
                let message = format!(
                    "{} at {:#x} and {} of {slot} at {:#x} overlap, and both are live at {}",
                    names.value(other.value),
                    other_bytes.start,
                    names.value(data.value),
                    bytes.start,
                    live.start.max(other_live.start)
                );
                found.push("B0301", Anchor::Slot(*other_slot), message);
            }
        }
    }
}
