//! Linear layers of a checkpoint in floats that are rounded when they are loaded: kept as a file of
//! compressed-tensors would keep them.

use super::kept::Quantization;
use super::modules::Modules;
use super::stored::{Stored, ZeroPoints};
use piecewise_ir::dtype::DType;
use piecewise_runtime::words::Quantize;

/// Columns that share a scale in 4 bits.
const GROUP: u64 = 128;
/// Layers of fewer rows or columns stay in floats: they are small, and a scale would be for too few.
const LEAST: u64 = 16;

/// Columns of a row of `inner` that share a scale.
pub(in crate::models) fn group_when_loaded(format: Quantize, inner: u64) -> u64 {
    match format {
        Quantize::Int4 if inner.is_multiple_of(GROUP) => GROUP,
        Quantize::None | Quantize::Fp8 | Quantize::Int4 => inner,
    }
}

impl Quantization {
    /// Of linear layers `[out, in]` by the ends of their paths.
    pub(in crate::models) fn when_loaded(
        format: Quantize,
        linears: impl IntoIterator<Item = (&'static str, [u64; 2])>,
    ) -> Self {
        let wide = linears.into_iter().filter(|(_, shape)| shape.iter().all(|n| *n >= LEAST));
        let groups = wide.filter_map(|(path, [_, inner])| {
            let stored = match format {
                Quantize::None => return None,
                Quantize::Fp8 => Stored::Float8Rows,
                Quantize::Int4 => Stored::Packed {
                    group: Some(group_when_loaded(format, inner)),
                    zeros: ZeroPoints::Symmetric,
                },
            };
            Some((Modules::Path(path.to_owned()), stored))
        });
        Self { skipped: Vec::new(), groups: groups.collect(), is_stored: false }
    }

    /// What a tensor of a layer that is rounded when it is loaded becomes; `None` of one that is read as
    /// it is stored.
    pub(in crate::models) fn dtype_when_loaded(&self, tensor: &str) -> Option<DType> {
        let (module, leaf) = tensor.rsplit_once('.').filter(|_| !self.is_stored)?;
        match (self.stored(module)?, leaf) {
            (Stored::Float8Rows, "weight") => Some(DType::E4M3),
            (_, "weight_packed") => Some(DType::I32),
            (_, "weight_scale") => Some(DType::F32),
            _ => None,
        }
    }
}
