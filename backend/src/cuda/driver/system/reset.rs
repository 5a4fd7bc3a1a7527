//! What the process must know to reset a device's context: a context is shared by everything in
//! the process that uses the device, and memory mapped at reserved addresses belongs to none.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Devices that are told apart; those past them share a generation.
const DEVICES: usize = 64;

static GENERATIONS: [AtomicU64; DEVICES] = [const { AtomicU64::new(0) }; DEVICES];

static MAPPED: Mutex<BTreeMap<u64, Mapped>> = Mutex::new(BTreeMap::new());

/// A reserved range of addresses with memory behind it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mapped {
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) backing: u64,
    /// The device that may use it.
    pub(super) ordinal: Option<u32>,
}

fn of_device(ordinal: u32) -> &'static AtomicU64 {
    &GENERATIONS[(ordinal as usize).min(DEVICES - 1)]
}

pub(super) fn generation(ordinal: u32) -> u64 {
    of_device(ordinal).load(Ordering::Acquire)
}

pub(super) fn begin_generation(ordinal: u32) {
    of_device(ordinal).fetch_add(1, Ordering::AcqRel);
}

fn mapped() -> MutexGuard<'static, BTreeMap<u64, Mapped>> {
    MAPPED.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn note_mapped(range: Mapped) {
    mapped().insert(range.address, range);
}

pub(super) fn note_device(address: u64, ordinal: u32) {
    if let Some(range) = mapped().get_mut(&address) {
        range.ordinal = Some(ordinal);
    }
}

pub(super) fn forget_mapped(address: u64) {
    mapped().remove(&address);
}

/// What is mapped for a device, of whatever part of the process; it is known no longer.
pub(super) fn take_mapped(ordinal: u32) -> Vec<Mapped> {
    let is_of_device = |range: &Mapped| range.ordinal == Some(ordinal);
    let mut mapped = mapped();
    let taken = mapped.values().filter(|range| is_of_device(range)).copied().collect();
    mapped.retain(|_, range| !is_of_device(range));
    taken
}
