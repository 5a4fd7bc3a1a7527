//! Weights that a program holds itself.

use piecewise_backend::weights::{TensorSource, TensorSpec, WeightError, WeightSource};
use piecewise_ir::dtype::DType;
use piecewise_kernels::inputs::Element;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Tensors by name, held in memory.
#[derive(Clone, Debug, Default)]
pub struct InMemoryWeights {
    tensors: BTreeMap<String, HeldTensor>,
}

#[derive(Clone, Debug)]
struct HeldTensor {
    dtype: DType,
    shape: Vec<u64>,
    elements: usize,
    bytes: Vec<u8>,
}

impl InMemoryWeights {
    /// Holds nothing yet; tensors are added by [`Self::with`].
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tensor, or replaces the one of this name: `values` are row-major. Whether they are
    /// what the graph declares is checked when a session is built.
    #[must_use]
    pub fn with<T: Element>(
        mut self,
        name: &str,
        shape: impl IntoIterator<Item = u64>,
        values: impl AsRef<[T]>,
    ) -> Self {
        let values = values.as_ref();
        let tensor = HeldTensor {
            dtype: T::DTYPE,
            shape: shape.into_iter().collect(),
            elements: values.len(),
            bytes: bytemuck::cast_slice(values).to_vec(),
        };
        self.tensors.insert(name.to_owned(), tensor);
        self
    }
}

impl WeightSource for InMemoryWeights {
    fn tensor(&self, spec: TensorSpec<'_>) -> Result<TensorSource<'_>, WeightError> {
        let TensorSpec { name, dtype, shape } = spec;
        let missing = || WeightError::Missing { name: name.to_owned() };
        let held = self.tensors.get(name).ok_or_else(missing)?;
        let elements = shape.iter().try_fold(1u64, |product, &n| product.checked_mul(n));
        let fits = held.dtype == dtype && held.shape == shape;
        if !fits || elements != Some(held.elements as u64) {
            return Err(WeightError::Mismatch {
                name: name.to_owned(),
                found: format!("{}{:?} of {} values", held.dtype, held.shape, held.elements),
                expected: format!("{dtype}{shape:?}"),
            });
        }
        Ok(TensorSource::Bytes(Cow::Borrowed(&held.bytes)))
    }
}
