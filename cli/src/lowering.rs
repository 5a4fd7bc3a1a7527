//! Every unique piece at every size, lowered without a device.

use super::progress::BuildBars;
use super::settings::Settings;
use piecewise_backend::artifact::Artifact;
use piecewise_backend::compiler::{CompileError, Compiler, Store};
use piecewise_ir::entity::UniquePieceId;
use piecewise_ir::module::Stitch;
use piecewise_runtime::artifact_store::{CompiledPieces, compile_jobs, compile_pieces};
use piecewise_runtime::symbols::SymbolTable;

/// A unique piece at one of its sizes.
pub(crate) struct LoweredPiece {
    pub artifact: Artifact,
    /// The key of its entry in the compile cache.
    pub key: String,
}

/// A unique piece at all its sizes, or why it does not compile.
pub(crate) struct LoweredUnique {
    pub unique: UniquePieceId,
    pub pieces: Result<Vec<LoweredPiece>, CompileError>,
}

/// Compiles the pieces of a split module at all the sizes that the settings choose, through a
/// store.
pub(crate) fn lower(
    settings: &Settings,
    stitch: &Stitch,
    symbols: &SymbolTable,
    compiler: &dyn Compiler,
    store: &dyn Store,
) -> anyhow::Result<CompiledPieces> {
    let mut bars = BuildBars::new();
    let dispatcher = &settings.dispatcher;
    let compiled = compile_pieces(stitch, symbols, dispatcher, compiler, store, &mut |progress| {
        bars.show(progress);
    });
    bars.finish();
    Ok(compiled?)
}

/// The same for the `wanted` unique pieces, each on its own: one that does not compile does not
/// keep the others from it.
pub(crate) fn lower_each(
    settings: &Settings,
    stitch: &Stitch,
    symbols: &SymbolTable,
    compiler: &dyn Compiler,
    wanted: &[UniquePieceId],
) -> Vec<LoweredUnique> {
    let store = settings.store();
    let jobs = compile_jobs(stitch, symbols, &settings.dispatcher, compiler);
    let lowered = stitch.unique.keys().filter(|unique| wanted.contains(unique)).map(|unique| {
        let jobs = jobs.iter().filter(|job| job.unique == unique);
        let pieces = jobs.map(|job| {
            let key = job.key(compiler)?.digest().to_string();
            let (size, limits) = (job.at.size, &job.at.limits);
            let artifact = compiler.compile(job.piece, size, limits, &job.layouts, store)?;
            Ok(LoweredPiece { artifact, key })
        });
        LoweredUnique { unique, pieces: pieces.collect() }
    });
    lowered.collect()
}
