//! How loops are spread over threads, and what their threads load ahead.

use super::super::index::{Index, Run};
use super::component::{Component, Kept, Mapping, Stage, StageKind};
use super::planner::Planner;
use super::source::Id;
use std::collections::BTreeSet;

impl Planner<'_, '_> {
    /// Chooses how many neighbouring elements a thread takes in each loop, or names the reduction
    /// that no width fits.
    pub(super) fn choose_widths(&mut self) -> Result<(), usize> {
        let sizes: BTreeSet<u64> = self.flat_stages().map(|s| s.elements).collect();
        for elements in sizes {
            let widest = self.widest(elements);
            let width = [8, 4, 2, 1].into_iter().find(|&w| {
                w <= widest
                    && elements.is_multiple_of(w)
                    && self
                        .flat_stages()
                        .filter(|s| s.elements == elements)
                        .all(|s| self.allows(s, w))
            });
            let width = width.unwrap_or(1);
            for i in 0..self.stages.len() {
                let Stage { kind, mapping, elements: n, .. } = &self.stages[i];
                if *n != elements || !matches!(mapping, Mapping::Flat { .. }) {
                    continue;
                }
                if let &StageKind::Reduce { statement } = kind
                    && !self.fits_lanes(statement, width)
                {
                    return Err(statement);
                }
                self.stages[i].mapping = Mapping::Flat { width };
            }
        }
        Ok(())
    }

    fn flat_stages(&self) -> impl Iterator<Item = &Stage> {
        self.stages.iter().filter(|s| matches!(s.mapping, Mapping::Flat { .. }))
    }

    /// As wide as 16 bytes of the narrowest leaf need, as long as a warp has work.
    fn widest(&self, elements: u64) -> u64 {
        let mut narrowest = 4;
        for stage in self.flat_stages().filter(|s| s.elements == elements) {
            let visited = stage.visits.iter().map(|(value, _)| self.source.value(*value));
            for value in visited.filter(|v| v.in_memory && v.elements > 1) {
                narrowest = narrowest.min(value.dtype.size() as u64);
            }
            if let StageKind::Store { result } = stage.kind
                && elements > 1
            {
                let stored = self.source.value(self.source.results[result]);
                narrowest = narrowest.min(stored.dtype.size() as u64);
            }
        }
        let mut width = (16 / narrowest.max(2)).min(self.frame.width);
        while width > 1 && elements / width < 32 && self.stages.len() > 1 {
            width /= 2;
        }
        width
    }

    fn allows(&self, stage: &Stage, width: u64) -> bool {
        let regular = |index: &Index| self.variables.run(index, width) != Run::Irregular;
        let branches = stage.branches.iter().all(|(index, start, len)| {
            start.is_multiple_of(width)
                && len.is_multiple_of(width)
                && match self.variables.run(index, width) {
                    Run::Uniform => true,
                    Run::Stride(1) => self.variables.alignment(index, width, width) == width,
                    Run::Stride(_) | Run::Irregular => false,
                }
        });
        let segments = match stage.kind {
            StageKind::Reduce { statement } => self.fits_lanes(statement, width),
            StageKind::Store { .. } | StageKind::Share { .. } | StageKind::TopK { .. } => true,
            StageKind::Scatter { .. } => true,
        };
        segments && branches && stage.indices.iter().all(regular)
    }

    /// Whether lanes of a warp share the segments of a reduction in chunks of `width`.
    fn fits_lanes(&self, statement: usize, width: u64) -> bool {
        let (segments, len) = self.source.segments(statement);
        segments == 1 || segment_lanes(len, width).is_some()
    }

    /// The component of the stages.
    pub(super) fn finish(&mut self) -> Component {
        let stages = std::mem::take(&mut self.stages);
        let kept = std::mem::take(&mut self.kept);
        let flat = |s: &Stage| match s.mapping {
            Mapping::Flat { width } => s.elements / width,
            Mapping::Warps | Mapping::Threads => s.elements / 4,
        };
        let alone = self.frame.alone
            && stages.iter().all(|s| {
                matches!(s.kind, StageKind::Store { .. } | StageKind::Scatter { .. })
                    && s.elements == stages[0].elements
            })
            && !kept.values().any(|k| *k == Kept::Shared);
        let chunks = stages.iter().map(flat).max().unwrap_or(1);
        let threads = chunks.next_power_of_two().clamp(32, self.frame.threads);
        let threads = (!alone).then_some(threads);
        let mut component = Component { stages, kept, carried: Vec::new(), threads };
        component.carried = self.carried(&component);
        component
    }

    /// Operands whose loads are issued before the first stage, in order of first use.
    fn carried(&mut self, component: &Component) -> Vec<(Id, Index, u64)> {
        let mut budget = self.frame.registers;
        for kept in component.kept.values() {
            if let Kept::Registers { elements } = kept {
                let width = component.width(*elements);
                budget = budget.saturating_sub(width * component.rounds(*elements, width));
            }
        }
        let mut carried: Vec<(Id, Index, u64)> = Vec::new();
        for stage in &component.stages {
            let Mapping::Flat { width } = stage.mapping else { continue };
            for &(value, i) in &stage.visits {
                let index = &stage.indices[i];
                let held = |arg: u32| self.frame.held.contains_key(&arg);
                match self.source.operand(value) {
                    Some(arg) if held(arg) => continue,
                    None if component.kept.contains_key(&value) => continue,
                    None if !self.source.is_gathered_of_operands(value, index, self.variables) => {
                        continue;
                    }
                    _ => {}
                }
                // A width of one has no runs, and loads what it takes.
                let single = self.frame.width == 1;
                let unit = single || self.variables.run(index, width) == Run::Stride(1);
                let bytes = width * self.source.value(value).dtype.size() as u64;
                let plain = index.variables().next().is_none();
                if !unit
                    || !plain
                    || !(single || bytes.is_multiple_of(4))
                    || carried.iter().any(|(v, i, n)| (*v, i, *n) == (value, index, stage.elements))
                {
                    continue;
                }
                let words = bytes.div_ceil(4);
                let registers = words * component.rounds(stage.elements, width);
                if registers <= budget {
                    budget -= registers;
                    carried.push((value, index.clone(), stage.elements));
                }
            }
        }
        carried
    }
}

/// Lanes that work on one segment of `len` elements, if chunks of `width` divide it among a power
/// of two of them.
pub(super) fn segment_lanes(len: u64, width: u64) -> Option<u64> {
    let lanes = len / width;
    (len.is_multiple_of(width) && lanes.is_power_of_two() && lanes <= 32).then_some(lanes)
}
