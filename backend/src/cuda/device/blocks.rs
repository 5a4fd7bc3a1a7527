//! Host blocks, as copies use them.

use super::CudaDevice;
use crate::cuda::host::PinnedBlock;
use crate::device::{Address, DeviceError, HostBlock};

impl CudaDevice {
    /// Where in a block `what`, a copy of `bytes` bytes to `to`, begins, if both ends are backed.
    pub(super) fn copied_from(
        &self,
        what: &str,
        block: HostBlock,
        offset: u64,
        bytes: u64,
        to: Address,
    ) -> Result<*const u8, DeviceError> {
        self.memory.check(what, to, bytes)?;
        let from = self.block(block, offset.saturating_add(bytes))?.as_ptr();
        Ok(from.wrapping_add(offset as usize))
    }

    pub(super) fn block(&self, block: HostBlock, bytes: u64) -> Result<&PinnedBlock, DeviceError> {
        let found = self.blocks.get(block.id as usize);
        found.filter(|found| bytes <= found.bytes().len() as u64).ok_or_else(|| {
            DeviceError::BadAddress {
                what: format!("host block {}", block.id),
                address: Address(0),
                bytes,
            }
        })
    }
}
