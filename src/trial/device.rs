//! A graph on a device, step by step.

use super::error::TrialError;
use super::feed::{Feed, FeedStep};
use crate::assembly::{Assembly, Planned};
use piecewise_ir::eval::Array;
use piecewise_ir::graph::Graph;
use piecewise_runtime::steps::{CompiledModel, Ticket};

/// Every output of each step; `graph` is that of the feed, which inputs are in the order of.
pub(crate) fn run_on_device(
    assembly: Assembly,
    graph: &Graph,
    feed: &Feed,
) -> Result<Vec<Vec<Array>>, TrialError> {
    run_planned(assembly.plan()?, graph, feed)
}

pub(crate) fn run_planned(
    planned: Planned,
    graph: &Graph,
    feed: &Feed,
) -> Result<Vec<Vec<Array>>, TrialError> {
    let mut model = planned.model()?;
    feed.steps.iter().map(|step| run_step(&mut model, graph, step)).collect()
}

/// A step on its way.
pub(super) fn submitted(model: &mut CompiledModel, step: &FeedStep) -> Result<Ticket, TrialError> {
    Ok(step.with(|data| model.submit(data))?)
}

fn run_step(
    model: &mut CompiledModel,
    graph: &Graph,
    step: &FeedStep,
) -> Result<Vec<Array>, TrialError> {
    let ticket = submitted(model, step)?;
    let outputs = model.read(&ticket)?;
    let arrays = graph.outputs().iter().enumerate().map(|(i, &value)| {
        let ty = graph.ty(value);
        let shape = ty.dims(&step.sizes).iter().map(|&n| n as usize).collect();
        Ok(Array::from_bytes(ty.dtype, shape, outputs.bytes(i)?))
    });
    arrays.collect()
}
