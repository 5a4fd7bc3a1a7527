//! A driver without a GPU: memory is real, kernels are only noted. It keeps the driver's rules
//! about captures, so that code which breaks them fails here as it would there, and copies to pinned
//! memory as late as the driver may, so that what reads early finds nothing.

use super::graphs::{Graphs, failed};
use super::host_time;
use super::noted::Noted;
use piecewise_backend::cuda::driver::{
    Attribute, Driver, GraphEdge, GraphNode, Handle, KernelLaunch, Outcome, TensorMap,
};
use piecewise_backend::device::{ByteRows, Clock};
use piecewise_kernels::op::cuda::TensorBoxes;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A copy to pinned memory that is enqueued.
#[derive(Clone, Copy, Debug)]
struct LateCopy {
    /// Where it goes to on the host.
    to: usize,
    from: u64,
    bytes: u64,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    /// Bytes of each pinned block, by its address.
    pinned: BTreeMap<usize, u64>,
    late: Vec<LateCopy>,
    /// What is held, by kind: everything must be returned in the end.
    live: BTreeMap<&'static str, i64>,
    /// Bytes of each reserved range.
    reserved: BTreeMap<u64, u64>,
    /// How large each physical block is, mapped or not.
    backings: BTreeMap<Handle, u64>,
    /// Mapped or allocated bytes by address.
    memory: BTreeMap<u64, Vec<u8>>,
    functions: BTreeMap<Handle, String>,
    functions_of: BTreeMap<(Handle, String), Handle>,
    /// The dynamic shared bytes that a function may be launched with, once they are set.
    allowed_shared: BTreeMap<Handle, u32>,
    graphs: Graphs,
    ran: Vec<Noted>,
    free: u64,
    generation: u64,
}

/// A driver without a device: it gives out addresses and notes what would have run.
#[derive(Debug)]
pub struct SimulatedDriver {
    state: Mutex<State>,
    /// Whether kernels that run outside of captures are noted.
    notes: bool,
}

const BASE: u64 = 0x7000_0000_0000;
const GRANULARITY: u64 = 2 << 20;

/// Whether an address of the host is in one of these blocks.
fn is_within(blocks: &BTreeMap<usize, u64>, at: usize) -> bool {
    let found = blocks.range(..=at).next_back();
    found.is_some_and(|(start, bytes)| ((at - start) as u64) < *bytes)
}

impl State {
    fn new() -> Self {
        Self { free: 1 << 30, ..Self::default() }
    }

    fn add(&mut self, kind: &'static str) -> Handle {
        *self.live.entry(kind).or_default() += 1;
        self.next += 1;
        self.next
    }

    fn remove(&mut self, kind: &'static str) -> Outcome<()> {
        *self.live.entry(kind).or_default() -= 1;
        Ok(())
    }

    fn bytes(&mut self, call: &'static str, at: u64, n: u64) -> Outcome<&mut [u8]> {
        let found = self.memory.range_mut(..=at).next_back();
        let inside = found.and_then(|(base, bytes)| {
            let start = (at - base) as usize;
            bytes.get_mut(start..start + n as usize)
        });
        inside.map_or_else(|| failed(call, 700), Ok)
    }

    /// Makes the copies that are enqueued: somebody waits for them, or what they copy changes.
    fn catch_up(&mut self) -> Outcome<()> {
        let mut late = std::mem::take(&mut self.late);
        for LateCopy { to, from, bytes } in late.drain(..) {
            let from = self.bytes("cuMemcpyDtoHAsync_v2", from, bytes)?;
            let to = std::ptr::with_exposed_provenance_mut::<u8>(to);
            // SAFETY: the device passed the start of at least as many bytes of a pinned block, and a block
            // that is unpinned takes its copies along.
            unsafe { std::slice::from_raw_parts_mut(to, bytes as usize) }.copy_from_slice(from);
        }
        self.late = late;
        Ok(())
    }

    fn noted(&self, launch: &KernelLaunch<'_>) -> Noted {
        Noted {
            name: self.functions[&launch.function].clone(),
            grid: launch.grid,
            programmatic: launch.programmatic,
            parameters: launch.parameters.to_vec(),
            maps: launch.maps.iter().map(|(at, map)| (*at, map.0[..4].to_vec())).collect(),
        }
    }

    fn outside_capture(&self, call: &'static str) -> Outcome<()> {
        if self.graphs.is_capturing() { failed(call, 900) } else { Ok(()) }
    }
}

impl Default for SimulatedDriver {
    fn default() -> Self {
        Self { state: Mutex::new(State::new()), notes: true }
    }
}

impl SimulatedDriver {
    /// One with a GiB of memory, that notes what runs.
    pub fn new() -> Self {
        Self::default()
    }

    /// One that notes nothing of what runs, and so allocates nothing for it.
    pub fn without_notes() -> Self {
        Self { notes: false, ..Self::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The kernels that ran since the last call.
    pub fn take_ran(&self) -> Vec<Noted> {
        std::mem::take(&mut self.state().ran)
    }

    /// The kernels of executable graphs that were set since the last call, as they were set.
    pub fn take_set(&self) -> Vec<Noted> {
        std::mem::take(&mut self.state().graphs.set)
    }

    /// What is still held, by kind.
    pub fn held(&self) -> BTreeMap<&'static str, i64> {
        let mut live = self.state().live.clone();
        live.retain(|_, n| *n != 0);
        live
    }

    /// Every capture from now on also holds these nodes.
    pub fn also_capture(&self, nodes: &[GraphNode]) {
        self.state().graphs.beside = nodes.to_vec();
    }

    /// Programmatic edges come out of every capture from now on as plain ones, but for those of what is
    /// captured beside.
    pub fn lose_programmatic_edges(&self) {
        self.state().graphs.loses_edges = true;
    }

    /// Whether its stream is captured.
    pub fn is_inside_capture(&self) -> bool {
        self.state().graphs.is_capturing()
    }
}

impl Driver for SimulatedDriver {
    /// A product does nothing, as a kernel does.
    fn product(&self, _: &str, _: Handle) -> Outcome<()> {
        Ok(())
    }
    fn clock(&self) -> Clock {
        host_time::now
    }
    fn device_count(&self) -> Outcome<u32> {
        Ok(2)
    }
    fn device_name(&self, _: u32) -> Outcome<String> {
        Ok("Simulated".to_owned())
    }
    fn device_attribute(&self, _: u32, attribute: Attribute) -> Outcome<i32> {
        Ok(match attribute {
            Attribute::CapabilityMajor => 9,
            Attribute::CapabilityMinor => 0,
            Attribute::VirtualMemory => 1,
            Attribute::SharedBytesPerBlock | Attribute::SharedBytesPerMultiprocessor => 232_448,
            Attribute::Multiprocessors => 4,
            Attribute::L2Bytes => 1 << 20,
        })
    }
    fn device_bytes(&self, _: u32) -> Outcome<u64> {
        Ok(1 << 30)
    }
    fn retain_context(&self, _: u32) -> Outcome<Handle> {
        Ok(self.state().add("context"))
    }
    fn release_context(&self, _: u32) -> Outcome<()> {
        self.state().remove("context")
    }
    fn reset_context(&self, _: u32) -> Outcome<()> {
        let mut state = self.state();
        let contexts = state.live.remove("context");
        *state = State {
            next: state.next,
            generation: state.generation + 1,
            live: contexts.into_iter().map(|n| ("context", n)).collect(),
            ran: std::mem::take(&mut state.ran),
            ..State::new()
        };
        Ok(())
    }
    fn generation(&self, _: u32) -> u64 {
        self.state().generation
    }
    fn make_current(&self, _: Handle) -> Outcome<()> {
        Ok(())
    }
    fn free_bytes(&self) -> Outcome<u64> {
        Ok(self.state().free)
    }
    fn granularity(&self, _: u32) -> Outcome<u64> {
        Ok(GRANULARITY)
    }
    fn reserve(&self, bytes: u64) -> Outcome<u64> {
        let mut state = self.state();
        state.outside_capture("cuMemAddressReserve")?;
        let end = state.reserved.last_key_value().map(|(base, bytes)| base + bytes);
        let base = end.unwrap_or(BASE) + GRANULARITY;
        state.reserved.insert(base, bytes);
        state.add("range");
        Ok(base)
    }
    fn unreserve(&self, address: u64, _: u64) -> Outcome<()> {
        self.state().reserved.remove(&address);
        self.state().remove("range")
    }
    fn create_backing(&self, _: u32, bytes: u64) -> Outcome<Handle> {
        let mut state = self.state();
        state.outside_capture("cuMemCreate")?;
        if bytes > state.free {
            return failed("cuMemCreate", 2);
        }
        state.free -= bytes;
        let handle = state.add("backing");
        state.backings.insert(handle, bytes);
        Ok(handle)
    }
    fn release_backing(&self, backing: Handle) -> Outcome<()> {
        let mut state = self.state();
        let bytes = state.backings.remove(&backing).unwrap_or(0);
        state.free += bytes;
        state.remove("backing")
    }
    fn map(&self, address: u64, bytes: u64, _: Handle) -> Outcome<()> {
        self.state().memory.insert(address, vec![0xcd; bytes as usize]);
        Ok(())
    }
    fn unmap(&self, address: u64, _: u64) -> Outcome<()> {
        let mut state = self.state();
        state.catch_up()?;
        state.memory.remove(&address);
        Ok(())
    }
    fn allow_access(&self, _: u32, _: u64, _: u64) -> Outcome<()> {
        Ok(())
    }
    fn allocate(&self, bytes: u64) -> Outcome<u64> {
        let mut state = self.state();
        state.outside_capture("cuMemAlloc_v2")?;
        let address = 0x1000_0000 + state.add("block") * GRANULARITY;
        state.memory.insert(address, vec![0xcd; bytes as usize]);
        Ok(address)
    }
    fn free(&self, address: u64) -> Outcome<()> {
        let mut state = self.state();
        state.catch_up()?;
        state.memory.remove(&address);
        state.remove("block")
    }
    unsafe fn pin(&self, block: *mut u8, bytes: u64) -> Outcome<()> {
        let mut state = self.state();
        state.pinned.insert(block.expose_provenance(), bytes);
        state.add("host block");
        Ok(())
    }
    fn unpin(&self, block: *mut u8) -> Outcome<()> {
        let mut state = self.state();
        state.pinned.remove(&block.addr());
        let State { late, pinned, .. } = &mut *state;
        late.retain(|copy| is_within(pinned, copy.to));
        state.remove("host block")
    }
    unsafe fn copy_in(&self, to: u64, from: *const u8, bytes: u64, _: Handle) -> Outcome<()> {
        let mut state = self.state();
        state.catch_up()?;
        let to = state.bytes("cuMemcpyHtoDAsync_v2", to, bytes)?;
        // SAFETY: the device passes the start of at least as many bytes.
        to.copy_from_slice(unsafe { std::slice::from_raw_parts(from, bytes as usize) });
        Ok(())
    }
    unsafe fn copy_in_rows(
        &self,
        to: u64,
        from: *const u8,
        rows: ByteRows,
        _: Handle,
    ) -> Outcome<()> {
        let mut state = self.state();
        state.catch_up()?;
        let to = state.bytes("cuMemcpy2DAsync_v2", to, rows.span())?;
        // SAFETY: the device passes the start of at least as many bytes.
        let from = unsafe { std::slice::from_raw_parts(from, rows.bytes() as usize) };
        let (width, pitch) = (rows.width as usize, rows.pitch as usize);
        for (to, from) in to.chunks_mut(pitch).zip(from.chunks(width)) {
            to[..width].copy_from_slice(from);
        }
        Ok(())
    }
    unsafe fn copy_out(&self, to: *mut u8, from: u64, bytes: u64, _: Handle) -> Outcome<()> {
        let mut state = self.state();
        let host = to.expose_provenance();
        if is_within(&state.pinned, host) {
            state.bytes("cuMemcpyDtoHAsync_v2", from, bytes)?;
            state.late.push(LateCopy { to: host, from, bytes });
            return Ok(());
        }
        state.catch_up()?;
        let from = state.bytes("cuMemcpyDtoHAsync_v2", from, bytes)?;
        // SAFETY: the device passes the start of at least as many bytes.
        unsafe { std::slice::from_raw_parts_mut(to, bytes as usize) }.copy_from_slice(from);
        Ok(())
    }
    fn copy_within(&self, to: u64, from: u64, bytes: u64, _: Handle) -> Outcome<()> {
        let mut state = self.state();
        state.catch_up()?;
        let copied = state.bytes("cuMemcpyDtoDAsync_v2", from, bytes)?.to_vec();
        state.bytes("cuMemcpyDtoDAsync_v2", to, bytes)?.copy_from_slice(&copied);
        Ok(())
    }
    fn set(&self, to: u64, value: u32, width: u32, count: u64, _: Handle) -> Outcome<()> {
        let mut state = self.state();
        state.catch_up()?;
        let width = width as usize;
        let to = state.bytes("cuMemsetAsync", to, count * width as u64)?;
        // By elements it took most of the time of tests that make many models.
        let block = value.to_le_bytes()[..width].repeat(4096);
        to.chunks_mut(block.len()).for_each(|part| part.copy_from_slice(&block[..part.len()]));
        Ok(())
    }
    fn create_stream(&self) -> Outcome<Handle> {
        Ok(self.state().add("stream"))
    }
    fn destroy_stream(&self, _: Handle) -> Outcome<()> {
        self.state().remove("stream")
    }
    fn synchronize(&self, _: Handle) -> Outcome<()> {
        let mut state = self.state();
        state.outside_capture("cuStreamSynchronize")?;
        state.catch_up()
    }
    fn create_event(&self, _: bool) -> Outcome<Handle> {
        Ok(self.state().add("event"))
    }
    fn destroy_event(&self, _: Handle) -> Outcome<()> {
        self.state().remove("event")
    }
    fn record_event(&self, _: Handle, _: Handle) -> Outcome<()> {
        Ok(())
    }
    fn wait_event(&self, _: Handle) -> Outcome<()> {
        let mut state = self.state();
        state.outside_capture("cuEventSynchronize")?;
        state.catch_up()
    }
    fn elapsed(&self, _: Handle, _: Handle) -> Outcome<f32> {
        Ok(1.0)
    }
    fn load_module(&self, _: &[u8]) -> Outcome<Handle> {
        let mut state = self.state();
        state.outside_capture("cuModuleLoadData")?;
        Ok(state.add("module"))
    }
    fn unload_module(&self, _: Handle) -> Outcome<()> {
        self.state().remove("module")
    }
    fn function(&self, module: Handle, name: &str) -> Outcome<Handle> {
        let mut state = self.state();
        if name == "missing" {
            return failed("cuModuleGetFunction", 500);
        }
        if let Some(&known) = state.functions_of.get(&(module, name.to_owned())) {
            return Ok(known);
        }
        state.next += 1;
        let handle = state.next;
        state.functions.insert(handle, name.to_owned());
        state.functions_of.insert((module, name.to_owned()), handle);
        Ok(handle)
    }
    fn load_function(&self, _: Handle) -> Outcome<()> {
        self.state().outside_capture("cuFuncLoad")
    }
    fn allow_shared(&self, function: Handle, bytes: u32) -> Outcome<()> {
        self.state().allowed_shared.insert(function, bytes);
        Ok(())
    }
    fn encode_map(&self, address: u64, boxes: &TensorBoxes, rows: u64) -> Outcome<TensorMap> {
        let mut words = [0; 16];
        let of_box = [boxes.box_rows.into(), boxes.box_slices.into()];
        words[..3].copy_from_slice(&[address, rows, boxes.columns]);
        words[3..5].copy_from_slice(&of_box);
        Ok(TensorMap(words))
    }
    fn launch(&self, launch: &KernelLaunch<'_>) -> Outcome<()> {
        let mut state = self.state();
        let allowed = state.allowed_shared.get(&launch.function).copied().unwrap_or(48 << 10);
        if launch.shared_bytes > allowed || launch.grid.contains(&0) {
            return failed("cuLaunchKernelEx", 1);
        }
        if !self.notes && !state.graphs.is_capturing() {
            return Ok(());
        }
        let noted = state.noted(launch);
        state.next += 1;
        let node = state.next;
        let ran = state.graphs.note(node, noted);
        state.ran.extend(ran);
        Ok(())
    }
    fn begin_capture(&self, _: Handle) -> Outcome<()> {
        let mut state = self.state();
        state.outside_capture("cuStreamBeginCapture_v2")?;
        state.graphs.begin();
        Ok(())
    }
    fn end_capture(&self, _: Handle) -> Outcome<Handle> {
        let mut state = self.state();
        let Some(captured) = state.graphs.end()? else { return Ok(0) };
        let handle = state.add("graph");
        state.graphs.keep(handle, captured);
        Ok(handle)
    }
    fn captured_node(&self, _: Handle) -> Outcome<Handle> {
        self.state().graphs.last_node()
    }
    fn is_capturing(&self, _: Handle) -> Outcome<bool> {
        Ok(self.is_inside_capture())
    }
    fn graph_nodes(&self, graph: Handle) -> Outcome<Vec<GraphNode>> {
        Ok(self.state().graphs.of(graph).nodes())
    }
    fn graph_edges(&self, graph: Handle) -> Outcome<Vec<GraphEdge>> {
        Ok(self.state().graphs.edges(graph))
    }
    fn write_dot(&self, _: Handle, path: &Path) -> Outcome<()> {
        std::fs::write(path, "digraph {}").or_else(|_| failed("cuGraphDebugDotPrint", 1))
    }
    fn instantiate(&self, graph: Handle) -> Outcome<Handle> {
        let mut state = self.state();
        let exec = state.add("exec");
        state.graphs.instantiate(graph, exec);
        Ok(exec)
    }
    fn set_kernel(&self, exec: Handle, node: Handle, launch: &KernelLaunch<'_>) -> Outcome<()> {
        let mut state = self.state();
        let noted = state.noted(launch);
        state.graphs.set_kernel(exec, node, noted)
    }
    fn destroy_graph(&self, graph: Handle) -> Outcome<()> {
        self.state().graphs.forget(graph);
        self.state().remove("graph")
    }
    fn upload(&self, _: Handle, _: Handle) -> Outcome<()> {
        Ok(())
    }
    fn launch_graph(&self, exec: Handle, _: Handle) -> Outcome<()> {
        let mut state = self.state();
        if self.notes {
            let kernels: Vec<Noted> = state.graphs.kernels(exec).collect();
            state.ran.extend(kernels);
        }
        Ok(())
    }
    fn destroy_exec(&self, exec: Handle) -> Outcome<()> {
        self.state().graphs.forget(exec);
        self.state().remove("exec")
    }
}
