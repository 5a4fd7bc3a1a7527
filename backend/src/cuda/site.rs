//! Where in a piece a node is lowered.

use crate::artifact::PieceSize;
use piecewise_ir::entity::{Entity, Node};
use piecewise_ir::module::UniquePiece;

/// What is known of a node while it is lowered.
pub(super) struct Site<'a> {
    pub(super) piece: &'a UniquePiece,
    pub(super) node: Node,
    pub(super) position: usize,
    pub(super) name: String,
    pub(super) limits: &'a [u64],
    pub(super) size: PieceSize,
}

/// Rows of the step of a site.
pub(super) fn rows_of(site: &Site<'_>) -> Option<u64> {
    site.limits.get(site.piece.over?.index()).copied()
}
