//! Host blocks, as copies use them.

use super::CudaDevice;
use crate::cuda::host::PinnedBlock;
use crate::device::{Address, ByteRows, DeviceError, HostBlock};

impl CudaDevice {
    /// Where in a block a copy of rows that lie there one after the other begins, if both ends are
    /// backed.
    pub(super) fn copied_from(
        &self,
        block: HostBlock,
        offset: u64,
        rows: ByteRows,
        to: Address,
    ) -> Result<*const u8, DeviceError> {
        self.memory.check("a copy to the device", to, rows.span())?;
        let from = self.block(block, offset.saturating_add(rows.bytes()))?.as_ptr();
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
