//! A device that runs its stream only when somebody waits, so that reading early, or reusing a
//! host block too soon, shows.

use super::faults::{check_due, is_due, keep_caller};
use super::program::{FakeCaptured, FakeProgram, product};
use super::{ALGORITHMS, Faults, Planted, Setup, ops};
use crate::steps::CompiledModel;
use piecewise_backend::artifact::Artifact;
use piecewise_backend::compiler::{Compiler, CompilerOptions};
use piecewise_backend::device::measure::LaunchCounts;
use piecewise_backend::device::{
    Address, Binding, CaptureRule, Captured, Clock, Device, DeviceError, Event, HostBlock, Program,
    Reservation,
};
use piecewise_backend::tuning::{LibraryAlgorithm, LibraryProduct};
use piecewise_backend::weights::{WeightLayout, WeightSource};
use piecewise_ir::weight::Recipe;
use piecewise_kernels::op::OpRegistry;
use piecewise_kernels::step::LaunchContext;
use piecewise_testing::host_time;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

#[derive(Debug)]
enum Command {
    /// With what the block held when it was enqueued.
    CopyIn(HostBlock, u64, Vec<u8>, Address),
    CopyOut(Address, u64, HostBlock, u64),
    Fill(Address, u64, Vec<u8>),
    Run(FakeProgram, Vec<u64>),
}

#[derive(Debug, Default)]
pub(crate) struct FakeDevice {
    regions: Vec<(Reservation, Option<Vec<u8>>)>,
    blocks: Vec<Vec<u8>>,
    queue: VecDeque<Command>,
    done: u64,
    is_lost: bool,
    pub faults: Faults,
    pub counts: LaunchCounts,
    pub planted: Planted,
    /// The algorithms that were preferred, by product.
    pub preferred: BTreeMap<String, LibraryAlgorithm>,
    replays: u64,
    has_captured: bool,
    /// What was launched, by its name.
    warm: BTreeSet<String>,
    /// What was replayed, and the sizes that each had.
    pub replayed: Vec<(String, Vec<u64>)>,
    /// What was captured and never launched before, for which a GPU's driver would load code.
    pub captured_cold: Vec<String>,
    /// Bytes of each copy to the device.
    pub copied_in: Vec<u64>,
    /// Where the host wrote or read, and how many bytes.
    pub host_accesses: Vec<(Address, u64)>,
}

impl FakeDevice {
    fn check_lost(&self) -> Result<(), DeviceError> {
        let (action, reason) = ("go on".to_owned(), "a planted fault".to_owned());
        if self.is_lost { Err(DeviceError::Lost { action, reason }) } else { Ok(()) }
    }

    /// Bytes of all host blocks.
    pub(crate) fn pinned_bytes(&self) -> u64 {
        self.blocks.iter().map(|block| block.len() as u64).sum()
    }

    fn bytes(&mut self, at: Address, bytes: u64) -> Result<&mut [u8], DeviceError> {
        let bad = || DeviceError::BadAddress { what: "access".to_owned(), address: at, bytes };
        let id = ((at.0 >> 32) as usize).checked_sub(1).ok_or_else(bad)?;
        let (region, memory) = self.regions.get_mut(id).ok_or_else(bad)?;
        let start = (at.0 - region.base.0) as usize;
        let memory = memory.as_mut().ok_or_else(bad)?;
        memory.get_mut(start..start + bytes as usize).ok_or_else(bad)
    }

    pub(crate) fn load<const N: usize>(
        &mut self,
        at: Address,
        index: u64,
    ) -> Result<[u8; N], DeviceError> {
        let mut out = [0; N];
        out.copy_from_slice(self.bytes(at.offset(index * N as u64), N as u64)?);
        Ok(out)
    }

    pub(crate) fn store<const N: usize>(
        &mut self,
        at: Address,
        index: u64,
        bytes: [u8; N],
    ) -> Result<(), DeviceError> {
        self.bytes(at.offset(index * N as u64), N as u64)?.copy_from_slice(&bytes);
        Ok(())
    }

    fn enqueue(&mut self, command: Command) {
        self.queue.push_back(command);
    }

    fn run_until(&mut self, end: u64) -> Result<(), DeviceError> {
        while self.done < end {
            let Some(command) = self.queue.pop_front() else { break };
            self.done += 1;
            match command {
                Command::CopyIn(block, at, bytes, to) => {
                    let found = &self.blocks[block.id as usize][at as usize..][..bytes.len()];
                    assert!(found == bytes, "a host block is filled before its copies are done");
                    self.bytes(to, bytes.len() as u64)?.copy_from_slice(&bytes);
                }
                Command::CopyOut(from, bytes, block, at) => {
                    let from = self.bytes(from, bytes)?.to_vec();
                    let at = at as usize;
                    self.blocks[block.id as usize][at..at + from.len()].copy_from_slice(&from);
                }
                Command::Fill(to, bytes, pattern) => {
                    let target = self.bytes(to, bytes)?;
                    target.iter_mut().zip(pattern.iter().cycle()).for_each(|(b, p)| *b = *p);
                }
                Command::Run(program, sizes) => ops::run(self, &program, &sizes)?,
            }
        }
        Ok(())
    }

    fn end(&self) -> u64 {
        self.done + self.queue.len() as u64
    }

    fn finish(&mut self) -> Result<(), DeviceError> {
        self.run_until(self.end())
    }

    fn is_written(&self, block: HostBlock) -> bool {
        let writes = |c: &Command| matches!(c, Command::CopyOut(_, _, b, _) if *b == block);
        self.queue.iter().any(writes)
    }
}

impl Device for FakeDevice {
    fn describe(&self) -> String {
        "fake".to_owned()
    }

    fn clock(&self) -> Clock {
        host_time::now
    }

    fn share(&self, _: Arc<OpRegistry>) -> Result<Box<dyn Device>, DeviceError> {
        let (faults, planted) = (self.faults.clone(), self.planted.clone());
        Ok(Box::new(Self { faults, planted, ..Self::default() }))
    }

    fn compiler(&self, _: Arc<OpRegistry>, _: CompilerOptions) -> Box<dyn Compiler> {
        Box::new(Setup { planted: self.planted.clone(), ..Setup::default() }.compiler())
    }

    fn free_bytes(&self) -> u64 {
        1 << 30
    }

    fn reserve(&mut self, _: &str, bytes: u64) -> Result<Reservation, DeviceError> {
        let id = self.regions.len() as u32;
        let region = Reservation { id, base: Address((u64::from(id) + 1) << 32), bytes };
        self.regions.push((region, None));
        Ok(region)
    }

    fn back(&mut self, region: Reservation) -> Result<(), DeviceError> {
        let memory = &mut self.regions[region.id as usize].1;
        memory.get_or_insert_with(|| vec![0; region.bytes as usize]);
        Ok(())
    }

    fn drop_backing(&mut self, region: Reservation) -> Result<(), DeviceError> {
        self.regions[region.id as usize].1 = None;
        Ok(())
    }

    fn write(&mut self, to: Address, bytes: &[u8]) -> Result<(), DeviceError> {
        self.check_lost()?;
        check_due(&self.faults.failing_write, "write")?;
        self.finish()?;
        self.host_accesses.push((to, bytes.len() as u64));
        self.bytes(to, bytes.len() as u64)?.copy_from_slice(bytes);
        Ok(())
    }

    fn read(&mut self, from: Address, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.check_lost()?;
        self.finish()?;
        self.host_accesses.push((from, bytes.len() as u64));
        bytes.copy_from_slice(self.bytes(from, bytes.len() as u64)?);
        Ok(())
    }

    fn copy_from(
        &mut self,
        other: &mut dyn Device,
        from: Address,
        bytes: u64,
        to: Address,
    ) -> Result<(), DeviceError> {
        let other: &mut Self = other.of_kind()?;
        other.finish()?;
        let copied = other.bytes(from, bytes)?.to_vec();
        self.check_lost()?;
        self.finish()?;
        self.bytes(to, bytes)?.copy_from_slice(&copied);
        Ok(())
    }

    fn fill(&mut self, to: Address, bytes: u64, pattern: &[u8]) -> Result<(), DeviceError> {
        self.check_lost()?;
        self.enqueue(Command::Fill(to, bytes, pattern.to_vec()));
        Ok(())
    }

    fn materialize(
        &mut self,
        _: &Recipe,
        _: WeightLayout,
        _: &dyn WeightSource,
        _: Address,
    ) -> Result<(), DeviceError> {
        Ok(())
    }

    fn host_block(&mut self, bytes: u64) -> Result<HostBlock, DeviceError> {
        self.blocks.push(vec![0; bytes as usize]);
        Ok(HostBlock { id: self.blocks.len() as u32 - 1, bytes })
    }

    fn host_bytes(&self, block: HostBlock, range: Range<u64>) -> Result<&[u8], DeviceError> {
        assert!(!self.is_written(block), "a host block is read before its copies are done");
        Ok(&self.blocks[block.id as usize][range.start as usize..range.end as usize])
    }

    fn host_bytes_mut(
        &mut self,
        block: HostBlock,
        range: Range<u64>,
    ) -> Result<&mut [u8], DeviceError> {
        assert!(!self.is_written(block), "a host block is filled before its copies are done");
        Ok(&mut self.blocks[block.id as usize][range.start as usize..range.end as usize])
    }

    fn copy_in(
        &mut self,
        block: HostBlock,
        offset: u64,
        bytes: u64,
        to: Address,
    ) -> Result<(), DeviceError> {
        self.copied_in.push(bytes);
        self.host_accesses.push((to, bytes));
        let held = self.blocks[block.id as usize][offset as usize..][..bytes as usize].to_vec();
        self.enqueue(Command::CopyIn(block, offset, held, to));
        Ok(())
    }

    fn copy_out(
        &mut self,
        from: Address,
        bytes: u64,
        block: HostBlock,
        offset: u64,
    ) -> Result<(), DeviceError> {
        self.host_accesses.push((from, bytes));
        self.enqueue(Command::CopyOut(from, bytes, block, offset));
        Ok(())
    }

    fn record(&mut self, _: Option<Event>) -> Result<Event, DeviceError> {
        self.check_lost()?;
        check_due(&self.faults.failing_record, "record an event")?;
        Ok(Box::new(self.end()).into())
    }

    fn wait(&mut self, event: &Event) -> Result<(), DeviceError> {
        self.is_lost |= is_due(&self.faults.losing_wait);
        self.check_lost()?;
        if self.faults.missing_wait.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.run_until(*event.of()?)
    }

    fn mark(&mut self, again: Option<Event>) -> Result<Event, DeviceError> {
        self.record(again)
    }

    /// A command takes a microsecond.
    fn elapsed(&mut self, start: &Event, end: &Event) -> Result<Duration, DeviceError> {
        check_due(&self.faults.failing_elapsed, "read a time")?;
        self.wait(end)?;
        Ok(Duration::from_micros(end.of::<u64>()? - start.of::<u64>()?))
    }

    fn reads_inputs(&self) -> bool {
        self.planted.reads_inputs || self.planted.captured_read_inputs && self.has_captured
    }

    fn bind(&mut self, artifact: &Artifact, binding: &Binding<'_>) -> Result<Program, DeviceError> {
        let refused = |reason| DeviceError::Bind { label: binding.label.to_owned(), reason };
        let ways = artifact.chosen(binding.choice).map_err(refused)?;
        let launch = &ways[0].launches[0];
        let columns = binding.piece.operands().into_iter().map(|v| binding.piece.graph.ty(v));
        let columns = columns.filter(|ty| ty.rank() == 2).find_map(|ty| ty.shape[1].as_constant());
        let program = FakeProgram {
            op: launch.name.clone(),
            operands: binding.operands.iter().flatten().copied().collect(),
            counts: binding.counts,
            columns: columns.unwrap_or(0) as usize,
            capture: launch.capture,
            replayed: false,
            choice: binding.choice.clone(),
            uses_library: ways.iter().any(|way| way.uses_library),
            algorithm: 0,
            left_out: false,
            place: 0,
            follows: false,
            table: None,
        };
        match (self.planted.binds)(&program) {
            true => Ok(Program::new(program)),
            false => Err(refused("a planted fault".to_owned())),
        }
    }

    fn launch(&mut self, program: &Program, context: LaunchContext<'_>) -> Result<(), DeviceError> {
        let program: &FakeProgram = program.of()?;
        self.check_lost()?;
        keep_caller(&self.faults.slow_launches);
        if is_due(&self.faults.failing_launch) {
            let (launch, label) = (program.op.clone(), "a member".to_owned());
            let reason = "a planted fault".to_owned();
            return Err(DeviceError::Launch { launch, label, reason });
        }
        if program.left_out {
            return Ok(());
        }
        self.warm.insert(program.op.clone());
        self.enqueue(Command::Run(program.clone(), context.sizes().to_vec()));
        self.counts.plain_launches += 1;
        Ok(())
    }

    fn capture_following(
        &mut self,
        label: &str,
        programs: &[&Program],
        following: &[usize],
        sizes: &[u64],
    ) -> Result<Captured, DeviceError> {
        let programs =
            programs.iter().map(|program| program.of()).collect::<Result<Vec<_>, _>>()?;
        let failing = &self.faults.failing_captures;
        let take = |n: u64| n.checked_sub(1);
        if failing.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok() {
            let label = label.to_owned();
            return Err(DeviceError::Capture { label, rule: CaptureRule::UnsupportedOp });
        }
        if !programs.iter().all(|program| (self.planted.captures)(program)) {
            let label = label.to_owned();
            return Err(DeviceError::Capture { label, rule: CaptureRule::NoUnretained });
        }
        let places = programs.iter().enumerate();
        let places = places.map(|(place, &program)| {
            let follows = following.contains(&place);
            FakeProgram { place, follows, ..program.clone() }
        });
        let mut programs: Vec<_> = places.filter(|program| !program.left_out).collect();
        if self.faults.baked_table.load(Ordering::Relaxed) {
            self.finish()?;
            for program in programs.iter_mut().filter(|program| program.op == "test.mix") {
                let bytes = 4 * sizes[2] * program.columns as u64;
                program.table = Some(self.bytes(program.operands[2], bytes)?.to_vec());
            }
        }
        for program in &mut programs {
            program.replayed = true;
            let preferred = self.preferred.get(&product(program, sizes));
            let preferred = preferred.filter(|_| program.uses_library);
            program.algorithm = preferred.map_or(0, |algorithm| algorithm.0[0]);
            if self.faults.wrong_address.load(Ordering::Relaxed) && program.op == "test.mix" {
                program.operands[2] = program.operands[2].offset(4);
            }
        }
        let cold = programs.iter().filter(|program| !self.warm.contains(&program.op));
        self.captured_cold.extend(cold.map(|program| program.op.clone()));
        self.has_captured = true;
        Ok(Captured::new(FakeCaptured { programs, sizes: sizes.to_vec() }))
    }

    fn replay(&mut self, graph: &Captured) -> Result<(), DeviceError> {
        self.replay_at(graph, &graph.of::<FakeCaptured>()?.sizes)
    }

    fn replay_at(&mut self, graph: &Captured, sizes: &[u64]) -> Result<(), DeviceError> {
        let graph: &FakeCaptured = graph.of()?;
        self.check_lost()?;
        keep_caller(&self.faults.slow_replays);
        if is_due(&self.faults.failing_replay) {
            let (label, reason) = ("replay".to_owned(), "a planted fault".to_owned());
            return Err(DeviceError::Refused { label, reason });
        }
        self.counts.graph_launches += 1;
        self.counts.graph_nodes += graph.launches();
        for program in &graph.programs {
            let sizes = if program.follows { sizes } else { &graph.sizes };
            self.replayed.push((program.op.clone(), sizes.to_vec()));
            self.enqueue(Command::Run(program.clone(), sizes.to_vec()));
        }
        Ok(())
    }

    fn reopen(&mut self) -> Result<(), DeviceError> {
        let take = |n: u64| n.checked_sub(1);
        let failing = &self.faults.failing_reopens;
        self.is_lost = true;
        if failing.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok() {
            return self.check_lost();
        }
        // Addresses of before lead nowhere.
        self.regions.iter_mut().for_each(|region| region.1 = None);
        self.blocks.clear();
        self.queue.clear();
        self.is_lost = false;
        Ok(())
    }

    fn model(&self) -> String {
        "fake".to_owned()
    }

    fn library(&self) -> Option<String> {
        self.planted.library.map(str::to_owned)
    }

    fn library_products(
        &mut self,
        program: &Program,
        sizes: &[u64],
    ) -> Result<Vec<LibraryProduct>, DeviceError> {
        let program: &FakeProgram = program.of()?;
        if !program.uses_library {
            return Ok(Vec::new());
        }
        let product = product(program, sizes);
        let taken = self.preferred.get(&product).copied().unwrap_or(ALGORITHMS[0]);
        let others = ALGORITHMS.into_iter().filter(|other| *other != taken);
        let algorithms = [taken].into_iter().chain(others).collect();
        Ok(vec![LibraryProduct { product, algorithms }])
    }

    fn prefer(&mut self, product: &str, algorithm: LibraryAlgorithm) -> Result<bool, DeviceError> {
        self.preferred.insert(product.to_owned(), algorithm);
        Ok(true)
    }

    fn replay_time(&mut self, graph: &Captured) -> Result<Duration, DeviceError> {
        self.replay(graph)?;
        self.finish()?;
        self.replays += 1;
        let us = (self.planted.cost)(&graph.of::<FakeCaptured>()?.programs, self.replays);
        Ok(Duration::from_secs_f64(us / 1e6))
    }
}

impl CompiledModel {
    pub(crate) fn fake(&self) -> &FakeDevice {
        self.device().downcast_ref().unwrap()
    }

    pub(crate) fn fake_mut(&mut self) -> &mut FakeDevice {
        self.device_mut().downcast_mut().unwrap()
    }
}
