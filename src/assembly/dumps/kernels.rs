//! The kernels of each unique piece at each size: launches as JSON, images as their sources.

use super::super::error::AssemblyError;
use super::super::launches::{OperandRow, PieceView, SizeRow};
use super::super::planned::{LoweredUnique, Planned};
use super::error::DumpError;
use super::files::{self, file_name};
use piecewise_backend::artifact::{Artifact, Digest, PieceSize};
use piecewise_backend::compiler::PieceAt;
use piecewise_ir::entity::UniquePieceId;
use piecewise_ir::module::Stitch;
use piecewise_kernels::cuda::PRELUDE;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The pieces of a module as a compiler lowered them.
pub(super) struct Pieces<'a> {
    pub planned: &'a Planned,
    pub stitch: &'a Stitch,
    pub lowered: &'a [LoweredUnique<'a>],
}

impl Pieces<'_> {
    /// Writes `kernels/u2/at-8.json` for each piece and size, `kernels/images/..` for each image,
    /// and `kernels/u2/error.txt` for a piece that does not compile.
    pub(super) fn write(
        &self,
        folder: &Path,
        chosen: &[UniquePieceId],
    ) -> Result<(), AssemblyError> {
        let bounds = self.planned.symbols().bounds();
        let compiler = self.planned.compiler()?;
        let mut images: BTreeMap<Digest, &[u8]> = BTreeMap::new();
        for LoweredUnique { unique, pieces } in self.lowered {
            if !chosen.contains(unique) {
                continue;
            }
            let pieces = match pieces {
                Ok(pieces) => pieces,
                Err(error) => {
                    files::write(
                        folder,
                        &format!("kernels/{unique}/error.txt"),
                        format!("{error}\n"),
                    )?;
                    continue;
                }
            };
            let view = PieceView::new(&self.stitch.unique[*unique], bounds);
            for piece in pieces {
                let artifact = piece.artifact;
                let at = size_name(artifact.size);
                let piece_at =
                    PieceAt { piece: &self.stitch.unique[*unique], size: artifact.size, bounds };
                let first = compiler.first_ways(piece_at);
                let file = AtSize {
                    operands: view.operand_rows(),
                    size: SizeRow { first, ..view.size_row(piece).map_err(unwritten)? },
                };
                let text = serde_json::to_string_pretty(&file).map_err(unwritten)?;
                files::write(folder, &format!("kernels/{unique}/at-{at}.json"), &(text + "\n"))?;
                images.extend(artifact.images.iter().map(|(d, bytes)| (*d, bytes.as_slice())));
            }
        }
        let mut missing = BTreeSet::new();
        for (digest, bytes) in images {
            let Some(listing) = compiler.listing(bytes) else { continue };
            if listing.language == "cu" {
                files::write(folder, "kernels/images/prelude.cuh", PRELUDE)?;
            }
            let stem = format!("kernels/images/{}-{}", short(digest), file_name(&listing.name));
            let source = match &listing.source_file {
                Some(file) => format!("kernels/images/{}", file_name(file)),
                None => format!("{stem}.{}", listing.language),
            };
            files::write(folder, &source, &listing.text)?;
            if let Some(resources) = &listing.resources {
                let text = serde_json::to_string_pretty(resources).map_err(unwritten)?;
                files::write(folder, &format!("{stem}.resources.json"), &(text + "\n"))?;
            }
            if self.planned.settings().config.dump.code {
                for file in compiler.code(bytes) {
                    match file.contents {
                        Ok(contents) => {
                            files::write(folder, &format!("{stem}.{}", file.extension), &contents)?;
                        }
                        Err(reason) => {
                            missing.insert(format!("no .{} is dumped: {reason}", file.extension));
                        }
                    }
                }
            }
            if !listing.recipe.is_null() {
                let recipe = serde_json::to_string_pretty(&listing.recipe).map_err(unwritten)?;
                files::write(folder, &format!("{stem}.recipe.json"), &(recipe + "\n"))?;
            }
        }
        missing.iter().for_each(|reason| self.planned.warn(reason));
        Ok(())
    }

    /// The sizes that a unique piece was lowered for.
    pub(super) fn sizes(&self, unique: UniquePieceId) -> impl Iterator<Item = PieceSize> + '_ {
        let lowered = self.lowered.iter().find(|lowered| lowered.unique == unique);
        let pieces = lowered.and_then(|lowered| lowered.pieces.as_ref().ok());
        pieces.into_iter().flatten().map(|piece| piece.artifact.size)
    }

    /// The artifact of a unique piece at a size, or the one for any size.
    pub(super) fn artifact(&self, unique: UniquePieceId, size: PieceSize) -> Option<&Artifact> {
        let lowered = self.lowered.iter().find(|lowered| lowered.unique == unique)?;
        let pieces = lowered.pieces.as_ref().ok()?;
        let mut artifacts = pieces.iter().map(|piece| piece.artifact);
        let exact = artifacts.clone().find(|artifact| artifact.size == size);
        exact.or_else(|| artifacts.find(|a| matches!(a.size, PieceSize::General(_))))
    }
}

fn unwritten(error: serde_json::Error) -> DumpError {
    DumpError::Json(error.to_string())
}

/// A piece at a size, as a file.
#[derive(Serialize)]
struct AtSize {
    operands: Vec<OperandRow>,
    #[serde(flatten)]
    size: SizeRow,
}

/// `8`, `8x1` for a uniform batch, or `any` for the general size.
pub(super) fn size_name(size: PieceSize) -> String {
    match size {
        PieceSize::General(_) => "any".to_owned(),
        size => size.to_string(),
    }
}

/// As much of a digest as tells those of one model apart.
pub(super) fn short(digest: Digest) -> String {
    digest.to_string().chars().take(12).collect()
}
