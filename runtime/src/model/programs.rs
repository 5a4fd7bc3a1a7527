//! Programs: every member of the step bound at each of its sizes.

use crate::symbols::SymbolClass;
use piecewise_backend::artifact::PieceSize;
use piecewise_ir::module::Step;

/// A member of the step with its programs.
#[derive(Debug)]
pub(crate) struct Member<P> {
    /// What it is.
    pub step: Step,
    /// For people: `p3` or the op's name.
    pub label: String,
    /// The class of the symbol that it iterates over, if it does.
    pub class: Option<SymbolClass>,
    /// Programs by size, ascending.
    pub exact: Vec<(u64, P)>,
    /// The program for any size.
    pub general: P,
}

impl<P> Member<P> {
    /// The program for the sizes of a step.
    pub(crate) fn program(&self, tokens: PieceSize, rows: PieceSize) -> &P {
        let size = match self.class {
            Some(SymbolClass::Tokens) => tokens,
            Some(SymbolClass::Rows) => rows,
            _ => return &self.general,
        };
        match size {
            PieceSize::Exact(n) => self.at(n).unwrap_or(&self.general),
            PieceSize::General(_) => &self.general,
        }
    }

    fn at(&self, size: u64) -> Option<&P> {
        let i = self.exact.binary_search_by_key(&size, |(n, _)| *n).ok()?;
        Some(&self.exact[i].1)
    }
}

/// The members in the order of the step.
#[derive(Debug)]
pub(crate) struct Members<P> {
    pub list: Vec<Member<P>>,
}
