//! Host blocks, as copies use them.

use super::CudaDevice;
use crate::device::{Address, ByteRows, DeviceError, HostBlock};

impl CudaDevice {
    /// Where in a block a copy of rows that lie there one after the other begins, if both ends are
    /// backed. The bytes are in use from now on.
    pub(super) fn copied_from(
        &mut self,
        block: HostBlock,
        offset: u64,
        rows: ByteRows,
        to: Address,
    ) -> Result<*const u8, DeviceError> {
        self.memory.check("a copy to the device", to, rows.span())?;
        Ok(self.lend(block, offset, rows.bytes())?)
    }

    /// Where bytes of a block begin that a copy is about to use.
    pub(super) fn lend(
        &mut self,
        block: HostBlock,
        offset: u64,
        bytes: u64,
    ) -> Result<*mut u8, DeviceError> {
        let range = offset..offset.saturating_add(bytes);
        match self.blocks.get_mut(block.id as usize) {
            Some(found) => found.lend(range, &self.stream.copies),
            None => Err(block.lacks(range)),
        }
    }
}
