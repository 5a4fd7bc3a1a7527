//! Dumps: files of what the passes did, of what they made, and of what becomes of the pieces on the
//! device, as `dump.dir` and the keys beside it ask for.

mod captured;
mod dot;
mod files;
mod kernels;

use super::{AssemblyError, Planned};
use piecewise_ir::entity::UniquePieceId;
use piecewise_ir::module::{Module, Stitch};
use piecewise_ir::text::{print_graph, print_module};
use piecewise_passes::manager::DumpDir;
use piecewise_passes::pipeline::nearest;
use piecewise_passes::{PassError, Registry};
use piecewise_runtime::config::DumpConfig;
use std::path::PathBuf;

/// Why a dump is not written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "a field is what the message calls it")]
pub enum DumpError {
    /// A choice of what goes into a folder, without one.
    #[error("{key} chooses what is dumped, and dump.dir is not set: set it, or leave {key} out")]
    NoFolder { key: &'static str },
    /// A pass that is not there.
    #[error("there is no pass `{name}` to dump after{near}; known passes: {known}")]
    NoPass {
        name: String,
        /// The pass that may be meant.
        near: String,
        known: String,
    },
    /// A unique piece that is not there.
    #[error("there is no unique piece {name:?} to dump; there are {there}")]
    NoPiece { name: String, there: String },
    /// A file or a folder.
    #[error("can't write the dump {}: {source}; is there room, and may you write there?", path.display())]
    Write { path: PathBuf, source: std::io::Error },
    /// A piece that can't be shown.
    #[error("a piece can't be dumped as JSON: {0}")]
    Json(String),
    /// The folder of the passes.
    #[error(transparent)]
    Pass(#[from] PassError),
}

/// What dumps each pass of a run, where that is asked for; `registry` has the passes that there are.
///
/// # Errors
/// When a pass is not there, or the folder can't be made.
pub fn of_passes(config: &DumpConfig, registry: &Registry) -> Result<Option<DumpDir>, DumpError> {
    let Some(dir) = &config.dir else {
        let choices = [("dump.passes", &config.passes), ("dump.pieces", &config.pieces)];
        return match choices.into_iter().find(|(_, names)| !names.is_empty()) {
            Some((key, _)) => Err(DumpError::NoFolder { key }),
            None => Ok(None),
        };
    };
    for name in &config.passes {
        if !registry.names().any(|known| known == name) {
            let near = nearest(name, registry.names());
            let near = near.map(|near| format!(", did you mean `{near}`?")).unwrap_or_default();
            let known = registry.names().collect::<Vec<_>>().join(", ");
            return Err(DumpError::NoPass { name: name.clone(), near, known });
        }
    }
    Ok(Some(DumpDir::new(dir.join("passes"), print_module)?.only(config.passes.clone())))
}

/// Dumps a module after its last pass, as far as it was planned.
///
/// # Errors
/// When a file can't be written, or a piece that is asked for is not there.
pub fn write_module(module: &Module, config: &DumpConfig) -> Result<(), DumpError> {
    let Some(dir) = &config.dir else { return Ok(()) };
    files::write(dir, "graph.dot", &dot::graph(module.graph()))?;
    let Some(stitch) = module.stitch() else { return Ok(()) };
    files::write(dir, "plan.pw", &print_module(module))?;
    files::write(dir, "plan.dot", &dot::plan(module, stitch))?;
    for unique in chosen(stitch, config)? {
        let piece = &stitch.unique[unique];
        files::write(dir, &format!("pieces/{unique}.pw"), &print_graph(&piece.graph))?;
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
