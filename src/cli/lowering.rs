//! Every unique piece at every size, lowered without a device.

use super::progress::BuildBars;
use super::settings::Settings;
use piecewise_backend::compiler::{Compiler, Store};
use piecewise_ir::module::Stitch;
use piecewise_runtime::artifact_store::{CompiledPieces, compile_pieces};
use piecewise_runtime::symbols::SymbolTable;

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
