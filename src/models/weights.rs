//! A checkpoint as the source of a graph's weights.

use super::checkpoint::{Checkpoint, CheckpointError};
use piecewise_backend::weights::{TensorSource, TensorSpec, WeightError, WeightSource};
use piecewise_ir::dtype::DType;
use piecewise_ir::graph::Graph;
use std::borrow::Cow;
use std::collections::BTreeSet;

impl WeightSource for Checkpoint {
    fn tensor(&self, spec: TensorSpec<'_>) -> Result<TensorSource<'_>, WeightError> {
        let TensorSpec { name, dtype, shape } = spec;
        let shape: Vec<usize> = shape.iter().map(|&extent| extent as usize).collect();
        let view = self.shaped(name, &shape).map_err(|error| WeightError::Source(error.into()))?;
        if view.dtype != dtype {
            return Err(WeightError::Source(Box::new(UndeclaredDType {
                tensor: name.to_owned(),
                stored: view.dtype,
                declared: dtype,
            })));
        }
        Ok(TensorSource::Bytes(Cow::Borrowed(view.bytes)))
    }
}

/// A tensor stored in another type than the graph declares.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "checkpoint tensor \"{tensor}\" is stored as {stored}, but the graph declares {declared}; \
     build the graph with the checkpoint's own types (`Builder::weight_dtypes`)"
)]
pub struct UndeclaredDType {
    /// Its name in the checkpoint.
    pub tensor: String,
    /// The type that the checkpoint stores.
    pub stored: DType,
    /// The type that the graph was built for.
    pub declared: DType,
}

/// Names of missing tensors that an error has.
const MOST_NAMED: usize = 10;

/// Holds the weights of `graph` against the headers of `checkpoint`, before anything is compiled.
///
/// # Errors
/// The first tensor that is of another shape or not of floats; where one is missing before it, all that are
/// missing.
pub fn check_weights(graph: &Graph, checkpoint: &Checkpoint) -> Result<(), CheckpointError> {
    let (mut missing, mut wrong) = (Vec::new(), None);
    for weight in graph.weights() {
        // Codes come out of words, which are no floats.
        let reads_words = graph.ty(weight.value).dtype == DType::I4;
        weight.recipe.visit_sources(&mut |name, ty| {
            let shape = ty.static_shape().unwrap_or_default();
            let shape: Vec<usize> = shape.iter().map(|&extent| extent as usize).collect();
            let tensor = match reads_words {
                true => checkpoint.shaped(name, &shape),
                false => checkpoint.weight(name, &shape),
            };
            match tensor {
                Ok(_) => {}
                Err(CheckpointError::MissingTensor { tensor, .. }) => missing.push(tensor),
                Err(error) if missing.is_empty() => wrong = wrong.take().or(Some(error)),
                Err(_) => {}
            }
        });
    }
    if let Some(wrong) = wrong {
        return Err(wrong);
    }
    let folder = checkpoint.folder().to_path_buf();
    match &*missing {
        [] => Ok(()),
        [tensor] => Err(CheckpointError::MissingTensor { folder, tensor: tensor.clone() }),
        _ => {
            let named = missing.iter().take(MOST_NAMED).map(|name| format!("`{name}`"));
            let first = Vec::from_iter(named).join(", ");
            Err(CheckpointError::MissingTensors { folder, missing: missing.len(), first })
        }
    }
}

/// The tensors of `checkpoint` that `graph` reads nothing of, in alphabetical order. A bias among
/// them means that the graph computes something else than the checkpoint was made for.
pub fn unused_tensors<'c>(graph: &Graph, checkpoint: &'c Checkpoint) -> Vec<&'c str> {
    let mut used = BTreeSet::new();
    for weight in graph.weights() {
        weight.recipe.visit_sources(&mut |name, _| {
            used.insert(name.to_owned());
        });
    }
    checkpoint.names().filter(|name| !used.contains(*name)).collect()
}
