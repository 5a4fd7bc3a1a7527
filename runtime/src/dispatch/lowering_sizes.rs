//! The sizes that pieces are lowered for.

use super::dispatcher::Dispatcher;
use crate::words::{LoweringSize, SymbolClass, SymbolTable};
use piecewise_backend::artifact::PieceSize;
use piecewise_ir::entity::{UniquePieceId, Value};
use piecewise_ir::graph::Graph;
use piecewise_ir::module::{Stitch, UniquePiece};
use piecewise_ir::op::Op;

/// The sizes at which a unique piece or op has programs: those of its symbol's list, then those of
/// uniform batches where its custom ops see sequences, then any.
pub fn lowering_sizes(
    stitch: &Stitch,
    unique: UniquePieceId,
    symbols: &SymbolTable,
    dispatcher: &Dispatcher,
) -> Vec<LoweringSize> {
    let UniquePiece { over, ref graph, .. } = stitch.unique[unique];
    let bounds = symbols.bounds();
    let bound = over.map_or(1, |s| symbols.bound(s));
    let over = over.map(|s| symbols.over(s));
    let sees = sees_sequences(graph, symbols);
    let sized = over.map_or(Vec::new(), |over| dispatcher.program_sizes(symbols, over, sees));
    let general = LoweringSize { size: PieceSize::General(bound), bounds: bounds.to_vec() };
    let bounds = |size| dispatcher.bounds(symbols, over, size);
    let sized = sized.into_iter().map(|size| LoweringSize { size, bounds: bounds(size) });
    sized.chain([general]).collect()
}

/// Whether a custom op reads what is shaped by sequences: all else is the same in a uniform batch as
/// in any step of as many rows.
fn sees_sequences(piece: &Graph, symbols: &SymbolTable) -> bool {
    let is_by_sequence = |value: &Value| {
        let dims = piece.ty(*value).shape.iter();
        let mut terms = dims.flat_map(|dim| dim.terms());
        terms.any(|(symbol, _)| symbols.class(*symbol) == SymbolClass::Sequences)
    };
    piece
        .nodes()
        .map(|node| piece.node(node))
        .any(|node| matches!(node.op, Op::Custom(_)) && node.operands.iter().any(is_by_sequence))
}
