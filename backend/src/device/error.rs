//! What a device could not do.

use super::memory::{Address, HostBlock};
use crate::weights::WeightError;
use std::ops::Range;

/// A rule that holds inside a capture.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaptureRule {
    /// Memory is neither reserved, backed nor dropped inside a capture.
    #[error("no allocation inside a capture; reserve memory before it")]
    NoAllocation,
    /// The host does not wait, read or write inside a capture.
    #[error("no synchronization inside a capture; stage before it and read back after it")]
    NoSynchronization,
    /// Every address that a captured launch uses lies in memory that the graph keeps alive.
    #[error("no unretained memory inside a capture; bind operands to reserved regions")]
    NoUnretained,
    /// Every captured op supports capture for the batch.
    #[error("an op that can't be captured for this batch; run it as a split op")]
    UnsupportedOp,
    /// Nothing in a captured graph waits for the host.
    #[error("no host function inside a capture; run it as a split op")]
    NoHostNode,
    /// A captured graph launches at least one kernel.
    #[error("no empty capture; merge a piece without kernels away")]
    NoEmpty,
}

/// What a device could not do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "a field is what the message calls it")]
pub enum DeviceError {
    /// There is not enough memory.
    #[error("{what} needs {bytes} bytes, more than the device can give: {reason}")]
    OutOfMemory { what: String, bytes: u64, reason: String },
    /// An address outside the memory that was reserved and backed.
    #[error("{what} at {address} (+{bytes} bytes) is outside reserved, backed memory")]
    BadAddress { what: String, address: Address, bytes: u64 },
    /// Bytes of a host block that a copy may still read or write.
    #[error(
        "bytes {from}..{to} of host block {block} are in use by a copy that may be under way; record \
         an event after the copy and wait for it"
    )]
    HostBlockInUse { block: u32, from: u64, to: u64 },
    /// What another kind of device made.
    #[error(
        "{what} is of another kind of device than the one that is to use it; give a device what it, or \
         one like it, has made"
    )]
    Foreign { what: &'static str },
    /// A program that does not fit what it is bound to.
    #[error("{label} can't be bound: {reason}")]
    Bind { label: String, reason: String },
    /// The device refused a launch of a program.
    #[error("launch `{launch}` of {label} failed: {reason}")]
    Launch { launch: String, label: String, reason: String },
    /// A captured graph was refused when it was submitted: nothing of it ran, and the device goes
    /// on.
    #[error("replay of {label} was refused: {reason}; nothing of it ran")]
    Refused { label: String, reason: String },
    /// The device failed, at this call or at work before it, and refuses all that follows.
    #[error(
        "the device is lost, seen when it was to {action}: {reason}; everything on it is gone, and \
         it can be opened anew"
    )]
    Lost { action: String, reason: String },
    /// The device failed so that its driver refuses this process another context, as it does after an
    /// illegal address.
    #[error(
        "could not {action}: {reason}; the driver refuses this process from now on: start the \
         program again"
    )]
    ProcessRefused { action: String, reason: String },
    /// A rule of captures was broken; nothing was captured.
    #[error("capture of {label}: {rule}")]
    Capture {
        /// What was being captured, down to the launch.
        label: String,
        rule: CaptureRule,
    },
    /// The device could not capture; nothing was captured.
    #[error(
        "capture of {label} at sizes {sizes:?} failed{}: {reason}; nothing was captured",
        launch.as_ref().map(|name| format!(" at launch `{name}`")).unwrap_or_default()
    )]
    CaptureFailed {
        label: String,
        /// The launch that failed, if it was one.
        launch: Option<String>,
        /// The padded sizes by symbol.
        sizes: Vec<u64>,
        reason: String,
    },
    /// The driver refused or failed.
    #[error("could not {action}: {reason}")]
    Driver {
        action: String,
        /// The driver function, its status and what it means.
        reason: String,
    },
    /// A weight could not be made.
    #[error(transparent)]
    Weight(#[from] WeightError),
}

impl DeviceError {
    /// Whether nothing works any more before [`Device::reopen`](super::Device::reopen).
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Lost { .. } | Self::ProcessRefused { .. })
    }

    /// Whether nothing works any more in this process.
    pub fn needs_new_process(&self) -> bool {
        matches!(self, Self::ProcessRefused { .. })
    }
}

impl HostBlock {
    /// What is said of bytes that it does not have.
    pub(crate) fn lacks(self, range: Range<u64>) -> DeviceError {
        DeviceError::BadAddress {
            what: format!("host block {} of {} bytes", self.id, self.bytes),
            address: Address(range.start),
            bytes: range.end.saturating_sub(range.start),
        }
    }
}
