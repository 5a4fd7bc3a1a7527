//! Checkpoints whose linear layers are kept in 8 or 4 bits.
//!
//! [`Quantization`] is what `quantization_config` of a `config.json` says: which linear layers are
//! kept how. [`Stored`] is one such way, and knows the tensors of a layer and the recipes that make
//! of them what every packing comes to here: codes `[out, in]` of a narrow dtype, scales in f32, and
//! zero points for some. So a graph does not know where its weights came from.

mod compressed_tensors;
mod read;
mod stored;

use super::error::ConfigError;
use super::fields::Fields;
use crate::models::checkpoint::{Checkpoint, CheckpointError};
use piecewise_ir::dtype::DType;
pub(in crate::models) use stored::Stored;
use stored::ZeroPoints;

/// What a configuration says of how its linear layers are kept.
#[derive(Clone, Debug, PartialEq)]
pub struct Quantization {
    /// Modules that are kept as they are, whatever `groups` says.
    skipped: Vec<Modules>,
    /// The ways, each with the modules that it is of; the first that names a module counts.
    groups: Vec<(Modules, Stored)>,
}

impl Quantization {
    /// Reads the field `quantization_config`, where there is one.
    ///
    /// # Errors
    /// A [`ConfigError`] that names the field which asks for what is not done here.
    pub(in crate::models) fn read(root: &Fields<'_>) -> Result<Option<Self>, ConfigError> {
        root.child(read::KEY)?.as_ref().map(read::quantization).transpose()
    }

    /// How the linear layer of a path such as `model.layers.0.mlp.up_proj` is kept; `None` of one that
    /// is not quantized.
    pub(in crate::models) fn stored(&self, module: &str) -> Option<Stored> {
        if self.skipped.iter().any(|skipped| skipped.name(module)) {
            return None;
        }
        self.groups.iter().find(|(modules, _)| modules.name(module)).map(|(_, stored)| *stored)
    }

    /// Checks that columns stand in the order of their groups where a file has an order of its own.
    ///
    /// # Errors
    /// A [`CheckpointError`] that names the tensor with another order.
    pub(in crate::models) fn check_orders(
        &self,
        checkpoint: &Checkpoint,
    ) -> Result<(), CheckpointError> {
        for name in checkpoint.names() {
            let Some((module, "g_idx" | "weight_g_idx")) = name.rsplit_once('.') else { continue };
            let (Some(stored), Some(view)) = (self.stored(module), checkpoint.tensor(name)) else {
                continue;
            };
            let group = stored.group(view.shape.iter().product::<usize>() as u64);
            let indices =
                view.bytes.chunks_exact(4).map(|i| i32::from_le_bytes([i[0], i[1], i[2], i[3]]));
            let in_order =
                |(column, index): (u64, i32)| i64::from(index) == (column / group) as i64;
            if view.dtype != DType::I32 || !(0..).zip(indices).all(in_order) {
                let reason = "puts columns into groups in an order of its own (`desc_act`, `actorder`), \
                              which is not supported: take a checkpoint without it";
                let file = checkpoint.file_of(name).unwrap_or(checkpoint.folder()).to_path_buf();
                let (tensor, reason) = (name.to_owned(), reason.to_owned());
                return Err(CheckpointError::Tensor { file, tensor, reason });
            }
        }
        Ok(())
    }

    /// Whether a tensor belongs to a quantized layer and is of no use here: activations are not
    /// quantized, and shapes are known.
    pub(in crate::models) fn is_inert(&self, tensor: &str) -> bool {
        tensor.rsplit_once('.').is_some_and(|(module, leaf)| {
            self.stored(module).is_some_and(|stored| stored.inert().contains(&leaf))
        })
    }
}

/// Modules by name.
#[derive(Clone, Debug)]
enum Modules {
    /// Every linear layer of the layers; the head is none.
    Linear,
    /// Every linear layer, and the head.
    LinearAndHead,
    /// Those of this path, or below it: `lm_head`, `model.layers.0`, `mlp.gate`.
    Path(String),
    /// Those that an expression fits from the start of their path.
    Expression(regex::Regex),
}

impl PartialEq for Modules {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Linear, Self::Linear) | (Self::LinearAndHead, Self::LinearAndHead) => true,
            (Self::Path(a), Self::Path(b)) => a == b,
            (Self::Expression(a), Self::Expression(b)) => a.as_str() == b.as_str(),
            _ => false,
        }
    }
}

impl Modules {
    fn name(&self, module: &str) -> bool {
        match self {
            Self::Linear => module != "lm_head",
            Self::LinearAndHead => true,
            Self::Path(path) => format!(".{module}.").contains(&format!(".{path}.")),
            // Files name modules with and without the wrapper that a multimodal model puts around.
            Self::Expression(expression) => {
                let bare = module.replacen("model.language_model.", "model.", 1);
                expression.is_match(module) || expression.is_match(&bare)
            }
        }
    }
}

#[cfg(test)]
mod tests;
