//! The sizes that pieces are lowered for.

use crate::dispatch::Dispatcher;
use crate::symbols::SymbolTable;
use piecewise_backend::artifact::PieceSize;
use piecewise_ir::entity::UniquePieceId;
use piecewise_ir::module::Stitch;

/// A size that a unique piece or op has programs for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoweringSize {
    /// Of the symbol that it iterates over.
    pub size: PieceSize,
    /// The most of each symbol, by symbol index, in the steps that use the program.
    pub limits: Vec<u64>,
}

/// The sizes at which a unique piece or op has programs: those of its symbol's list, then any.
pub fn lowering_sizes(
    stitch: &Stitch,
    unique: UniquePieceId,
    symbols: &SymbolTable,
    dispatcher: &Dispatcher,
) -> Vec<LoweringSize> {
    let over = stitch.unique[unique].over;
    let bounds = symbols.bounds();
    let bound = over.map_or(1, |s| symbols.bound(s));
    let over = over.map(|s| symbols.over(s));
    let exact = over.map_or(Vec::new(), |over| dispatcher.program_sizes(symbols, over));
    let general = LoweringSize { size: PieceSize::General(bound), limits: bounds.to_vec() };
    let exact = exact.into_iter().map(|size| LoweringSize {
        size: PieceSize::Exact(size),
        limits: dispatcher.limits(symbols, over, size),
    });
    exact.chain([general]).collect()
}
