//! Floats that become codes and scales when they are loaded.

use super::floats::is_readable;
use super::rounding::{Codes, Matrix};
use crate::models::config::quantization::group_when_loaded;
use piecewise_backend::cpu::normal_numbers;
use piecewise_backend::weights::{
    TensorSource, TensorSpec, WeightError, WeightFindings, WeightSource,
};
use piecewise_ir::dtype::DType;
use piecewise_ir::graph::Graph;
use piecewise_runtime::words::Quantize;
use rayon::iter::{IndexedParallelIterator, ParallelIterator};
use rayon::slice::ParallelSliceMut;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Weights in floats as one who reads codes and scales wants them: as a checkpoint has them that was
/// stored so.
pub(crate) struct RoundedWeights {
    source: Box<dyn WeightSource>,
    format: Quantize,
    /// The layers that are rounded, by their paths, as `source` keeps them.
    layers: BTreeMap<String, Layer>,
    findings: Mutex<WeightFindings>,
}

/// A matrix in floats.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Layer {
    dtype: DType,
    shape: [u64; 2],
}

/// A weight that can't be rounded.
#[derive(Debug, thiserror::Error)]
#[error(
    "checkpoint tensor \"{tensor}\" can't be rounded to {format}: {reason}; load it as it is, without \
     `quantize`"
)]
struct Unroundable {
    tensor: String,
    format: Quantize,
    reason: String,
}

/// The matrices that a graph reads, by the names of their tensors; those that are no weight of a layer
/// among them.
fn matrices(graph: &Graph) -> BTreeMap<String, Layer> {
    let mut found = BTreeMap::new();
    for weight in graph.weights() {
        weight.recipe.visit_sources(&mut |name, ty| {
            if let Some(&[out, inner]) = ty.static_shape().as_deref() {
                found.insert(name.to_owned(), Layer { dtype: ty.dtype, shape: [out, inner] });
            }
        });
    }
    found
}

/// The layers that the graph `rounded` reads in few bits and `plain` in floats, by their paths.
pub(crate) fn rounded_layers(plain: &Graph, rounded: &Graph) -> BTreeMap<String, Layer> {
    let (plain, rounded) = (matrices(plain), matrices(rounded));
    let made = rounded.keys().filter(|name| !plain.contains_key(*name));
    let modules = made.filter_map(|name| name.strip_suffix(".weight_scale"));
    let layer = |module: &str| Some((module.to_owned(), *plain.get(&format!("{module}.weight"))?));
    modules.filter_map(layer).collect()
}

/// The paths of matrices of `plain` that are none of `layers`.
pub(crate) fn kept_matrices(plain: &Graph, layers: &BTreeMap<String, Layer>) -> Vec<String> {
    let plain = matrices(plain);
    let modules = plain.keys().filter_map(|name| name.strip_suffix(".weight"));
    modules.filter(|module| !layers.contains_key(*module)).map(str::to_owned).collect()
}

impl RoundedWeights {
    /// Weights of `source` with `layers` rounded, as [`rounded_layers`] has them; `kept` are told beside.
    pub(crate) fn new(
        source: Box<dyn WeightSource>,
        format: Quantize,
        layers: BTreeMap<String, Layer>,
        kept: Vec<String>,
    ) -> Self {
        let findings = WeightFindings { kept, ..WeightFindings::default() };
        Self { source, format, layers, findings: Mutex::new(findings) }
    }

    fn codes(&self) -> Codes {
        match self.format {
            Quantize::None | Quantize::Fp8 => Codes::E4M3,
            Quantize::Int4 => Codes::I4,
        }
    }

    /// A part of a layer: its scales, or else its codes.
    fn part(
        &self,
        module: &str,
        layer: Layer,
        is_scales: bool,
    ) -> Result<TensorSource<'_>, WeightError> {
        let (name, Layer { dtype, shape: [out, inner] }) = (format!("{module}.weight"), layer);
        let refused = |reason| {
            let (tensor, format) = (name.clone(), self.format);
            WeightError::Source(Box::new(Unroundable { tensor, format, reason }))
        };
        if !is_readable(dtype) {
            return Err(refused(format!("it is stored as {dtype}")));
        }
        let group = group_when_loaded(self.format, inner);
        let stored = self.source.tensor(TensorSpec { name: &name, dtype, shape: &layer.shape })?;
        let bytes = match &stored {
            TensorSource::Normal { std, seed } => {
                let random = Random { std: *std, seed: *seed, name: &name };
                let scales = (out * inner.div_ceil(group)) as usize;
                return Ok(match (is_scales, self.codes()) {
                    (true, codes) => random.scales(codes, scales),
                    (false, Codes::E4M3) => TensorSource::Normal { std: CODES_E4M3, seed: *seed },
                    (false, Codes::I4) => random.words(out as usize, inner.div_ceil(8) as usize),
                });
            }
            TensorSource::Bytes(bytes) => bytes,
        };
        if bytes.len() as u64 != out * inner * dtype.size() as u64 || inner == 0 {
            return Err(refused(format!("it has {} bytes, not those of its shape", bytes.len())));
        }
        let (columns, group) = (inner as usize, group as usize);
        let matrix = Matrix { dtype, bytes, columns, group };
        if is_scales {
            let scales = matrix.scales(self.codes());
            let scales = scales.map_err(|row| {
                refused(format!("row {row} holds a value that is infinite or no number"))
            })?;
            return Ok(bytes_of(scales.iter().map(|scale| scale.to_le_bytes())));
        }
        let made = matrix.codes(self.codes());
        let error = if made.squares > 0.0 { (made.lost / made.squares).sqrt() } else { 0.0 };
        let mut findings = self.findings.lock().unwrap_or_else(PoisonError::into_inner);
        findings.errors.insert(module.to_owned(), error);
        Ok(TensorSource::Bytes(Cow::Owned(made.bytes)))
    }
}

impl WeightSource for RoundedWeights {
    fn tensor(&self, spec: TensorSpec<'_>) -> Result<TensorSource<'_>, WeightError> {
        let parts = spec.name.rsplit_once('.');
        let layer = parts.and_then(|(module, leaf)| Some((module, self.layers.get(module)?, leaf)));
        match layer {
            Some((module, layer, "weight_scale")) => self.part(module, *layer, true),
            Some((module, layer, "weight" | "weight_packed")) => self.part(module, *layer, false),
            _ => self.source.tensor(spec),
        }
    }

    fn findings(&self) -> WeightFindings {
        let mut findings = self.source.findings();
        let own = self.findings.lock().unwrap_or_else(PoisonError::into_inner);
        findings.errors.extend(own.errors.iter().map(|(name, error)| (name.clone(), *error)));
        findings.kept.extend(own.kept.iter().cloned());
        findings
    }
}

fn bytes_of<const N: usize>(elements: impl Iterator<Item = [u8; N]>) -> TensorSource<'static> {
    TensorSource::Bytes(Cow::Owned(elements.flatten().collect()))
}

/// The spread of random codes of e4m3: the largest normal number that is drawn is below 6 times it, so
/// that none is beyond 448.
const CODES_E4M3: f32 = 64.0;
/// The spread of integers from -7 to 7, of which 0 is twice as likely as another.
const CODES_I4: f32 = 4.183_3;

/// What random weights of a spread would come to, without rounding any: codes that are random by
/// themselves, and scales about the one that gives them the spread.
struct Random<'a> {
    std: f32,
    seed: u64,
    name: &'a str,
}

impl Random<'_> {
    /// By a few in a hundred apart, as the largest of many normal numbers are.
    fn scales(&self, codes: Codes, n: usize) -> TensorSource<'static> {
        let spread = match codes {
            Codes::E4M3 => CODES_E4M3,
            Codes::I4 => CODES_I4,
        };
        let middle = self.std / spread;
        let numbers = normal_numbers(&format!("{}_scale", self.name), self.seed, 0.06, n);
        bytes_of(numbers.iter().map(|x| (middle * (1.0 + x.clamp(-0.2, 0.2))).to_le_bytes()))
    }

    fn words(&self, rows: usize, across: usize) -> TensorSource<'static> {
        // FNV-1a: rows differ, and so do tensors.
        let each = self.name.bytes().chain(self.seed.to_le_bytes());
        let key = each.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        let mut bytes = vec![0; rows * across * 4];
        bytes.par_chunks_mut(across.max(1) * 4).enumerate().for_each(|(row, to)| {
            let mut state = key ^ (row as u64).wrapping_mul(0xd134_2543_de82_ef95);
            for word in to.as_chunks_mut().0 {
                *word = symmetric(random(&mut state) as u32).to_le_bytes();
            }
        });
        TensorSource::Bytes(Cow::Owned(bytes))
    }
}

/// Splitmix64.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// With 8, which means 0, in the place of each 0, which would mean -8: codes that come to nothing on
/// average.
fn symmetric(word: u32) -> u32 {
    let set = word | word >> 1 | word >> 2 | word >> 3;
    word | (!set & 0x1111_1111) << 3
}
