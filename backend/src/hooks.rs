//! A device around another: a hook is told of each call before it is made, and may refuse it.

use crate::artifact::Artifact;
use crate::compiler::{Compiler, CompilerOptions};
use crate::device::measure::{
    GraphTimes, LaunchCounts, MeasuredDevice, ReadBandwidth, StepPart, Versions,
};
use crate::device::{
    Address, Binding, ByteRows, Captured, Clock, Device, DeviceError, Event, HostBlock, Program,
    Reservation,
};
use crate::tuning::{LibraryAlgorithm, LibraryProduct};
use crate::weights::{WeightLayout, WeightSource};
use piecewise_ir::weight::Recipe;
use piecewise_kernels::op::OpRegistry;
use piecewise_kernels::step::LaunchContext;
use std::any::Any;
use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// A call that a device is about to get.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum DeviceCall<'a> {
    /// The launches of a program, one by one.
    Launch(&'a Program),
    /// A replay of a captured graph.
    Replay(&'a Captured),
    /// Recording programs as a graph, by what people call them.
    Capture(&'a str),
    /// Waiting for an event.
    Wait,
    /// Opening the device anew after it was lost.
    Reopen,
    /// Anything else that the hardware has to do with, by what people call it.
    Other(&'a str),
}

/// What is told of the calls of a device. Clones are those of further models on the same hardware.
pub trait DeviceHook: Any + Clone + Debug + Send {
    /// Is called before each call; an error is what the call comes to, and the device is not asked.
    ///
    /// # Errors
    /// As the hook likes.
    fn before(&mut self, call: DeviceCall<'_>) -> Result<(), DeviceError>;

    /// What tells the host's time, where the device does by `clock`.
    fn clock(&self, clock: Clock) -> Clock {
        clock
    }
}

/// A device with a hook.
#[derive(Debug)]
pub struct HookedDevice<H> {
    device: Box<dyn Device>,
    hook: H,
}

impl<H: DeviceHook> HookedDevice<H> {
    /// Around a device that does what the hook does not refuse.
    pub fn new(device: impl Device, hook: H) -> Self {
        Self { device: Box::new(device), hook }
    }
}

/// Methods that the device does, after the hook was told where a call is named.
macro_rules! handed_on {
    ($($name:ident($($arg:ident: $ty:ty),*) -> $out:ty $(, $call:expr)?;)*) => {$(
        fn $name(&mut self, $($arg: $ty),*) -> Result<$out, DeviceError> {
            $(self.hook.before($call)?;)?
            self.device.$name($($arg),*)
        }
    )*};
}

/// What the device says.
macro_rules! said {
    ($($name:ident -> $out:ty;)*) => {$(
        fn $name(&self) -> $out {
            self.device.$name()
        }
    )*};
}

use DeviceCall::{Capture, Launch, Other, Reopen, Replay, Wait};

impl<H: DeviceHook> Device for HookedDevice<H> {
    said! {
        describe -> String;
        model -> String;
        library -> Option<String>;
        free_bytes -> u64;
        reads_inputs -> bool;
    }

    handed_on! {
        reserve(what: &str, bytes: u64) -> Reservation, Other(what);
        back(region: Reservation) -> (), Other("backing a region");
        drop_backing(region: Reservation) -> (), Other("dropping a region's backing");
        write(to: Address, bytes: &[u8]) -> (), Other("a write");
        read(from: Address, bytes: &mut [u8]) -> (), Other("a read");
        fill(to: Address, bytes: u64, pattern: &[u8]) -> (), Other("a fill");
        materialize(
            recipe: &Recipe, layout: WeightLayout, source: &dyn WeightSource, to: Address
        ) -> (), Other("a weight");
        host_block(bytes: u64) -> HostBlock, Other("a host block");
        host_bytes_mut(block: HostBlock, range: Range<u64>) -> &mut [u8];
        copy_in(block: HostBlock, offset: u64, bytes: u64, to: Address) -> (), Other("a copy in");
        copy_in_rows(
            block: HostBlock, offset: u64, rows: ByteRows, to: Address
        ) -> (), Other("a copy in");
        copy_out(
            from: Address, bytes: u64, block: HostBlock, offset: u64
        ) -> (), Other("a copy out");
        record(again: Option<Event>) -> Event, Other("an event");
        wait(event: &Event) -> (), Wait;
        mark(again: Option<Event>) -> Event, Other("a mark");
        elapsed(start: &Event, end: &Event) -> Duration;
        bind(artifact: &Artifact, binding: &Binding<'_>) -> Program, Other(binding.label);
        launch(program: &Program, context: LaunchContext<'_>) -> (), Launch(program);
        capture_following(
            label: &str, programs: &[&Program], following: &[usize], sizes: &[u64]
        ) -> Captured, Capture(label);
        replay(graph: &Captured) -> (), Replay(graph);
        replay_at(graph: &Captured, sizes: &[u64]) -> (), Replay(graph);
        replay_time(graph: &Captured) -> Duration, Replay(graph);
        reopen() -> (), Reopen;
        library_products(program: &Program, sizes: &[u64]) -> Vec<LibraryProduct>;
        prefer(product: &str, algorithm: LibraryAlgorithm) -> bool;
    }

    fn clock(&self) -> Clock {
        self.hook.clock(self.device.clock())
    }

    fn share(&self, ops: Arc<OpRegistry>) -> Result<Box<dyn Device>, DeviceError> {
        Ok(Box::new(Self { device: self.device.share(ops)?, hook: self.hook.clone() }))
    }

    fn compiler(&self, ops: Arc<OpRegistry>, options: CompilerOptions) -> Box<dyn Compiler> {
        self.device.compiler(ops, options)
    }

    fn host_bytes(&self, block: HostBlock, range: Range<u64>) -> Result<&[u8], DeviceError> {
        self.device.host_bytes(block, range)
    }

    fn copy_from(
        &mut self,
        other: &mut dyn Device,
        from: Address,
        bytes: u64,
        to: Address,
    ) -> Result<(), DeviceError> {
        self.hook.before(Other("a copy"))?;
        self.device.copy_from(&mut *other.of_kind::<Self>()?.device, from, bytes, to)
    }
}

impl<H: DeviceHook> MeasuredDevice for HookedDevice<H> {
    said! {
        versions -> Versions;
        cache_bytes -> u64;
        counts_free_bytes -> bool;
        launch_counts -> LaunchCounts;
    }

    handed_on! {
        block_times(graph: &Captured) -> Option<GraphTimes>;
        bare_submit(parts: &[StepPart<'_>], sizes: &[u64]) -> Option<Duration>;
        read_bandwidth() -> ReadBandwidth;
    }
}
