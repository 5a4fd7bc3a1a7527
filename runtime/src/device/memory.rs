//! Where everything of a model lies on the device.

use crate::words::Ledger;
use piecewise_backend::device::{Address, Device, DeviceError, Reservation};
use piecewise_ir::entity::{Entity, Slot, Value};
use piecewise_ir::graph::{Graph, ValueDef};
use piecewise_ir::module::{ArenaLayout, Module};
use piecewise_passes::plan::ALIGN;

/// The address ranges of a model.
#[derive(Clone, Debug)]
pub struct Memory {
    /// Slots, then scratch.
    pub arena: Reservation,
    /// Weights in declaration order.
    pub weights: Reservation,
    /// States in declaration order.
    pub states: Reservation,
    /// How many bytes each part takes.
    pub ledger: Ledger,
    layout: ArenaLayout,
    weight_offsets: Vec<u64>,
    state_offsets: Vec<u64>,
    slot_of: Vec<Option<Slot>>,
}

impl Memory {
    /// Reserves the ranges and backs arena and weights.
    pub(crate) fn reserve(
        device: &mut dyn Device,
        module: &Module,
        layout: &ArenaLayout,
        ledger: Ledger,
    ) -> Result<Self, DeviceError> {
        let graph = module.graph();
        let bounds = &layout.bounds;
        let offsets = |values: &mut dyn Iterator<Item = Value>| -> Vec<u64> {
            values
                .scan(0u64, |next, value| {
                    let at = *next;
                    *next += graph.ty(value).bytes(bounds).next_multiple_of(ALIGN);
                    Some(at)
                })
                .collect()
        };
        let weight_offsets = offsets(&mut graph.weights().iter().map(|w| w.value));
        let state_offsets = offsets(&mut graph.states().iter().map(|s| s.value));
        let mut slot_of = vec![None; graph.value_count()];
        for (slot, data) in module.slots().iter().flat_map(|table| table.slots.iter()) {
            slot_of[data.value.index()] = Some(slot);
        }
        let arena = device.reserve("arena", (ledger.slots + ledger.scratch).max(ALIGN))?;
        let weights = device.reserve("weights", ledger.weights.max(ALIGN))?;
        let states = device.reserve("states", ledger.states.max(ALIGN))?;
        device.back(arena)?;
        device.back(weights)?;
        let layout = layout.clone();
        Ok(Self { arena, weights, states, ledger, layout, weight_offsets, state_offsets, slot_of })
    }

    /// Where its parts start: arena, weights, states.
    pub(crate) fn bases(&self) -> [Address; 3] {
        [self.arena, self.weights, self.states].map(|part| part.base)
    }

    /// The address of a value of the module's graph; `None` for a result without a slot.
    pub fn address(&self, graph: &Graph, value: Value) -> Option<Address> {
        match graph.def(value) {
            ValueDef::Weight(i) => Some(self.weights.base.offset(self.weight_offsets[i])),
            ValueDef::State(i) => Some(self.states.base.offset(self.state_offsets[i])),
            ValueDef::Input(_) | ValueDef::Result { .. } => {
                let slot = self.slot_of[value.index()]?;
                Some(self.arena.base.offset(self.layout.offsets[slot.index()]))
            }
        }
    }

    /// Says that a value that has a slot lies `bytes` bytes into the arena from now on. What was bound and
    /// captured before keeps the old address, which the audit of addresses then names.
    pub fn move_slot(&mut self, value: Value, bytes: u64) {
        if let Some(slot) = self.slot_of.get(value.index()).copied().flatten() {
            self.layout.offsets[slot.index()] = bytes;
        }
    }

    /// The offset of a value's slot in the arena.
    pub fn slot_offset(&self, value: Value) -> Option<u64> {
        self.slot_of[value.index()].map(|slot| self.layout.offsets[slot.index()])
    }

    /// Where the true counts lie.
    pub fn counts(&self) -> Address {
        self.arena.base.offset(self.layout.counts)
    }

    /// Behind the slots: memory that launches need while they run.
    pub fn scratch(&self) -> Address {
        self.arena.base.offset(self.ledger.slots)
    }

    /// The layout of the slots.
    pub fn layout(&self) -> &ArenaLayout {
        &self.layout
    }
}
