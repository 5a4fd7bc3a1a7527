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
use piecewise_runtime::dispatch::{OpSupport, Stretch, StretchPart};
use piecewise_runtime::words::NO_ROWS;
use std::path::Path;

/// Writes `captured/p0-to-p4-at-8.dot` for each stretch of the step that has a chosen unique piece, at each
/// of its sizes, and `captured/full-at-8-tokens-8-rows.dot` for each full graph, or
/// `full-at-8x1-tokens-8-rows.dot` for that of a uniform batch.
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
    let unique = |step: &Step| stitch.uses[step.id()].unique;
    let over = |step: &Step| stitch.unique[unique(step)].over.map(|over| symbols.over(over));
    let has_size = |step: &Step, size| pieces.sizes(unique(step)).any(|known| known == size);
    for stretch in Stretch::of_step(stitch.steps.iter().map(|step| part(pieces, step))) {
        let steps = &stitch.steps[stretch.members.clone()];
        if !steps.iter().any(|step| chosen.contains(&unique(step))) {
            continue;
        }
        let name = match steps {
            [first, .., last] => format!("{}-to-{}", first.id(), last.id()),
            only => only.iter().map(|step| step.id().to_string()).collect(),
        };
        for size in dispatcher.stretch_sizes(symbols, &stretch) {
            let mut chain = Chain::default();
            for step in steps {
                let exact = || over(step).map_or(NO_ROWS, |over| over.of_size(size));
                let is_uniform = size.query_length().is_some() && has_size(step, size);
                let size = if is_uniform { size } else { exact() };
                if let Some(artifact) = pieces.artifact(unique(step), size) {
                    chain.extend(compiler, artifact, &format!("{} ", step.id()));
                }
            }
            files::write(folder, &format!("captured/{name}-at-{size}.dot"), picture(&chain.drawn))?;
        }
    }
    if chosen.len() < stitch.unique.keys().count() {
        return Ok(());
    }
    for sizes in dispatcher.full_graph_sizes() {
        let mut chain = Chain::default();
        let mut is_whole = true;
        for step in &stitch.steps {
            let uniform = sizes.uniform().filter(|&size| has_size(step, size));
            let exact = || over(step).and_then(|over| sizes.of_rows(over));
            let size = uniform.or_else(exact).unwrap_or(NO_ROWS);
            let Some(artifact) = pieces.artifact(unique(step), size) else {
                is_whole = false;
                break;
            };
            chain.extend(compiler, artifact, &format!("{} ", step.id()));
        }
        if is_whole {
            let (tokens, rows) = (sizes.whole(), sizes.rows.rows());
            let name = format!("captured/full-at-{tokens}-tokens-{rows}-rows.dot");
            files::write(folder, &name, picture(&chain.drawn))?;
        }
    }
    Ok(())
}

/// The least capture support of the launches of a step's member.
fn least(pieces: &Pieces<'_>, step: &Step) -> Option<CaptureSupport> {
    let unique = pieces.stitch.uses[step.id()].unique;
    let artifact = pieces.artifact(unique, PieceSize::General(0))?;
    artifact.first_launches().map(|launch| launch.capture).min()
}

/// What a member of the step is in a stretch.
fn part(pieces: &Pieces<'_>, step: &Step) -> StretchPart {
    let unique = pieces.stitch.uses[step.id()].unique;
    let over = pieces.stitch.unique[unique].over;
    let is_piece = matches!(step, Step::Piece(_));
    let mut artifacts = pieces.sizes(unique).filter_map(|size| pieces.artifact(unique, size));
    let joins = is_piece
        || least(pieces, step).is_none_or(|support| support == CaptureSupport::Always)
            && artifacts.all(Artifact::follows_sizes);
    StretchPart {
        joins: over.filter(|_| joins).map(|over| pieces.planned.symbols().class(over)),
        is_piece,
        has_uniform: pieces.sizes(unique).any(|size| size.query_length().is_some()),
    }
}

/// The least capture support of ops.
fn support(pieces: &Pieces<'_>) -> OpSupport {
    let least = |is_piece: bool| {
        let steps = pieces.stitch.steps.iter();
        let steps = steps.filter(|step| matches!(step, Step::Piece(_)) == is_piece);
        steps.filter_map(|step| least(pieces, step)).min().unwrap_or(CaptureSupport::Always)
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
