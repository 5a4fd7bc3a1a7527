//! The steps that ways are measured in.

use super::compiled::CompiledModel;
use super::staging::Filling;
use crate::batch::SyntheticStep;
use crate::device::Place;
use crate::words::{ModelError, StepSizes};
use piecewise_ir::entity::Entity;
use piecewise_ir::module::Stitch;
use piecewise_kernels::step::CaptureSupport;
use std::collections::{BTreeMap, BTreeSet};

/// A step, or its captured pieces one after the other, in one graph, however it runs.
#[derive(Clone, Debug)]
pub(crate) struct MeasuredStep {
    pub(crate) sizes: StepSizes,
    /// Its padded sizes by symbol.
    pub(crate) by_symbol: Vec<u64>,
    /// The members in the graph, in order.
    pub(crate) members: Vec<usize>,
    pub(crate) label: String,
}

impl MeasuredStep {
    /// Of a step without its members between pieces, which nothing may be known of.
    pub(crate) fn new(model: &CompiledModel, sizes: StepSizes, whole: bool) -> Self {
        let mut by_symbol = vec![0; model.symbols.bounds().len()];
        model.symbols.fill(&mut by_symbol, |class| sizes.rows_of(class));
        let members = model.members.list.iter().enumerate();
        let members = members.filter(|(_, member)| whole || member.is_captured_piece());
        let kind = if whole { "step" } else { "pieces" };
        Self {
            sizes,
            by_symbol,
            members: members.map(|(i, _)| i).collect(),
            label: format!("{kind} of {}", sizes.whole()),
        }
    }

    /// The artifacts that it runs, each with the members that use it.
    pub(crate) fn places(
        &self,
        model: &CompiledModel,
        stitch: &Stitch,
    ) -> BTreeMap<Place, Vec<usize>> {
        let mut places: BTreeMap<Place, Vec<usize>> = BTreeMap::new();
        for &i in &self.members {
            let member = &model.members.list[i];
            let Some(size) = member.sized_at(&self.sizes).map(|at| member.sized[at].0) else {
                continue;
            };
            let unique = stitch.uses[member.step.id()].unique;
            let sizes = &model.origin.compiled.sizes[unique.index()];
            if let Some(place) = sizes.iter().position(|at| at.size == size) {
                places.entry((unique, place)).or_default().push(i);
            }
        }
        places
    }
}

impl CompiledModel {
    /// What ways of a step of these sizes are measured in: all of it, where every op can be captured,
    /// and else its captured pieces.
    pub(crate) fn measured_step(&self, sizes: StepSizes) -> MeasuredStep {
        let needed = match sizes.query_length {
            Some(1) => CaptureSupport::SingleTokenDecode,
            Some(_) => CaptureSupport::UniformBatch,
            None => CaptureSupport::Always,
        };
        let whole = self.members.list.iter().all(|member| self.support(member) >= needed);
        MeasuredStep::new(self, sizes, whole)
    }

    /// Stages a made-up step of these sizes, or else one that brings nothing but its numbers of rows;
    /// whether the ops between pieces have something to do.
    pub(crate) fn stage_measured(
        &mut self,
        step: &MeasuredStep,
        steps: &[SyntheticStep],
    ) -> Result<bool, ModelError> {
        let Self { staging, device, memory, symbols, .. } = self;
        let found = steps.iter().find(|found| found.sizes == step.sizes);
        let filled = found.is_some_and(|found| {
            let filled = found
                .step
                .with(|data| staging.fill(data, data.counts, &step.by_symbol, Filling::Whole));
            filled.is_ok()
        });
        if !filled {
            staging.fill_empty(symbols)?;
        }
        device.write(memory.arena.base, &staging.mirror)?;
        if !filled {
            let counts = step.by_symbol.iter().map(|&n| i32::try_from(n).unwrap_or(i32::MAX));
            let bytes: Vec<u8> = counts.flat_map(i32::to_le_bytes).collect();
            device.write(memory.counts(), &bytes)?;
        }
        Ok(filled)
    }

    /// Counts the artifacts that a step of a listed size runs and nobody knows anything of.
    pub(crate) fn count_unmeasured(&mut self) {
        let steps = self.dispatcher.measured_steps().into_iter();
        let open: BTreeSet<Place> =
            steps.flat_map(|(sizes, _)| self.unmeasured_in(&self.measured_step(sizes))).collect();
        self.origin.choices.report.unmeasured = open.len();
        self.stats.tuning = self.origin.choices.report;
    }

    pub(crate) fn unmeasured_in(&self, step: &MeasuredStep) -> Vec<Place> {
        let Some(stitch) = self.module.stitch() else { return Vec::new() };
        let places = step.places(self, stitch).into_keys();
        places.filter(|place| self.origin.choices.wants_measuring(*place)).collect()
    }
}
