//! The arena planner: one offset for every slot, at the bounds of all symbols, for every size.
//!
//! The true counts come first, then the inputs, so that one copy stages a step; what remains is
//! packed by lifetime. The arena depends on bounds and lifetimes alone, never on capture sizes.

mod exact;
mod fold;
mod greedy;
mod item;
mod pack;
mod sweep;

pub use item::{Item, Packing, largest_live_sum};
pub use pack::pack;

use piecewise_ir::module::{ArenaLayout, Module, SlotKind};
use piecewise_ir::text::Names;

/// Alignment of slots, weights and states where nobody says another, in bytes.
pub const ALIGN: u64 = 256;

/// How the arena is laid out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct PlanOptions {
    /// Alignment of every offset, in bytes; a power of two.
    pub align: u64,
}

impl Default for PlanOptions {
    fn default() -> Self {
        Self { align: ALIGN }
    }
}

/// How large the arena is, and what it can't be smaller than.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct PlanReport {
    /// What the arena takes, from the counts to the end of the last slot.
    pub bytes: u64,
    /// The largest sum of aligned bytes that are live at one moment, counts and inputs included:
    /// no arena can be smaller.
    pub live_bytes: u64,
    /// The sum over all slots: what the arena would be without reuse.
    pub slot_bytes: u64,
}

/// Why the arena could not be laid out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "a field is what the message calls it")]
pub enum PlanError {
    /// The module has no slots.
    #[error("the arena needs slots, which the module does not have; run `destination` first")]
    NoSlots,
    /// The alignment is no power of two.
    #[error("the alignment {align} is not a power of two; use 256, or another power of two")]
    Alignment { align: u64 },
    /// The slots are too large to address.
    #[error(
        "{value} takes {bytes} bytes at the bounds of its symbols, and all slots together would \
         pass {limit} bytes; lower the bounds"
    )]
    TooLarge {
        /// The value at which the sum passed the limit, as the graph's text names it.
        value: String,
        /// Its bytes at the bounds.
        bytes: u64,
        limit: u64,
    },
}

/// The most bytes that all slots together may take: far beyond any device, and far from overflow.
const LIMIT: u64 = 1 << 48;

/// Gives every slot its offset.
///
/// # Errors
/// When the module has no slots, the alignment is no power of two, or the slots are too large to
/// address.
pub fn plan_arena(module: &mut Module, options: &PlanOptions) -> Result<PlanReport, PlanError> {
    let align = options.align;
    if !align.is_power_of_two() || align > LIMIT {
        return Err(PlanError::Alignment { align });
    }
    let table = module.slots().ok_or(PlanError::NoSlots)?;
    let symbols = module.graph().symbols();
    let counts = (symbols.len() as u64 * 4).next_multiple_of(align);
    let mut report = PlanReport { slot_bytes: counts, ..PlanReport::default() };
    let mut sizes = Vec::with_capacity(table.slots.len());
    for slot in table.slots.values() {
        let bytes = module.graph().ty(slot.value).max_bytes(symbols);
        let aligned = bytes.checked_next_multiple_of(align);
        let sum = aligned.and_then(|b| report.slot_bytes.checked_add(b)).filter(|&s| s <= LIMIT);
        let too_large = || PlanError::TooLarge {
            value: Names::of(module.graph()).value(slot.value),
            bytes,
            limit: LIMIT,
        };
        report.slot_bytes = sum.ok_or_else(too_large)?;
        sizes.push(bytes);
    }

    let mut offsets = vec![0; sizes.len()];
    let mut staged = counts;
    let mut inputs = Vec::new();
    let mut items = Vec::new();
    let mut packed = Vec::new();
    for (at, slot) in table.slots.values().enumerate() {
        let size = sizes[at].next_multiple_of(align);
        if slot.kind == SlotKind::Input {
            inputs.push((size, at));
        } else {
            // Packed in units of the alignment, so that every offset is a multiple of it.
            items.push(Item { start: slot.live.start, end: slot.live.end, size: size / align });
            packed.push(at);
        }
    }
    // The beginnings of small ones lie near each other, so that one copy brings what a step uses.
    inputs.sort_unstable();
    for (size, at) in inputs {
        offsets[at] = staged;
        staged += size;
    }
    let packing = pack(&items);
    for (&at, &offset) in packed.iter().zip(&packing.offsets) {
        offsets[at] = staged + offset * align;
    }
    report.bytes = staged + packing.height * align;
    report.live_bytes = staged + largest_live_sum(&items) * align;
    let bounds = symbols.values().map(|decl| decl.max).collect();
    let bytes = report.bytes;
    module.set_layout(ArenaLayout { bounds, align, counts: 0, staged, offsets, sizes, bytes });
    Ok(report)
}
