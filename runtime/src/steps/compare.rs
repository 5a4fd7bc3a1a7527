//! Replay-compare: a step is replayed, then launched from the same states and inputs, and
//! everything that its members write is held against each other.

use crate::device::{Member, Memory};
use crate::words::{ModelError, StepMode};
use piecewise_backend::device::{Device, DeviceError};
use piecewise_ir::entity::Value;
use piecewise_ir::graph::Graph;
use piecewise_ir::module::Module;
use piecewise_ir::text::Names;
use std::ops::Range;

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
    /// Adds the real rows of what members in a row leave for others after them: what one leaves for another
    /// of them is gone once all have run.
    pub(super) fn add_unit(
        &mut self,
        device: &mut dyn Device,
        module: &Module,
        memory: &Memory,
        (places, members): (Range<usize>, &[Member]),
        counts: &[u64],
    ) -> Result<(), DeviceError> {
        let Some(stitch) = module.stitch() else { return Ok(()) };
        let later = || stitch.steps.iter().skip(places.end);
        let is_left = |value: Value| {
            module.graph().outputs().contains(&value)
                || later().any(|step| stitch.uses[step.id()].operands.contains(&value))
        };
        for member in members {
            self.add_those(device, module, memory, member, counts, &is_left)?;
        }
        Ok(())
    }

    /// Adds the real rows of what a member leaves for others.
    pub(super) fn add_results(
        &mut self,
        device: &mut dyn Device,
        module: &Module,
        memory: &Memory,
        member: &Member,
        counts: &[u64],
    ) -> Result<(), DeviceError> {
        self.add_those(device, module, memory, member, counts, &|_| true)
    }

    fn add_those(
        &mut self,
        device: &mut dyn Device,
        module: &Module,
        memory: &Memory,
        member: &Member,
        counts: &[u64],
        is_wanted: &dyn Fn(Value) -> bool,
    ) -> Result<(), DeviceError> {
        let Some(stitch) = module.stitch() else { return Ok(()) };
        let usage = &stitch.uses[member.step.id()];
        let piece = &stitch.unique[usage.unique];
        let positions = piece.operands();
        for output in piece.graph.outputs() {
            let position = positions.iter().position(|value| value == output);
            let value = position.and_then(|i| usage.operands.get(i));
            let Some(&value) = value.filter(|value| is_wanted(**value)) else { continue };
            let role = format!("written by {}", member.label);
            self.add(device, module, memory, value, role, counts)?;
        }
        Ok(())
    }

    /// Adds the first bytes of a state.
    pub(super) fn add_prefix(
        &mut self,
        device: &mut dyn Device,
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

    fn add(
        &mut self,
        device: &mut dyn Device,
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
    pub(super) fn add_end(
        &mut self,
        device: &mut dyn Device,
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
