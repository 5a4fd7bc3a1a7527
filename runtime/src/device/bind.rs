//! Binding: every member of the step at each of its sizes, in the ways that were chosen.

use super::memory::Memory;
use super::programs::{Member, Members};
use crate::store::CompiledPieces;
use crate::words::{ModelError, SymbolTable, label};
use piecewise_backend::artifact::{Artifact, Choice, PieceSize};
use piecewise_backend::device::{Address, Binding, Device, DeviceError, Program};
use piecewise_ir::entity::{Entity, UniquePieceId};
use piecewise_ir::module::{Module, PieceUse, Stitch};

/// What programs are bound from and to.
pub(crate) struct BindSite<'a> {
    pub(crate) module: &'a Module,
    pub(crate) stitch: &'a Stitch,
    pub(crate) symbols: &'a SymbolTable,
    pub(crate) memory: &'a Memory,
    pub(crate) compiled: &'a CompiledPieces,
}

impl BindSite<'_> {
    /// A use at its `i`th size as it is chosen.
    pub(crate) fn bind(
        &self,
        device: &mut dyn Device,
        usage: &PieceUse,
        label: &str,
        i: usize,
        choice: &Choice,
    ) -> Result<Program, DeviceError> {
        let graph = self.module.graph();
        let unique = usage.unique.index();
        let address = |&value: &_| self.memory.address(graph, value);
        let operands: Vec<Option<Address>> = usage.operands.iter().map(address).collect();
        let binding = Binding {
            piece: &self.stitch.unique[usage.unique],
            choice,
            operands: &operands,
            scratch: self.memory.scratch(),
            scratch_bytes: self.memory.ledger.scratch,
            counts: self.memory.counts(),
            bounds: &self.compiled.sizes[unique][i].bounds,
            label,
        };
        device.bind(&self.compiled.artifacts[unique][i], &binding)
    }

    /// Every member at each of its sizes.
    pub(crate) fn bind_all<'c>(
        &self,
        device: &mut dyn Device,
        choice_of: &dyn Fn(UniquePieceId, usize) -> &'c Choice,
    ) -> Result<Members, ModelError> {
        let mut list = Vec::with_capacity(self.stitch.steps.len());
        for &step in &self.stitch.steps {
            let usage = &self.stitch.uses[step.id()];
            let label = label(self.module.graph(), self.stitch, step);
            let over = self.stitch.unique[usage.unique].over.map(|s| self.symbols.over(s));
            let mut sized = Vec::new();
            let mut general = None;
            for (i, at) in self.compiled.sizes[usage.unique.index()].iter().enumerate() {
                let chosen = choice_of(usage.unique, i);
                let program = self.bind(device, usage, &label, i, chosen)?;
                match at.size {
                    PieceSize::General(_) => general = Some(program),
                    size => sized.push((size, program)),
                }
            }
            sized.sort_by_key(|(size, _)| *size);
            let artifacts = &self.compiled.artifacts[usage.unique.index()];
            let general = general.ok_or(ModelError::Unplanned { part: "general program" })?;
            list.push(Member {
                step,
                label,
                over,
                excluded_by: None,
                follows_sizes: artifacts.iter().all(Artifact::follows_sizes),
                probed: None,
                sized,
                general,
            });
        }
        Ok(Members { list })
    }
}

/// An artifact: a unique piece, and the place of a size among its sizes.
pub(crate) type Place = (UniquePieceId, usize);

impl BindSite<'_> {
    pub(crate) fn artifact(&self, (unique, i): Place) -> &Artifact {
        &self.compiled.artifacts[unique.index()][i]
    }
}
