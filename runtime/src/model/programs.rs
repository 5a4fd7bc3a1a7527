//! Programs: every member of the step bound at each of its sizes.

use crate::dispatch::StepSizes;
use crate::symbols::{Over, SymbolClass};
use piecewise_backend::artifact::PieceSize;
use piecewise_ir::module::Step;

/// A member of the step with its programs.
#[derive(Debug)]
pub(crate) struct Member<P> {
    /// What it is.
    pub step: Step,
    /// For people: `p3` or the op's name.
    pub label: String,
    /// What it iterates over, if it does.
    pub over: Option<Over>,
    /// Programs by size, ascending.
    pub sized: Vec<(PieceSize, P)>,
    /// The program for any size.
    pub general: P,
}

impl<P> Member<P> {
    /// The class of the rows that it iterates over, if it does.
    pub(crate) fn class(&self) -> Option<SymbolClass> {
        self.over.map(|over| over.class)
    }

    /// Whether it has programs for uniform batches alone.
    pub(crate) fn has_uniform(&self) -> bool {
        self.sized.iter().any(|(size, _)| size.query_length().is_some())
    }

    /// Its own size in a step of these sizes, where it may be captured by it: the same whether the
    /// step is launched or replayed.
    pub(crate) fn size(&self, sizes: &StepSizes) -> Option<PieceSize> {
        let over = self.over?;
        let uniform = sizes.uniform().filter(|&size| self.index(size).is_some());
        uniform.or_else(|| sizes.of_rows(over))
    }

    /// The program for the sizes of a step.
    pub(crate) fn program(&self, sizes: &StepSizes) -> &P {
        self.size(sizes).map_or(&self.general, |size| self.at(size))
    }

    /// The program for a size of its own rows.
    pub(crate) fn at(&self, size: PieceSize) -> &P {
        self.index(size).map_or(&self.general, |i| &self.sized[i].1)
    }

    fn index(&self, size: PieceSize) -> Option<usize> {
        self.sized.binary_search_by_key(&size, |(known, _)| *known).ok()
    }
}

/// The members in the order of the step.
#[derive(Debug)]
pub(crate) struct Members<P> {
    pub list: Vec<Member<P>>,
}
