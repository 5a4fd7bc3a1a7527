//! Dumps: files of what the passes did, of what they made, and of what becomes of the pieces on the
//! device, as `dump.dir` and the keys beside it ask for.

mod captured;
mod dot;
pub(super) mod error;
mod files;
mod kernels;
pub(super) mod passes;

pub use error::DumpError;
pub use passes::of_passes;

use super::error::AssemblyError;
use super::planned::Planned;
use piecewise_ir::entity::UniquePieceId;
use piecewise_ir::module::{Module, Stitch};
use piecewise_ir::text::{print_graph, print_module};
use piecewise_runtime::config::DumpConfig;

/// Dumps a module after its last pass, as far as it was planned.
///
/// # Errors
/// When a file can't be written, or a piece that is asked for is not there.
pub fn write_module(module: &Module, config: &DumpConfig) -> Result<(), DumpError> {
    let Some(dir) = &config.dir else { return Ok(()) };
    files::write(dir, "graph.dot", dot::graph(module.graph()))?;
    let Some(stitch) = module.stitch() else { return Ok(()) };
    files::write(dir, "plan.pw", print_module(module))?;
    files::write(dir, "plan.dot", dot::plan(module, stitch))?;
    for unique in chosen(stitch, config)? {
        let piece = &stitch.unique[unique];
        files::write(dir, &format!("pieces/{unique}.pw"), print_graph(&piece.graph))?;
    }
    Ok(())
}

/// Dumps what the passes made, and what becomes of the pieces on the device.
pub(super) fn write(planned: &Planned) -> Result<(), AssemblyError> {
    let config = &planned.settings().config.dump;
    write_module(planned.module(), config)?;
    let (Some(dir), Some(stitch)) = (&config.dir, planned.module().stitch()) else {
        return Ok(());
    };
    let chosen = chosen(stitch, config)?;
    // What runs between pieces says which graphs can be captured at all.
    let between = stitch.unique_pieces();
    let lowered = planned.lower(|u| chosen.contains(&u) || !between.contains(&u))?;
    let pieces = kernels::Pieces { planned, stitch, lowered: &lowered };
    pieces.write(dir, &chosen)?;
    captured::write(dir, &pieces, &chosen)
}

/// The unique pieces that the filter lets through.
fn chosen(stitch: &Stitch, config: &DumpConfig) -> Result<Vec<UniquePieceId>, DumpError> {
    let wanted = &config.pieces;
    let all: Vec<String> = stitch.unique.keys().map(|unique| unique.to_string()).collect();
    if let Some(unknown) = wanted.iter().find(|name| !all.contains(name)) {
        return Err(DumpError::NoPiece { name: unknown.clone(), there: all.join(", ") });
    }
    let is_wanted = |unique: &UniquePieceId| wanted.contains(&unique.to_string());
    Ok(stitch.unique.keys().filter(|u| wanted.is_empty() || is_wanted(u)).collect())
}
