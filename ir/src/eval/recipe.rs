//! Derived weights from checkpoint tensors.

use super::error::EvalError;
use super::{Array, evaluate_constant, layout};
use crate::dtype::DType;
use crate::types::TensorType;
use crate::weight::Recipe;

/// The weight that `recipe` makes of the checkpoint tensors that `source` gives by name and
/// stored type. A cast rounds; nothing else changes an element.
///
/// # Errors
/// Those of `source`; when the recipe does not fit itself; when its graph can't be evaluated.
pub fn evaluate_recipe(
    recipe: &Recipe,
    source: &mut impl FnMut(&str, &TensorType) -> Result<Array, EvalError>,
) -> Result<Array, EvalError> {
    let ty = recipe.ty().map_err(|reason| EvalError::Recipe { reason })?;
    let shape: Vec<usize> = match ty.static_shape() {
        Some(dims) => dims.into_iter().map(|d| usize::try_from(d).unwrap_or(usize::MAX)).collect(),
        None => return Err(EvalError::Recipe { reason: "its shape is symbolic".to_owned() }),
    };
    Ok(match recipe {
        Recipe::Checkpoint { name, ty } => {
            let array = source(name, ty)?;
            let fits = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
            if array.dtype != ty.dtype || array.shape != shape || fits != Some(array.data.len()) {
                return Err(EvalError::Array {
                    what: format!("checkpoint tensor \"{name}\""),
                    expected: format!("{}{shape:?}", ty.dtype),
                    given: format!("{}{:?}", array.dtype, array.shape),
                });
            }
            array
        }
        Recipe::Concat { axis, parts } => {
            let arrays = parts
                .iter()
                .map(|part| evaluate_recipe(part, source))
                .collect::<Result<Vec<_>, _>>()?;
            layout::concat(&arrays.iter().collect::<Vec<_>>(), *axis, shape)
        }
        Recipe::Slice { axis, start, of, .. } => {
            layout::slice(&evaluate_recipe(of, source)?, *axis, *start as usize, shape)
        }
        Recipe::Transpose { perm, of } => layout::permute(&evaluate_recipe(of, source)?, perm),
        Recipe::Cast { to, of } => Array { dtype: *to, ..evaluate_recipe(of, source)? }.rounded(),
        Recipe::Reshape { of, .. } => Array { shape, ..evaluate_recipe(of, source)? },
        Recipe::Broadcast { of, .. } => layout::broadcast(&evaluate_recipe(of, source)?, shape),
        Recipe::Unpack { axis, order, less, of, .. } => {
            let words = evaluate_recipe(of, source)?;
            unpacked(&words, *axis, *order, *less, shape)
        }
        Recipe::Graph(graph) => evaluate_constant(graph)?,
    })
}

fn unpacked(words: &Array, axis: usize, order: [u8; 8], less: u8, shape: Vec<usize>) -> Array {
    let element = |i: usize| {
        let mut at = [i / shape[1], i % shape[1]];
        let place = order.iter().position(|&of| usize::from(of) == at[axis] % 8).unwrap_or(0);
        at[axis] /= 8;
        let word = words.data[at[0] * words.shape[1] + at[1]] as i32;
        let nibble = (word >> (4 * place) & 15) - i32::from(less);
        f64::from(nibble << 28 >> 28)
    };
    let elements = shape.iter().product::<usize>();
    let data = (0..elements).map(element).collect();
    Array { dtype: DType::I4, shape, data }
}
