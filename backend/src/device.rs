//! The device interface: memory, binding, launching, capturing, replaying.

mod error;
mod handles;
pub mod measure;
mod memory;

pub use error::{CaptureRule, DeviceError};
pub use handles::{
    BoundAddress, BoundProgram, BoundTo, Captured, Event, GraphShape, LaunchView, Program,
    Replayable,
};
pub use memory::{Address, ByteRows, HostBlock, Reservation};

use crate::artifact::{Artifact, Choice};
use crate::compiler::{Compiler, CompilerOptions};
use crate::tuning::{LibraryAlgorithm, LibraryProduct};
use crate::weights::{WeightLayout, WeightSource};

use measure::MeasuredDevice;
use piecewise_ir::module::UniquePiece;
use piecewise_ir::weight::Recipe;
use piecewise_kernels::op::OpRegistry;
use piecewise_kernels::step::LaunchContext;
use std::any::Any;
use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Tells what time it is on the host, for the calling thread.
pub type Clock = fn() -> Instant;

/// Where the operands of a unique piece lie for one of its uses.
#[derive(Clone, Debug)]
pub struct Binding<'a> {
    /// The piece whose operands these are.
    pub piece: &'a UniquePiece,
    /// The alternative of the artifact that is taken, and the ways of its parts.
    pub choice: &'a Choice,
    /// For each operand position, its address; `None` for a local that got no slot.
    pub operands: &'a [Option<Address>],
    /// Where the scratch that its launches share begins.
    pub scratch: Address,
    /// How many bytes of scratch there are; at least what the artifact needs.
    pub scratch_bytes: u64,
    /// Where the true counts lie: one `i32` for each symbol.
    pub counts: Address,
    /// The largest size of each symbol, by symbol index.
    pub bounds: &'a [u64],
    /// For errors and address audits: what this use is called.
    pub label: &'a str,
}

/// A device: memory, programs and captured graphs. Used by one thread at a time.
///
/// What it makes ([`Program`], [`Captured`], [`Event`]) only devices of its kind use; for any other that is
/// [`DeviceError::Foreign`].
pub trait Device: MeasuredDevice + Any + Debug + Send {
    /// What it is, for people: model, cores, instruction set.
    fn describe(&self) -> String;

    /// What tells the host's time, by which captures and steps on this device are timed and held to their
    /// budgets; one that simulates its work may let time pass in another way.
    fn clock(&self) -> Clock {
        Instant::now
    }

    /// The same hardware for a further model: memory and a stream of its own, and these custom ops.
    ///
    /// # Errors
    /// When the hardware has no room for it.
    fn share(&self, ops: Arc<OpRegistry>) -> Result<Box<dyn Device>, DeviceError>;

    /// What compiles for it, with these custom ops.
    fn compiler(&self, ops: Arc<OpRegistry>, options: CompilerOptions) -> Box<dyn Compiler>;

    /// Bytes that can still be backed.
    fn free_bytes(&self) -> u64;

    /// Reserves an address range without backing.
    ///
    /// # Errors
    /// When there are no addresses left, or inside a capture.
    fn reserve(&mut self, what: &str, bytes: u64) -> Result<Reservation, DeviceError>;

    /// Backs a reserved range with zeroed memory at its addresses; no-op where it is backed.
    ///
    /// # Errors
    /// When memory is short, or inside a capture.
    fn back(&mut self, region: Reservation) -> Result<(), DeviceError>;

    /// Drops the backing, keeping the addresses.
    ///
    /// # Errors
    /// Inside a capture.
    fn drop_backing(&mut self, region: Reservation) -> Result<(), DeviceError>;

    /// Writes bytes and waits.
    ///
    /// # Errors
    /// When the range is not backed, or inside a capture.
    fn write(&mut self, to: Address, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Waits for all work and reads bytes.
    ///
    /// # Errors
    /// When the range is not backed, or inside a capture.
    fn read(&mut self, from: Address, bytes: &mut [u8]) -> Result<(), DeviceError>;

    /// Waits for all work of `other`, copies bytes of its memory here, past the host, and waits.
    ///
    /// # Errors
    /// [`DeviceError::Foreign`] where the other is of another kind; when a range is not backed, the two are
    /// of different hardware, or inside a capture.
    fn copy_from(
        &mut self,
        other: &mut dyn Device,
        from: Address,
        bytes: u64,
        to: Address,
    ) -> Result<(), DeviceError>;

    /// Enqueues filling `bytes` bytes with the repeated `pattern` (1, 2 or 4 bytes).
    ///
    /// # Errors
    /// When the range is not backed, or inside a capture.
    fn fill(&mut self, to: Address, bytes: u64, pattern: &[u8]) -> Result<(), DeviceError>;

    /// Makes a weight's bytes in `layout` at `to`.
    ///
    /// # Errors
    /// When the source does not have what the recipe reads, or the range is not backed.
    fn materialize(
        &mut self,
        recipe: &Recipe,
        layout: WeightLayout,
        source: &dyn WeightSource,
        to: Address,
    ) -> Result<(), DeviceError>;

    /// Makes a host block that copies can use; at load, never in a step.
    ///
    /// # Errors
    /// When memory is short, or inside a capture.
    fn host_block(&mut self, bytes: u64) -> Result<HostBlock, DeviceError>;

    /// Bytes `range` of a host block.
    ///
    /// # Errors
    /// [`DeviceError::HostBlockInUse`] until somebody waited for the copies that were enqueued between
    /// the device and these bytes; when the block has no such bytes.
    fn host_bytes(&self, block: HostBlock, range: Range<u64>) -> Result<&[u8], DeviceError>;

    /// Bytes `range` of a host block, to be filled.
    ///
    /// # Errors
    /// As for [`Self::host_bytes`].
    fn host_bytes_mut(
        &mut self,
        block: HostBlock,
        range: Range<u64>,
    ) -> Result<&mut [u8], DeviceError>;

    /// Enqueues a copy of `bytes` bytes of the block from `offset` on to `to`.
    ///
    /// # Errors
    /// When the range is not backed, or inside a capture.
    fn copy_in(
        &mut self,
        block: HostBlock,
        offset: u64,
        bytes: u64,
        to: Address,
    ) -> Result<(), DeviceError>;

    /// Enqueues a copy of rows, which follow one another in the block from `offset` on, to where they lie
    /// apart from `to` on; what lies between them stays.
    ///
    /// # Errors
    /// When the range is not backed, or inside a capture.
    fn copy_in_rows(
        &mut self,
        block: HostBlock,
        offset: u64,
        rows: ByteRows,
        to: Address,
    ) -> Result<(), DeviceError> {
        (0..rows.count)
            .map(|row| (offset + row * rows.width, to.offset(row * rows.pitch)))
            .try_for_each(|(from, to)| self.copy_in(block, from, rows.width, to))
    }

    /// Enqueues a copy of `bytes` bytes at `from` to the block at `offset`.
    ///
    /// # Errors
    /// When the range is not backed, or inside a capture.
    fn copy_out(
        &mut self,
        from: Address,
        bytes: u64,
        block: HostBlock,
        offset: u64,
    ) -> Result<(), DeviceError>;

    /// Marks the present end of the stream; `again` is an event that nobody waits for any more, to
    /// mark it with.
    ///
    /// # Errors
    /// Inside a capture.
    fn record(&mut self, again: Option<Event>) -> Result<Event, DeviceError>;

    /// Waits until the stream has passed `event`.
    ///
    /// # Errors
    /// When work before it failed, or inside a capture.
    fn wait(&mut self, event: &Event) -> Result<(), DeviceError>;

    /// The same by an event that remembers when it was passed; `again` is one that nobody asks any more.
    ///
    /// # Errors
    /// Inside a capture, or when the driver refuses.
    fn mark(&mut self, again: Option<Event>) -> Result<Event, DeviceError>;

    /// The time from `start` to `end`, which are marks, by the device's own clock; waits for both.
    ///
    /// # Errors
    /// When work before them failed.
    fn elapsed(&mut self, start: &Event, end: &Event) -> Result<Duration, DeviceError>;

    /// Binds an artifact to addresses.
    ///
    /// # Errors
    /// When an operand that a launch uses has no address, what a launch writes shares bytes with
    /// anything else that it uses, or the scratch is too small.
    fn bind(&mut self, artifact: &Artifact, binding: &Binding<'_>) -> Result<Program, DeviceError>;

    /// Whether a launch of a program that was bound may read
    /// [`StepContext::inputs`](piecewise_kernels::step::StepContext::inputs): where none does, they
    /// need not be there.
    fn reads_inputs(&self) -> bool {
        true
    }

    /// Runs a program's launches one by one.
    ///
    /// # Errors
    /// When a launch fails.
    fn launch(&mut self, program: &Program, context: LaunchContext<'_>) -> Result<(), DeviceError>;

    /// Captures programs, in order, into one graph for these padded sizes by symbol index. No
    /// kernel runs. On an error nothing is captured and the device is as before.
    ///
    /// # Errors
    /// When a rule of captures is broken or the device can't capture.
    fn capture(
        &mut self,
        label: &str,
        programs: &[&Program],
        sizes: &[u64],
    ) -> Result<Captured, DeviceError> {
        self.capture_following(label, programs, &[], sizes)
    }

    /// The same, where the programs at the places `following`, ascending, follow the sizes of each replay
    /// ([`Self::replay_at`]): launches of theirs are all
    /// [`follows_sizes`](crate::artifact::Launch::follows_sizes). The others stay at `sizes`.
    ///
    /// # Errors
    /// As for [`Self::capture`], and when a launch of theirs can't follow.
    fn capture_following(
        &mut self,
        label: &str,
        programs: &[&Program],
        following: &[usize],
        sizes: &[u64],
    ) -> Result<Captured, DeviceError>;

    /// Replays a captured graph as it was captured: it sees nothing but what it holds.
    ///
    /// # Errors
    /// [`DeviceError::Refused`] where nothing of it ran, another where a launch fails.
    fn replay(&mut self, graph: &Captured) -> Result<(), DeviceError>;

    /// The same, where its programs that follow have these padded sizes, as if each were launched with
    /// them. What no size has changed of since the last replay costs nothing.
    ///
    /// # Errors
    /// As for [`Self::replay`]; [`DeviceError::Refused`] also where a program is too small for the sizes.
    fn replay_at(&mut self, graph: &Captured, sizes: &[u64]) -> Result<(), DeviceError>;

    /// Opens the device anew after it was lost. Regions, host blocks, programs, graphs and events
    /// from before are gone, and are dropped by whoever has them first; what is compiled stays.
    /// Other devices that share its memory or context are lost with it.
    ///
    /// # Errors
    /// When it can't be opened. It stays lost, and may be opened later.
    fn reopen(&mut self) -> Result<(), DeviceError>;

    /// Its model alone: what is measured on one of them holds for others.
    fn model(&self) -> String;

    /// The library that computes parts of programs, and its version; nothing where there is none.
    fn library(&self) -> Option<String> {
        None
    }

    /// The products of a program at these padded sizes that the library computes, each once.
    ///
    /// # Errors
    /// When the library can't be asked.
    fn library_products(
        &mut self,
        program: &Program,
        sizes: &[u64],
    ) -> Result<Vec<LibraryProduct>, DeviceError> {
        let _ = (program, sizes);
        Ok(Vec::new())
    }

    /// Takes an algorithm for a product of the library in every launch and capture from now on;
    /// `false` where the library refuses it.
    ///
    /// # Errors
    /// When the library can't be asked.
    fn prefer(&mut self, product: &str, algorithm: LibraryAlgorithm) -> Result<bool, DeviceError> {
        let _ = (product, algorithm);
        Ok(false)
    }

    /// The time that replaying a graph takes by the device's own clock; waits for it.
    ///
    /// # Errors
    /// When a launch fails.
    fn replay_time(&mut self, graph: &Captured) -> Result<Duration, DeviceError>;
}

impl dyn Device {
    /// The device itself, where it is of this kind.
    pub fn downcast_ref<T: Device>(&self) -> Option<&T> {
        let any: &dyn Any = self;
        any.downcast_ref()
    }

    /// The same, to change it.
    pub fn downcast_mut<T: Device>(&mut self) -> Option<&mut T> {
        let any: &mut dyn Any = self;
        any.downcast_mut()
    }

    /// The same, for a device of its kind to copy from.
    ///
    /// # Errors
    /// [`DeviceError::Foreign`] where it is of another.
    pub fn of_kind<T: Device>(&mut self) -> Result<&mut T, DeviceError> {
        self.downcast_mut().ok_or(DeviceError::Foreign { what: "the memory that is to be copied" })
    }
}
