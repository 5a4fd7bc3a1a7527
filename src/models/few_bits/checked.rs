//! Codes and scales of a checkpoint, looked at before they are used: what is no number would be in every
//! result, and scales of something else give results that look like results.

use super::floats::{is_readable, read, sum_of_squares};
use crate::models::checkpoint::{Checkpoint, CheckpointError};
use crate::models::config::Quantization;
use piecewise_backend::weights::{
    TensorSource, TensorSpec, WeightError, WeightFindings, WeightSource,
};
use piecewise_ir::dtype::DType;
use piecewise_ir::literal::Scalar;
use rayon::iter::{IndexedParallelIterator, ParallelIterator};
use rayon::slice::ParallelSlice;
use std::ops::RangeInclusive;
use std::sync::{Mutex, PoisonError};

/// Root mean squares that weights of a layer have.
const SANE: RangeInclusive<f64> = 1e-4..=10.0;
/// The root mean square of integers of 4 bits about their zero point, roughly.
const OF_INTEGERS: f64 = 4.5;
/// Codes that are looked at to see how large those of a layer are.
const SAMPLES: usize = 1 << 12;
/// Codes that a thread takes at a time.
const CHUNK: usize = 1 << 18;

/// A checkpoint whose layers are in few bits.
#[derive(Debug)]
pub(in crate::models) struct CheckedWeights {
    checkpoint: Checkpoint,
    quantization: Quantization,
    warnings: Mutex<Vec<String>>,
}

/// Whether a code is e4m3's NaN.
fn is_nan(code: u8) -> bool {
    code & 0x7f == 0x7f
}

impl CheckedWeights {
    pub(in crate::models) fn new(checkpoint: Checkpoint, quantization: Quantization) -> Self {
        Self { checkpoint, quantization, warnings: Mutex::default() }
    }

    fn refused(&self, tensor: &str, reason: String) -> WeightError {
        let file = self.checkpoint.file_of(tensor).unwrap_or(self.checkpoint.folder());
        let (file, tensor) = (file.to_path_buf(), tensor.to_owned());
        WeightError::Source(Box::new(CheckpointError::Tensor { file, tensor, reason }))
    }

    fn check_codes(&self, spec: TensorSpec<'_>, codes: &[u8]) -> Result<(), WeightError> {
        // Without an end within a chunk, so that many are looked at at once.
        let has_nan = |chunk: &[u8]| chunk.iter().fold(false, |any, code| any | is_nan(*code));
        let chunks = codes.par_chunks(CHUNK).enumerate();
        let found = chunks.find_map_first(|(i, chunk)| has_nan(chunk).then_some((i, chunk)));
        let Some((i, chunk)) = found else { return Ok(()) };
        let at = i * CHUNK + chunk.iter().position(|code| is_nan(*code)).unwrap_or(0);
        let columns = spec.shape.last().map_or(1, |&n| n.max(1) as usize);
        let reason = format!(
            "row {}, column {} is a code that means no number (e4m3's NaN): the file is damaged, or it \
             does not hold what `quantization_config` of config.json says",
            at / columns,
            at % columns
        );
        Err(self.refused(spec.name, reason))
    }

    fn check_scales(
        &self,
        spec: TensorSpec<'_>,
        module: &str,
        bytes: &[u8],
    ) -> Result<(), WeightError> {
        if !is_readable(spec.dtype) {
            return Ok(());
        }
        let mut scales = vec![0f32; bytes.len() / spec.dtype.size()];
        read(spec.dtype, bytes, &mut scales);
        let is_wrong = |scale: &f32| !scale.is_finite() || *scale < 0.0;
        if let Some(at) = scales.iter().position(is_wrong) {
            let reason = format!(
                "scale {at} is {}, and a scale is a finite number that is not negative: the file is \
                 damaged, or it does not hold what `quantization_config` of config.json says",
                scales[at]
            );
            return Err(self.refused(spec.name, reason));
        }
        let of_scales = (sum_of_squares(&scales) / scales.len().max(1) as f64).sqrt();
        let size = of_scales * self.size_of_codes(module);
        if !SANE.contains(&size) {
            let warning = format!(
                "checkpoint tensor \"{}\": by these scales the weights of the layer have a root mean \
                 square of about {size:.1e}, beyond {:.0e} to {}; are they those of this checkpoint?",
                spec.name,
                SANE.start(),
                SANE.end()
            );
            let mut warnings = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
            // Weights may be read again.
            if !warnings.contains(&warning) {
                warnings.push(warning);
            }
        }
        Ok(())
    }

    /// The root mean square of the codes of a layer, by some of them.
    fn size_of_codes(&self, module: &str) -> f64 {
        let codes = self.checkpoint.tensor(&format!("{module}.weight"));
        let Some(codes) = codes.filter(|codes| codes.dtype == DType::E4M3) else {
            return OF_INTEGERS;
        };
        // An odd step meets all columns in turn.
        let step = (codes.bytes.len() / SAMPLES) | 1;
        let some = codes.bytes.iter().step_by(step).filter(|code| !is_nan(**code));
        let values = some.map(|code| Scalar::from_bits(DType::E4M3, u64::from(*code)).to_f64());
        let (n, squares) = values.fold((0usize, 0.0), |(n, sum), x| (n + 1, sum + x * x));
        (squares / n.max(1) as f64).sqrt()
    }
}

impl WeightSource for CheckedWeights {
    fn tensor(&self, spec: TensorSpec<'_>) -> Result<TensorSource<'_>, WeightError> {
        let source = WeightSource::tensor(&self.checkpoint, spec)?;
        let parts = spec.name.rsplit_once('.');
        let layer = parts
            .and_then(|(module, leaf)| Some((module, leaf, self.quantization.stored(module)?)));
        if let (Some((module, leaf, stored)), TensorSource::Bytes(bytes)) = (layer, &source) {
            if leaf == stored.scales() {
                self.check_scales(spec, module, bytes)?;
            } else if spec.dtype == DType::E4M3 {
                self.check_codes(spec, bytes)?;
            }
        }
        Ok(source)
    }

    fn findings(&self) -> WeightFindings {
        let warnings = self.warnings.lock().unwrap_or_else(PoisonError::into_inner).clone();
        WeightFindings { warnings, ..WeightFindings::default() }
    }
}
