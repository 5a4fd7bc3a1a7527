//! The type of a weight, by the rules of ops.

use crate::dtype::DType;
use crate::op::{Op, check_narrow, check_types, infer_type};
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
                checked(&op, whole, part)
            }
            Self::Transpose { perm, of } => {
                result_of(&Op::Permute { perm: perm.clone() }, &[of.ty()?])
            }
            Self::Cast { to, of } => Ok(of.ty()?.with_dtype(*to)),
            Self::Reshape { shape, of } => {
                let before = of.ty()?;
                let after = TensorType::new(before.dtype, shape.as_slice());
                checked(&Op::Reshape, before, after)
            }
            Self::Broadcast { shape, of } => {
                let before = of.ty()?;
                let after = TensorType::new(before.dtype, shape.as_slice());
                checked(&Op::Broadcast, before, after)
            }
            Self::Unpack { axis, order, less, len, of } => {
                let mut ty = of.ty()?;
                let mut places = *order;
                places.sort_unstable();
                let words = ty.shape.get(*axis).and_then(|dim| dim.as_constant());
                let words = words.filter(|_| ty.dtype == DType::I32 && ty.rank() == 2);
                let words =
                    words.ok_or("`unpack` takes i32 words of two axes, one of them `axis`")?;
                if places != [0, 1, 2, 3, 4, 5, 6, 7] || *less > 15 {
                    return Err(
                        "`unpack` needs an order of 0 to 7 and `less` of 0 to 15".to_owned()
                    );
                }
                if len.div_ceil(8) != words {
                    return Err(format!("`unpack` can't make {len} integers of {words} words"));
                }
                (ty.dtype, ty.shape[*axis]) = (DType::I4, (*len).into());
                Ok(ty)
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

/// `after`, if `op` makes it of `before`.
fn checked(op: &Op, before: TensorType, after: TensorType) -> Result<TensorType, String> {
    let (operand, result) = ([before], [after]);
    let narrow = check_narrow(op, &operand, &result);
    narrow.and_then(|()| check_types(op, &operand, &result)).map_err(|e| e.0)?;
    let [after] = result;
    Ok(after)
}

fn result_of(op: &Op, operands: &[TensorType]) -> Result<TensorType, String> {
    let inferred = infer_type(op, operands).map_err(|e| e.0)?;
    let inferred = inferred.ok_or_else(|| format!("`{}` does not say its type", op.mnemonic()))?;
    check_narrow(op, operands, std::slice::from_ref(&inferred)).map_err(|e| e.0)?;
    Ok(inferred)
}
