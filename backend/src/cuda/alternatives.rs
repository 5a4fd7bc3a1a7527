//! The alternatives of an artifact, from the ways to compute its nodes.

use super::image::CudaImage;
use super::kernel_cache::WantedKernel;
use crate::artifact::{Access, Arg, ArgRef, Artifact, Digest, Launch, Lowered, PieceSize};
use piecewise_ir::module::UniquePiece;
use piecewise_kernels::cuda::LaunchRecipe;
use piecewise_kernels::step::CaptureSupport;
use std::collections::BTreeSet;
use std::sync::Arc;

/// How a node is computed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Way {
    /// Weights pass a ring in shared memory, for tensor cores.
    Ring,
    /// Weights stream through tensor cores.
    Tensor,
    /// Weights stream through the other ones.
    Stream,
    /// A call of cuBLASLt.
    Library,
    /// In tiles of many rows, by warpgroups.
    Tile,
    /// As it can always be.
    General,
}

/// What a launch will run.
pub(super) enum Draft {
    /// A kernel whose code may still be compiled.
    Kernel(LaunchRecipe, Arc<WantedKernel>),
    Ready(CudaImage),
}

/// One way to compute a node.
pub(super) struct Choice {
    pub(super) way: Way,
    /// What each launch runs, and what it is called beside the node's own name.
    pub(super) launches: Vec<(Draft, Option<String>)>,
    pub(super) scratch: u64,
    pub(super) capture: CaptureSupport,
}

impl Choice {
    pub(super) fn of(way: Way, draft: Draft, scratch: u64) -> Self {
        Self { way, launches: vec![(draft, None)], scratch, capture: CaptureSupport::Always }
    }
}

/// Nodes of one launch, or of one after the other, with their ways to be computed.
pub(super) struct Lowering {
    pub(super) nodes: Vec<u32>,
    pub(super) name: String,
    pub(super) args: Vec<Arg>,
    /// At least one. The first is what is taken unmeasured.
    pub(super) choices: Vec<Choice>,
}

impl Lowering {
    /// The position of the choice of this way, or else the first.
    fn choice(&self, way: Way) -> usize {
        self.choices.iter().position(|choice| choice.way == way).unwrap_or(0)
    }
}

/// The launches of an artifact, each with the position of its choice.
type Listed<'a> = Vec<(&'a Lowering, usize)>;

/// What each node of a piece takes first, then for each way that some node has, that way of all
/// nodes that have it; none of them twice.
fn ways_of(own: &[Lowering]) -> Vec<Listed<'_>> {
    let mut listed: Vec<Listed<'_>> = vec![own.iter().map(|lowering| (lowering, 0)).collect()];
    let ways = own.iter().flat_map(|lowering| lowering.choices.iter().map(|choice| choice.way));
    for way in BTreeSet::from_iter(ways) {
        let next: Listed<'_> = own.iter().map(|l| (l, l.choice(way))).collect();
        let same = |known: &Listed<'_>| known.iter().zip(&next).all(|(a, b)| a.1 == b.1);
        if !listed.iter().any(same) {
            listed.push(next);
        }
    }
    listed
}

/// The artifact whose first alternatives launch what `absorbed` lists, and whose further ones
/// launch every node of `own`; `image` compiles what is taken.
///
/// # Errors
/// The launch whose kernel does not compile or whose image can't be written, and why.
pub(super) fn assemble(
    piece: &UniquePiece,
    size: PieceSize,
    absorbed: Vec<Vec<&Lowering>>,
    own: &[Lowering],
    limits: &[u64],
    image: &dyn Fn(&Draft) -> Result<CudaImage, String>,
) -> Result<Artifact, (String, String)> {
    let first = |lowering| (lowering, 0);
    let absorbed = absorbed.into_iter().map(|launched| launched.into_iter().map(first).collect());
    let listed: Vec<Listed<'_>> = absorbed.chain(ways_of(own)).collect();
    let mut images: Vec<(Digest, Vec<u8>)> = Vec::new();
    let mut alternatives = Vec::with_capacity(listed.len());
    for alternative in listed {
        let mut lowered = Lowered { launches: Vec::new(), scratch: 0 };
        for (lowering, choice) in alternative {
            let choice = &lowering.choices[choice];
            lowered.scratch = lowered.scratch.max(choice.scratch);
            for (draft, part) in &choice.launches {
                let name = match part {
                    Some(part) => format!("{} ({part})", lowering.name),
                    None => lowering.name.clone(),
                };
                let image = image(draft).map_err(|log| (name.clone(), log))?;
                let (digest, bytes) = image.to_bytes().map_err(|log| (name.clone(), log))?;
                if !images.iter().any(|(known, _)| *known == digest) {
                    images.push((digest, bytes));
                }
                let mut args = lowering.args.clone();
                if let CudaImage::Kernel(kernel) = &image {
                    for (i, arg) in args.iter_mut().enumerate() {
                        let ahead = kernel.recipe.ahead.contains(&(i as u32));
                        if ahead && arg.access == Access::Read {
                            arg.access = Access::ReadAhead;
                        }
                    }
                }
                if choice.scratch > 0 {
                    let at = ArgRef::Scratch { offset: 0, bytes: choice.scratch };
                    args.push(Arg { at, access: Access::ReadWrite });
                }
                lowered.launches.push(Launch {
                    name,
                    nodes: lowering.nodes.clone(),
                    args,
                    image: digest,
                    grid: shown_grid(&image, limits),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::image::HostImage;
    use piecewise_ir::custom::Attrs;

    fn lowering(ways: &[Way]) -> Lowering {
        let image = || {
            Draft::Ready(CudaImage::Host(HostImage {
                name: "op".to_owned(),
                attrs: Attrs::default(),
                types: Vec::new(),
            }))
        };
        let choices = ways.iter().map(|&way| Choice::of(way, image(), 0)).collect();
        Lowering { nodes: vec![0], name: "op".to_owned(), args: Vec::new(), choices }
    }

    #[test]
    fn an_alternative_takes_the_same_way_wherever_it_is_there() {
        let lowerings = [
            lowering(&[Way::Tensor, Way::Library, Way::General]),
            lowering(&[Way::Library, Way::Tensor, Way::General]),
            lowering(&[Way::Library, Way::General]),
            lowering(&[Way::General]),
        ];
        let listed = ways_of(&lowerings);
        let taken = |of: &Listed<'_>| Vec::from_iter(of.iter().map(|(l, i)| l.choices[*i].way));
        let taken: Vec<_> = listed.iter().map(taken).collect();
        assert_eq!(
            taken,
            [
                [Way::Tensor, Way::Library, Way::Library, Way::General],
                [Way::Tensor, Way::Tensor, Way::Library, Way::General],
                [Way::Library, Way::Library, Way::Library, Way::General],
                [Way::General; 4],
            ]
        );
    }

    #[test]
    fn what_is_the_same_is_no_other_alternative() {
        let lowerings = [lowering(&[Way::Stream, Way::General]), lowering(&[Way::General])];
        assert_eq!(ways_of(&lowerings).len(), 2);
        assert_eq!(ways_of(&[lowering(&[Way::General])]).len(), 1);
        assert_eq!(ways_of(&[]).len(), 1);
    }
}
