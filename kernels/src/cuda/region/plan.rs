//! What is computed where: the steps of a row program as stages of one block's work.
//!
//! A stage is a loop over the elements of one thing that must exist as a whole: a result, a
//! scatter, a reduction, or a value that several threads read. Everything else is an expression
//! inside the stages that use it. Parts of a program that share no work become components, which
//! different blocks run.

use super::super::index::{Index, Run, Variables};
use crate::lower::{Access, LowerError, MapOp, PlaceKind, RowProgram, RowStep};
use piecewise_ir::op::{BinaryOp, UnaryOp};
use std::collections::{BTreeMap, BTreeSet};

/// Shared memory that one component's values may take, in bytes.
const SHARED_BYTES: u64 = 40 << 10;
/// Registers of a thread for values kept from one stage to a later one.
const KEPT_REGISTERS: u64 = 64;
/// The most threads that work on one row.
const MOST_THREADS: u64 = 512;

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
    visits: BTreeSet<(u32, usize)>,
    indices: Vec<Index>,
    /// Indices and boundaries by which it branches.
    branches: Vec<(Index, u64, u64)>,
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

/// A view of a program by places.
#[derive(Debug)]
pub(super) struct Source<'a> {
    pub(super) program: &'a RowProgram,
    /// For each place, the steps that write it.
    pub(super) writers: Vec<Vec<usize>>,
    costs: Vec<u64>,
}

/// The part of a place that one of its writers writes: elements whose index modulo `period` is in
/// `start..start + len`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) period: u64,
    pub(super) start: u64,
    pub(super) len: u64,
}

fn op_cost(op: MapOp) -> u64 {
    match op {
        MapOp::Unary(UnaryOp::Neg | UnaryOp::Abs | UnaryOp::Not | UnaryOp::Floor) => 1,
        MapOp::Unary(_) => 12,
        MapOp::Binary(BinaryOp::Div) => 8,
        _ => 1,
    }
}

impl<'a> Source<'a> {
    pub(super) fn new(program: &'a RowProgram) -> Result<Self, LowerError> {
        let mut writers = vec![Vec::new(); program.places.len()];
        for (i, step) in program.steps.iter().enumerate() {
            match step {
                RowStep::Map { out, .. } | RowStep::Reduce { out, .. } => {
                    writers[out.place as usize].push(i);
                }
                RowStep::TopK { values, indices, .. } => {
                    for access in [values, indices].into_iter().flatten() {
                        writers[access.place as usize].push(i);
                    }
                }
                RowStep::Gather { out, .. } => writers[*out as usize].push(i),
                RowStep::Scatter { .. } => {}
            }
        }
        for place in &program.places {
            if place.elements > 1 << 31 {
                return Err(LowerError(
                    "a row of more than 2^31 elements; split the axis".to_owned(),
                ));
            }
        }
        let mut costs = vec![2u64; program.places.len()];
        for step in &program.steps {
            match step {
                RowStep::Map { op, inputs, out, .. } => {
                    let from: u64 = inputs.iter().map(|a| costs[a.place as usize]).sum();
                    costs[out.place as usize] = (op_cost(*op) + from).min(1 << 20);
                }
                RowStep::Gather { out, .. } => costs[*out as usize] = 4,
                RowStep::Reduce { out, .. } => costs[out.place as usize] = 0,
                _ => {}
            }
        }
        for (cost, place) in costs.iter_mut().zip(&program.places) {
            if matches!(place.kind, PlaceKind::Constant(_)) {
                *cost = 0;
            }
        }
        Ok(Self { program, writers, costs })
    }

    /// Whether a place is only read.
    pub(super) fn is_leaf(&self, place: u32) -> bool {
        self.writers[place as usize].is_empty()
    }

    pub(super) fn elements(&self, place: u32) -> u64 {
        self.program.places[place as usize].elements
    }

    /// Whether a place is made by a stage of its own whatever reads it.
    pub(super) fn is_staged(&self, place: u32) -> bool {
        self.writers[place as usize].iter().any(|&w| {
            matches!(self.program.steps[w], RowStep::Reduce { .. } | RowStep::TopK { .. })
        })
    }

    /// The part of its place that a map writes.
    pub(super) fn part(&self, extents: &[u64], out: &Access) -> Part {
        let loops: Vec<(u64, u64)> = extents
            .iter()
            .copied()
            .zip(out.strides.iter().copied())
            .filter(|(extent, _)| *extent != 1)
            .collect();
        let mut len = 1;
        let mut outer = loops.len();
        while outer > 0 && loops[outer - 1].1 == len {
            len *= loops[outer - 1].0;
            outer -= 1;
        }
        let period = match outer {
            0 => self.elements(out.place),
            outer => loops[outer - 1].1,
        };
        Part { period: period.max(1), start: out.offset, len }
    }

    /// The inputs of a map for the element at `at` of its place, which lies in its part.
    pub(super) fn map_inputs(
        &self,
        step: usize,
        at: &Index,
        variables: &mut Variables,
    ) -> Vec<(u32, Index)> {
        let RowStep::Map { nest, inputs, out, .. } = &self.program.steps[step] else {
            return Vec::new();
        };
        let counters = self.counters(&nest.extents, out, at, variables);
        inputs.iter().map(|access| (access.place, indexed(access, &counters))).collect()
    }

    /// The counters of a map's loops for the element at `at` of its place.
    pub(super) fn counters(
        &self,
        extents: &[u64],
        out: &Access,
        at: &Index,
        variables: &mut Variables,
    ) -> Vec<Index> {
        let part = self.part(extents, out);
        let flat = match part.len == self.elements(out.place) {
            true => at.clone(),
            false => {
                let (outer, inner) = variables.div_rem(at, part.period);
                let inner = variables.minus(&inner, part.start, part.len);
                outer.times(part.len).plus(&inner)
            }
        };
        variables.coordinates(&flat, extents)
    }

    /// The index operand of a gather for the element at `at` of its result, and the element
    /// inside the table's row.
    pub(super) fn gather_inputs(
        &self,
        step: usize,
        at: &Index,
        variables: &mut Variables,
    ) -> Option<((u32, Index), Index)> {
        let RowStep::Gather { row, nest, indices, .. } = &self.program.steps[step] else {
            return None;
        };
        let (which, inside) = variables.div_rem(at, *row);
        let counters = variables.coordinates(&which, &nest.extents);
        Some(((indices.place, indexed(indices, &counters)), inside))
    }
}

/// The element that an access reads where the loops have these counters.
pub(super) fn indexed(access: &Access, counters: &[Index]) -> Index {
    counters
        .iter()
        .zip(&access.strides)
        .fold(Index::constant(access.offset), |sum, (c, &stride)| sum.plus(&c.times(stride)))
}

/// The components of a program, in the order of their first result.
pub(super) fn plan(
    source: &Source<'_>,
    variables: &mut Variables,
) -> Result<Vec<Component>, LowerError> {
    roots(source)
        .into_iter()
        .map(|roots| {
            let mut one_by_one = BTreeSet::new();
            loop {
                let mut planner = Planner {
                    source,
                    variables,
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

/// The stages that must be, grouped by the work that they share.
fn roots(source: &Source<'_>) -> Vec<Vec<(StageKind, usize, u64)>> {
    let program = source.program;
    let mut roots: Vec<(StageKind, usize, u64, BTreeSet<u32>)> = Vec::new();
    let inputs = |step: &RowStep| -> Vec<u32> {
        match step {
            RowStep::Map { inputs, .. } => inputs.iter().map(|a| a.place).collect(),
            RowStep::Reduce { input, .. } | RowStep::TopK { input, .. } => vec![input.place],
            RowStep::Gather { table, indices, .. } => vec![*table, indices.place],
            RowStep::Scatter { slots, rows, .. } => vec![slots.place, rows.0],
        }
    };
    let reach = |from: Vec<u32>| {
        let (mut seen, mut next) = (BTreeSet::new(), from);
        while let Some(place) = next.pop() {
            if seen.insert(place) {
                for &writer in &source.writers[place as usize] {
                    next.extend(inputs(&program.steps[writer]));
                }
            }
        }
        seen
    };
    for (i, place) in program.places.iter().enumerate() {
        if matches!(place.kind, PlaceKind::Arg(_))
            && let Some(&anchor) = source.writers[i].last()
            && place.elements > 0
        {
            let kind = StageKind::Store { place: i as u32 };
            roots.push((kind, anchor, place.elements, reach(vec![i as u32])));
        }
    }
    for (i, step) in program.steps.iter().enumerate() {
        if let RowStep::Scatter { row, nest, .. } = step {
            let elements = nest.extents.iter().product::<u64>() * row;
            if elements > 0 {
                roots.push((StageKind::Scatter { step: i }, i, elements, reach(inputs(step))));
            }
        }
    }
    roots.sort_by_key(|(kind, anchor, ..)| (*anchor, *kind));
    let worth_sharing = |place: u32| {
        !source.is_leaf(place)
            && (source.is_staged(place)
                || (source.elements(place) >= 32
                    && source.writers[place as usize]
                        .iter()
                        .any(|&w| matches!(program.steps[w], RowStep::Map { .. }))))
    };
    let mut groups: Vec<(Vec<(StageKind, usize, u64)>, BTreeSet<u32>)> = Vec::new();
    for (kind, anchor, elements, reached) in roots {
        let mut shared: BTreeSet<u32> =
            reached.into_iter().filter(|&place| worth_sharing(place)).collect();
        let mut members = vec![(kind, anchor, elements)];
        let (joined, apart): (Vec<_>, Vec<_>) =
            groups.into_iter().partition(|(_, places)| !places.is_disjoint(&shared));
        groups = apart;
        for (others, places) in joined {
            members.extend(others);
            shared.extend(places);
        }
        members.sort_by_key(|(kind, anchor, _)| (*anchor, *kind));
        groups.push((members, shared));
    }
    let mut groups: Vec<_> = groups.into_iter().map(|(members, _)| members).collect();
    groups.sort_by_key(|members| (members[0].1, members[0].0));
    groups
}

struct Planner<'a, 'b> {
    source: &'b Source<'a>,
    variables: &'b mut Variables,
    stages: Vec<Stage>,
    kept: BTreeMap<u32, Kept>,
    shared: u64,
    /// Reductions over segments that no chunk width fits.
    one_by_one: &'b BTreeSet<usize>,
    budget: usize,
}

impl Planner<'_, '_> {
    /// The component, or the reduction that can't be flat.
    fn run(
        &mut self,
        roots: &[(StageKind, usize, u64)],
    ) -> Result<Result<Component, usize>, LowerError> {
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
        let is_table = self
            .source
            .program
            .steps
            .iter()
            .any(|s| matches!(s, RowStep::Gather { table, .. } if *table == place))
            && !visits.is_empty();
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
        if several && same_loop && elements.div_ceil(MOST_THREADS).max(8) <= 32 && !is_table {
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

    fn choose_widths(&mut self) -> Result<(), usize> {
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
            for stage in &mut self.stages {
                if stage.elements == elements
                    && let Mapping::Flat { .. } = stage.mapping
                {
                    if let StageKind::Reduce { step } = stage.kind
                        && let RowStep::Reduce { nest, kept, .. } = &self.source.program.steps[step]
                    {
                        let (outer, inner) = nest.extents.split_at(*kept as usize);
                        if outer.iter().product::<u64>() > 1
                            && segment_lanes(inner.iter().product(), width).is_none()
                        {
                            return Err(step);
                        }
                    }
                    stage.mapping = Mapping::Flat { width };
                }
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
            for (place, _) in &stage.visits {
                let place = &self.source.program.places[*place as usize];
                if matches!(place.kind, PlaceKind::Arg(_)) && place.elements > 1 {
                    narrowest = narrowest.min(place.dtype.size() as u64);
                }
            }
        }
        let mut width = (16 / narrowest.max(2)).min(8);
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
                    _ => false,
                }
        });
        let segments = match stage.kind {
            StageKind::Reduce { step } => match &self.source.program.steps[step] {
                RowStep::Reduce { nest, kept, .. } if *kept > 0 => {
                    let (outer, inner) = nest.extents.split_at(*kept as usize);
                    outer.iter().product::<u64>() == 1
                        || segment_lanes(inner.iter().product(), width).is_some()
                }
                _ => true,
            },
            _ => true,
        };
        segments && branches && stage.indices.iter().all(regular)
    }

    fn finish(&mut self) -> Component {
        let stages = std::mem::take(&mut self.stages);
        let kept = std::mem::take(&mut self.kept);
        let flat = |s: &Stage| match s.mapping {
            Mapping::Flat { width } => s.elements / width,
            _ => s.elements / 4,
        };
        let alone = stages.iter().all(|s| {
            matches!(s.kind, StageKind::Store { .. } | StageKind::Scatter { .. })
                && s.elements == stages[0].elements
        }) && !kept.values().any(|k| *k == Kept::Shared);
        let chunks = stages.iter().map(flat).max().unwrap_or(1);
        let threads = chunks.next_power_of_two().clamp(32, MOST_THREADS);
        let threads = (!alone).then_some(threads);
        let carried = self.carried(&stages, &kept, threads);
        Component { stages, kept, carried, threads }
    }

    /// Leaves whose loads are issued before the first stage, in order of first use.
    fn carried(
        &self,
        stages: &[Stage],
        kept: &BTreeMap<u32, Kept>,
        threads: Option<u64>,
    ) -> Vec<(u32, Index, u64)> {
        let rounds = |elements: u64, width: u64| match threads {
            None => 1,
            Some(threads) => (elements / width).div_ceil(threads),
        };
        let mut budget = KEPT_REGISTERS;
        for (place, kept) in kept {
            if let Kept::Registers { elements } = kept {
                let _ = place;
                let width = stages
                    .iter()
                    .find_map(|s| match s.mapping {
                        Mapping::Flat { width } if s.elements == *elements => Some(width),
                        _ => None,
                    })
                    .unwrap_or(1);
                budget = budget.saturating_sub(width * rounds(*elements, width));
            }
        }
        let mut carried: Vec<(u32, Index, u64)> = Vec::new();
        for stage in stages {
            let Mapping::Flat { width } = stage.mapping else { continue };
            for &(place, i) in &stage.visits {
                let index = &stage.indices[i];
                let data = &self.source.program.places[place as usize];
                let unit = self.variables.run(index, width) == Run::Stride(1);
                let plain = index.variables().next().is_none();
                if !self.source.is_leaf(place)
                    || !matches!(data.kind, PlaceKind::Arg(_))
                    || !(unit && plain)
                    || width * data.dtype.size() as u64 % 4 != 0
                    || carried.iter().any(|(p, i, n)| (*p, i, *n) == (place, index, stage.elements))
                {
                    continue;
                }
                let words = width * data.dtype.size() as u64 / 4;
                let registers = words * rounds(stage.elements, width);
                if registers <= budget {
                    budget -= registers;
                    carried.push((place, index.clone(), stage.elements));
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
