//! Derived weights from checkpoint tensors.

use super::error::EvalError;
use super::{Array, evaluate_constant, layout};
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
        Recipe::Graph(graph) => evaluate_constant(graph)?,
    })
}
