//! Models that were not downloaded: published shapes with random weights.

use piecewise::assembly::Assembly;
use piecewise::models::Preset;
use piecewise_backend::weights::{
    NormalWeights, TensorSource, TensorSpec, WeightError, WeightSource,
};
use piecewise_ir::dtype::DType;
use piecewise_ir::literal::Scalar;
use std::borrow::Cow;

/// A preset with random weights, which are of `dtype` where one is given.
pub(crate) fn assembly(preset: Preset, dtype: Option<DType>) -> Assembly {
    let mut config = preset.config();
    config.dtype = dtype.or(config.dtype);
    Assembly::model(config).weights(WEIGHTS)
}

/// Random numbers, made on the device; ones where a norm scales.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PresetWeights(NormalWeights);

pub(crate) const WEIGHTS: PresetWeights = PresetWeights(NormalWeights { std: 0.02, seed: 20_260 });

impl WeightSource for PresetWeights {
    fn tensor(&self, spec: TensorSpec<'_>) -> Result<TensorSource<'_>, WeightError> {
        if !spec.name.ends_with("norm.weight") {
            return self.0.tensor(spec);
        }
        let one = Scalar::new(spec.dtype, 1.0).to_bytes();
        let count: u64 = spec.shape.iter().product();
        Ok(TensorSource::Bytes(Cow::Owned(one.repeat(count as usize))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn norms_are_ones_and_the_rest_is_random() {
        let tensor = |name, shape| WEIGHTS.tensor(TensorSpec { name, dtype: DType::BF16, shape });
        let norm = tensor("model.layers.0.input_layernorm.weight", &[3]);
        let ones = [0x80, 0x3f, 0x80, 0x3f, 0x80, 0x3f];
        assert!(matches!(norm, Ok(TensorSource::Bytes(bytes)) if *bytes == ones));
        let head = tensor("lm_head.weight", &[3, 4]);
        assert!(matches!(head, Ok(TensorSource::Normal { std: 0.02, .. })));
    }
}
