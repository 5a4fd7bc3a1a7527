//! Weights that both sides take: tensors by their Hugging Face names.

use candle_core::{DType as CandleType, Device, Tensor};
use half::bf16;
use piecewise_backend::weights::{TensorSource, TensorSpec, WeightError, WeightSource};
use piecewise_ir::dtype::DType;
use std::borrow::Cow;
use std::collections::HashMap;

/// Tensors of bf16 by name, from a file or made here.
#[derive(Clone)]
pub struct Weights(pub HashMap<String, Tensor>);

impl Weights {
    /// Independent normal numbers of mean 0 and standard deviation 0.02; ones for norms.
    pub fn random(shapes: &[(String, Vec<usize>)]) -> anyhow::Result<Self> {
        let made = shapes.iter().map(|(name, shape)| {
            let tensor = match name.ends_with("norm.weight") {
                true => Tensor::ones(&shape[..], CandleType::BF16, &Device::Cpu)?,
                false => Tensor::randn(0f32, 0.02, &shape[..], &Device::Cpu)?
                    .to_dtype(CandleType::BF16)?,
            };
            Ok((name.clone(), tensor))
        });
        Ok(Self(made.collect::<anyhow::Result<_>>()?))
    }

    fn bytes(&self, name: &str) -> candle_core::Result<Option<Vec<u8>>> {
        let Some(tensor) = self.0.get(name) else { return Ok(None) };
        let values: Vec<bf16> = tensor.flatten_all()?.to_vec1()?;
        let bits: Vec<u16> = values.into_iter().map(bf16::to_bits).collect();
        Ok(Some(bytemuck::cast_slice(&bits).to_vec()))
    }
}

impl WeightSource for Weights {
    fn tensor(&self, spec: TensorSpec<'_>) -> Result<TensorSource<'_>, WeightError> {
        let TensorSpec { name, dtype, .. } = spec;
        if dtype != DType::BF16 {
            return Err(WeightError::Mismatch {
                name: name.to_owned(),
                found: "bf16".to_owned(),
                expected: dtype.to_string(),
            });
        }
        let bytes = self.bytes(name).map_err(|error| WeightError::Source(Box::new(error)))?;
        match bytes {
            Some(bytes) => Ok(TensorSource::Bytes(Cow::Owned(bytes))),
            None => Err(WeightError::Missing { name: name.to_owned() }),
        }
    }
}
