//! Which linear layers are kept how.

use super::modules::Modules;
use super::stored::Stored;
use crate::models::checkpoint::{Checkpoint, CheckpointError};
use piecewise_ir::dtype::DType;

/// What a configuration says of how its linear layers are kept.
#[derive(Clone, Debug, PartialEq)]
pub struct Quantization {
    /// Modules that are kept as they are, whatever `groups` says.
    pub(super) skipped: Vec<Modules>,
    /// The ways, each with the modules that it is of; the first that names a module counts.
    pub(super) groups: Vec<(Modules, Stored)>,
    /// Whether the checkpoint keeps them so; else it has floats, which are rounded when they are loaded.
    pub(in crate::models) is_stored: bool,
}

impl Quantization {
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
