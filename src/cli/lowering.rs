//! Every unique piece at every size, lowered without a device.

use anyhow::Context;
use piecewise_backend::artifact::Artifact;
use piecewise_backend::compiler::{Compiler, NoStore};
use piecewise_ir::entity::Entity;
use piecewise_ir::module::{Module, Stitch};
use piecewise_runtime::dispatch::Dispatcher;
use piecewise_runtime::model::{LoweringSize, lowering_sizes};
use piecewise_runtime::symbols::SymbolTable;

/// A unique piece at a size.
pub(crate) struct LoweredPiece {
    pub unique: usize,
    pub artifact: Artifact,
}

/// Lowers the pieces of a split module at all the sizes that `dispatcher` can choose.
pub(crate) fn lower(
    compiler: &dyn Compiler,
    module: &Module,
    stitch: &Stitch,
    dispatcher: &Dispatcher,
) -> anyhow::Result<Vec<LoweredPiece>> {
    let symbols = SymbolTable::new(module.graph().symbols())?;
    let sizes: Vec<Vec<LoweringSize>> = stitch
        .unique
        .keys()
        .map(|unique| lowering_sizes(stitch, unique, &symbols, dispatcher))
        .collect();
    let all: Vec<_> = sizes.iter().flatten().map(|at| at.size).collect();
    let layouts = compiler.weight_layouts(stitch, &all);
    let mut lowered = Vec::new();
    for (unique, piece) in stitch.unique.iter() {
        for at in &sizes[unique.index()] {
            let layouts = &layouts[unique.index()];
            let artifact = compiler
                .compile(piece, at.size, &at.limits, layouts, &NoStore)
                .with_context(|| format!("unique piece {unique} does not compile"))?;
            lowered.push(LoweredPiece { unique: unique.index(), artifact });
        }
    }
    Ok(lowered)
}
