//! What is computed where: a row's statements as stages of one block's work.
//!
//! A stage is a loop over the elements of one thing that must exist as a whole: a result, a
//! scatter, a reduction, or a value that several threads read. Everything else is an expression
//! inside the stages that use it. Parts of a row that share no work become components, which
//! different blocks run.

// A new op or dtype must not compile before it is here.
#![warn(clippy::wildcard_enum_match_arm)]

use super::super::index::{Index, Variables};
use super::component::{Component, Frame, Kept, Mapping, Stage, StageKind};
use super::planner::Planner;
use super::roots::{Root, roots};
use super::source::{Id, Source, Value};
use super::widths::segment_lanes;
use crate::lower::{LowerError, fail};
use piecewise_ir::op::OpClass;
use std::collections::{BTreeMap, BTreeSet};

/// Shared memory that one component's values may take, in bytes.
const SHARED_BYTES: u64 = 40 << 10;

/// The components of a row, in the order of their first result.
pub(super) fn plan(
    source: &Source<'_>,
    variables: &mut Variables,
    frame: Frame<'_>,
) -> Result<Vec<Component>, LowerError> {
    roots(source, variables)
        .into_iter()
        .map(|roots| {
            let mut one_by_one = BTreeSet::new();
            loop {
                let mut planner = Planner {
                    source,
                    variables,
                    frame,
                    stages: Vec::new(),
                    kept: BTreeMap::new(),
                    shared: 0,
                    one_by_one: &one_by_one,
                    budget: 100_000,
                };
                match planner.run(&roots)? {
                    Ok(component) => return Ok(component),
                    Err(statement) => one_by_one.insert(statement),
                };
            }
        })
        .collect()
}

impl Planner<'_, '_> {
    /// The component, or the reduction that can't be flat.
    fn run(&mut self, roots: &[Root]) -> Result<Result<Component, usize>, LowerError> {
        for &(kind, anchor, elements) in roots {
            self.add_stage(kind, anchor, elements)?;
        }
        for (i, statement) in self.source.statements.iter().enumerate().rev() {
            match (statement.op.class(), &statement.results[..]) {
                // Rows are cheap to gather again, but what another gather reads must lie somewhere.
                (OpClass::Gather, &[value]) if !self.is_table(value) => {
                    self.read_through(value, None)?
                }
                (OpClass::Reduction, &[value]) if self.is_read(value) => {
                    let elements = self.source.value(statement.operands[0]).elements;
                    self.add_stage(StageKind::Reduce { statement: i }, i, elements)?;
                }
                (OpClass::Search, results) if results.iter().any(|&value| self.is_read(value)) => {
                    let elements = self.source.value(statement.operands[0]).elements;
                    self.add_stage(StageKind::TopK { statement: i }, i, elements)?;
                }
                (OpClass::Reduction | OpClass::Search | OpClass::Scatter, _) => {}
                (OpClass::Elementwise | OpClass::Remap | OpClass::Constant, results)
                | (OpClass::Gather | OpClass::Product { .. }, results)
                | (OpClass::Region(_) | OpClass::Custom(_), results) => {
                    for &value in results {
                        self.decide(value, i)?;
                    }
                }
            }
        }
        self.stages.sort_by_key(Stage::order);
        if let Err(statement) = self.choose_widths() {
            return Ok(Err(statement));
        }
        Ok(Ok(self.finish()))
    }

    fn is_read(&self, value: Id) -> bool {
        self.stages.iter().any(|s| s.reads(value).next().is_some())
    }

    /// Whether a gather of some stage reads rows of a value.
    fn is_table(&self, value: Id) -> bool {
        self.source.value(value).is_table && self.is_read(value)
    }

    fn visit(&mut self, stage: usize, value: Id, index: Index) -> Result<bool, LowerError> {
        self.budget = self.budget.checked_sub(1).ok_or_else(|| {
            LowerError("a region with too many index patterns for one kernel; cut it".to_owned())
        })?;
        let stage = &mut self.stages[stage];
        let position = stage.indices.iter().position(|i| *i == index).unwrap_or_else(|| {
            stage.indices.push(index);
            stage.indices.len() - 1
        });
        Ok(stage.visits.insert((value, position)))
    }

    fn add_stage(
        &mut self,
        kind: StageKind,
        anchor: usize,
        elements: u64,
    ) -> Result<(), LowerError> {
        let mapping = match kind {
            StageKind::TopK { .. } => Mapping::Warps,
            StageKind::Reduce { statement } => self.reduce_mapping(statement),
            StageKind::Store { .. } | StageKind::Share { .. } | StageKind::Scatter { .. } => {
                Mapping::Flat { width: 1 }
            }
        };
        if elements > 1 << 31 {
            return fail("a loop of more than 2^31 elements; split the axis");
        }
        self.stages.push(Stage {
            kind,
            anchor,
            elements,
            mapping,
            visits: BTreeSet::new(),
            indices: Vec::new(),
            branches: Vec::new(),
        });
        let stage = self.stages.len() - 1;
        let e = Index::element(elements);
        match kind {
            StageKind::Store { result } => {
                let (value, index) = self.source.stored(result, self.variables);
                self.visit(stage, value, index)?;
            }
            StageKind::Share { value } => {
                self.visit(stage, value, e.clone())?;
                self.expand(stage, value, &e)?;
            }
            StageKind::Reduce { statement } | StageKind::TopK { statement } => {
                let (value, index) = self.source.taken(statement, self.variables);
                self.visit(stage, value, index)?;
            }
            StageKind::Scatter { statement } => {
                let scatter = self.source.scattered(statement, self.variables);
                for (value, index) in [scatter.slot, scatter.value] {
                    self.visit(stage, value, index)?;
                }
                self.visit_index(stage, scatter.inside);
            }
        }
        Ok(())
    }

    /// Remembers an index that a stage computes without reading a value at it.
    fn visit_index(&mut self, stage: usize, index: Index) {
        let stage = &mut self.stages[stage];
        if !stage.indices.contains(&index) {
            stage.indices.push(index);
        }
    }

    fn reduce_mapping(&self, statement: usize) -> Mapping {
        let (kept, len) = self.source.segments(statement);
        let fits = [8, 4, 2, 1].iter().any(|w| segment_lanes(len, *w).is_some());
        match (kept, len) {
            (1, _) => Mapping::Flat { width: 1 },
            _ if fits && !self.one_by_one.contains(&statement) => Mapping::Flat { width: 1 },
            (_, 0..=48) => Mapping::Threads,
            _ => Mapping::Warps,
        }
    }

    /// The visits of a value over all stages: stage and index.
    fn visits_of(&self, value: Id) -> Vec<(usize, Index)> {
        let mut all = Vec::new();
        for (s, stage) in self.stages.iter().enumerate() {
            all.extend(stage.reads(value).map(|index| (s, index.clone())));
        }
        all
    }

    /// Decides how a computed value is had, once all its readers are known.
    fn decide(&mut self, value: Id, anchor: usize) -> Result<(), LowerError> {
        let visits = self.visits_of(value);
        let &Value { elements, cost, dtype, .. } = self.source.value(value);
        let bytes = elements * dtype.size() as u64;
        let is_table = self.is_table(value);
        let fits = self.shared + bytes.next_multiple_of(16) <= SHARED_BYTES;
        if is_table && !fits {
            return fail(
                "a gather from a computed table that does not fit shared memory; cut the region before it",
            );
        }
        let identity = Index::element(elements);
        let same_loop = visits.iter().all(|(s, index)| {
            let stage = &self.stages[*s];
            *index == identity
                && stage.elements == elements
                && matches!(stage.mapping, Mapping::Flat { .. })
        });
        let several = visits.len() > 1 && cost >= 3 && elements > 1;
        let of_thread = elements.div_ceil(self.frame.threads).max(8);
        if several && same_loop && of_thread <= self.frame.kept && !is_table {
            self.kept.insert(value, Kept::Registers { elements });
            let first = visits.iter().map(|v| v.0).min_by_key(|&s| self.stages[s].order());
            return self.read_through(value, first);
        }
        if is_table || (several && cost >= 8 && fits && visits.len() as u64 * elements >= elements)
        {
            self.shared += bytes.next_multiple_of(16);
            self.kept.insert(value, Kept::Shared);
            return self.add_stage(StageKind::Share { value }, anchor, elements);
        }
        self.read_through(value, None)
    }

    /// Makes the readers of a value read what it is made of; only the stage `only`, if given.
    fn read_through(&mut self, value: Id, only: Option<usize>) -> Result<(), LowerError> {
        for (stage, index) in self.visits_of(value) {
            if only.is_none_or(|s| s == stage) {
                self.expand(stage, value, &index)?;
            }
        }
        Ok(())
    }

    /// Visits what the element at `index` of a value is made of.
    fn expand(&mut self, stage: usize, value: Id, index: &Index) -> Result<(), LowerError> {
        let inputs = self.source.inputs(value, index, self.variables);
        self.stages[stage].branches.extend(inputs.branches);
        for (value, at) in inputs.reads {
            self.visit(stage, value, at)?;
        }
        for index in inputs.computed {
            self.visit_index(stage, index);
        }
        Ok(())
    }
}
