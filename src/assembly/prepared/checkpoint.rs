//! The tensors of a checkpoint beside the weights of a graph.

use crate::assembly::error::AssemblyError;
use crate::models::{Checkpoint, DecoderModel, check_weights, unused_tensors};
use piecewise_ir::graph::Graph;

/// Tensors that a message names.
const MOST_NAMED: usize = 10;

/// What a tensor is called without which the codes beside it mean something else.
const PARTS_OF_PACKED: [&str; 11] = [
    "weight_scale",
    "weight_scale_inv",
    "weight_scale_2",
    "weight_global_scale",
    "weight_zero_point",
    "weight_packed",
    "weight_g_idx",
    "qweight",
    "qzeros",
    "scales",
    "g_idx",
];

/// Holds the weights of a graph against a checkpoint: all there, of the right shape, and none left
/// over that would change the result. Others that are left over are an error of a model that reads every
/// tensor, and a warning else. All is seen from the headers, before a tensor is read.
pub(super) fn check_checkpoint(
    graph: &Graph,
    checkpoint: &Checkpoint,
    model: Option<&dyn DecoderModel>,
    warn: &mut dyn FnMut(&str),
) -> Result<(), AssemblyError> {
    check_weights(graph, checkpoint)?;
    let is_inert = |name: &str| {
        name.ends_with("rotary_emb.inv_freq") || model.is_some_and(|model| model.is_inert(name))
    };
    let mut unused = unused_tensors(graph, checkpoint);
    unused.retain(|name| !is_inert(name));
    if let Some(name) = unused.iter().find(|name| name.ends_with(".bias")) {
        return Err(AssemblyError::UnknownBias { tensor: (*name).to_owned() });
    }
    let is_part = |name: &&&str| {
        name.rsplit_once('.').is_some_and(|(_, leaf)| PARTS_OF_PACKED.contains(&leaf))
    };
    if let Some(name) = unused.iter().find(is_part) {
        return Err(AssemblyError::UnreadScale { tensor: (*name).to_owned() });
    }
    let is_error = model.is_some_and(DecoderModel::reads_every_tensor);
    let named = unused.iter().take(MOST_NAMED).map(|name| format!("\"{name}\""));
    let more = unused.len().saturating_sub(MOST_NAMED);
    let more = (more > 0).then(|| format!("{more} more"));
    let names = Vec::from_iter(named.chain(more)).join(", ");
    if is_error && !names.is_empty() {
        return Err(AssemblyError::UnreadTensors { tensors: names });
    }
    if !names.is_empty() {
        warn(&format!("the graph reads nothing of these tensors of the checkpoint: {names}"));
    }
    model.map_or(Ok(()), |model| model.check_tensors(checkpoint))?;
    Ok(())
}
