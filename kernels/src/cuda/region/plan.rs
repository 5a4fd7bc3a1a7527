//! What is computed where: a row's statements as stages of one block's work.
//!
//! A stage is a loop over the elements of one thing that must exist as a whole: a result, a
//! scatter, a reduction, or a value that several threads read. Everything else is an expression
//! inside the stages that use it. Parts of a row that share no work become components, which
//! different blocks run.

use super::super::index::{Index, Variables};
use super::roots::{Root, roots};
use super::source::{Id, Source, Value};
use super::widths::segment_lanes;
use crate::lower::LowerError;
use piecewise_ir::op::Op;
use std::collections::{BTreeMap, BTreeSet};

/// Shared memory that one component's values may take, in bytes.
const SHARED_BYTES: u64 = 40 << 10;
/// The most threads that work on one row.
const MOST_THREADS: u64 = 512;

/// What a component's text runs in: a kernel of its own, or another kernel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    /// The most threads that work on one row.
    pub(super) threads: u64,
    /// The most neighbouring elements that a thread takes at once.
    pub(super) width: u64,
    /// The most elements of one value that a thread keeps in registers for a later loop.
    pub(super) kept: u64,
    /// Registers of a thread for values kept and loaded ahead.
    pub(super) registers: u64,
    /// Whether each thread may work on a chunk alone, whatever its row.
    pub(super) alone: bool,
    /// The argument whose element of the loop the frame computes: it is not in memory.
    pub(super) product: Option<u32>,
}

impl Frame {
    /// A kernel of its own.
    pub(super) const KERNEL: Self = Self {
        threads: MOST_THREADS,
        width: 8,
        kept: 32,
        registers: 64,
        alone: true,
        product: None,
    };
}

/// What a stage makes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum StageKind {
    /// A row of a result, in memory.
    Store { result: usize },
    /// A value in shared memory.
    Share { value: Id },
    /// A reduction.
    Reduce { statement: usize },
    /// A search.
    TopK { statement: usize },
    /// Rows in a table.
    Scatter { statement: usize },
}

/// How a stage's loop is spread over threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mapping {
    /// Chunks of `width` elements, thread after thread.
    Flat { width: u64 },
    /// One warp for each kept index.
    Warps,
    /// One thread for each kept index.
    Threads,
}

#[derive(Clone, Debug)]
pub(super) struct Stage {
    pub(super) kind: StageKind,
    /// The position among the statements after which it runs.
    pub(super) anchor: usize,
    /// Elements of its loop.
    pub(super) elements: u64,
    pub(super) mapping: Mapping,
    /// Every value that it reads, at which index.
    pub(super) visits: BTreeSet<(Id, usize)>,
    pub(super) indices: Vec<Index>,
    /// Indices and boundaries by which it branches.
    pub(super) branches: Vec<(Index, u64, u64)>,
}

/// Where a computed value is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kept {
    /// In shared memory.
    Shared,
    /// In registers of the thread that works on the element, for loops over so many elements.
    Registers { elements: u64 },
}

/// Work that blocks of their own do.
#[derive(Debug)]
pub(super) struct Component {
    pub(super) stages: Vec<Stage>,
    pub(super) kept: BTreeMap<Id, Kept>,
    /// Operands that more than one stage reads in the same chunks, or whose loads go ahead: value,
    /// index, elements of the loop.
    pub(super) carried: Vec<(Id, Index, u64)>,
    /// Threads that work on one row; `None` if chunks of rows are independent and each thread has
    /// one.
    pub(super) threads: Option<u64>,
}

impl Stage {
    /// Stages run in this order: what makes a value goes before what only copies it.
    fn order(&self) -> (usize, bool, StageKind) {
        let copies = matches!(self.kind, StageKind::Store { .. } | StageKind::Scatter { .. });
        (self.anchor, copies, self.kind)
    }

    /// The indices at which it reads a value.
    pub(super) fn reads(&self, value: Id) -> impl Iterator<Item = &Index> + '_ {
        self.visits.range((value, 0)..=(value, usize::MAX)).map(|&(_, i)| &self.indices[i])
    }
}

impl Component {
    /// Elements of a chunk of loops over so many elements.
    pub(super) fn width(&self, elements: u64) -> u64 {
        self.stages
            .iter()
            .find_map(|s| match s.mapping {
                Mapping::Flat { width } if s.elements == elements => Some(width),
                _ => None,
            })
            .unwrap_or(1)
    }
}

/// The components of a row, in the order of their first result.
pub(super) fn plan(
    source: &Source<'_>,
    variables: &mut Variables,
    frame: Frame,
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

pub(super) struct Planner<'a, 'b> {
    pub(super) source: &'b Source<'a>,
    pub(super) variables: &'b mut Variables,
    pub(super) frame: Frame,
    pub(super) stages: Vec<Stage>,
    pub(super) kept: BTreeMap<Id, Kept>,
    shared: u64,
    /// Reductions over segments that no chunk width fits.
    one_by_one: &'b BTreeSet<usize>,
    budget: usize,
}

impl Planner<'_, '_> {
    /// The component, or the reduction that can't be flat.
    fn run(&mut self, roots: &[Root]) -> Result<Result<Component, usize>, LowerError> {
        for &(kind, anchor, elements) in roots {
            self.add_stage(kind, anchor, elements)?;
        }
        for (i, statement) in self.source.statements.iter().enumerate().rev() {
            match (statement.op, &statement.results[..]) {
                // Rows are cheap to gather again, but what another gather reads must lie somewhere.
                (Op::Gather, &[value]) if !self.is_table(value) => {
                    self.read_through(value, None)?
                }
                (Op::Reduce { .. }, &[value]) if self.is_read(value) => {
                    let elements = self.source.value(statement.operands[0]).elements;
                    self.add_stage(StageKind::Reduce { statement: i }, i, elements)?;
                }
                (Op::TopK { .. } | Op::ArgMax { .. }, results)
                    if results.iter().any(|&value| self.is_read(value)) =>
                {
                    let elements = self.source.value(statement.operands[0]).elements;
                    self.add_stage(StageKind::TopK { statement: i }, i, elements)?;
                }
                (Op::Reduce { .. } | Op::TopK { .. } | Op::ArgMax { .. } | Op::Scatter, _) => {}
                (_, results) => {
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
            _ => Mapping::Flat { width: 1 },
        };
        if elements > 1 << 31 {
            return Err(LowerError("a loop of more than 2^31 elements; split the axis".to_owned()));
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
            return Err(LowerError(
                "a gather from a computed table that does not fit shared memory; cut the region before it".to_owned(),
            ));
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
