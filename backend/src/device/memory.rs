//! Memory of a device, and of the host beside it.

use derive_more::{Debug, Display};
use std::ops::Range;

/// An address in device memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Display)]
#[debug("{self}")]
#[display("{_0:#x}")]
pub struct Address(pub u64);

impl Address {
    /// The address `bytes` further on.
    pub fn offset(self, bytes: u64) -> Self {
        Self(self.0 + bytes)
    }
}

/// A reserved address range whose backing can be dropped and mapped again at the same addresses.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Reservation {
    /// Its number on the device.
    pub id: u32,
    /// Where it starts; aligned to at least 256 bytes.
    pub base: Address,
    /// How many bytes it holds.
    pub bytes: u64,
}

/// Rows of bytes that lie apart from each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ByteRows {
    /// Bytes that a row holds, without what lies between rows.
    pub width: u64,
    /// Bytes from the start of a row to that of the next.
    pub pitch: u64,
    /// Rows that are held, `pitch` bytes apart.
    pub count: u64,
}

impl ByteRows {
    /// Bytes held by all rows together, without what lies between them.
    pub fn bytes(self) -> u64 {
        self.width.saturating_mul(self.count)
    }

    /// Bytes from the start of the first row to the end of the last.
    pub fn span(self) -> u64 {
        let before = self.count.saturating_sub(1).saturating_mul(self.pitch);
        if self.count == 0 { 0 } else { before.saturating_add(self.width) }
    }
}

/// A block of host memory that the device copies to and from; pinned where that means something.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct HostBlock {
    /// Its number on the device.
    pub id: u32,
    /// How many bytes it holds.
    pub bytes: u64,
}

impl HostBlock {
    /// All its bytes.
    pub fn all(self) -> Range<u64> {
        0..self.bytes
    }
}
