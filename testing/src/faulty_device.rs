//! A device that fails as planned.

use crate::faults::{DeviceFaults, FaultPoint};
use crate::host_time;
use piecewise_backend::artifact::Artifact;
use piecewise_backend::cpu::CpuDevice;
use piecewise_backend::device::{
    Address, Binding, BoundAddress, ByteRows, Clock, Device, DeviceError, HostBlock, Reservation,
};
use piecewise_backend::measure::{
    GraphShape, GraphTimes, LaunchCounts, LaunchView, MeasuredDevice, ReadBandwidth, StepPart,
    Versions,
};
use piecewise_backend::tuning::{LibraryAlgorithm, LibraryProduct};
use piecewise_backend::weights::{WeightLayout, WeightSource};
use piecewise_ir::weight::Recipe;
use piecewise_kernels::op::OpRegistry;
use piecewise_kernels::step::{CaptureSupport, LaunchContext};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// A device whose calls fail as planned, and whose time is [`host_time`]'s.
#[derive(Debug, derive_more::Deref, derive_more::DerefMut)]
pub struct FaultyDevice<D> {
    #[deref]
    #[deref_mut]
    device: D,
    faults: DeviceFaults,
}

impl<D> FaultyDevice<D> {
    /// Around a device to which it hands on what does not fail.
    pub fn new(device: D, faults: DeviceFaults) -> Self {
        Self { device, faults }
    }
}

impl FaultyDevice<CpuDevice> {
    /// [`CpuDevice::share`], with the same faults.
    #[must_use]
    pub fn share(&self, registry: Arc<OpRegistry>) -> Self {
        Self { device: self.device.share(registry), faults: self.faults.clone() }
    }
}

impl<D: Device> Device for FaultyDevice<D> {
    type Program = D::Program;
    type Captured = D::Captured;
    type Event = D::Event;
    type Mark = D::Mark;

    fn describe(&self) -> String {
        self.device.describe()
    }

    fn clock(&self) -> Clock {
        host_time::now
    }

    fn free_bytes(&self) -> u64 {
        self.device.free_bytes()
    }

    fn reserve(&mut self, what: &str, bytes: u64) -> Result<Reservation, DeviceError> {
        self.faults.check_lost(what)?;
        self.device.reserve(what, bytes)
    }

    fn back(&mut self, region: Reservation) -> Result<(), DeviceError> {
        self.faults.check_lost("backing a region")?;
        self.device.back(region)
    }

    fn drop_backing(&mut self, region: Reservation) -> Result<(), DeviceError> {
        self.faults.check_lost("dropping a region's backing")?;
        self.device.drop_backing(region)
    }

    fn write(&mut self, to: Address, bytes: &[u8]) -> Result<(), DeviceError> {
        self.faults.check_lost("a write")?;
        self.device.write(to, bytes)
    }

    fn read(&mut self, from: Address, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.faults.check_lost("a read")?;
        self.device.read(from, bytes)
    }

    fn copy_from(
        &mut self,
        other: &mut Self,
        from: Address,
        bytes: u64,
        to: Address,
    ) -> Result<(), DeviceError> {
        self.faults.check_lost("a copy")?;
        self.device.copy_from(&mut other.device, from, bytes, to)
    }

    fn fill(&mut self, to: Address, bytes: u64, pattern: &[u8]) -> Result<(), DeviceError> {
        self.faults.check_lost("a fill")?;
        self.device.fill(to, bytes, pattern)
    }

    fn materialize(
        &mut self,
        recipe: &Recipe,
        layout: WeightLayout,
        source: &dyn WeightSource,
        to: Address,
    ) -> Result<(), DeviceError> {
        self.faults.check_lost("a weight")?;
        self.device.materialize(recipe, layout, source, to)
    }

    fn host_block(&mut self, bytes: u64) -> Result<HostBlock, DeviceError> {
        self.faults.check_lost("a host block")?;
        self.device.host_block(bytes)
    }

    fn host_bytes(&self, block: HostBlock, range: Range<u64>) -> Result<&[u8], DeviceError> {
        self.device.host_bytes(block, range)
    }

    fn host_bytes_mut(
        &mut self,
        block: HostBlock,
        range: Range<u64>,
    ) -> Result<&mut [u8], DeviceError> {
        self.device.host_bytes_mut(block, range)
    }

    fn copy_in(
        &mut self,
        block: HostBlock,
        offset: u64,
        bytes: u64,
        to: Address,
    ) -> Result<(), DeviceError> {
        self.faults.check_lost("a copy in")?;
        self.device.copy_in(block, offset, bytes, to)
    }

    fn copy_in_rows(
        &mut self,
        block: HostBlock,
        offset: u64,
        rows: ByteRows,
        to: Address,
    ) -> Result<(), DeviceError> {
        self.faults.check_lost("a copy in")?;
        self.device.copy_in_rows(block, offset, rows, to)
    }

    fn copy_out(
        &mut self,
        from: Address,
        bytes: u64,
        block: HostBlock,
        offset: u64,
    ) -> Result<(), DeviceError> {
        self.faults.check_lost("a copy out")?;
        self.device.copy_out(from, bytes, block, offset)
    }

    fn record(&mut self, again: Option<D::Event>) -> Result<D::Event, DeviceError> {
        self.faults.check_lost("an event")?;
        self.device.record(again)
    }

    fn wait(&mut self, event: &D::Event) -> Result<(), DeviceError> {
        self.faults.check_lost("a wait")?;
        self.faults.pass(FaultPoint::Wait, "a wait")?;
        self.device.wait(event)
    }

    fn mark(&mut self, again: Option<D::Mark>) -> Result<D::Mark, DeviceError> {
        self.faults.check_lost("a mark")?;
        self.device.mark(again)
    }

    fn elapsed(&mut self, start: &D::Mark, end: &D::Mark) -> Result<Duration, DeviceError> {
        self.device.elapsed(start, end)
    }

    fn bind(
        &mut self,
        artifact: &Artifact,
        binding: &Binding<'_>,
    ) -> Result<D::Program, DeviceError> {
        self.faults.check_lost(binding.label)?;
        self.device.bind(artifact, binding)
    }

    fn reads_inputs(&self) -> bool {
        self.device.reads_inputs()
    }

    fn capture_support(&self, program: &D::Program) -> CaptureSupport {
        self.device.capture_support(program)
    }

    fn launch(
        &mut self,
        program: &D::Program,
        context: LaunchContext<'_>,
    ) -> Result<(), DeviceError> {
        self.faults.check_lost("a launch")?;
        self.faults.pass(FaultPoint::Launch, "a program")?;
        self.device.launch(program, context)
    }

    fn capture_following(
        &mut self,
        label: &str,
        programs: &[&D::Program],
        following: &[usize],
        sizes: &[u64],
    ) -> Result<D::Captured, DeviceError> {
        self.faults.check_lost(label)?;
        self.faults.pass(FaultPoint::Capture, label)?;
        self.device.capture_following(label, programs, following, sizes)
    }

    fn replay(&mut self, graph: &D::Captured) -> Result<(), DeviceError> {
        self.faults.check_lost("a replay")?;
        self.faults.pass(FaultPoint::Replay, "a captured graph")?;
        self.device.replay(graph)
    }

    fn replay_at(&mut self, graph: &D::Captured, sizes: &[u64]) -> Result<(), DeviceError> {
        self.faults.check_lost("a replay")?;
        self.faults.pass(FaultPoint::Replay, "a captured graph")?;
        self.device.replay_at(graph, sizes)
    }

    fn reopen(&mut self) -> Result<(), DeviceError> {
        self.device.reopen()?;
        self.faults.reopen()
    }

    fn model(&self) -> String {
        self.device.model()
    }

    fn library(&self) -> Option<String> {
        self.device.library()
    }

    fn library_products(
        &mut self,
        program: &D::Program,
        sizes: &[u64],
    ) -> Result<Vec<LibraryProduct>, DeviceError> {
        self.device.library_products(program, sizes)
    }

    fn prefer(&mut self, product: &str, algorithm: LibraryAlgorithm) -> Result<bool, DeviceError> {
        self.device.prefer(product, algorithm)
    }

    fn replay_time(&mut self, graph: &D::Captured) -> Result<Duration, DeviceError> {
        self.faults.check_lost("a replay")?;
        self.faults.pass(FaultPoint::Replay, "a captured graph")?;
        self.device.replay_time(graph)
    }

    fn addresses<'a>(&'a self, graph: &'a D::Captured) -> Vec<BoundAddress<'a>> {
        self.device.addresses(graph)
    }
}

impl<D: MeasuredDevice> MeasuredDevice for FaultyDevice<D> {
    fn versions(&self) -> Versions {
        self.device.versions()
    }

    fn cache_bytes(&self) -> u64 {
        self.device.cache_bytes()
    }

    fn counts_free_bytes(&self) -> bool {
        self.device.counts_free_bytes()
    }

    fn launch_counts(&self) -> LaunchCounts {
        self.device.launch_counts()
    }

    fn graph_shape(&self, graph: &D::Captured) -> GraphShape {
        self.device.graph_shape(graph)
    }

    fn launches<'a>(&self, program: &'a D::Program) -> Vec<LaunchView<'a>> {
        self.device.launches(program)
    }

    fn without(&self, program: &D::Program, left_out: &[usize]) -> D::Program {
        self.device.without(program, left_out)
    }

    fn block_times(&mut self, graph: &D::Captured) -> Result<Option<GraphTimes>, DeviceError> {
        self.device.block_times(graph)
    }

    fn bare_submit(
        &mut self,
        parts: &[StepPart<'_, D::Program, D::Captured>],
        sizes: &[u64],
    ) -> Result<Option<Duration>, DeviceError> {
        self.device.bare_submit(parts, sizes)
    }

    fn read_bandwidth(&mut self) -> Result<ReadBandwidth, DeviceError> {
        self.device.read_bandwidth()
    }
}
