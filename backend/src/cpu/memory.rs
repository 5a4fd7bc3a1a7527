//! Reserved address ranges of the host's virtual memory.

use super::pages;
use crate::device::{Address, DeviceError, Reservation};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A reserved range. Without backing its pages read as zeros and can't be written.
#[derive(Debug)]
pub(super) struct Mapping {
    base: *mut std::ffi::c_void,
    bytes: usize,
    backed: AtomicBool,
}

// SAFETY: the range belongs to this value alone; what it holds is only reached through addresses,
// under the rules of whoever uses them.
unsafe impl Send for Mapping {}
// SAFETY: as for Send; `backed` is atomic.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn reserve(bytes: usize) -> std::io::Result<Self> {
        Ok(Self { base: pages::map(bytes)?, bytes, backed: AtomicBool::new(false) })
    }

    /// Replaces the pages by fresh zeroed ones, which can be written where it is `backed` then.
    fn remap(&self, backed: bool) -> std::io::Result<()> {
        // SAFETY: the range is this value's own, so that only its own pages are replaced; the
        // device runs nothing meanwhile.
        unsafe { pages::replace(self.base, self.bytes, backed)? };
        self.backed.store(backed, Ordering::Release);
        Ok(())
    }

    /// Whether its pages can be written.
    pub(super) fn is_backed(&self) -> bool {
        self.backed.load(Ordering::Acquire)
    }

    /// Whether it holds the range.
    pub(super) fn holds(&self, address: Address, bytes: u64) -> bool {
        let base = self.base.addr() as u64;
        let end = base + self.bytes as u64;
        address.0 >= base && address.0.checked_add(bytes).is_some_and(|e| e <= end)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is this value's own, and whatever used it held this value.
        let unmapped = unsafe { pages::unmap(self.base, self.bytes) };
        if let Err(error) = unmapped {
            tracing::warn!(%error, bytes = self.bytes, "a memory range was not returned");
        }
    }
}

/// The reserved ranges of a device.
#[derive(Debug, Default)]
pub(super) struct Memory {
    regions: Vec<Arc<Mapping>>,
    names: Vec<String>,
}

impl Memory {
    pub(super) fn reserve(&mut self, what: &str, bytes: u64) -> Result<Reservation, DeviceError> {
        let short =
            |reason: String| DeviceError::OutOfMemory { what: what.to_owned(), bytes, reason };
        let rounded = bytes.max(1).checked_next_multiple_of(pages::PAGE);
        let rounded = rounded.and_then(|bytes| usize::try_from(bytes).ok());
        let Some(rounded) = rounded else {
            return Err(short("more than the address space".to_owned()));
        };
        let mapping = Mapping::reserve(rounded).map_err(|e| short(e.to_string()))?;
        let base = Address(mapping.base.expose_provenance() as u64);
        self.regions.push(Arc::new(mapping));
        self.names.push(what.to_owned());
        Ok(Reservation { id: (self.regions.len() - 1) as u32, base, bytes })
    }

    /// What a region was reserved for.
    fn name(&self, region: Reservation) -> String {
        let name = self.names.get(region.id as usize).cloned();
        name.unwrap_or_else(|| format!("region {}", region.id))
    }

    fn region(&self, region: Reservation) -> Result<&Arc<Mapping>, DeviceError> {
        self.regions.get(region.id as usize).ok_or_else(|| DeviceError::BadAddress {
            what: format!("region {}", region.id),
            address: region.base,
            bytes: region.bytes,
        })
    }

    pub(super) fn back(&mut self, region: Reservation) -> Result<(), DeviceError> {
        let mapping = self.region(region)?;
        if mapping.is_backed() {
            return Ok(());
        }
        let short = |reason| DeviceError::OutOfMemory {
            what: self.name(region),
            bytes: region.bytes,
            reason,
        };
        let free = free_bytes();
        if region.bytes > free {
            return Err(short(format!("{free} bytes are free")));
        }
        mapping.remap(true).map_err(|e| short(e.to_string()))
    }

    pub(super) fn drop_backing(&mut self, region: Reservation) -> Result<(), DeviceError> {
        let mapping = self.region(region)?;
        if !mapping.is_backed() {
            return Ok(());
        }
        mapping.remap(false).map_err(|e| DeviceError::OutOfMemory {
            what: self.name(region),
            bytes: region.bytes,
            reason: e.to_string(),
        })
    }

    /// The reserved range that holds these bytes.
    pub(super) fn find(&self, address: Address, bytes: u64) -> Option<&Arc<Mapping>> {
        self.regions.iter().find(|mapping| mapping.holds(address, bytes))
    }

    /// The start of these bytes, if they are backed.
    pub(super) fn backed(
        &self,
        what: &str,
        address: Address,
        bytes: u64,
    ) -> Result<*mut u8, DeviceError> {
        match self.find(address, bytes) {
            Some(mapping) if mapping.is_backed() => {
                Ok(std::ptr::with_exposed_provenance_mut(address.0 as usize))
            }
            _ => Err(DeviceError::BadAddress { what: what.to_owned(), address, bytes }),
        }
    }
}

/// Bytes that the machine, or the control group that this process is in, can still give.
pub(super) fn free_bytes() -> u64 {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let machine = read("/proc/meminfo").and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("MemAvailable:"))?;
        Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()?.saturating_mul(1024))
    });
    let number = |path: &str| read(path)?.trim().parse::<u64>().ok();
    let group = number("/sys/fs/cgroup/memory.max")
        .zip(number("/sys/fs/cgroup/memory.current"))
        .map(|(most, used)| most.saturating_sub(used));
    match (machine, group) {
        (Some(machine), Some(group)) => machine.min(group),
        (Some(one), None) | (None, Some(one)) => one,
        // Where the system does not say, backing is what can fail.
        (None, None) => u64::MAX,
    }
}
