//! The address audit: what a captured graph was built on against where everything lies now.

use crate::device::{Member, Memory};
use crate::words::ModelError;
use piecewise_backend::device::{Address, BoundTo, Captured};
use piecewise_ir::entity::{Entity, Value};
use piecewise_ir::module::Module;
use piecewise_ir::text::Names;

/// Holds every address of a graph against the present address of the very value that the launch is
/// bound to; `members` are those that it was captured from, in order.
///
/// # Errors
/// The first address at which that value does not lie.
pub(super) fn audit_addresses(
    (module, memory): (&Module, &Memory),
    captured: &Captured,
    members: &[Member],
) -> Result<(), ModelError> {
    let graph = module.graph();
    let stitch = module.stitch().ok_or(ModelError::Unplanned { part: "pieces" })?;
    let scratch = memory.scratch();
    let scratch = scratch..scratch.offset(memory.ledger.scratch);
    for found in captured.addresses() {
        let member = members.get(found.program);
        let is_right = match found.what {
            BoundTo::Counts => found.address == memory.counts(),
            BoundTo::Scratch => scratch.contains(&found.address),
            BoundTo::Operand(position) => {
                let usage = member.map(|member| &stitch.uses[member.step.id()]);
                let value = usage.and_then(|usage| usage.operands.get(position as usize));
                let at = value.and_then(|&value| memory.address(graph, value));
                at == Some(found.address)
            }
        };
        if !is_right {
            return Err(ModelError::StaleAddress {
                launch: found.launch.to_owned(),
                operand: found.name.to_owned(),
                address: found.address,
                expected: what_lies_at(module, memory, found.address),
            });
        }
    }
    Ok(())
}

/// What lies at an address, for people.
fn what_lies_at(module: &Module, memory: &Memory, address: Address) -> String {
    let graph = module.graph();
    let at = |value: &Value| memory.address(graph, *value) == Some(address);
    if address == memory.counts() {
        return "the true counts".to_owned();
    }
    match (0..graph.value_count()).map(Value::new).find(at) {
        Some(value) => format!("{}, another value,", Names::of(graph).value(value)),
        None => "no value".to_owned(),
    }
}
