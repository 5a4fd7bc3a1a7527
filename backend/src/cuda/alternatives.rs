//! The alternatives of an artifact, from the ways to compute its nodes.

use super::image::CudaImage;
use super::kernel_cache::WantedKernel;
use crate::artifact::{
    self, Access, Alternative, Arg, ArgRef, Artifact, Digest, Launch, Part, PieceSize,
};
use piecewise_ir::module::UniquePiece;
use piecewise_kernels::cuda::LaunchRecipe;
use piecewise_kernels::step::CaptureSupport;
use std::cell::OnceCell;
use std::sync::Arc;

/// How a node is computed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, derive_more::Display)]
pub(super) enum Way {
    /// Weights pass a ring in shared memory, for tensor cores.
    #[display("ring")]
    Ring,
    /// The same in blocks that take half of a multiprocessor's shared memory.
    #[display("half ring")]
    HalfRing,
    /// The same in blocks of which several share the depth.
    #[display("panel")]
    Panel,
    /// Weights stream through tensor cores.
    #[display("tensor")]
    Tensor,
    /// Weights stream through the other ones.
    #[display("stream")]
    Stream,
    /// A call of cuBLASLt.
    #[display("library")]
    Library,
    /// In tiles of many rows, by warpgroups.
    #[display("tile")]
    Tile,
    /// As it can always be.
    #[display("general")]
    General,
    /// The same in blocks that take half of a multiprocessor's shared memory, no two of which crowd.
    #[display("spread")]
    Spread,
    /// The same with fewer threads for each row.
    #[display("narrow")]
    Narrow,
    /// One of the implementations of a custom op, by its place.
    #[display("implementation {}", _0 + 1)]
    Implementation(usize),
}

/// What a launch will run.
pub(super) enum Draft {
    /// A kernel whose code may still be compiled, and once it is wanted, as what.
    Kernel(LaunchRecipe, OnceCell<Arc<WantedKernel>>),
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

/// By position in program order, what absorbs with what it absorbs.
pub(super) type Groups = Vec<Option<Lowering>>;

/// Which ways of each part an artifact holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum HeldWays {
    /// What is taken unmeasured: nothing else is compiled.
    First,
    All,
}

/// The parts of an alternative, each with its ways.
pub(super) type Listed<'a> = Vec<(&'a Lowering, &'a [Choice])>;

impl HeldWays {
    /// How many ways of a part, and how many alternatives, it is at most.
    pub(super) fn most(self) -> usize {
        match self {
            Self::First => 1,
            Self::All => usize::MAX,
        }
    }

    /// What is held of the alternatives of a piece.
    pub(super) fn of(self, alternatives: Vec<Vec<&Lowering>>) -> Vec<Listed<'_>> {
        let most = self.most();
        fn held(one: &Lowering, most: usize) -> (&Lowering, &[Choice]) {
            (one, &one.choices[..one.choices.len().min(most)])
        }
        let listed = |parts: Vec<_>| parts.into_iter().map(|one| held(one, most)).collect();
        alternatives.into_iter().take(most).map(listed).collect()
    }
}

/// The artifact whose alternatives launch what is `listed`; `image` compiles what is taken.
///
/// # Errors
/// The launch whose kernel does not compile or whose image can't be written, and why.
pub(super) fn assemble(
    piece: &UniquePiece,
    size: PieceSize,
    listed: &[Listed<'_>],
    limits: &[u64],
    image: &dyn Fn(&Draft) -> Result<CudaImage, String>,
) -> Result<Artifact, (String, String)> {
    let mut assembly = Assembly { images: Vec::new(), limits, image };
    let mut part =
        |(lowering, choices): &(&Lowering, &[Choice])| -> Result<Part, (String, String)> {
            let ways = choices.iter().map(|choice| assembly.way(lowering, choice));
            Ok(Part { ways: ways.collect::<Result<_, _>>()? })
        };
    let alternatives = listed.iter().map(|parts| {
        let parts = parts.iter().map(&mut part).collect::<Result<_, _>>()?;
        Ok(Alternative { parts })
    });
    let alternatives = alternatives.collect::<Result<_, (String, String)>>()?;
    Ok(Artifact { piece: piece.hash, size, alternatives, images: assembly.images })
}

/// Images on their way into an artifact.
struct Assembly<'a> {
    images: Vec<(Digest, Vec<u8>)>,
    limits: &'a [u64],
    image: &'a dyn Fn(&Draft) -> Result<CudaImage, String>,
}

impl Assembly<'_> {
    fn way(
        &mut self,
        lowering: &Lowering,
        choice: &Choice,
    ) -> Result<artifact::Way, (String, String)> {
        let mut launches = Vec::with_capacity(choice.launches.len());
        for (draft, step) in &choice.launches {
            let name = match step {
                Some(step) => format!("{} ({step})", lowering.name),
                None => lowering.name.clone(),
            };
            let image = (self.image)(draft).map_err(|log| (name.clone(), log))?;
            let (digest, bytes) = image.to_bytes().map_err(|log| (name.clone(), log))?;
            if !self.images.iter().any(|(known, _)| *known == digest) {
                self.images.push((digest, bytes));
            }
            let mut args = lowering.args.clone();
            if let CudaImage::Kernel(kernel) = &image {
                for (i, arg) in args.iter_mut().enumerate() {
                    if !kernel.recipe.ahead.contains(&(i as u32)) {
                        continue;
                    }
                    if arg.access != Access::Read {
                        let reason = format!(
                            "`{}` reads ahead argument {i}, which it also writes: the launches \
                             ahead may write it too; leave it out of `ahead` and read it after \
                             the wait",
                            kernel.recipe.entry
                        );
                        return Err((name, reason));
                    }
                    arg.access = Access::ReadAhead;
                }
            }
            if choice.scratch > 0 {
                let at = ArgRef::Scratch { offset: 0, bytes: choice.scratch };
                args.push(Arg { at, access: Access::ReadWrite });
            }
            launches.push(Launch {
                name,
                nodes: lowering.nodes.clone(),
                args,
                image: digest,
                grid: shown_grid(&image, self.limits),
                params: Vec::new(),
                capture: choice.capture,
                follows_sizes: matches!(&image, CudaImage::Kernel(k) if k.recipe.always_has_work()),
            });
        }
        Ok(artifact::Way {
            name: choice.way.to_string(),
            launches,
            scratch: choice.scratch,
            uses_library: choice.way == Way::Library,
        })
    }
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
    use piecewise_ir::graph::Graph;

    fn lowering(name: &str, ways: &[Way]) -> Lowering {
        let image = |way: &Way| {
            Draft::Ready(CudaImage::Host(HostImage {
                name: format!("{name} {way}"),
                attrs: Attrs::default(),
                types: Vec::new(),
            }))
        };
        let choices = ways.iter().map(|way| Choice::of(*way, image(way), 0)).collect();
        Lowering { nodes: vec![0], name: name.to_owned(), args: Vec::new(), choices }
    }

    #[test]
    fn each_part_has_its_own_ways_and_what_is_not_measured_has_the_first_alone() {
        let group = lowering("norm + product", &[Way::Stream]);
        let norm = lowering("norm", &[Way::General]);
        let product = lowering("product", &[Way::Stream, Way::Library, Way::General]);
        let other = lowering("other", &[Way::Library, Way::General]);
        let piece = UniquePiece { over: None, graph: Graph::new("p"), hash: [1; 32] };
        let compiled = std::cell::Cell::new(0);
        let image = |draft: &Draft| {
            compiled.set(compiled.get() + 1);
            let Draft::Ready(image) = draft else { unreachable!() };
            Ok(image.clone())
        };
        let make = |held| {
            let listed = vec![vec![&group, &other], vec![&norm, &product, &other]];
            let size = PieceSize::Exact(1);
            let listed = HeldWays::of(held, listed);
            let made = assemble(&piece, size, &listed, &[], &image).unwrap();
            let names = made.ways().map(|way| way.name.clone()).collect::<Vec<_>>().join(" ");
            (names, made.alternatives.iter().map(|one| one.parts.len()).collect(), made)
        };
        let (names, parts, made): (_, Vec<usize>, _) = make(HeldWays::All);
        assert_eq!(names, "stream library general general stream library general library general");
        assert_eq!(parts, [2, 3]);
        assert!(made.has_choices());
        let libraries: Vec<_> = made.ways().map(|way| way.uses_library).collect();
        assert_eq!(libraries.iter().filter(|uses| **uses).count(), 3);
        compiled.set(0);
        let (names, parts, made) = make(HeldWays::First);
        assert_eq!((names.as_str(), parts, compiled.get()), ("stream library", vec![2], 2));
        assert!(!made.has_choices() && made.images.len() == 2);
    }
}
