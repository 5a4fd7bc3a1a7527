//! What is compiled: each unique piece at each of its sizes.

use super::key::PieceKey;
use crate::dispatch::{Dispatcher, lowering_sizes};
use crate::words::{LoweringSize, SymbolTable};
use piecewise_backend::compiler::{CompileError, Compiler, PieceAt};
use piecewise_backend::weights::WeightLayout;
use piecewise_ir::entity::{Entity, UniquePieceId};
use piecewise_ir::module::{Stitch, UniquePiece};
use std::collections::BTreeSet;

/// A unique piece at a size, before it is compiled.
#[derive(Clone, Debug)]
pub struct CompileJob<'a> {
    /// Which unique piece of the module it is.
    pub unique: UniquePieceId,
    /// What is lowered: a graph without names, and its operands by position.
    pub piece: &'a UniquePiece,
    /// The size, and the most of each symbol in the steps that use it.
    pub at: LoweringSize,
    /// The layouts of its weights.
    pub layouts: Vec<WeightLayout>,
}

impl CompileJob<'_> {
    pub(super) fn piece_at(&self) -> PieceAt<'_> {
        PieceAt { piece: self.piece, size: self.at.size, bounds: &self.at.bounds }
    }

    /// The key of what it makes.
    ///
    /// # Errors
    /// When a custom op has no implementation on the target.
    pub fn key(&self, compiler: &dyn Compiler) -> Result<PieceKey, CompileError> {
        PieceKey::new(compiler, self.piece_at(), &self.layouts)
    }
}

/// Everything that a model compiles, in the order of unique pieces, then of their sizes.
pub fn compile_jobs<'a>(
    stitch: &'a Stitch,
    symbols: &SymbolTable,
    dispatcher: &Dispatcher,
    compiler: &dyn Compiler,
) -> Vec<CompileJob<'a>> {
    let sizes = |unique| lowering_sizes(stitch, unique, symbols, dispatcher);
    let all = BTreeSet::from_iter(stitch.unique.keys().flat_map(sizes).map(|at| at.size));
    let layouts = compiler.weight_layouts(stitch, &Vec::from_iter(all));
    let jobs = stitch.unique.iter().flat_map(|(unique, piece)| {
        let layouts = &layouts[unique.index()];
        sizes(unique).into_iter().map(move |at| {
            let layouts = layouts.clone();
            CompileJob { unique, piece, at, layouts }
        })
    });
    jobs.collect()
}
