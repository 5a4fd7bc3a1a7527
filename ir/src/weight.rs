//! Weights: checkpoint tensors, and recipes that derive others from them once, at load.

use crate::dtype::DType;
use crate::graph::Graph;
use crate::op::{Op, check_types, infer_type};
use crate::types::TensorType;

/// How the bytes of a weight come about. Evaluated once at load; part of a piece's identity by
/// structure, never by checkpoint name.
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
    /// The single output of a small graph that has no inputs, weights or states, such as a rope
    /// table; evaluated on the host, every value rounded to its dtype.
    Graph(Box<Graph>),
}

impl Recipe {
    /// The type that it produces.
    ///
    /// # Errors
    /// A sentence that names the part that does not fit.
    pub fn ty(&self) -> Result<TensorType, String> {
        match self {
            Self::Checkpoint { name, ty } => match ty.static_shape() {
                Some(_) => Ok(ty.clone()),
                None => Err(format!("checkpoint tensor \"{name}\" has a symbolic shape")),
            },
            Self::Concat { axis, parts } => {
                let types = parts.iter().map(Self::ty).collect::<Result<Vec<_>, _>>()?;
                result_of(&Op::Concat { axis: *axis }, &types)
            }
            Self::Slice { axis, start, len, of } => {
                let whole = of.ty()?;
                let mut part = whole.clone();
                if let Some(extent) = part.shape.get_mut(*axis) {
                    *extent = (*len).into();
                }
                let op = Op::Slice { axis: *axis, start: *start };
                check_types(&op, &[whole], std::slice::from_ref(&part)).map_err(|e| e.0)?;
                Ok(part)
            }
            Self::Transpose { perm, of } => {
                result_of(&Op::Permute { perm: perm.clone() }, &[of.ty()?])
            }
            Self::Cast { to, of } => Ok(of.ty()?.with_dtype(*to)),
            Self::Reshape { shape, of } => {
                let before = of.ty()?;
                let after = TensorType::new(before.dtype, shape.as_slice());
                check_types(&Op::Reshape, &[before], std::slice::from_ref(&after))
                    .map_err(|e| e.0)?;
                Ok(after)
            }
            Self::Graph(graph) => {
                if !graph.inputs().is_empty()
                    || !graph.weights().is_empty()
                    || !graph.states().is_empty()
                {
                    return Err(
                        "the graph of a weight must have no inputs, weights or states".into()
                    );
                }
                match graph.outputs() {
                    [output] => Ok(graph.ty(*output).clone()),
                    outputs => Err(format!("the graph of a weight has {} outputs", outputs.len())),
                }
            }
        }
    }

    /// What it is made of; nothing for a checkpoint tensor and a graph.
    pub fn parts(&self) -> &[Self] {
        match self {
            Self::Checkpoint { .. } | Self::Graph(_) => &[],
            Self::Concat { parts, .. } => parts,
            Self::Slice { of, .. }
            | Self::Transpose { of, .. }
            | Self::Cast { of, .. }
            | Self::Reshape { of, .. } => std::slice::from_ref(of),
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
            | Self::Reshape { of, .. } => of.change_leaves(change),
        }
    }
}

fn result_of(op: &Op, operands: &[TensorType]) -> Result<TensorType, String> {
    let inferred = infer_type(op, operands).map_err(|e| e.0)?;
    inferred.ok_or_else(|| format!("`{}` does not say its type", op.mnemonic()))
}
