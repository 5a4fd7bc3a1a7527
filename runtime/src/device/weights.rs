//! Making the weights of a model on its device.

use super::memory::Memory;
use crate::words::{ModelError, Progress};
use piecewise_backend::device::Device;
use piecewise_backend::weights::{WeightLayout, WeightSource};
use piecewise_ir::entity::Entity;
use piecewise_ir::module::Module;

/// Makes the weights; `layouts` are those of each unique piece's.
pub(crate) fn load_weights(
    device: &mut dyn Device,
    module: &Module,
    memory: &Memory,
    layouts: &[Vec<WeightLayout>],
    source: &dyn WeightSource,
    progress: &mut (dyn FnMut(Progress) + Send),
) -> Result<(), ModelError> {
    let graph = module.graph();
    let mut of_values = vec![WeightLayout::default(); graph.value_count()];
    if let Some(stitch) = module.stitch() {
        for usage in stitch.uses.values() {
            let inputs = stitch.unique[usage.unique].graph.inputs().len();
            for (i, layout) in layouts[usage.unique.index()].iter().enumerate() {
                of_values[usage.operands[inputs + i].index()] = *layout;
            }
        }
    }
    let bytes = |value| graph.ty(value).bytes(&[]);
    let read = graph.weights().iter();
    let read = read.filter_map(|weight| Some((weight, memory.address(graph, weight.value)?)));
    let read = Vec::from_iter(read);
    let (mut done, total) = (0, read.iter().map(|(weight, _)| bytes(weight.value)).sum());
    for (weight, to) in read {
        device.materialize(&weight.recipe, of_values[weight.value.index()], source, to)?;
        done += bytes(weight.value);
        progress(Progress::Loading { done, total });
    }
    Ok(())
}
