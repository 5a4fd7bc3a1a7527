//! Replay-compare: a step is replayed, then launched from the same states and inputs, and
//! everything that its members write is held against each other.

use super::compiled::CompiledModel;
use super::run::Run;
use crate::device::{Member, Memory};
use crate::words::{ModelError, StepMode};
use piecewise_backend::device::{Device, DeviceError};
use piecewise_ir::entity::Value;
use piecewise_ir::graph::Graph;
use piecewise_ir::module::Module;
use piecewise_ir::text::Names;

/// What a run of a step wrote, in order.
#[derive(Debug, Default)]
pub(super) struct Trace {
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    value: Value,
    /// What it is to the step.
    role: String,
    row_bytes: u64,
    bytes: Vec<u8>,
}

impl Trace {
    /// Adds the real rows of what a member leaves for others.
    pub(super) fn add_results<D: Device>(
        &mut self,
        device: &mut D,
        module: &Module,
        memory: &Memory,
        member: &Member<D::Program>,
        counts: &[u64],
    ) -> Result<(), DeviceError> {
        let Some(stitch) = module.stitch() else { return Ok(()) };
        let usage = &stitch.uses[member.step.id()];
        let piece = &stitch.unique[usage.unique];
        let positions = piece.operands();
        for output in piece.graph.outputs() {
            let position = positions.iter().position(|value| value == output);
            let Some(&value) = position.and_then(|i| usage.operands.get(i)) else { continue };
            let role = format!("written by {}", member.label);
            self.add(device, module, memory, value, role, counts)?;
        }
        Ok(())
    }

    /// Adds the first bytes of a state.
    pub(super) fn add_prefix<D: Device>(
        &mut self,
        device: &mut D,
        module: &Module,
        memory: &Memory,
        value: Value,
        bytes: u64,
    ) -> Result<(), DeviceError> {
        let Some(address) = memory.address(module.graph(), value) else { return Ok(()) };
        let mut bytes = vec![0; bytes as usize];
        device.read(address, &mut bytes)?;
        self.entries.push(Entry { value, role: "a state".to_owned(), row_bytes: 1, bytes });
        Ok(())
    }

    fn add<D: Device>(
        &mut self,
        device: &mut D,
        module: &Module,
        memory: &Memory,
        value: Value,
        role: String,
        counts: &[u64],
    ) -> Result<(), DeviceError> {
        let graph = module.graph();
        let Some(address) = memory.address(graph, value) else { return Ok(()) };
        let ty = graph.ty(value);
        let mut bytes = vec![0; ty.bytes(counts) as usize];
        if !bytes.is_empty() {
            device.read(address, &mut bytes)?;
        }
        let row_bytes = ty.row().bytes(counts).max(1);
        self.entries.push(Entry { value, role, row_bytes, bytes });
        Ok(())
    }

    /// Adds what is left after the step: outputs and states.
    fn add_end<D: Device>(
        &mut self,
        device: &mut D,
        module: &Module,
        memory: &Memory,
        counts: &[u64],
    ) -> Result<(), DeviceError> {
        let graph = module.graph();
        for (i, &value) in graph.outputs().iter().enumerate() {
            self.add(device, module, memory, value, format!("output {i}"), counts)?;
        }
        for state in graph.states() {
            let role = format!("state \"{}\"", state.name);
            self.add(device, module, memory, state.value, role, counts)?;
        }
        Ok(())
    }

    /// The first entry of `self` that is another in `launched`.
    pub(super) fn hold_against(
        &self,
        launched: &Self,
        graph: &Graph,
        mode: StepMode,
    ) -> Result<(), ModelError> {
        let entries = self.entries.iter().zip(&launched.entries);
        for (a, b) in entries.filter(|(a, b)| a.bytes != b.bytes) {
            let Some(byte) = a.bytes.iter().zip(&b.bytes).position(|(a, b)| a != b) else {
                continue;
            };
            return Err(ModelError::ReplayDiffers {
                value: format!("{}, {}", Names::of(graph).value(a.value), a.role),
                mode: mode.name(),
                byte: byte as u64,
                row: byte as u64 / a.row_bytes,
                replayed: a.bytes[byte],
                launched: b.bytes[byte],
            });
        }
        Ok(())
    }
}

impl<D: Device> CompiledModel<D> {
    /// Replays a step, launches it again from a copy of its states, and compares. A full replay
    /// is one unit, so only what it leaves is compared. Whether a graph was refused.
    pub(super) fn run_compared(
        &mut self,
        run: Run,
        counts: &[u64],
        sizes: &[u64],
    ) -> Result<bool, ModelError> {
        let states = self.memory.states;
        let mut before = vec![0; states.bytes as usize];
        self.device.read(states.base, &mut before)?;
        let mut was_refused = false;
        let by_member = run.mode == StepMode::Piecewise;
        let mut traces = [Trace::default(), Trace::default()];
        for (trace, mode) in traces.iter_mut().zip([run.mode, StepMode::None]) {
            if mode == StepMode::None {
                self.device.write(states.base, &before)?;
            }
            let members = by_member.then_some(&mut *trace);
            was_refused |= self.run_as(Run { mode, ..run }, counts, sizes, members)?;
            trace.add_end(&mut self.device, &self.module, &self.memory, counts)?;
        }
        traces[0].hold_against(&traces[1], self.module.graph(), run.mode)?;
        Ok(was_refused)
    }
}
