//! What each captured graph launches, in order, for graphviz; known without a device.

use super::super::error::AssemblyError;
use super::dot::{Edge, Vertex, picture};
use super::files;
use super::kernels::{Pieces, short};
use petgraph::graph::{DiGraph, NodeIndex};
use piecewise_backend::artifact::{Artifact, PieceSize};
use piecewise_backend::compiler::Compiler;
use piecewise_ir::entity::UniquePieceId;
use piecewise_ir::module::Step;
use piecewise_kernels::step::CaptureSupport;
use piecewise_runtime::dispatch::OpSupport;
use piecewise_runtime::words::NO_ROWS;
use std::path::Path;

/// Writes `captured/u2-at-8.dot` for each chosen unique piece and size that is captured, and
/// `captured/full-at-8-tokens-8-rows.dot` for each full graph, or `full-at-8x1-tokens-8-rows.dot` for
/// that of a uniform batch.
pub(super) fn write(
    folder: &Path,
    pieces: &Pieces<'_>,
    chosen: &[UniquePieceId],
) -> Result<(), AssemblyError> {
    let symbols = pieces.planned.symbols();
    let stitch = pieces.stitch;
    let compiler = pieces.planned.compiler()?;
    let mut dispatcher = pieces.planned.settings().dispatcher.clone();
    dispatcher.order_own(symbols);
    dispatcher.mode = dispatcher.supported_mode(dispatcher.mode, support(pieces));
    for unique in stitch.unique_pieces().into_iter().filter(|unique| chosen.contains(unique)) {
        let piece = &stitch.unique[unique];
        let Some(over) = piece.over.map(|over| symbols.over(over)) else { continue };
        let is_uniform = |size: &PieceSize| size.query_length().is_some();
        let has_uniform = pieces.sizes(unique).any(|size| is_uniform(&size));
        for size in dispatcher.piece_graph_sizes(symbols, over, has_uniform) {
            let Some(artifact) = pieces.artifact(unique, size) else { continue };
            let mut chain = Chain::default();
            chain.extend(compiler, artifact, "");
            files::write(
                folder,
                &format!("captured/{unique}-at-{size}.dot"),
                &picture(&chain.drawn),
            )?;
        }
    }
    if chosen.len() < stitch.unique.keys().count() {
        return Ok(());
    }
    for sizes in dispatcher.full_graph_sizes() {
        let mut chain = Chain::default();
        let mut is_whole = true;
        for &step in &stitch.steps {
            let unique = stitch.uses[step.id()].unique;
            let piece = &stitch.unique[unique];
            let over = piece.over.map(|over| symbols.over(over));
            let uniform = sizes.uniform().filter(|&size| pieces.sizes(unique).any(|s| s == size));
            let exact = || over.and_then(|over| sizes.of_rows(over));
            let size = uniform.or_else(exact).unwrap_or(NO_ROWS);
            let Some(artifact) = pieces.artifact(unique, size) else {
                is_whole = false;
                break;
            };
            chain.extend(compiler, artifact, &format!("{} ", step.id()));
        }
        if is_whole {
            let (tokens, rows) = (sizes.whole(), sizes.rows.rows());
            let name = format!("captured/full-at-{tokens}-tokens-{rows}-rows.dot");
            files::write(folder, &name, &picture(&chain.drawn))?;
        }
    }
    Ok(())
}

/// The least capture support of ops.
fn support(pieces: &Pieces<'_>) -> OpSupport {
    let of_step = |step: &Step| {
        let unique = pieces.stitch.uses[step.id()].unique;
        let artifact = pieces.artifact(unique, PieceSize::General(0))?;
        artifact.first_launches().map(|launch| launch.capture).min()
    };
    let least = |is_piece: bool| {
        let steps = pieces.stitch.steps.iter();
        let steps = steps.filter(|step| matches!(step, Step::Piece(_)) == is_piece);
        steps.filter_map(of_step).min().unwrap_or(CaptureSupport::Always)
    };
    OpSupport { between: least(false), inside: least(true) }
}

/// Launches, each after the one before.
#[derive(Default)]
struct Chain {
    drawn: DiGraph<Vertex, Edge>,
    last: Option<NodeIndex>,
}

impl Chain {
    fn extend(&mut self, compiler: &dyn Compiler, artifact: &Artifact, prefix: &str) {
        for launch in artifact.first_launches() {
            // A launch without blocks is left out of a capture.
            if launch.grid.contains(&0) {
                continue;
            }
            let listing = artifact.image(launch.image).and_then(|bytes| compiler.listing(bytes));
            let (kernel, programmatic) = match &listing {
                Some(listing) => (listing.name.as_str(), listing.programmatic),
                None => ("", false),
            };
            let [x, y, z] = launch.grid;
            let name = &launch.name;
            let image = short(launch.image);
            let label = format!("{prefix}{name}\n{kernel} {image}\ngrid {x} {y} {z}");
            let here = self.drawn.add_node(Vertex { label, shape: "box" });
            if let Some(last) = self.last.replace(here) {
                let edge = match programmatic {
                    true => Edge { label: "programmatic".to_owned(), style: "dashed" },
                    false => Edge { label: String::new(), style: "solid" },
                };
                self.drawn.add_edge(last, here, edge);
            }
        }
    }
}
