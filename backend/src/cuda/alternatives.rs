//! The alternatives of an artifact, from the ways to compute its nodes.

use super::image::CudaImage;
use crate::artifact::{Access, Arg, ArgRef, Artifact, Digest, Launch, Lowered, PieceSize};
use piecewise_ir::module::UniquePiece;
use piecewise_kernels::step::CaptureSupport;

/// One way to compute a node.
pub(super) struct Choice {
    /// What each launch runs, and what it is called beside the node's own name.
    pub(super) launches: Vec<(CudaImage, Option<String>)>,
    pub(super) scratch: u64,
    pub(super) capture: CaptureSupport,
}

impl Choice {
    pub(super) fn of(image: CudaImage, scratch: u64) -> Self {
        Self { launches: vec![(image, None)], scratch, capture: CaptureSupport::Always }
    }
}

/// Nodes of one launch, or of one after the other, with their ways to be computed.
pub(super) struct Lowering {
    pub(super) nodes: Vec<u32>,
    pub(super) name: String,
    pub(super) args: Vec<Arg>,
    pub(super) choices: Vec<Choice>,
}

/// The artifact whose first alternatives launch what `absorbed` lists, each in its first way, and
/// whose further ones launch every node of `own`: the `i`th of them in way `i`, or in its last.
///
/// # Errors
/// The launch whose image can't be written, and why.
pub(super) fn assemble(
    piece: &UniquePiece,
    size: PieceSize,
    absorbed: Vec<Vec<&Lowering>>,
    own: &[Lowering],
    limits: &[u64],
) -> Result<Artifact, (String, String)> {
    let first = |lowering| (lowering, 0);
    let mut listed: Vec<Vec<(&Lowering, usize)>> =
        absorbed.into_iter().map(|launched| launched.into_iter().map(first).collect()).collect();
    let count = own.iter().map(|l| l.choices.len()).max().unwrap_or(1);
    listed.extend((0..count).map(|i| own.iter().map(|l| (l, i)).collect()));
    let mut images: Vec<(Digest, Vec<u8>)> = Vec::new();
    let mut alternatives = Vec::with_capacity(listed.len());
    for alternative in listed {
        let mut lowered = Lowered { launches: Vec::new(), scratch: 0 };
        for (lowering, way) in alternative {
            let choice = &lowering.choices[way.min(lowering.choices.len() - 1)];
            lowered.scratch = lowered.scratch.max(choice.scratch);
            for (image, part) in &choice.launches {
                let name = match part {
                    Some(part) => format!("{} ({part})", lowering.name),
                    None => lowering.name.clone(),
                };
                let (digest, bytes) = image.to_bytes().map_err(|log| (name.clone(), log))?;
                if !images.iter().any(|(known, _)| *known == digest) {
                    images.push((digest, bytes));
                }
                let mut args = lowering.args.clone();
                if choice.scratch > 0 {
                    let at = ArgRef::Scratch { offset: 0, bytes: choice.scratch };
                    args.push(Arg { at, access: Access::ReadWrite });
                }
                lowered.launches.push(Launch {
                    name,
                    nodes: lowering.nodes.clone(),
                    args,
                    image: digest,
                    grid: shown_grid(image, limits),
                    params: Vec::new(),
                    capture: choice.capture,
                });
            }
        }
        alternatives.push(lowered);
    }
    Ok(Artifact { piece: piece.hash, size, alternatives, images })
}

/// The grid at the artifact's size on a device of one multiprocessor; what the library launches is
/// its own.
fn shown_grid(image: &CudaImage, limits: &[u64]) -> [u32; 3] {
    match image {
        CudaImage::Kernel(kernel) => kernel.recipe.grid_at(limits, 1).unwrap_or([u32::MAX; 3]),
        CudaImage::Matmul(_) | CudaImage::Host(_) => [1; 3],
    }
}
