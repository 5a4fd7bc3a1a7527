//! The plan checker: lifetimes against the order of the step, bytes against lifetimes.

use super::lifetime::StepOrder;
use piecewise_ir::diagnostic::{Anchor, Diagnostics};
use piecewise_ir::entity::{Entity, Slot};
use piecewise_ir::graph::{Graph, ValueDef};
use piecewise_ir::module::{ArenaLayout, LiveRange, Module, SlotData, SlotTable};
use piecewise_ir::text::Names;
use piecewise_ir::verify::verify_module;

/// Proves that no two live values of the plan overlap, that everything which memory must hold has
/// a place of its own at the bounds, and that one copy stages a step. That each value has its slot
/// and each slot its bytes are rules of the module, which are looked at first.
///
/// # Errors
/// The findings of [`verify_module`]; where there are none all others, with the codes of [`super`].
pub fn check_plan(module: &Module) -> Result<(), Diagnostics> {
    if module.layout().is_some() {
        verify_module(module)?;
    }
    find_overlaps(module)
}

/// The same of a module that was verified.
pub(crate) fn find_overlaps(module: &Module) -> Result<(), Diagnostics> {
    let mut found = Diagnostics::default();
    let graph = module.graph();
    let (Some(stitch), Some(slots), Some(layout)) =
        (module.stitch(), module.slots(), module.layout())
    else {
        let message = "the module has no whole plan; run `split`, `destination` and `plan` first";
        found.push("B0101", Anchor::Graph, message);
        return Err(found);
    };
    let order = StepOrder::of(graph, stitch);
    let names = Names::of(graph);
    check_lifetimes(&names, &order, slots, &mut found);
    check_bounds(graph, layout, &mut found);
    check_staging(graph, &names, slots, layout, &mut found);
    check_overlaps(&names, &order, slots, layout, &mut found);
    names.locate(&mut found);
    found.into_result()
}

fn check_lifetimes(
    names: &Names<'_>,
    order: &StepOrder<'_>,
    slots: &SlotTable,
    found: &mut Diagnostics,
) {
    for (slot, data) in slots.slots.iter() {
        let Some(needed) = order.lifetime(data.value) else { continue };
        if data.live.start > needed.start || data.live.end < needed.end {
            let message = format!(
                "{} is live at {}..={}, but its slot says {}..={}; a matmul, or a custom op \
                 that absorbs, and the regions right before and after it are one moment",
                names.value(data.value),
                needed.start,
                needed.end,
                data.live.start,
                data.live.end
            );
            found.push("B0107", Anchor::Slot(slot), message);
        }
    }
}

fn check_bounds(graph: &Graph, layout: &ArenaLayout, found: &mut Diagnostics) {
    for (symbol, decl) in graph.symbols().iter() {
        let bound = layout.bounds[symbol.index()];
        if bound < decl.max {
            let message = format!(
                "the arena was laid out for {} up to {bound}, but it may be {}; plan again",
                decl.name, decl.max
            );
            found.push("B0206", Anchor::Symbol(symbol), message);
        }
    }
}

/// What is staged is all inputs and the true counts; nothing else may lie there.
fn check_staging(
    graph: &Graph,
    names: &Names<'_>,
    slots: &SlotTable,
    layout: &ArenaLayout,
    found: &mut Diagnostics,
) {
    for (slot, data) in slots.slots.iter() {
        let is_input = matches!(graph.def(data.value), ValueDef::Input(_));
        let staged = Bytes { start: 0, end: layout.staged };
        if !is_input && Bytes::of(layout, slot).overlaps(&staged) {
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
