//! The address audit: what a captured graph was built on against where everything lies now.

use super::CompiledModel;
use super::error::ModelError;
use super::programs::Member;
use piecewise_backend::device::{Address, Device};
use piecewise_ir::entity::{Entity, Value};
use piecewise_ir::text::Names;

impl<D: Device> CompiledModel<D> {
    /// Holds every address of a graph against the present addresses of the members that it was
    /// captured from.
    ///
    /// # Errors
    /// The first address at which none of their operands lies.
    pub(super) fn audit_addresses(
        &self,
        captured: &D::Captured,
        members: &[Member<D::Program>],
    ) -> Result<(), ModelError> {
        let graph = self.module.graph();
        let stitch = self.module.stitch().ok_or(ModelError::Unplanned { part: "pieces" })?;
        let operands = members.iter().flat_map(|m| &stitch.uses[m.step.id()].operands);
        let mut known: Vec<_> =
            operands.filter_map(|&value| self.memory.address(graph, value)).collect();
        known.sort_unstable();
        let scratch = self.memory.scratch();
        let scratch = scratch..scratch.offset(self.memory.ledger.scratch);
        for (launch, operand, address) in self.device.addresses(captured) {
            let is_known = match operand.as_str() {
                "counts" => address == self.memory.counts(),
                _ => known.binary_search(&address).is_ok() || scratch.contains(&address),
            };
            if !is_known {
                return Err(ModelError::StaleAddress {
                    launch: launch.to_owned(),
                    operand,
                    address,
                    expected: self.what_lies_at(address),
                });
            }
        }
        Ok(())
    }

    /// What lies at an address, for people.
    fn what_lies_at(&self, address: Address) -> String {
        let graph = self.module.graph();
        let at = |value: &Value| self.memory.address(graph, *value) == Some(address);
        if address == self.memory.counts() {
            return "the true counts".to_owned();
        }
        match (0..graph.value_count()).map(Value::new).find(at) {
            Some(value) => format!("{}, another value,", Names::of(graph).value(value)),
            None => "no value".to_owned(),
        }
    }
}
