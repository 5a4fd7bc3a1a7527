//! Artifacts: a piece lowered for a size, with no address in it.

use derive_more::{Debug, Display};
use piecewise_ir::module::UniquePiece;
use piecewise_kernels::step::CaptureSupport;
use serde::{Deserialize, Serialize};

/// blake3 of what it names.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Display, Serialize, Deserialize,
)]
#[debug("{self}")]
#[display("{}", blake3::Hash::from_bytes(self.0).to_hex())]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// The BLAKE3 hash of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }
}

/// For which row counts a piece is lowered; shown as `8`, `any to 512`, or `8x4` for eight sequences
/// of four rows each.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Display, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum PieceSize {
    /// Exactly this many rows, padding included.
    Exact(u64),
    /// Any number of rows up to this: grids are computed from the count at launch.
    #[display("any to {_0}")]
    General(u64),
    /// Exactly the rows of so many sequences, padding included, of which each real one brings as
    /// many: what a uniform batch has apart from other steps of as many rows.
    #[display("{sequences}x{query_length}")]
    Uniform {
        /// Sequences of the batch, padding ones included.
        sequences: u64,
        /// Rows that each sequence brings.
        query_length: u64,
    },
}

impl PieceSize {
    /// The most rows it can hold.
    #[inline]
    pub fn rows(self) -> u64 {
        match self {
            Self::Exact(rows) | Self::General(rows) => rows,
            Self::Uniform { sequences, query_length } => sequences.saturating_mul(query_length),
        }
    }

    /// The rows of each sequence, where they are equal in every step of this size.
    pub fn query_length(self) -> Option<u64> {
        match self {
            Self::Uniform { query_length, .. } => Some(query_length),
            Self::Exact(_) | Self::General(_) => None,
        }
    }
}

/// What a launch works on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum ArgRef {
    /// The operand at this position of the unique piece (see
    /// [`piecewise_ir::module::UniquePiece::operands`]).
    Operand(u32),
    /// Bytes of the piece's scratch.
    Scratch {
        /// From the start of the scratch.
        offset: u64,
        /// From there on.
        bytes: u64,
    },
}

/// How a launch uses an argument.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// Read and left as it is, after the launches ahead are done.
    Read,
    /// Read only, and before the launches ahead are done: nothing of a step may write it.
    ReadAhead,
    /// Written without being read before.
    Write,
    /// Read and written: states.
    ReadWrite,
}

impl Access {
    /// Whether it leaves the argument as it is.
    pub(crate) fn is_read_alone(self) -> bool {
        match self {
            Self::Read | Self::ReadAhead => true,
            Self::Write | Self::ReadWrite => false,
        }
    }
}

/// An argument of a launch. The true counts are an implicit argument of every launch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Arg {
    /// The memory that is passed: an operand by position, or scratch.
    pub at: ArgRef,
    /// Whether the launch reads or writes it, and whether before the launches ahead are done.
    pub access: Access,
}

/// One launch of a kernel.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Launch {
    /// A readable name: what it computes.
    pub name: String,
    /// The nodes of the unique piece that it computes, by position in program order.
    pub nodes: Vec<u32>,
    /// What it works on, in the order that the kernel expects.
    pub args: Vec<Arg>,
    /// The image of the kernel, in the store and in [`Artifact::images`].
    pub image: Digest,
    /// Blocks of work at the artifact's size, for people: a CUDA grid, or the CPU's tiles.
    pub grid: [u32; 3],
    /// Numbers that differ between sizes which share the image, where the image refers to them.
    pub params: Vec<u64>,
    /// In which batches it may be captured.
    pub capture: CaptureSupport,
    /// Whether it can be set to other sizes once it was captured: what is launched is a function of the
    /// padded sizes alone, and at any sizes that are not 0 it is one kernel.
    pub follows_sizes: bool,
}

/// One way to compute a part of a piece.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Way {
    /// What tells it from the part's others, for people: `stream`, `library`.
    pub name: String,
    /// The launches in the order in which they run.
    pub launches: Vec<Launch>,
    /// Bytes of scratch that the launches share.
    pub scratch: u64,
    /// Whether a library of the target computes it, so that what is measured of it holds for a
    /// version of that library.
    pub uses_library: bool,
}

/// Nodes of a piece that are computed one way or another, whatever is chosen for the others.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Part {
    /// At least one; the first is taken unmeasured.
    pub ways: Vec<Way>,
}

/// One division of a piece into parts, in the order of their launches.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Alternative {
    /// Together they compute every node that the piece's results need.
    pub parts: Vec<Part>,
}

/// How a piece is run: an alternative, and the way of each of its parts. The default is what is taken
/// unmeasured.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Choice {
    /// Its position among the alternatives.
    pub alternative: usize,
    /// The position of each part's way; a part past the end takes its first.
    pub ways: Vec<usize>,
}

impl Choice {
    /// The first ways of an alternative.
    pub fn of(alternative: usize) -> Self {
        Self { alternative, ways: Vec::new() }
    }

    /// The position of the way of a part.
    pub fn way(&self, part: usize) -> usize {
        self.ways.get(part).copied().unwrap_or(0)
    }

    /// The same with another way of a part.
    #[must_use]
    pub fn with(&self, part: usize, way: usize) -> Self {
        let mut other = self.clone();
        if other.ways.len() <= part {
            other.ways.resize(part + 1, 0);
        }
        other.ways[part] = way;
        while other.ways.last() == Some(&0) {
            other.ways.pop();
        }
        other
    }
}

/// A unique piece lowered for a size: alternatives in a fixed order, and the images that they
/// refer to. It names operands by position, never a slot, never an offset, and contains no
/// weight bytes.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Artifact {
    /// The hash of the unique piece.
    pub piece: [u8; 32],
    /// The row counts that it was lowered for.
    pub size: PieceSize,
    /// At least one; the first is taken unmeasured.
    pub alternatives: Vec<Alternative>,
    /// The images that the launches refer to: digest and bytes, each once.
    pub images: Vec<(Digest, Vec<u8>)>,
}

impl Alternative {
    /// Launches that can be computed in no other way.
    pub fn single(launches: Vec<Launch>, scratch: u64) -> Self {
        let way = Way { name: "only".to_owned(), launches, scratch, uses_library: false };
        Self { parts: vec![Part { ways: vec![way] }] }
    }

    /// The way that each part takes by a choice of this alternative; nothing where one lacks it.
    pub fn ways<'a>(&'a self, choice: &Choice) -> Option<Vec<&'a Way>> {
        let parts = self.parts.iter().enumerate();
        let ways = parts.map(|(i, part)| part.ways.get(choice.way(i))).collect();
        if choice.ways.len() <= self.parts.len() { ways } else { None }
    }

    /// The launches of its first ways.
    pub fn first_launches(&self) -> impl Iterator<Item = &Launch> {
        self.parts.iter().filter_map(|part| part.ways.first()).flat_map(|way| &way.launches)
    }
}

impl Artifact {
    /// The scratch need: the largest over all ways, in bytes.
    pub fn scratch(&self) -> u64 {
        self.ways().map(|way| way.scratch).max().unwrap_or(0)
    }

    /// Every way of every part of every alternative.
    pub fn ways(&self) -> impl Iterator<Item = &Way> {
        self.alternatives.iter().flat_map(|one| &one.parts).flat_map(|part| &part.ways)
    }

    /// [`Self::ways`], to be changed.
    pub fn ways_mut(&mut self) -> impl Iterator<Item = &mut Way> {
        let parts = self.alternatives.iter_mut().flat_map(|one| &mut one.parts);
        parts.flat_map(|part| &mut part.ways)
    }

    /// The launches that run where nothing was measured: those of the first ways of the first
    /// alternative.
    pub fn first_launches(&self) -> impl Iterator<Item = &Launch> {
        self.alternatives.first().into_iter().flat_map(Alternative::first_launches)
    }

    /// The ways that a choice takes, in the order of their launches.
    ///
    /// # Errors
    /// A sentence, when it is no choice of this artifact.
    pub fn chosen(&self, choice: &Choice) -> Result<Vec<&Way>, String> {
        let alternative = self.alternatives.get(choice.alternative);
        alternative.and_then(|one| one.ways(choice)).ok_or_else(|| {
            format!("{choice:?} is none of its {} alternatives", self.alternatives.len())
        })
    }

    /// Whether every launch follows sizes, whichever way is taken.
    pub fn follows_sizes(&self) -> bool {
        self.ways().flat_map(|way| &way.launches).all(|launch| launch.follows_sizes)
    }

    /// Whether there is more than one way to run it.
    pub fn has_choices(&self) -> bool {
        self.ways().count() > self.alternatives.first().map_or(0, |first| first.parts.len())
    }

    /// The bytes of an image.
    pub fn image(&self, digest: Digest) -> Option<&[u8]> {
        self.images.iter().find(|(d, _)| *d == digest).map(|(_, bytes)| bytes.as_slice())
    }

    /// Checks that every reference inside it leads somewhere: to operands and nodes of `piece`, to
    /// its own scratch, and to images that have the bytes that their digests say.
    ///
    /// # Errors
    /// A sentence that says what leads nowhere.
    pub fn check(&self, piece: &UniquePiece, size: PieceSize) -> Result<(), String> {
        if self.piece != piece.hash || self.size != size {
            return Err("it was made for another piece or size".to_owned());
        }
        if self.alternatives.is_empty() {
            return Err("it has no alternative".to_owned());
        }
        let mut parts = self.alternatives.iter().flat_map(|one| &one.parts);
        if parts.any(|part| part.ways.is_empty()) {
            return Err("a part of it has no way".to_owned());
        }
        for (digest, bytes) in &self.images {
            if Digest::of(bytes) != *digest {
                return Err(format!("image {digest} has other bytes than its digest says"));
            }
        }
        let (operands, nodes) = (piece.operands().len(), piece.graph.nodes().len());
        for way in self.ways() {
            for launch in &way.launches {
                let name = &launch.name;
                if self.image(launch.image).is_none() {
                    return Err(format!("launch `{name}` lacks image {}", launch.image));
                }
                if let Some(node) = launch.nodes.iter().find(|&&node| node as usize >= nodes) {
                    return Err(format!("launch `{name}` computes node {node} of {nodes}"));
                }
                for arg in &launch.args {
                    match arg.at {
                        ArgRef::Operand(position) if position as usize >= operands => {
                            return Err(format!("launch `{name}` uses operand {position}"));
                        }
                        ArgRef::Scratch { offset, bytes }
                            if offset.checked_add(bytes).is_none_or(|end| end > way.scratch) =>
                        {
                            return Err(format!("launch `{name}` uses bytes outside the scratch"));
                        }
                        _ => {}
                    }
                }
            }
        }
        Ok(())
    }
}
