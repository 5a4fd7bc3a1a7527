//! Every unique piece at every size, lowered without a device.

use anyhow::Context;
use piecewise_backend::artifact::{Artifact, PieceSize};
use piecewise_backend::compiler::{CompileError, Compiler, NoStore};
use piecewise_ir::entity::{Entity, UniquePieceId};
use piecewise_ir::module::{Module, Stitch};
use piecewise_runtime::dispatch::Dispatcher;
use piecewise_runtime::model::piece_sizes;
use piecewise_runtime::symbols::SymbolTable;

/// A unique piece at a size.
pub(crate) struct LoweredPiece {
    pub unique: usize,
    pub artifact: Artifact,
}

/// A unique piece at all its sizes, or why it does not compile.
pub(crate) struct LoweredUnique {
    pub unique: UniquePieceId,
    pub artifacts: Result<Vec<Artifact>, CompileError>,
}

/// Lowers the pieces of a split module at all the sizes that `dispatcher` can choose.
pub(crate) fn lower(
    compiler: &dyn Compiler,
    module: &Module,
    stitch: &Stitch,
    dispatcher: &Dispatcher,
) -> anyhow::Result<Vec<LoweredPiece>> {
    let mut all = Vec::new();
    let wanted: Vec<_> = stitch.unique.keys().collect();
    let lowered = lower_each(compiler, module, stitch, dispatcher, &wanted)?;
    for LoweredUnique { unique, artifacts } in lowered {
        let artifacts =
            artifacts.with_context(|| format!("unique piece {unique} does not compile"))?;
        let unique = unique.index();
        all.extend(artifacts.into_iter().map(|artifact| LoweredPiece { unique, artifact }));
    }
    Ok(all)
}

/// The same for the `wanted` unique pieces, each on its own: one that does not compile does not
/// keep the others from it.
pub(crate) fn lower_each(
    compiler: &dyn Compiler,
    module: &Module,
    stitch: &Stitch,
    dispatcher: &Dispatcher,
    wanted: &[UniquePieceId],
) -> anyhow::Result<Vec<LoweredUnique>> {
    let symbols = SymbolTable::new(module.graph().symbols())?;
    let sizes: Vec<Vec<PieceSize>> = stitch
        .unique
        .keys()
        .map(|unique| piece_sizes(stitch, unique, &symbols, dispatcher))
        .collect();
    let all: Vec<_> = sizes.iter().flatten().copied().collect();
    let layouts = compiler.weight_layouts(stitch, &all);
    let lowered = stitch.unique.iter().filter(|(unique, _)| wanted.contains(unique));
    let lowered = lowered.map(|(unique, piece)| {
        let (sizes, layouts) = (&sizes[unique.index()], &layouts[unique.index()]);
        let artifacts = sizes
            .iter()
            .map(|&size| compiler.compile(piece, size, symbols.bounds(), layouts, &NoStore))
            .collect();
        LoweredUnique { unique, artifacts }
    });
    Ok(lowered.collect())
}
