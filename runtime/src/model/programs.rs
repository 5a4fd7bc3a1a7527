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
    pub exact: Vec<(u64, P)>,
    /// The program for any size.
    pub general: P,
}

impl<P> Member<P> {
    /// The class of the rows that it iterates over, if it does.
    pub(crate) fn class(&self) -> Option<SymbolClass> {
        self.over.map(|over| over.class)
    }

    /// Its own rows in a step of these sizes, where it may be captured by them.
    pub(crate) fn size(&self, sizes: &StepSizes) -> Option<PieceSize> {
        sizes.of_rows(self.over?)
    }

    /// The program for the sizes of a step.
    pub(crate) fn program(&self, sizes: &StepSizes) -> &P {
        match self.size(sizes) {
            Some(PieceSize::Exact(n)) => self.at(n),
            _ => &self.general,
        }
    }

    /// The program for so many of its own rows.
    pub(crate) fn at(&self, rows: u64) -> &P {
        let exact = self.exact.binary_search_by_key(&rows, |(n, _)| *n);
        exact.map_or(&self.general, |i| &self.exact[i].1)
    }
}

/// The members in the order of the step.
#[derive(Debug)]
pub(crate) struct Members<P> {
    pub list: Vec<Member<P>>,
}
