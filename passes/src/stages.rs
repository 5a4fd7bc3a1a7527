//! The stages after fusion as passes: `split`, `destination`, `plan`.

use crate::analysis::Names;
use crate::destination::assign_slots;
use crate::manager::{Pass, PassContext, PassError, PassReport};
use crate::plan::{PlanOptions, plan_arena};
use crate::split::{SplitOptions, explain_steps, split};
use piecewise_ir::module::Module;

/// `split`: see [`split`].
#[derive(Clone, Debug, Default)]
pub struct SplitPass {
    /// At which ops it cuts.
    pub options: SplitOptions,
}

impl Pass for SplitPass {
    fn name(&self) -> &'static str {
        "split"
    }

    fn is_required(&self) -> bool {
        true
    }

    fn run(&self, module: &mut Module, _: &mut PassContext) -> Result<PassReport, PassError> {
        let done = split(module, &self.options).map_err(|e| PassError::failed(self.name(), e))?;
        let mut report = PassReport::default();
        report.count_many("pieces", done.pieces);
        report.count_many("unique_pieces", done.unique_pieces);
        report.count_many("split_ops", done.split_ops);
        report.count_many("prologue_ops", done.prologue_ops);
        let names = Names::of(module.graph());
        explain_steps(module, &self.options, &names, &mut report);
        for &node in &done.moved {
            let why = "fewer bytes cross the split ops";
            report.remark("moved over a split op", names.node(module.graph(), node), why);
        }
        for &node in &done.joined {
            let why = "alone it was a piece without a kernel";
            report.remark("joined a neighbouring piece", names.node(module.graph(), node), why);
        }
        for name in &done.unmatched {
            let why = "no custom op of the graph has this name";
            report.remark("nothing to split at", name.clone(), why);
        }
        Ok(report)
    }
}

/// `destination`: see [`assign_slots`].
#[derive(Clone, Copy, Debug, Default)]
pub struct DestinationPass;

impl Pass for DestinationPass {
    fn name(&self) -> &'static str {
        "destination"
    }

    fn is_required(&self) -> bool {
        true
    }

    fn run(&self, module: &mut Module, _: &mut PassContext) -> Result<PassReport, PassError> {
        let done = assign_slots(module)?;
        let names = Names::of(module.graph());
        let mut report = PassReport::default();
        report.count_many("inputs", done.inputs);
        report.count_many("boundaries", done.boundaries);
        report.count_many("locals", done.locals);
        report.count_many("outputs", done.outputs);
        for &node in &done.copies {
            let why = "an index remap outside a region gets a slot of its own";
            report.remark("copies its operand", names.node(module.graph(), node), why);
        }
        Ok(report)
    }
}

/// `plan`: see [`plan_arena`].
#[derive(Clone, Copy, Debug, Default)]
pub struct PlanPass {
    /// How the arena is laid out.
    pub options: PlanOptions,
}

impl Pass for PlanPass {
    fn name(&self) -> &'static str {
        "plan"
    }

    fn is_required(&self) -> bool {
        true
    }

    fn run(&self, module: &mut Module, _: &mut PassContext) -> Result<PassReport, PassError> {
        if module.slots().is_none() {
            let (needs, run_first) = ("slots", "destination");
            return Err(PassError::Missing { pass: self.name().to_owned(), needs, run_first });
        }
        let done =
            plan_arena(module, &self.options).map_err(|e| PassError::failed(self.name(), e))?;
        let mut report = PassReport::default();
        report.count_many("slots", module.slots().map_or(0, |table| table.slots.len()));
        let why = format!(
            "at least {} are live at one moment; without reuse it would be {}",
            done.live_bytes, done.slot_bytes
        );
        report.remark(format!("arena of {} bytes", done.bytes), "plan", why);
        Ok(report)
    }
}
