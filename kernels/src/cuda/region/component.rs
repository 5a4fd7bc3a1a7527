//! What a planned kernel consists of: components that different blocks run, each of stages.

use super::super::index::Index;
use super::source::Id;
use std::collections::{BTreeMap, BTreeSet};

/// The most threads that work on one row.
const MOST_THREADS: u64 = 512;

/// Arguments that are no parameters of the text, because the kernel around it has their elements in
/// registers, by position. Of an operand, for each element that a thread has, how far after the
/// element of the loop it stands, and its value in arithmetic, an expression of `v` where chunks have
/// several; of a result the variable of a thread's one element, as it is stored.
pub(super) type Held = BTreeMap<u32, Vec<(u64, String)>>;

/// What a component's text runs in: a kernel of its own, or another kernel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame<'a> {
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
    /// Arguments that its threads hold.
    pub(super) held: &'a Held,
    /// Elements of a result's memory from one row to the next, where they are not those of a row.
    pub(super) apart: Option<u64>,
}

impl Frame<'_> {
    /// A kernel of its own.
    pub(super) const KERNEL: Self = Self {
        threads: MOST_THREADS,
        width: 8,
        kept: 32,
        registers: 64,
        alone: true,
        held: &Held::new(),
        apart: None,
    };

    /// The same with a quarter of the threads: each takes several runs of a long row, of which rows of
    /// tables that repeat, such as those of a position for each head, are loaded once.
    pub(super) const NARROW: Self = Self { threads: MOST_THREADS / 4, ..Self::KERNEL };
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
    pub(super) fn order(&self) -> (usize, bool, StageKind) {
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
                Mapping::Flat { .. } | Mapping::Warps | Mapping::Threads => None,
            })
            .unwrap_or(1)
    }

    /// Rounds in which all threads go through the chunks of a loop.
    pub(super) fn rounds(&self, elements: u64, width: u64) -> u64 {
        self.threads.map_or(1, |threads| (elements / width).div_ceil(threads).max(1))
    }
}
