//! Device memory: reserved address ranges whose backing can be dropped and mapped again, and
//! blocks that live as long as a load.

use super::context::{Context, warn_failed};
use super::driver::{Handle, Outcome};
use super::error::{CallError, device_error, memory_error};
use crate::device::{Address, DeviceError, Reservation};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A reserved address range. Captured graphs hold the ranges that they point into, so that no
/// other allocation can come to lie there.
#[derive(Debug)]
pub(super) struct AddressRange {
    context: Arc<Context>,
    pub(super) what: String,
    pub(super) base: u64,
    /// A multiple of the granularity of mappings.
    bytes: u64,
    backing: Mutex<Option<Backing>>,
    /// Whether there is zeroed backing: every launch asks, and a lock for each range of each is too much.
    is_backed: AtomicBool,
}

/// Physical memory, and how far it is on its way to a range or from it: each step can fail, and is
/// gone on from when it is tried again.
#[derive(Clone, Copy, Debug)]
struct Backing {
    handle: Handle,
    is_mapped: bool,
}

impl AddressRange {
    fn reserve(context: &Arc<Context>, what: &str, bytes: u64) -> Result<Self, DeviceError> {
        let driver = &context.driver;
        let granularity = driver
            .granularity(context.device.ordinal)
            .map_err(|e| device_error("ask for the granularity of device memory", &e))?;
        let Some(rounded) = bytes.max(1).checked_next_multiple_of(granularity.max(1)) else {
            let reason = "more than the address space".to_owned();
            return Err(DeviceError::OutOfMemory { what: what.to_owned(), bytes, reason });
        };
        let base = driver.reserve(rounded).map_err(|e| memory_error(what, bytes, 0, &e))?;
        let (context, what) = (context.clone(), what.to_owned());
        let (backing, is_backed) = (Mutex::new(None), AtomicBool::new(false));
        Ok(Self { context, what, base, bytes: rounded, backing, is_backed })
    }

    fn backing(&self) -> MutexGuard<'_, Option<Backing>> {
        self.backing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether its addresses can be used now.
    pub(super) fn is_backed(&self) -> bool {
        self.is_backed.load(Ordering::Acquire)
    }

    /// Maps memory at its addresses and enqueues zeroing it; no-op where that was done.
    fn back(&self, stream: Handle) -> Result<(), DeviceError> {
        if self.is_backed() {
            return Ok(());
        }
        let mut backing = self.backing();
        let Context { driver, device, .. } = &*self.context;
        let short = |error: &CallError| {
            memory_error(&self.what, self.bytes, driver.free_bytes().unwrap_or(0), error)
        };
        let mut found = match *backing {
            Some(found) => found,
            None => {
                let handle = driver.create_backing(device.ordinal, self.bytes);
                Backing { handle: handle.map_err(|e| short(&e))?, is_mapped: false }
            }
        };
        *backing = Some(found);
        if !found.is_mapped {
            if let Err(error) = self.map(found.handle) {
                let failed = Err(short(&error));
                // Where it can't be given back, the next try takes it.
                match driver.release_backing(found.handle) {
                    Ok(()) => *backing = None,
                    released => warn_failed(released),
                }
                return failed;
            }
            found.is_mapped = true;
            *backing = Some(found);
        }
        driver
            .set(self.base, 0, 1, self.bytes, stream)
            .map_err(|e| device_error(format!("fill {} with zeros", self.what), &e))?;
        self.is_backed.store(true, Ordering::Release);
        Ok(())
    }

    fn map(&self, handle: Handle) -> Outcome<()> {
        let Context { driver, device, .. } = &*self.context;
        driver.map(self.base, self.bytes, handle)?;
        let allowed = driver.allow_access(device.ordinal, self.base, self.bytes);
        if allowed.is_err() {
            warn_failed(driver.unmap(self.base, self.bytes));
        }
        allowed
    }

    fn drop_backing(&self) -> Result<(), DeviceError> {
        let mut backing = self.backing();
        let Some(found) = *backing else { return Ok(()) };
        let driver = &self.context.driver;
        let failed = |e| device_error(format!("unmap {}", self.what), &e);
        if found.is_mapped {
            driver.unmap(self.base, self.bytes).map_err(failed)?;
            self.is_backed.store(false, Ordering::Release);
            *backing = Some(Backing { is_mapped: false, ..found });
        }
        driver.release_backing(found.handle).map_err(failed)?;
        *backing = None;
        Ok(())
    }

    fn holds(&self, address: Address, bytes: u64) -> bool {
        let end = self.base + self.bytes;
        address.0 >= self.base && address.0.checked_add(bytes).is_some_and(|e| e <= end)
    }
}

impl Drop for AddressRange {
    fn drop(&mut self) {
        let backing = self.backing().take();
        self.context.give_back(|driver| {
            if let Some(Backing { handle, is_mapped }) = backing {
                if is_mapped {
                    warn_failed(driver.unmap(self.base, self.bytes));
                }
                warn_failed(driver.release_backing(handle));
            }
            driver.unreserve(self.base, self.bytes)
        });
    }
}

/// The reserved ranges of a device.
#[derive(Debug)]
pub(super) struct Memory {
    context: Arc<Context>,
    ranges: Vec<Arc<AddressRange>>,
}

impl Memory {
    pub(super) fn new(context: &Arc<Context>) -> Self {
        Self { context: context.clone(), ranges: Vec::new() }
    }

    pub(super) fn reserve(&mut self, what: &str, bytes: u64) -> Result<Reservation, DeviceError> {
        let range = AddressRange::reserve(&self.context, what, bytes)?;
        let base = Address(range.base);
        self.ranges.push(Arc::new(range));
        Ok(Reservation { id: (self.ranges.len() - 1) as u32, base, bytes })
    }

    fn range(&self, region: Reservation) -> Result<&Arc<AddressRange>, DeviceError> {
        let range = self.ranges.get(region.id as usize);
        range.filter(|range| range.base == region.base.0).ok_or_else(|| DeviceError::BadAddress {
            what: format!("region {}", region.id),
            address: region.base,
            bytes: region.bytes,
        })
    }

    /// Backs a range with memory that is zeroed on `stream`.
    pub(super) fn back(&mut self, region: Reservation, stream: Handle) -> Result<(), DeviceError> {
        self.range(region)?.back(stream)
    }

    pub(super) fn drop_backing(&mut self, region: Reservation) -> Result<(), DeviceError> {
        self.range(region)?.drop_backing()
    }

    /// The range that holds these bytes.
    pub(super) fn find(&self, address: Address, bytes: u64) -> Option<&Arc<AddressRange>> {
        self.ranges.iter().find(|range| range.holds(address, bytes))
    }

    /// That these bytes can be used.
    pub(super) fn check(&self, what: &str, at: Address, bytes: u64) -> Result<(), DeviceError> {
        match self.find(at, bytes) {
            Some(range) if range.is_backed() => Ok(()),
            _ => Err(DeviceError::BadAddress { what: what.to_owned(), address: at, bytes }),
        }
    }
}

/// Device memory for intermediate results of loading.
#[derive(Debug)]
pub(super) struct TemporaryBlock {
    context: Arc<Context>,
    pub(super) address: u64,
}

impl TemporaryBlock {
    pub(super) fn allocate(
        context: &Arc<Context>,
        what: &str,
        bytes: u64,
    ) -> Result<Self, DeviceError> {
        let driver = &context.driver;
        let address = driver
            .allocate(bytes.max(1))
            .map_err(|e| memory_error(what, bytes, driver.free_bytes().unwrap_or(0), &e))?;
        Ok(Self { context: context.clone(), address })
    }
}

impl Drop for TemporaryBlock {
    fn drop(&mut self) {
        self.context.give_back(|driver| driver.free(self.address));
    }
}
