//! Weights: where their bytes come from and how they lie in device memory.

use piecewise_ir::dtype::DType;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// How a weight lies in device memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WeightLayout {
    /// Dense, the last axis innermost.
    #[default]
    RowMajor,
}

/// The bytes of a checkpoint tensor.
#[derive(Clone, Debug)]
pub enum TensorSource<'a> {
    /// Row-major little-endian bytes.
    Bytes(Cow<'a, [u8]>),
    /// Independent normal numbers of mean 0, made on the device from a seed and the tensor's
    /// name.
    Normal {
        /// The standard deviation.
        std: f32,
        /// Decides the numbers, together with the tensor's name.
        seed: u64,
    },
}

/// The key of the generator of a tensor's random numbers: a function of seed and name alone, so
/// that every device makes the same.
pub(crate) fn normal_key(name: &str, seed: u64) -> [u32; 2] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&seed.to_le_bytes());
    hasher.update(name.as_bytes());
    let hash = hasher.finalize();
    let word = |i: usize| {
        let bytes = &hash.as_bytes()[4 * i..4 * i + 4];
        u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    };
    [word(0), word(1)]
}

/// Why a checkpoint tensor can't be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "a field is what the message calls it")]
pub enum WeightError {
    /// There is no tensor of this name.
    #[error("the weights have no tensor \"{name}\"; does the config belong to them?")]
    Missing { name: String },
    /// A tensor is not what the graph declares.
    #[error("checkpoint tensor \"{name}\" is {found}, but the model declares {expected}")]
    Mismatch { name: String, found: String, expected: String },
    /// The source does not have what the graph declares.
    #[error(transparent)]
    Source(Box<dyn std::error::Error + Send + Sync>),
    /// A derived weight's graph could not be evaluated.
    #[error("a derived weight can't be evaluated: {reason}")]
    Recipe { reason: String },
}

/// A checkpoint tensor as the graph declares it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TensorSpec<'a> {
    /// Its name in the checkpoint.
    pub name: &'a str,
    /// The dtype that the graph wants its elements in.
    pub dtype: DType,
    /// Its extents, outermost first.
    pub shape: &'a [u64],
}

/// Where weights come from: a checkpoint's files, or what makes numbers for a name and a shape.
pub trait WeightSource: Send + Sync {
    /// The tensor that the graph declares so.
    ///
    /// # Errors
    /// When there is none of that name, dtype and shape.
    fn tensor(&self, spec: TensorSpec<'_>) -> Result<TensorSource<'_>, WeightError>;

    /// What came to light while tensors were read.
    fn findings(&self) -> WeightFindings {
        WeightFindings::default()
    }
}

/// What a source of weights found while they were read, for whoever runs the model.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct WeightFindings {
    /// What is no reason to stop, each with the name of its tensor.
    pub warnings: Vec<String>,
    /// Of each layer that was rounded to fewer bits, by its path: the norm of what was lost over that of
    /// its weights.
    pub errors: BTreeMap<String, f64>,
    /// Where layers are rounded: the paths of the matrices that are not.
    pub kept: Vec<String>,
}

impl WeightFindings {
    /// The mean of [`Self::errors`] and the largest with its layer; `None` where nothing was rounded.
    pub fn mean_and_largest(&self) -> Option<(f64, f64, &str)> {
        let largest = self.errors.iter().max_by(|a, b| a.1.total_cmp(b.1))?;
        let mean = self.errors.values().sum::<f64>() / self.errors.len() as f64;
        Some((mean, *largest.1, largest.0))
    }
}

/// Random weights of any name and shape: for benchmarks.
#[derive(Clone, Copy, Debug)]
pub struct NormalWeights {
    /// The standard deviation of the numbers.
    pub std: f32,
    /// Decides the numbers, together with each tensor's name.
    pub seed: u64,
}

impl WeightSource for NormalWeights {
    fn tensor(&self, _: TensorSpec<'_>) -> Result<TensorSource<'_>, WeightError> {
        Ok(TensorSource::Normal { std: self.std, seed: self.seed })
    }
}
