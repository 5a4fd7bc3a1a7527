//! Slots and offsets: where every value of a step lives, at one address for every size.

use crate::entity::{Arena, Slot, Value};
use serde::{Deserialize, Serialize};
use strum::{EnumString, IntoStaticStr};

/// What a slot of the arena holds, which decides who writes it and when.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, EnumString, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SlotKind {
    /// An input of the step: staged before the step, live through all of it.
    Input,
    /// A value that crosses from one step member to another.
    Boundary,
    /// A value of one piece alone. A lowering may leave it unused.
    Local,
    /// What the graph returns: live to the end of the step.
    Output,
}

impl SlotKind {
    /// Its word in the textual plan.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// The positions of the step's node order, both inclusive, between which a slot's bytes must
/// not be used for anything else.
///
/// A matmul, or a custom op that absorbs, the region before it and the region after it are one
/// moment: what any of them reads is live to the end of the last, what any writes from the start of
/// the first, because a lowering may make them one launch. A piece that reads rows of another symbol than its own may
/// run several times in a step, for some of its rows at a time: what it reads that way is live to
/// the end of the step.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, serde::Serialize, serde::Deserialize)]
pub struct LiveRange {
    /// Position of the first node that may write it; 0 for inputs.
    pub start: usize,
    /// Position of the last node that may read it.
    pub end: usize,
}

impl LiveRange {
    /// Whether the two ranges share a position.
    pub fn overlaps(self, other: Self) -> bool {
        self.start <= other.end && other.start <= self.end
    }
}

/// A buffer of the arena: one address for its value at every size.
#[derive(Clone, PartialEq, Debug, serde::Serialize, serde::Deserialize)]
pub struct SlotData {
    /// The value of the module's graph that lives in it.
    pub value: Value,
    /// Which values it may share bytes with, by where its value is used.
    pub kind: SlotKind,
    /// When its bytes are in use.
    pub live: LiveRange,
}

/// The slots of a step: one for each input and each result that memory must hold.
#[derive(Clone, PartialEq, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct SlotTable {
    /// The slots in order of definition of their values.
    pub slots: Arena<Slot, SlotData>,
}

impl SlotTable {
    /// The slot that `value` lives in; `None` for what is in no slot.
    pub fn of(&self, value: Value) -> Option<Slot> {
        self.slots.iter().find(|(_, data)| data.value == value).map(|(slot, _)| slot)
    }
}

/// One arena layout for every size: offsets at the largest size.
#[derive(Clone, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct ArenaLayout {
    /// The largest size of each symbol, by symbol index, that the offsets were laid out for.
    pub bounds: Vec<u64>,
    /// Alignment of every offset, in bytes; a power of two.
    pub align: u64,
    /// Byte offset of the true counts: one `i32` for each symbol, staged with the inputs and an
    /// implicit operand of every launch.
    pub counts: u64,
    /// Bytes from offset 0 that hold the counts and every input slot, so that one copy stages a
    /// step.
    pub staged: u64,
    /// Byte offset of each slot.
    pub offsets: Vec<u64>,
    /// Bytes of each slot at the bounds, not rounded up.
    pub sizes: Vec<u64>,
    /// Bytes of the arena that slots take, a multiple of `align`; scratch comes after them.
    pub bytes: u64,
}
