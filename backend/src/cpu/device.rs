//! The CPU device.

use super::captured::CpuCaptured;
use super::compiler::CpuCompiler;
use super::image::Kernel;
use super::launch::{Workspace, run_calls};
use super::materialize::materialize;
use super::memory::{Memory, free_bytes};
use super::profile::{LaunchTime, Profile};
use super::program::{Binder, CpuProgram};
use crate::artifact::Artifact;
use crate::binding::Images;
use crate::compiler::{Compiler, CompilerOptions};
use crate::device::measure::LaunchCounts;
use crate::device::{
    Address, Binding, CaptureRule, Captured, Device, DeviceError, Event, HostBlock, Program,
    Reservation,
};
use crate::weights::{WeightLayout, WeightSource};
use piecewise_ir::weight::Recipe;
use piecewise_kernels::cpu::Isa;
use piecewise_kernels::cpu::team::Team;
use piecewise_kernels::op::OpRegistry;
use piecewise_kernels::step::LaunchContext;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The host's memory and cores as a device. Work is done when a call returns.
#[derive(Debug)]
pub struct CpuDevice {
    registry: Arc<OpRegistry>,
    pub(super) pool: Arc<rayon::ThreadPool>,
    team: Team,
    memory: Memory,
    host: Vec<Box<[u8]>>,
    kernels: Images<Kernel>,
    workspace: Workspace,
    profile: Option<Profile>,
    pub(super) counts: LaunchCounts,
    pub(super) is_capturing: bool,
}

impl CpuDevice {
    /// A device of `threads` threads (0: one for each core) that runs the custom ops of
    /// `registry`.
    ///
    /// # Errors
    /// When the threads can't be started.
    pub fn new(registry: Arc<OpRegistry>, threads: usize) -> Result<Self, DeviceError> {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|i| format!("piecewise-cpu-{i}"))
            .build()
            .map_err(|error| DeviceError::OutOfMemory {
                what: format!("a pool of {threads} threads"),
                bytes: 0,
                reason: error.to_string(),
            })?;
        Ok(Self::over(Arc::new(pool), registry))
    }

    fn over(pool: Arc<rayon::ThreadPool>, registry: Arc<OpRegistry>) -> Self {
        Self {
            registry,
            team: Team::new(pool.current_num_threads()),
            pool,
            memory: Memory::default(),
            host: Vec::new(),
            kernels: Images::default(),
            workspace: Workspace::default(),
            profile: None,
            counts: LaunchCounts::default(),
            is_capturing: false,
        }
    }

    /// The number of threads it computes with.
    pub fn threads(&self) -> usize {
        self.pool.current_num_threads()
    }

    /// Times every launch from now on, which costs two readings of the clock and some memory for
    /// each; what was timed before is dropped.
    pub fn start_profile(&mut self) {
        self.profile = Some(Profile::default());
    }

    /// The times since [`Self::start_profile`], in the order of the launches' first runs; launches
    /// are no longer timed.
    pub fn take_profile(&mut self) -> Vec<LaunchTime> {
        self.profile.take().map(Profile::into_times).unwrap_or_default()
    }

    fn outside_capture(&self, what: &str, rule: CaptureRule) -> Result<(), DeviceError> {
        match self.is_capturing {
            false => Ok(()),
            true => Err(DeviceError::Capture { label: what.to_owned(), rule }),
        }
    }
}

impl Device for CpuDevice {
    fn describe(&self) -> String {
        let model = std::fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| {
            let line = text.lines().find(|line| line.starts_with("model name"))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        });
        let model = model.unwrap_or_else(|| std::env::consts::ARCH.to_owned());
        format!("{model}, {} threads, {}", self.threads(), Isa::detected())
    }

    fn share(&self, ops: Arc<OpRegistry>) -> Result<Box<dyn Device>, DeviceError> {
        Ok(Box::new(Self::over(Arc::clone(&self.pool), ops)))
    }

    fn compiler(&self, ops: Arc<OpRegistry>, _: CompilerOptions) -> Box<dyn Compiler> {
        Box::new(CpuCompiler::new(ops, self.threads()))
    }

    fn free_bytes(&self) -> u64 {
        free_bytes()
    }

    fn reserve(&mut self, what: &str, bytes: u64) -> Result<Reservation, DeviceError> {
        self.outside_capture(what, CaptureRule::NoAllocation)?;
        self.memory.reserve(what, bytes)
    }

    fn back(&mut self, region: Reservation) -> Result<(), DeviceError> {
        self.outside_capture("backing a region", CaptureRule::NoAllocation)?;
        self.memory.back(region)
    }

    fn drop_backing(&mut self, region: Reservation) -> Result<(), DeviceError> {
        self.outside_capture("dropping a region's backing", CaptureRule::NoAllocation)?;
        self.memory.drop_backing(region)
    }

    fn write(&mut self, to: Address, bytes: &[u8]) -> Result<(), DeviceError> {
        self.outside_capture("a write", CaptureRule::NoSynchronization)?;
        let to = self.memory.backed("a write", to, bytes.len() as u64)?;
        // SAFETY: the range is reserved and backed, nothing runs, and it is no Rust object's.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        Ok(())
    }

    fn read(&mut self, from: Address, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.outside_capture("a read", CaptureRule::NoSynchronization)?;
        let from = self.memory.backed("a read", from, bytes.len() as u64)?;
        // SAFETY: the range is reserved and backed, nothing runs, and it is no Rust object's.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    fn copy_from(
        &mut self,
        other: &mut dyn Device,
        from: Address,
        bytes: u64,
        to: Address,
    ) -> Result<(), DeviceError> {
        self.outside_capture("a copy", CaptureRule::NoSynchronization)?;
        let from = other.of_kind::<Self>()?.memory.backed("a copy from here", from, bytes)?;
        let to = self.memory.backed("a copy", to, bytes)?;
        // SAFETY: both ranges are reserved and backed, by devices that are not the same and so do not
        // overlap; nothing runs on either, and they are no Rust objects'.
        unsafe { std::ptr::copy_nonoverlapping(from, to, bytes as usize) };
        Ok(())
    }

    fn fill(&mut self, to: Address, bytes: u64, pattern: &[u8]) -> Result<(), DeviceError> {
        self.outside_capture("a fill", CaptureRule::NoSynchronization)?;
        let start = self.memory.backed("a fill", to, bytes)?;
        if !matches!(pattern.len(), 1 | 2 | 4) || !bytes.is_multiple_of(pattern.len() as u64) {
            return Err(DeviceError::BadAddress {
                what: format!("a fill with a pattern of {} bytes", pattern.len()),
                address: to,
                bytes,
            });
        }
        // SAFETY: the range is reserved and backed, nothing runs, and it is no Rust object's.
        let range = unsafe { std::slice::from_raw_parts_mut(start, bytes as usize) };
        match pattern {
            [byte] => range.fill(*byte),
            _ => {
                range.chunks_exact_mut(pattern.len()).for_each(|at| at.copy_from_slice(pattern));
            }
        }
        Ok(())
    }

    fn materialize(
        &mut self,
        recipe: &Recipe,
        layout: WeightLayout,
        source: &dyn WeightSource,
        to: Address,
    ) -> Result<(), DeviceError> {
        self.outside_capture("a weight", CaptureRule::NoSynchronization)?;
        let WeightLayout::RowMajor = layout;
        let bytes = crate::weight_plan::recipe_bytes(recipe)?;
        let start = self.memory.backed("a weight", to, bytes)?;
        // SAFETY: the range is reserved and backed, nothing runs, and it is no Rust object's.
        let range = unsafe { std::slice::from_raw_parts_mut(start, bytes as usize) };
        self.pool.install(|| materialize(recipe, source, range))?;
        Ok(())
    }

    fn host_block(&mut self, bytes: u64) -> Result<HostBlock, DeviceError> {
        self.outside_capture("a host block", CaptureRule::NoAllocation)?;
        let short = |reason: String| DeviceError::OutOfMemory {
            what: "a host block".to_owned(),
            bytes,
            reason,
        };
        let mut block = Vec::new();
        let len = usize::try_from(bytes).map_err(|e| short(e.to_string()))?;
        block.try_reserve_exact(len).map_err(|e| short(e.to_string()))?;
        block.resize(len, 0);
        self.host.push(block.into_boxed_slice());
        Ok(HostBlock { id: (self.host.len() - 1) as u32, bytes })
    }

    fn host_bytes(&self, block: HostBlock, range: Range<u64>) -> Result<&[u8], DeviceError> {
        let held = self.host.get(block.id as usize);
        let found = held.and_then(|held| held.get(range.start as usize..range.end as usize));
        found.ok_or_else(|| block.lacks(range))
    }

    fn host_bytes_mut(
        &mut self,
        block: HostBlock,
        range: Range<u64>,
    ) -> Result<&mut [u8], DeviceError> {
        let held = self.host.get_mut(block.id as usize);
        let found = held.and_then(|held| held.get_mut(range.start as usize..range.end as usize));
        found.ok_or_else(|| block.lacks(range))
    }

    fn copy_in(
        &mut self,
        block: HostBlock,
        offset: u64,
        bytes: u64,
        to: Address,
    ) -> Result<(), DeviceError> {
        self.outside_capture("a copy in", CaptureRule::NoSynchronization)?;
        let to = self.memory.backed("a copy in", to, bytes)?;
        let from = self.host_bytes(block, offset..offset.saturating_add(bytes))?;
        // SAFETY: the range is reserved and backed, nothing runs, and it is no Rust object's.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
        Ok(())
    }

    fn copy_out(
        &mut self,
        from: Address,
        bytes: u64,
        block: HostBlock,
        offset: u64,
    ) -> Result<(), DeviceError> {
        self.outside_capture("a copy out", CaptureRule::NoSynchronization)?;
        let from = self.memory.backed("a copy out", from, bytes)?;
        let to = self.host_bytes_mut(block, offset..offset.saturating_add(bytes))?;
        // SAFETY: the range is reserved and backed, nothing runs, and it is no Rust object's.
        unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    fn record(&mut self, _: Option<Event>) -> Result<Event, DeviceError> {
        self.outside_capture("an event", CaptureRule::NoSynchronization)?;
        Ok(Event::from(Box::new(())))
    }

    fn wait(&mut self, _: &Event) -> Result<(), DeviceError> {
        self.outside_capture("a wait", CaptureRule::NoSynchronization)
    }

    fn mark(&mut self, again: Option<Event>) -> Result<Event, DeviceError> {
        self.outside_capture("a mark", CaptureRule::NoSynchronization)?;
        let now = Instant::now();
        let mut mark = again.and_then(Event::into).unwrap_or_else(|| Box::new(now));
        *mark = now;
        Ok(Event::from(mark))
    }

    fn elapsed(&mut self, start: &Event, end: &Event) -> Result<Duration, DeviceError> {
        Ok(end.of::<Instant>()?.saturating_duration_since(*start.of()?))
    }

    fn bind(&mut self, artifact: &Artifact, binding: &Binding<'_>) -> Result<Program, DeviceError> {
        self.outside_capture(binding.label, CaptureRule::NoAllocation)?;
        let Self { memory, registry, kernels, .. } = self;
        let program = Binder { memory, registry, kernels }.bind(artifact, binding)?;
        program.calls.iter().for_each(|call| self.workspace.fit(call));
        Ok(Program::new(program))
    }

    fn launch(&mut self, program: &Program, context: LaunchContext<'_>) -> Result<(), DeviceError> {
        self.outside_capture("a launch", CaptureRule::NoSynchronization)?;
        let program: &CpuProgram = program.of()?;
        let Self { workspace, profile, pool, team, counts, .. } = self;
        counts.plain_launches += program.calls.len() as u64;
        let calls = program.calls.iter().map(|call| (call, context));
        run_calls(calls, workspace, profile.as_mut(), (pool, team))
    }

    fn capture_following(
        &mut self,
        label: &str,
        programs: &[&Program],
        following: &[usize],
        sizes: &[u64],
    ) -> Result<Captured, DeviceError> {
        self.outside_capture(label, CaptureRule::NoAllocation)?;
        let programs =
            programs.iter().map(|program| program.of()).collect::<Result<Vec<_>, _>>()?;
        Ok(Captured::new(self.capture_scope().freeze(label, &programs, following, sizes)?))
    }

    fn replay(&mut self, graph: &Captured) -> Result<(), DeviceError> {
        self.replay_at(graph, &graph.of::<CpuCaptured>()?.sizes)
    }

    fn replay_at(&mut self, graph: &Captured, sizes: &[u64]) -> Result<(), DeviceError> {
        self.outside_capture("a replay", CaptureRule::NoSynchronization)?;
        let graph: &CpuCaptured = graph.of()?;
        let calls = graph.calls_at(sizes);
        if let Some(error) = calls.clone().find_map(|(call, at)| call.check_sizes(at.sizes()).err())
        {
            return Err(DeviceError::Refused {
                label: graph.label.clone(),
                reason: error.to_string(),
            });
        }
        let Self { workspace, profile, pool, team, counts, .. } = self;
        counts.graph_launches += 1;
        counts.graph_nodes += graph.calls.len() as u64;
        run_calls(calls, workspace, profile.as_mut(), (pool, team))
    }

    fn reopen(&mut self) -> Result<(), DeviceError> {
        self.memory = Memory::default();
        self.host.clear();
        self.is_capturing = false;
        Ok(())
    }

    fn model(&self) -> String {
        let described = self.describe();
        described.split(',').next().unwrap_or_default().to_owned()
    }

    fn replay_time(&mut self, graph: &Captured) -> Result<Duration, DeviceError> {
        let started = Instant::now();
        self.replay(graph)?;
        Ok(started.elapsed())
    }
}
