//! Stretches: how the members of a step are divided into what is captured together.

use crate::words::{StepSizes, SymbolClass};
use piecewise_backend::artifact::PieceSize;
use std::ops::Range;

/// What a member of a step can be in a stretch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StretchPart {
    /// The rows that it iterates over; nothing where it ends a stretch, because it is launched in every step.
    pub joins: Option<SymbolClass>,
    /// Whether it is a piece, and no op between pieces.
    pub is_piece: bool,
    /// Whether it has programs for uniform batches alone.
    pub has_uniform: bool,
}

/// Members of a step in a row, pieces over the same rows and the ops between them, that are captured as one
/// graph for each size of those rows. Its pieces run at that size, its ops at the sizes of each step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stretch {
    /// Their places in the step; never empty.
    pub members: Range<usize>,
    /// The rows that all of them iterate over.
    pub class: SymbolClass,
    /// Whether one of them has programs for uniform batches alone, so that those have graphs of their own.
    pub has_uniform: bool,
}

impl Stretch {
    /// The stretches of a step with these members: each as long as can be, and with a piece in it.
    pub fn of_step(parts: impl IntoIterator<Item = StretchPart>) -> Vec<Self> {
        let mut found: Vec<(Self, bool)> = Vec::new();
        for (i, part) in parts.into_iter().enumerate() {
            let Some(class) = part.joins.filter(|class| has_sizes(*class)) else { continue };
            match found.last_mut() {
                Some((last, has_piece)) if last.members.end == i && last.class == class => {
                    last.members.end += 1;
                    last.has_uniform |= part.has_uniform;
                    *has_piece |= part.is_piece;
                }
                _ => {
                    let has_uniform = part.has_uniform;
                    found.push((Self { members: i..i + 1, class, has_uniform }, part.is_piece));
                }
            }
        }
        found.into_iter().filter_map(|(stretch, has_piece)| has_piece.then_some(stretch)).collect()
    }

    /// Its size in a step of these sizes.
    pub fn size(&self, sizes: &StepSizes) -> Option<PieceSize> {
        sizes.uniform().filter(|_| self.has_uniform).or_else(|| sizes.of(self.class))
    }
}

/// Whether steps are padded to sizes of these rows that something can be captured for.
fn has_sizes(class: SymbolClass) -> bool {
    match class {
        SymbolClass::Tokens | SymbolClass::Rows | SymbolClass::Own(_) => true,
        SymbolClass::Sequences | SymbolClass::Fixed => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use SymbolClass::{Rows, Sequences, Tokens};

    fn piece(class: SymbolClass) -> StretchPart {
        StretchPart { joins: Some(class), is_piece: true, has_uniform: false }
    }

    fn op(class: SymbolClass) -> StretchPart {
        StretchPart { joins: Some(class), is_piece: false, has_uniform: true }
    }

    const BORDER: StretchPart = StretchPart { joins: None, is_piece: true, has_uniform: false };

    fn divided(parts: &[StretchPart]) -> Vec<(Range<usize>, SymbolClass, bool)> {
        let stretches = Stretch::of_step(parts.iter().copied()).into_iter();
        stretches.map(|found| (found.members, found.class, found.has_uniform)).collect()
    }

    #[test]
    fn pieces_and_ops_over_the_same_rows_are_joined() {
        let decoder = [piece(Tokens), op(Tokens), piece(Tokens), op(Tokens), piece(Tokens)];
        let with_head = [&decoder[..], &[piece(Rows)]].concat();
        assert_eq!(divided(&with_head), [(0..5, Tokens, true), (5..6, Rows, false)]);
        // Ops at either end belong to it, too.
        assert_eq!(divided(&with_head[1..4]), [(0..3, Tokens, true)]);
    }

    #[test]
    fn what_is_launched_in_every_step_ends_a_stretch() {
        let parts = [piece(Tokens), op(Tokens), BORDER, op(Tokens), piece(Tokens), BORDER];
        assert_eq!(divided(&parts), [(0..2, Tokens, true), (3..5, Tokens, true)]);
        assert_eq!(divided(&[BORDER, op(Tokens), BORDER]), [], "no graph of an op alone");
        let parts = [piece(Tokens), op(Sequences), piece(Tokens)];
        assert_eq!(divided(&parts), [(0..1, Tokens, false), (2..3, Tokens, false)]);
        let kinds = [0, 0, 1].map(|kind| piece(SymbolClass::Own(kind)));
        assert_eq!(divided(&kinds).len(), 2, "each kind of rows has sizes of its own");
    }
}
