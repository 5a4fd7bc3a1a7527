//! Unique pieces by themselves.

use super::{declarations, integrity, nodes};
use crate::custom::OpDefs;
use crate::diagnostic::{Anchor, Diagnostics};
use crate::module::Stitch;
use crate::text::Names;

/// Checks P0201. The conventions for names and padding are not asked of a piece: an index that
/// another piece computed is its input without a padding value.
pub(super) fn check(stitch: &Stitch, found: &mut Diagnostics) {
    for (unique, piece) in stitch.unique.iter() {
        let mut inner = Diagnostics::default();
        let names = Names::of(&piece.graph);
        if integrity::check(&piece.graph, &names, &mut inner) {
            declarations::symbol_bounds(&piece.graph, &mut inner);
            declarations::recipes(&piece.graph, &mut inner);
            declarations::extents(&piece.graph, &mut inner);
            nodes::check(&piece.graph, &names, &OpDefs::new(), &mut inner);
        }
        let user = stitch.uses.iter().find(|(_, u)| u.unique == unique).map(|(id, _)| id);
        for item in inner.items {
            let place = names.place(item.at);
            let message = format!("{} in {unique} at {place}: {}", item.code, item.message);
            found.push("P0201", user.map_or(Anchor::Graph, Anchor::Piece), message);
        }
    }
}
