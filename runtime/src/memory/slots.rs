//! Slots: the rows of states that each sequence has one of.

use crate::device::Memory;
use crate::words::roles;
use piecewise_backend::device::{Address, Device, DeviceError};
use piecewise_ir::graph::{Graph, StateDecl};

/// How the rows of a state are given to sequences.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StateKind {
    /// Page by page, a row a token.
    Pages,
    /// In one row for each sequence, whatever its length.
    Slots,
    /// Not at all: the graph alone knows what it holds.
    Other,
}

impl StateKind {
    /// By the role of a state.
    pub fn of(state: &StateDecl) -> Self {
        match state.role.as_deref() {
            Some(roles::KV_CACHE) => Self::Pages,
            Some(roles::SEQUENCE_STATE) => Self::Slots,
            _ => Self::Other,
        }
    }

    /// Where each of such states of a model lies, and the bytes of a row of it.
    pub(crate) fn rows(self, graph: &Graph, memory: &Memory) -> Vec<(Address, u64)> {
        let bounds = &memory.layout().bounds;
        let states = graph.states().iter().filter(|state| Self::of(state) == self);
        let states = states.filter_map(|state| {
            let row = graph.ty(state.value).row().bytes(bounds);
            Some((memory.address(graph, state.value)?, row))
        });
        states.collect()
    }
}

/// A slot that is owned. It can't be copied, so a slot has one owner, and giving it back takes it
/// away.
#[derive(PartialEq, Eq, Hash, Debug)]
pub struct StateSlot(u32);

impl StateSlot {
    /// A slot of a step that no sequence runs: nobody gives it back.
    pub(crate) fn probed(number: u32) -> Self {
        Self(number)
    }

    /// Its number: the row of each state of role `sequence.state`.
    pub fn number(&self) -> u32 {
        self.0
    }
}

/// The slots that no sequence has, and where their rows are.
#[derive(Debug)]
pub struct SlotPool {
    free: Vec<StateSlot>,
    slots: u64,
    /// Where each state starts, and bytes of its rows.
    states: Vec<(Address, u64)>,
}

impl SlotPool {
    /// A pool of `slots` slots of the states of role `sequence.state`.
    pub fn new(graph: &Graph, memory: &Memory, slots: u64) -> Self {
        let states = StateKind::Slots.rows(graph, memory);
        let numbers = 0..u32::try_from(slots).unwrap_or(u32::MAX);
        Self { free: numbers.rev().map(StateSlot).collect(), slots, states }
    }

    /// Whether sequences need slots at all.
    pub fn is_needed(&self) -> bool {
        self.slots > 0
    }

    /// Free and held ones together.
    pub fn slots(&self) -> u64 {
        self.slots
    }

    /// How many no sequence has.
    pub fn free_slots(&self) -> usize {
        self.free.len()
    }

    /// Takes a slot, and enqueues filling its rows with zeros; `None` where none is free.
    ///
    /// # Errors
    /// When the device fails; the slot stays free.
    pub fn take(&mut self, device: &mut dyn Device) -> Result<Option<StateSlot>, DeviceError> {
        let Some(slot) = self.free.last() else { return Ok(None) };
        self.fill(device, slot, 0)?;
        Ok(self.free.pop())
    }

    /// Takes a slot back; its rows are filled with zeros when it is taken again.
    pub fn give_back(&mut self, slot: StateSlot) {
        self.free.push(slot);
        assert!(self.free.len() as u64 <= self.slots, "a slot of another pool was given back");
    }

    /// Enqueues filling the rows of every free slot with `byte`.
    ///
    /// # Errors
    /// When the device fails.
    pub fn fill_free(&self, device: &mut dyn Device, byte: u8) -> Result<(), DeviceError> {
        self.free.iter().try_for_each(|slot| self.fill(device, slot, byte))
    }

    fn fill(&self, device: &mut dyn Device, slot: &StateSlot, byte: u8) -> Result<(), DeviceError> {
        let slot = u64::from(slot.number());
        self.states
            .iter()
            .try_for_each(|&(state, row)| device.fill(state.offset(slot * row), row, &[byte]))
    }
}
