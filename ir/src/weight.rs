//! Weights: checkpoint tensors, and recipes that derive others from them once, at load.

use crate::dtype::DType;
use crate::graph::Graph;
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
                let Some(first) = types.first() else { return Err("concat of no parts".into()) };
                if *axis >= first.rank() {
                    return Err(format!("concat axis {axis} of rank {}", first.rank()));
                }
                let mut sum = first.clone();
                for ty in &types[1..] {
                    let fits = ty.dtype == sum.dtype
                        && ty.rank() == sum.rank()
                        && (0..sum.rank()).all(|i| i == *axis || ty.shape[i] == sum.shape[i]);
                    if !fits {
                        return Err("concat of parts that differ beyond the axis".into());
                    }
                    sum.shape[*axis] = sum.shape[*axis].plus(&ty.shape[*axis]);
                }
                Ok(sum)
            }
            Self::Slice { axis, start, len, of } => {
                let mut ty = of.ty()?;
                let extent = ty.shape.get(*axis).and_then(crate::dim::Dim::as_constant);
                match (extent, start.checked_add(*len)) {
                    (Some(extent), Some(end)) if end <= extent && *len > 0 => {
                        ty.shape[*axis] = (*len).into();
                        Ok(ty)
                    }
                    _ => Err(format!("slice {start}..+{len} is outside axis {axis}")),
                }
            }
            Self::Transpose { perm, of } => {
                let ty = of.ty()?;
                let mut seen = perm.clone();
                seen.sort_unstable();
                if seen != (0..ty.rank()).collect::<Vec<_>>() {
                    return Err(format!("transpose by {perm:?} of rank {}", ty.rank()));
                }
                let shape = perm.iter().map(|&axis| ty.shape[axis].clone()).collect();
                Ok(TensorType { dtype: ty.dtype, shape })
            }
            Self::Cast { to, of } => Ok(of.ty()?.with_dtype(*to)),
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

    /// Calls `visit` with the name and stored type of every checkpoint tensor it reads, in order.
    pub fn visit_sources<'a>(&'a self, visit: &mut impl FnMut(&'a str, &'a TensorType)) {
        match self {
            Self::Checkpoint { name, ty } => visit(name, ty),
            Self::Concat { parts, .. } => parts.iter().for_each(|p| p.visit_sources(visit)),
            Self::Slice { of, .. } | Self::Transpose { of, .. } | Self::Cast { of, .. } => {
                of.visit_sources(visit);
            }
            Self::Graph(_) => {}
        }
    }

    /// The same recipe with every checkpoint name replaced by `rename` of it.
    pub fn rename_sources(&self, rename: &mut impl FnMut(&str) -> String) -> Self {
        match self {
            Self::Checkpoint { name, ty } => {
                Self::Checkpoint { name: rename(name), ty: ty.clone() }
            }
            Self::Concat { axis, parts } => Self::Concat {
                axis: *axis,
                parts: parts.iter().map(|p| p.rename_sources(rename)).collect(),
            },
            Self::Slice { axis, start, len, of } => Self::Slice {
                axis: *axis,
                start: *start,
                len: *len,
                of: Box::new(of.rename_sources(rename)),
            },
            Self::Transpose { perm, of } => {
                Self::Transpose { perm: perm.clone(), of: Box::new(of.rename_sources(rename)) }
            }
            Self::Cast { to, of } => {
                Self::Cast { to: *to, of: Box::new(of.rename_sources(rename)) }
            }
            Self::Graph(graph) => Self::Graph(graph.clone()),
        }
    }
}
