//! The type of a weight, by the rules of ops.

use crate::op::{Op, check_types, infer_type};
use crate::types::TensorType;
use crate::weight::Recipe;

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
}

fn result_of(op: &Op, operands: &[TensorType]) -> Result<TensorType, String> {
    let inferred = infer_type(op, operands).map_err(|e| e.0)?;
    inferred.ok_or_else(|| format!("`{}` does not say its type", op.mnemonic()))
}
