//! The CUDA device: memory, programs and captured graphs on one stream.

mod blocks;
mod enqueue;
mod launch;
mod open;
mod record;

use super::bound::{BoundLaunch, check_backing};
use super::captured::CudaCaptured;
use super::compiler::CudaCompiler;
use super::context::Context;
use super::driver::Driver;
use super::error::{CallError, CudaError, device_error};
use super::event::CudaEvent;
use super::host::PinnedBlock;
use super::image::CudaImage;
use super::lt_view::LtView;
use super::materialize::Loader;
use super::memory::Memory;
use super::module::Modules;
use super::nvrtc::Arch;
use super::options::CudaOptions;
use super::probe::DeviceReport;
use super::program::Binder;
use super::stream::Stream;
use crate::artifact::Artifact;
use crate::binding::Images;
use crate::compiler::{Compiler, CompilerOptions};
use crate::device::measure::LaunchCounts;
use crate::device::{
    Address, Binding, ByteRows, Captured, Clock, Device, DeviceError, Event, HostBlock, Program,
    Reservation,
};
use crate::tuning::{LibraryAlgorithm, LibraryProduct};
use crate::weights::{WeightLayout, WeightSource};
use piecewise_ir::weight::Recipe;
use piecewise_kernels::op::OpRegistry;
use piecewise_kernels::step::LaunchContext;
use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// A CUDA device with its one stream.
#[derive(Debug)]
pub struct CudaDevice {
    // Fields are dropped in this order: what runs and what is pointed to before the context.
    last: Option<Arc<BoundLaunch>>,
    pub(super) counts: Cell<LaunchCounts>,
    images: Images<CudaImage>,
    pub(super) modules: Modules,
    pub(super) lt: Option<LtView>,
    blocks: Vec<PinnedBlock>,
    pub(super) loader: Loader,
    memory: Memory,
    pub(super) stream: Arc<Stream>,
    context: Arc<Context>,
    registry: OpRegistry,
    /// Whether a program that was bound runs a function of the host, which may read what a step brings.
    has_host_functions: bool,
    options: CudaOptions,
}

impl CudaDevice {
    /// What kernels must be compiled for to run here.
    pub fn arch(&self) -> Arch {
        self.context.device.arch
    }

    /// The device as the driver describes it.
    pub fn report(&self) -> &DeviceReport {
        &self.context.device
    }

    pub(super) fn loaded_lt(&self) -> Result<&LtView, String> {
        self.lt.as_ref().ok_or_else(|| "cuBLASLt is not loaded".to_owned())
    }

    fn driver(&self) -> &dyn Driver {
        &*self.context.driver
    }

    pub(super) fn enter(&self) -> Result<(), DeviceError> {
        self.context.enter().map_err(|e| device_error("use the CUDA context", &e))
    }

    /// Waits for all work; a failure of a kernel shows here.
    pub(super) fn finish(&self) -> Result<(), DeviceError> {
        self.stream.synchronize().map_err(|e| self.asynchronous(&e))
    }

    /// What waiting found: of work that failed nobody knows how far it went, so that the device is
    /// lost whatever the driver calls it.
    fn asynchronous(&self, error: &CallError) -> DeviceError {
        let action = match &self.last {
            Some(last) => format!("finish the work up to `{}` of {}", last.name, last.label),
            None => "finish the work".to_owned(),
        };
        match error.is_of_capture() {
            true => device_error(action, error),
            false => DeviceError::Lost { action, reason: error.to_string() },
        }
    }

    /// A call that failed, or what it failed for, where that is work before it.
    fn lost_or(&self, error: DeviceError) -> DeviceError {
        match self.stream.synchronize() {
            Err(found) if found.is_sticky() => self.asynchronous(&found),
            _ => error,
        }
    }

    fn mark_end(
        &self,
        timing: bool,
        again: Option<Event>,
        action: &str,
    ) -> Result<Event, DeviceError> {
        self.enter()?;
        let event = CudaEvent::record(&self.stream, timing, again.and_then(Event::into));
        Ok(event.map_err(|e| device_error(action, &e))?.into())
    }

    fn count(&self, add: impl FnOnce(&mut LaunchCounts)) {
        let mut counts = self.counts.get();
        add(&mut counts);
        self.counts.set(counts);
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        if !self.context.is_lost()
            && let Err(error) = self.enter().and_then(|()| self.finish())
        {
            tracing::warn!(%error, "a CUDA device was closed after a failure");
        }
    }
}

impl Device for CudaDevice {
    fn describe(&self) -> String {
        format!("cuda:{} {}", self.options.ordinal, self.context.device)
    }

    fn clock(&self) -> Clock {
        self.driver().clock()
    }

    fn share(&self, ops: Arc<OpRegistry>) -> Result<Box<dyn Device>, DeviceError> {
        self.enter()?;
        let lt = self.lt.as_ref().map(LtView::share);
        let (context, kernels) = (Arc::clone(&self.context), Arc::clone(&self.loader.kernels));
        let options = self.options.clone();
        let shared = Self::in_context(context, kernels, lt, options, OpRegistry::clone(&ops));
        let action = "open a CUDA device for a further model".to_owned();
        let refused = |e: CudaError| DeviceError::Driver { action, reason: e.to_string() };
        Ok(Box::new(shared.map_err(refused)?))
    }

    /// It shares its kernels with the device.
    fn compiler(&self, ops: Arc<OpRegistry>, options: CompilerOptions) -> Box<dyn Compiler> {
        let kernels = self.loader.kernels.clone();
        Box::new(CudaCompiler::over(ops, kernels, self.options.stamps).with_options(options))
    }

    fn free_bytes(&self) -> u64 {
        self.enter().map(|()| self.driver().free_bytes().unwrap_or(0)).unwrap_or(0)
    }

    fn reserve(&mut self, what: &str, bytes: u64) -> Result<Reservation, DeviceError> {
        self.enter()?;
        self.driver().scope(&[what], &[]);
        self.memory.reserve(what, bytes)
    }

    fn back(&mut self, region: Reservation) -> Result<(), DeviceError> {
        self.enter()?;
        self.memory.back(region, self.stream.handle)
    }

    fn drop_backing(&mut self, region: Reservation) -> Result<(), DeviceError> {
        self.enter()?;
        self.finish()?;
        self.memory.drop_backing(region)
    }

    fn write(&mut self, to: Address, bytes: &[u8]) -> Result<(), DeviceError> {
        self.enter()?;
        let n = bytes.len() as u64;
        self.memory.check("a write", to, n)?;
        if n > 0 {
            // SAFETY: the bytes are borrowed until the stream is waited for below.
            unsafe { self.driver().copy_in(to.0, bytes.as_ptr(), n, self.stream.handle) }
                .map_err(|e| device_error(format!("write {n} bytes to {to}"), &e))?;
        }
        self.finish()
    }

    fn read(&mut self, from: Address, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.enter()?;
        let n = bytes.len() as u64;
        self.memory.check("a read", from, n)?;
        if n > 0 {
            let to = bytes.as_mut_ptr();
            // SAFETY: the bytes are borrowed alone until the stream is waited for below.
            unsafe { self.driver().copy_out(to, from.0, n, self.stream.handle) }
                .map_err(|e| device_error(format!("read {n} bytes at {from}"), &e))?;
        }
        self.finish()
    }

    fn copy_from(
        &mut self,
        other: &mut dyn Device,
        from: Address,
        bytes: u64,
        to: Address,
    ) -> Result<(), DeviceError> {
        let other: &mut Self = other.of_kind()?;
        other.enter()?;
        other.memory.check("a copy from here", from, bytes)?;
        other.finish()?;
        self.enter()?;
        self.memory.check("a copy", to, bytes)?;
        let action = || format!("copy {bytes} bytes from {from} to {to}");
        if self.options.ordinal != other.options.ordinal {
            let reason = format!(
                "one is on cuda:{}, the other on cuda:{}",
                other.options.ordinal, self.options.ordinal
            );
            return Err(DeviceError::Driver { action: action(), reason });
        }
        if bytes > 0 {
            self.driver()
                .copy_within(to.0, from.0, bytes, self.stream.handle)
                .map_err(|e| device_error(action(), &e))?;
        }
        self.finish()
    }

    fn fill(&mut self, to: Address, bytes: u64, pattern: &[u8]) -> Result<(), DeviceError> {
        self.enter()?;
        self.memory.check("a fill", to, bytes)?;
        let refused = |reason: String| DeviceError::Driver {
            action: format!("fill {bytes} bytes at {to}"),
            reason,
        };
        let width = pattern.len() as u64;
        let value = match *pattern {
            [a] => u32::from(a),
            [a, b] => u32::from(u16::from_le_bytes([a, b])),
            [a, b, c, d] => u32::from_le_bytes([a, b, c, d]),
            _ => return Err(refused(format!("a pattern has 1, 2 or 4 bytes, not {width}"))),
        };
        if !bytes.is_multiple_of(width) || !to.0.is_multiple_of(width) {
            return Err(refused(format!("the pattern of {width} bytes does not fit there")));
        }
        if bytes == 0 {
            return Ok(());
        }
        self.driver()
            .set(to.0, value, width as u32, bytes / width, self.stream.handle)
            .map_err(|e| refused(e.to_string()))
    }

    fn materialize(
        &mut self,
        recipe: &Recipe,
        layout: WeightLayout,
        source: &dyn WeightSource,
        to: Address,
    ) -> Result<(), DeviceError> {
        self.enter()?;
        match layout {
            WeightLayout::RowMajor => {}
        }
        let bytes = crate::weight_plan::recipe_bytes(recipe)?;
        self.memory.check("a weight", to, bytes)?;
        self.loader.materialize(&mut self.modules, recipe, source, to)
    }

    fn host_block(&mut self, bytes: u64) -> Result<HostBlock, DeviceError> {
        self.enter()?;
        let block = HostBlock { id: self.blocks.len() as u32, bytes };
        self.blocks.push(PinnedBlock::allocate(&self.context, block)?);
        Ok(block)
    }

    fn host_bytes(&self, block: HostBlock, range: Range<u64>) -> Result<&[u8], DeviceError> {
        match self.blocks.get(block.id as usize) {
            Some(found) => found.bytes(range, &self.stream.copies),
            None => Err(block.lacks(range)),
        }
    }

    fn host_bytes_mut(
        &mut self,
        block: HostBlock,
        range: Range<u64>,
    ) -> Result<&mut [u8], DeviceError> {
        match self.blocks.get_mut(block.id as usize) {
            Some(found) => found.bytes_mut(range, &self.stream.copies),
            None => Err(block.lacks(range)),
        }
    }

    fn copy_in(
        &mut self,
        block: HostBlock,
        offset: u64,
        bytes: u64,
        to: Address,
    ) -> Result<(), DeviceError> {
        self.enter()?;
        let one = ByteRows { width: bytes, pitch: bytes, count: 1 };
        let from = self.copied_from(block, offset, one, to)?;
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the block is lent to the copy, so that nobody writes to these bytes before it is done.
        unsafe { self.driver().copy_in(to.0, from, bytes, self.stream.handle) }
            .map_err(|e| device_error(format!("copy {bytes} bytes to {to}"), &e))
    }

    fn copy_in_rows(
        &mut self,
        block: HostBlock,
        offset: u64,
        rows: ByteRows,
        to: Address,
    ) -> Result<(), DeviceError> {
        self.enter()?;
        let from = self.copied_from(block, offset, rows, to)?;
        if rows.width == 0 || rows.count == 0 {
            return Ok(());
        }
        // SAFETY: as for `copy_in`.
        unsafe { self.driver().copy_in_rows(to.0, from, rows, self.stream.handle) }
            .map_err(|e| device_error(format!("copy {rows:?} to {to}"), &e))
    }

    fn copy_out(
        &mut self,
        from: Address,
        bytes: u64,
        block: HostBlock,
        offset: u64,
    ) -> Result<(), DeviceError> {
        self.enter()?;
        self.memory.check("a copy from the device", from, bytes)?;
        let to = self.lend(block, offset, bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the block is lent to the copy, so that nobody uses these bytes before it is done.
        unsafe { self.driver().copy_out(to, from.0, bytes, self.stream.handle) }
            .map_err(|e| device_error(format!("copy {bytes} bytes at {from}"), &e))
    }

    fn record(&mut self, again: Option<Event>) -> Result<Event, DeviceError> {
        self.mark_end(false, again, "record an event")
    }

    fn wait(&mut self, event: &Event) -> Result<(), DeviceError> {
        let event: &CudaEvent = event.of()?;
        self.enter()?;
        event.wait().map_err(|e| self.asynchronous(&e))
    }

    fn mark(&mut self, again: Option<Event>) -> Result<Event, DeviceError> {
        self.mark_end(true, again, "mark a time")
    }

    fn elapsed(&mut self, start: &Event, end: &Event) -> Result<Duration, DeviceError> {
        self.wait(start)?;
        self.wait(end)?;
        let ms = end.of::<CudaEvent>()?.milliseconds_since(start.of()?);
        let ms = ms.map_err(|e| device_error("read a time", &e))?;
        Ok(Duration::from_secs_f64(f64::from(ms.max(0.0)) / 1e3))
    }

    fn bind(&mut self, artifact: &Artifact, binding: &Binding<'_>) -> Result<Program, DeviceError> {
        self.enter()?;
        self.driver().scope(&[binding.label], &[]);
        let bound = Binder {
            context: &self.context,
            memory: &self.memory,
            registry: &self.registry,
            modules: &mut self.modules,
            images: &mut self.images,
        }
        .bind(artifact, binding)?;
        self.has_host_functions |= bound.has_host_functions();
        Ok(Program::new(bound))
    }

    fn reads_inputs(&self) -> bool {
        self.has_host_functions
    }

    fn launch(&mut self, program: &Program, context: LaunchContext<'_>) -> Result<(), DeviceError> {
        self.enter()?;
        self.launch_program(program.of()?, context)
    }

    fn capture_following(
        &mut self,
        label: &str,
        programs: &[&Program],
        following: &[usize],
        sizes: &[u64],
    ) -> Result<Captured, DeviceError> {
        self.enter()?;
        self.driver().scope(&[label], sizes);
        let programs =
            programs.iter().map(|program| program.of()).collect::<Result<Vec<_>, _>>()?;
        let captured = self.record_graph(label, &programs, following, sizes);
        // A custom op's library may have left another context.
        self.enter()?;
        captured.map(Captured::new).map_err(|error| self.lost_or(error))
    }

    fn replay(&mut self, graph: &Captured) -> Result<(), DeviceError> {
        self.replay_at(graph, &graph.of::<CudaCaptured>()?.sizes)
    }

    fn replay_at(&mut self, graph: &Captured, sizes: &[u64]) -> Result<(), DeviceError> {
        let graph: &CudaCaptured = graph.of()?;
        self.enter()?;
        let refused = |reason: String| DeviceError::Refused {
            label: graph.label.clone(),
            reason: format!("at sizes {:?}: {reason}", graph.sizes),
        };
        check_backing(graph.needed.iter()).map_err(refused)?;
        self.driver().scope(&[&graph.label], &graph.sizes);
        self.set_sizes(graph, sizes)?;
        graph.exec.launch().map_err(|e| match e.is_sticky() {
            true => self.asynchronous(&e),
            false => self.lost_or(refused(e.to_string())),
        })?;
        self.count(|counts| {
            counts.graph_launches += 1;
            counts.graph_nodes += graph.summary.nodes as u64;
            counts.programmatic_edges += graph.summary.programmatic_edges as u64;
        });
        if self.options.synchronous {
            self.finish()?;
        }
        if let Some(last) = graph.launches.last() {
            self.last = Some(last.clone());
        }
        Ok(())
    }

    fn reopen(&mut self) -> Result<(), DeviceError> {
        self.open_anew()
    }

    fn model(&self) -> String {
        self.report().name.clone()
    }

    fn library(&self) -> Option<String> {
        self.lt.as_ref().map(|lt| lt.lock().identity())
    }

    fn library_products(
        &mut self,
        program: &Program,
        sizes: &[u64],
    ) -> Result<Vec<LibraryProduct>, DeviceError> {
        self.products_of_library(program.of()?, sizes)
    }

    fn prefer(&mut self, product: &str, algorithm: LibraryAlgorithm) -> Result<bool, DeviceError> {
        self.prefer_algorithm(product, algorithm)
    }

    fn replay_time(&mut self, graph: &Captured) -> Result<Duration, DeviceError> {
        let start = self.mark(None)?;
        self.replay(graph)?;
        let end = self.mark(None)?;
        self.elapsed(&start, &end)
    }
}
