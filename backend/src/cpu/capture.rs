//! Capture: freezing bound calls, under the rules that hold for every backend.

use super::captured::CpuCaptured;
use super::device::CpuDevice;
use super::program::{BoundCall, CpuProgram};
use crate::device::{CaptureRule, DeviceError};
use derive_more::{Deref, DerefMut};
use piecewise_kernels::step::CaptureSupport;
use std::sync::Arc;

/// A device inside a capture. What would allocate or wait fails; dropping it, also while
/// unwinding, makes the device as it was before.
#[derive(Debug, Deref, DerefMut)]
pub struct CaptureScope<'a> {
    #[deref(forward)]
    #[deref_mut(forward)]
    device: &'a mut CpuDevice,
}

impl CpuDevice {
    /// Enters the state in which programs are captured: until the scope is dropped, whatever
    /// allocates or waits is an error.
    pub fn capture_scope(&mut self) -> CaptureScope<'_> {
        CaptureScope::begin(self)
    }
}

impl<'a> CaptureScope<'a> {
    pub(super) fn begin(device: &'a mut CpuDevice) -> Self {
        device.is_capturing = true;
        Self { device }
    }

    /// Freezes programs after the rules; those at the places `following` follow the sizes of replays.
    pub(super) fn freeze(
        &self,
        label: &str,
        programs: &[&CpuProgram],
        following: &[usize],
        sizes: &[u64],
    ) -> Result<CpuCaptured, DeviceError> {
        let broken = |label: String, rule| DeviceError::Capture { label, rule };
        let calls: Vec<Arc<BoundCall>> =
            programs.iter().flat_map(|program| program.calls.iter().cloned()).collect();
        if calls.is_empty() {
            return Err(broken(label.to_owned(), CaptureRule::NoEmpty));
        }
        for call in &calls {
            if call.support == CaptureSupport::Never {
                let at = format!("{label}, launch `{}` of {}", call.name, call.label);
                return Err(broken(at, CaptureRule::UnsupportedOp));
            }
            call.check_sizes(sizes)?;
            if let Some(operand) = call.operands.iter().find(|operand| !operand.is_usable()) {
                let at = format!(
                    "{label}, {} at {} of launch `{}` of {}",
                    operand.at.name, operand.at.address, call.name, call.label
                );
                return Err(broken(at, CaptureRule::NoUnretained));
            }
        }
        let ends = programs.iter().scan(0, |end, program| {
            *end += program.calls.len();
            Some(*end)
        });
        let (ends, sizes) = (ends.collect(), sizes.to_vec());
        let follows = programs.iter().enumerate().flat_map(|(place, program)| {
            std::iter::repeat_n(following.contains(&place), program.calls.len())
        });
        Ok(CpuCaptured { label: label.to_owned(), calls, follows: follows.collect(), ends, sizes })
    }
}

impl Drop for CaptureScope<'_> {
    fn drop(&mut self) {
        self.device.is_capturing = false;
    }
}
