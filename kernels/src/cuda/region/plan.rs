//! What is computed where: the steps of a row program as stages of one block's work.
//!
//! A stage is a loop over the elements of one thing that must exist as a whole: a result, a
//! scatter, a reduction, or a value that several threads read. Everything else is an expression
//! inside the stages that use it. Parts of a program that share no work become components, which
//! different blocks run.

use super::super::index::{Index, Variables};
use super::roots::{Root, roots};
use super::source::{Source, indexed};
use super::widths::segment_lanes;
use crate::lower::{LowerError, MapOp, RowStep};
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
    /// A kernel of the program alone.
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
    Store { place: u32 },
    /// A value in shared memory.
    Share { place: u32 },
    /// A reduction.
    Reduce { step: usize },
    /// A search.
    TopK { step: usize },
    /// Rows in a table.
    Scatter { step: usize },
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
    /// The position among the steps after which it runs.
    pub(super) anchor: usize,
    /// Elements of its loop.
    pub(super) elements: u64,
    pub(super) mapping: Mapping,
    /// Every place that it reads, at which index.
    pub(super) visits: BTreeSet<(u32, usize)>,
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
    pub(super) kept: BTreeMap<u32, Kept>,
    /// Leaves that more than one stage reads in the same chunks, or whose loads go ahead: place,
    /// index, elements of the loop.
    pub(super) carried: Vec<(u32, Index, u64)>,
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

    /// The indices at which it reads a place.
    pub(super) fn reads(&self, place: u32) -> impl Iterator<Item = &Index> + '_ {
        self.visits.range((place, 0)..=(place, usize::MAX)).map(|&(_, i)| &self.indices[i])
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

/// The components of a program, in the order of their first result.
pub(super) fn plan(
    source: &Source<'_>,
    variables: &mut Variables,
    frame: Frame,
) -> Result<Vec<Component>, LowerError> {
    roots(source)
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
                    Err(step) => one_by_one.insert(step),
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
    pub(super) kept: BTreeMap<u32, Kept>,
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
        let program = self.source.program;
        for (i, step) in program.steps.iter().enumerate().rev() {
            match step {
                RowStep::Map { out, .. }
                    if self.source.writers[out.place as usize].last() == Some(&i) =>
                {
                    self.decide(out.place, i)?;
                }
                RowStep::Map { .. } | RowStep::Scatter { .. } => {}
                // Rows are cheap to gather again, but what another gather reads must lie somewhere.
                RowStep::Gather { out, .. } if self.is_table(*out) => self.decide(*out, i)?,
                RowStep::Gather { out, .. } => self.read_through(*out, None)?,
                RowStep::Reduce { out, nest, .. } => {
                    if self.is_read(out.place) {
                        let elements = nest.extents.iter().product();
                        self.add_stage(StageKind::Reduce { step: i }, i, elements)?;
                    }
                }
                RowStep::TopK { values, indices, nest, .. } => {
                    let read = [values, indices].into_iter().flatten();
                    if read.into_iter().any(|a| self.is_read(a.place)) {
                        let elements = nest.extents.iter().product();
                        self.add_stage(StageKind::TopK { step: i }, i, elements)?;
                    }
                }
            }
        }
        self.stages.sort_by_key(Stage::order);
        if let Err(step) = self.choose_widths() {
            return Ok(Err(step));
        }
        Ok(Ok(self.finish()))
    }

    fn is_read(&self, place: u32) -> bool {
        self.stages.iter().any(|s| s.reads(place).next().is_some())
    }

    /// Whether a gather of some stage reads rows of a place.
    fn is_table(&self, place: u32) -> bool {
        self.source.is_table(place) && self.is_read(place)
    }

    fn visit(&mut self, stage: usize, place: u32, index: Index) -> Result<bool, LowerError> {
        self.budget = self.budget.checked_sub(1).ok_or_else(|| {
            LowerError("a region with too many index patterns for one kernel; cut it".to_owned())
        })?;
        let stage = &mut self.stages[stage];
        let position = stage.indices.iter().position(|i| *i == index).unwrap_or_else(|| {
            stage.indices.push(index);
            stage.indices.len() - 1
        });
        Ok(stage.visits.insert((place, position)))
    }

    fn add_stage(
        &mut self,
        kind: StageKind,
        anchor: usize,
        elements: u64,
    ) -> Result<(), LowerError> {
        let mapping = match kind {
            StageKind::TopK { .. } => Mapping::Warps,
            StageKind::Reduce { step } => self.reduce_mapping(step),
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
        let steps = &self.source.program.steps;
        match kind {
            StageKind::Store { place } if self.source.is_staged(place) => {
                self.visit(stage, place, e)?;
            }
            StageKind::Store { place } | StageKind::Share { place } => {
                self.visit(stage, place, e.clone())?;
                if kind == (StageKind::Share { place }) {
                    self.expand(stage, place, &e)?;
                }
            }
            StageKind::Reduce { step } | StageKind::TopK { step } => {
                if let RowStep::Reduce { nest, input, .. } | RowStep::TopK { nest, input, .. } =
                    &steps[step]
                {
                    let counters = self.variables.coordinates(&e, &nest.extents);
                    self.visit(stage, input.place, indexed(input, &counters))?;
                }
            }
            StageKind::Scatter { step } => {
                if let RowStep::Scatter { row, nest, slots, rows, .. } = &steps[step] {
                    let (which, inside) = self.variables.div_rem(&e, *row);
                    let counters = self.variables.coordinates(&which, &nest.extents);
                    self.visit(stage, slots.place, indexed(slots, &counters))?;
                    self.visit(stage, rows.0, e.plus(&Index::constant(rows.1)))?;
                    self.visit_index(stage, inside);
                }
            }
        }
        Ok(())
    }

    /// Remembers an index that a stage computes without reading a place at it.
    fn visit_index(&mut self, stage: usize, index: Index) {
        let stage = &mut self.stages[stage];
        if !stage.indices.contains(&index) {
            stage.indices.push(index);
        }
    }

    fn reduce_mapping(&self, step: usize) -> Mapping {
        let RowStep::Reduce { nest, kept, .. } = &self.source.program.steps[step] else {
            return Mapping::Warps;
        };
        let (outer, inner) = nest.extents.split_at(*kept as usize);
        let (kept, len): (u64, u64) = (outer.iter().product(), inner.iter().product());
        let fits = [8, 4, 2, 1].iter().any(|w| segment_lanes(len, *w).is_some());
        match (kept, len) {
            (1, _) => Mapping::Flat { width: 1 },
            _ if fits && !self.one_by_one.contains(&step) => Mapping::Flat { width: 1 },
            (_, 0..=48) => Mapping::Threads,
            _ => Mapping::Warps,
        }
    }

    /// The visits of a place over all stages: stage and index.
    fn visits_of(&self, place: u32) -> Vec<(usize, Index)> {
        let mut all = Vec::new();
        for (s, stage) in self.stages.iter().enumerate() {
            all.extend(stage.reads(place).map(|index| (s, index.clone())));
        }
        all
    }

    /// Decides how a map's result is had, once all its readers are known.
    fn decide(&mut self, place: u32, anchor: usize) -> Result<(), LowerError> {
        let visits = self.visits_of(place);
        let elements = self.source.elements(place);
        let cost = self.source.costs[place as usize];
        let bytes = elements * self.source.program.places[place as usize].dtype.size() as u64;
        let is_table = self.is_table(place);
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
            self.kept.insert(place, Kept::Registers { elements });
            let first = visits.iter().map(|v| v.0).min_by_key(|&s| self.stages[s].order());
            return self.read_through(place, first);
        }
        if is_table || (several && cost >= 8 && fits && visits.len() as u64 * elements >= elements)
        {
            self.shared += bytes.next_multiple_of(16);
            self.kept.insert(place, Kept::Shared);
            return self.add_stage(StageKind::Share { place }, anchor, elements);
        }
        self.read_through(place, None)
    }

    /// Makes the readers of a place read what it is made of; only the stage `only`, if given.
    fn read_through(&mut self, place: u32, only: Option<usize>) -> Result<(), LowerError> {
        for (stage, index) in self.visits_of(place) {
            if only.is_none_or(|s| s == stage) {
                self.expand(stage, place, &index)?;
            }
        }
        Ok(())
    }

    /// Visits what the element at `index` of a place is made of.
    fn expand(&mut self, stage: usize, place: u32, index: &Index) -> Result<(), LowerError> {
        let writers = &self.source.writers[place as usize];
        for &writer in writers {
            match &self.source.program.steps[writer] {
                RowStep::Map { op, nest, out, .. } => {
                    if writers.len() > 1 {
                        let part = self.source.part(&nest.extents, out);
                        let (_, inner) = self.variables.div_rem(index, part.period);
                        self.stages[stage].branches.push((inner, part.start, part.len));
                    }
                    if *op == MapOp::Index {
                        let counters =
                            self.source.counters(&nest.extents, out, index, self.variables);
                        self.visit_index(stage, counters.last().cloned().unwrap_or_default());
                    }
                    for (place, at) in self.source.map_inputs(writer, index, self.variables) {
                        self.visit(stage, place, at)?;
                    }
                }
                RowStep::Gather { table, .. } => {
                    if let Some(((place, at), inside)) =
                        self.source.gather_inputs(writer, index, self.variables)
                    {
                        self.visit(stage, place, at)?;
                        // Which row is known on the device only.
                        if !self.source.is_leaf(*table) {
                            self.visit(stage, *table, inside.clone())?;
                        }
                        self.visit_index(stage, inside);
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }
}
