//! A device of one's own: the processor's, and a count of what it is told to launch and to replay.

use piecewise::backend::cpu::CpuDevice;
use piecewise::backend::device::DeviceError;
use piecewise::backend::hooks::{DeviceCall, DeviceHook, HookedDevice};
use piecewise::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Launches of programs and replays of graphs, over all models of a device.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    launches: Arc<AtomicU64>,
    replays: Arc<AtomicU64>,
}

impl Counts {
    /// Those since this was last asked.
    pub fn take(&self) -> [u64; 2] {
        [&self.launches, &self.replays].map(|count| count.swap(0, Ordering::Relaxed))
    }

    /// A processor on which they are counted, with all its threads.
    pub fn open(&self) -> Result<OpenDevice, DeviceError> {
        let device = CpuDevice::new(Arc::new(OpRegistry::new()), 0)?;
        Ok(OpenDevice::new(DeviceSpec::Cpu, HookedDevice::new(device, self.clone())))
    }
}

impl DeviceHook for Counts {
    fn before(&mut self, call: DeviceCall<'_>) -> Result<(), DeviceError> {
        let count = match call {
            DeviceCall::Launch(_) => &self.launches,
            DeviceCall::Replay(_) => &self.replays,
            _ => return Ok(()),
        };
        count.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}
