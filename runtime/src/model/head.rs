//! What the head reads from the rest of the step, kept where a step calls the head several times.

use super::memory::Memory;
use super::programs::{Member, Members};
use crate::symbols::SymbolClass;
use piecewise_backend::device::{Address, Device, DeviceError};
use piecewise_ir::entity::Value;
use piecewise_ir::module::Module;
use piecewise_ir::types::TensorType;

/// Values that members over rows read, other members write, and the plan lets a member over rows
/// overwrite: their lives end with the first call of the head.
#[derive(Debug, Default)]
pub(super) struct HeadInputs {
    values: Vec<Kept>,
}

#[derive(Debug)]
struct Kept {
    address: Address,
    ty: TensorType,
    bytes: Vec<u8>,
}

impl HeadInputs {
    /// Finds them by the addresses of slots at their largest sizes.
    pub(super) fn at_risk<P>(module: &Module, memory: &Memory, members: &Members<P>) -> Self {
        let (graph, Some(stitch)) = (module.graph(), module.stitch()) else {
            return Self::default();
        };
        let written = |member: &Member<P>| -> Vec<Value> {
            let nodes = stitch.uses[member.step.id()].nodes.iter();
            nodes.flat_map(|&node| graph.node(node).results.iter().copied()).collect()
        };
        let (head, rest): (Vec<_>, Vec<_>) =
            members.list.iter().partition(|member| member.class == Some(SymbolClass::Rows));
        let by_head: Vec<Value> = head.iter().flat_map(|member| written(member)).collect();
        let by_rest: Vec<Value> = rest.iter().flat_map(|member| written(member)).collect();
        let range = |value: Value| {
            let start = memory.address(graph, value)?;
            let bytes = graph.ty(value).bytes(&memory.layout().bounds);
            Some(start..start.offset(bytes))
        };
        let overwritten: Vec<_> = by_head.iter().filter_map(|&value| range(value)).collect();
        let mut values: Vec<Value> = head
            .iter()
            .flat_map(|member| stitch.uses[member.step.id()].operands.iter().copied())
            .filter(|value| by_rest.contains(value))
            .collect();
        values.sort_unstable();
        values.dedup();
        let kept = values.into_iter().filter_map(|value| {
            let own = range(value)?;
            let overlaps = overwritten.iter().any(|r| r.start < own.end && own.start < r.end);
            let ty = graph.ty(value).clone();
            overlaps.then_some(Kept { address: own.start, ty, bytes: Vec::new() })
        });
        Self { values: kept.collect() }
    }

    /// Waits, and keeps the real rows.
    pub(super) fn keep<D: Device>(
        &mut self,
        device: &mut D,
        counts: &[u64],
    ) -> Result<(), DeviceError> {
        for kept in &mut self.values {
            kept.bytes.resize(kept.ty.bytes(counts) as usize, 0);
            device.read(kept.address, &mut kept.bytes)?;
        }
        Ok(())
    }

    /// Puts back what [`Self::keep`] kept.
    pub(super) fn restore<D: Device>(&self, device: &mut D) -> Result<(), DeviceError> {
        self.values.iter().try_for_each(|kept| device.write(kept.address, &kept.bytes))
    }
}
