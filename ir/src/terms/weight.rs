//! Weights: checkpoint tensors, and recipes that derive others from them once, at load.

use crate::dtype::DType;
use crate::graph::Graph;
use crate::types::TensorType;

/// How the bytes of a weight come about. Evaluated once at load; no part of a piece's
/// identity.
#[derive(Clone, PartialEq, Debug, serde::Serialize, serde::Deserialize)]
pub enum Recipe {
    /// A tensor of the checkpoint as it is stored.
    Checkpoint {
        /// Its path in the checkpoint: `model.layers.0.mlp.up_proj.weight`.
        name: String,
        /// The type that it is stored as; no dimension is a symbol.
        ty: TensorType,
    },
    /// Parts one after the other along an axis.
    Concat {
        /// The axis whose extent is the sum of those of the parts.
        axis: usize,
        /// The parts, of equal type but for the axis.
        parts: Vec<Recipe>,
    },
    /// A range of one axis.
    Slice {
        /// The axis of which a range is kept.
        axis: usize,
        /// The index along `axis` of the first element that is kept.
        start: u64,
        /// How many elements along `axis` are kept.
        len: u64,
        /// The recipe of the whole.
        of: Box<Recipe>,
    },
    /// A weight with its axes in another order.
    Transpose {
        /// For each axis of the result, the axis of the operand.
        perm: Vec<usize>,
        /// The recipe of the weight as it was.
        of: Box<Recipe>,
    },
    /// A weight whose elements are rounded to another dtype.
    Cast {
        /// The dtype of the result.
        to: DType,
        /// The recipe of the weight before it is rounded.
        of: Box<Recipe>,
    },
    /// A weight with the same elements, in row-major order, under another shape.
    Reshape {
        /// The extents of the result.
        shape: Vec<u64>,
        /// The recipe of the weight as it was.
        of: Box<Recipe>,
    },
    /// Elements repeated along axes of extent 1, and along outer axes that are new.
    Broadcast {
        /// The extents of the result.
        shape: Vec<u64>,
        /// The recipe of the weight as it was.
        of: Box<Recipe>,
    },
    /// Integers of 4 bits that a checkpoint keeps eight to an `i32`, as `i4`.
    Unpack {
        /// The axis of the words along which their integers lie.
        axis: usize,
        /// Bits `4 * i` of a word hold the one of its eight integers that stands here.
        order: [u8; 8],
        /// What is taken from the bits, read as 0 to 15; the difference wraps to 4 bits.
        less: u8,
        /// Integers along `axis`: eight for each word, but for what the last has too many.
        len: u64,
        /// The recipe of the words, of two axes.
        of: Box<Recipe>,
    },
    /// The single output of a small graph that has no inputs, weights or states, such as a rope
    /// table; evaluated on the host, every value rounded to its dtype.
    Graph(Box<Graph>),
}

impl Recipe {
    /// What it is made of; nothing for a checkpoint tensor and a graph.
    pub fn parts(&self) -> &[Self] {
        match self {
            Self::Checkpoint { .. } | Self::Graph(_) => &[],
            Self::Concat { parts, .. } => parts,
            Self::Slice { of, .. }
            | Self::Transpose { of, .. }
            | Self::Cast { of, .. }
            | Self::Reshape { of, .. }
            | Self::Broadcast { of, .. }
            | Self::Unpack { of, .. } => std::slice::from_ref(of),
        }
    }

    /// Calls `visit` with the name and stored type of every checkpoint tensor it reads, in order.
    pub fn visit_sources<'a>(&'a self, visit: &mut impl FnMut(&'a str, &'a TensorType)) {
        match self {
            Self::Checkpoint { name, ty } => visit(name, ty),
            other => other.parts().iter().for_each(|part| part.visit_sources(visit)),
        }
    }

    /// Changes every checkpoint tensor and every graph that it is made of, in order.
    pub fn change_leaves(&mut self, change: &mut impl FnMut(&mut Self)) {
        match self {
            Self::Checkpoint { .. } | Self::Graph(_) => change(self),
            Self::Concat { parts, .. } => {
                parts.iter_mut().for_each(|part| part.change_leaves(change));
            }
            Self::Slice { of, .. }
            | Self::Transpose { of, .. }
            | Self::Cast { of, .. }
            | Self::Reshape { of, .. }
            | Self::Broadcast { of, .. }
            | Self::Unpack { of, .. } => of.change_leaves(change),
        }
    }
}
