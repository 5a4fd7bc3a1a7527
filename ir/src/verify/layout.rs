//! Layout: aligned offsets, sizes that cover their types, and one staged prefix.

use crate::diagnostic::{Anchor, Diagnostics};
use crate::entity::{Entity, Slot};
use crate::graph::Graph;
use crate::module::{ArenaLayout, SlotKind, SlotTable};
use crate::text::Names;

/// Bytes of a true count: an `i32`.
const COUNT_BYTES: u64 = 4;

/// Checks P0501 to P0506.
pub(super) fn check(
    graph: &Graph,
    table: &SlotTable,
    layout: &ArenaLayout,
    found: &mut Diagnostics,
) {
    if !layout.align.is_power_of_two() {
        let message = format!("the alignment {} is no power of two", layout.align);
        found.push("P0501", Anchor::Graph, message);
        return;
    }
    let (slots, symbols) = (table.slots.len(), graph.symbols().len());
    if layout.offsets.len() != slots
        || layout.sizes.len() != slots
        || layout.bounds.len() != symbols
    {
        let message = format!(
            "the layout has {} offsets and {} sizes for {slots} slots, and {} bounds for {symbols} symbols",
            layout.offsets.len(),
            layout.sizes.len(),
            layout.bounds.len()
        );
        found.push("P0502", Anchor::Graph, message);
        return;
    }
    for ((symbol, decl), &bound) in graph.symbols().iter().zip(&layout.bounds) {
        if bound < decl.min || bound > decl.max {
            let message = format!(
                "the layout is for {bound} of `{}`, which is in [{}..{}]",
                decl.name, decl.min, decl.max
            );
            found.push("P0503", Anchor::Symbol(symbol), message);
        }
    }
    alignment(layout, found);
    extents(graph, table, layout, found);
    staging(graph, table, layout, found);
}

fn alignment(layout: &ArenaLayout, found: &mut Diagnostics) {
    let mut aligned = |bytes: u64, at: Anchor, what: &str| {
        if !bytes.is_multiple_of(layout.align) {
            let message = format!("{what} is {bytes:#x}, no multiple of {}", layout.align);
            found.push("P0501", at, message);
        }
    };
    aligned(layout.bytes, Anchor::Graph, "the size of the arena");
    aligned(layout.counts, Anchor::Graph, "the offset of the counts");
    for (i, &offset) in layout.offsets.iter().enumerate() {
        aligned(offset, Anchor::Slot(Slot::new(i)), "its offset");
    }
}

fn extents(graph: &Graph, table: &SlotTable, layout: &ArenaLayout, found: &mut Diagnostics) {
    let names = Names::of(graph);
    for (slot, data) in table.slots.iter() {
        let (offset, size) = (layout.offsets[slot.index()], layout.sizes[slot.index()]);
        // A slot of no value is a finding of the slots' rules.
        if graph.has_value(data.value) && size < graph.ty(data.value).bytes(&layout.bounds) {
            let message = format!(
                "{slot} has {size} bytes, but {} takes {} at the bounds",
                names.value(data.value),
                graph.ty(data.value).bytes(&layout.bounds)
            );
            found.push("P0504", Anchor::Slot(slot), message);
        }
        if offset.saturating_add(size) > layout.bytes {
            let message = format!(
                "{slot} is at {offset:#x}, {size} bytes, beyond the arena's {}",
                layout.bytes
            );
            found.push("P0506", Anchor::Slot(slot), message);
        }
    }
    if layout.staged > layout.bytes {
        let message = format!("{} staged bytes exceed the arena's {}", layout.staged, layout.bytes);
        found.push("P0506", Anchor::Graph, message);
    }
}

fn staging(graph: &Graph, table: &SlotTable, layout: &ArenaLayout, found: &mut Diagnostics) {
    let counts = COUNT_BYTES.saturating_mul(graph.symbols().len() as u64);
    let mut staged = vec![(layout.counts, counts, Anchor::Graph, "the true counts".to_owned())];
    for (slot, _) in table.slots.iter().filter(|(_, data)| data.kind == SlotKind::Input) {
        let (offset, size) = (layout.offsets[slot.index()], layout.sizes[slot.index()]);
        staged.push((offset, size, Anchor::Slot(slot), format!("{slot}, an input")));
    }
    for (offset, size, at, what) in &staged {
        if offset.saturating_add(*size) > layout.staged {
            let message = format!(
                "{what} is at {offset:#x}, {size} bytes, beyond the {} that are staged",
                layout.staged
            );
            found.push("P0505", *at, message);
        }
    }
    staged.retain(|s| s.1 > 0);
    staged.sort_by_key(|s| s.0);
    for pair in staged.windows(2) {
        if pair[0].0.saturating_add(pair[0].1) > pair[1].0 {
            let message = format!("{} and {} share staged bytes", pair[0].3, pair[1].3);
            found.push("P0505", pair[1].2, message);
        }
    }
}
