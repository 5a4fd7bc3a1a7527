//! The launches of a step by name, and steps without some of them: for seeing where time goes.

use super::compiled::CompiledModel;
use crate::device::Member;
use crate::words::{Dispatch, SCOPES, StepMode, StepSizes, scopes};
use piecewise_backend::device::measure::{GraphTimes, StepPart};
use piecewise_backend::device::{DeviceError, LaunchView};
use piecewise_ir::module::{Module, Step};
use std::time::Duration;

/// A kernel or library call of a step, by what it computes and where the model's code says so.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
pub struct StepLaunch {
    /// What runs: the entry of a kernel, a function of a library, the op of a host function.
    pub kernel: String,
    /// What it computes: its op and the first value that it defines, of each node.
    pub name: String,
    /// Where the model's code made its nodes, each scope once: `model.layers.3.mlp`.
    pub path: String,
}

impl StepLaunch {
    fn of(module: &Module, step: Step, launch: &LaunchView<'_>) -> Self {
        let usage = module.stitch().map(|stitch| &stitch.uses[step.id()]);
        let nodes = launch.nodes.iter().filter_map(|&at| usage?.nodes.get(at as usize).copied());
        let (kernel, name) = (launch.kernel.to_owned(), launch.name.to_owned());
        Self { kernel, name, path: scopes(module.graph(), nodes) }
    }

    /// The path with `*` for numbers, the same in every layer: `model.layers.*.mlp`.
    pub fn starred_path(&self) -> String {
        let is_number = |part: &str| !part.is_empty() && part.bytes().all(|c| c.is_ascii_digit());
        let star = |scope: &str| {
            let parts = scope.split('.').map(|part| if is_number(part) { "*" } else { part });
            parts.collect::<Vec<_>>().join(".")
        };
        self.path.split(SCOPES).map(star).collect::<Vec<_>>().join(SCOPES)
    }
}

impl CompiledModel {
    /// The launches of a step at these sizes, in order.
    pub fn step_launches(&self, sizes: StepSizes) -> Vec<StepLaunch> {
        let of_member = |member: &Member| {
            let launches = member.program(&sizes).launches();
            let found = launches.iter().map(|l| StepLaunch::of(&self.module, member.step, l));
            found.collect::<Vec<_>>()
        };
        self.members.list.iter().flat_map(of_member).collect()
    }

    /// Leaves launches out of every program and drops every graph: steps of this model compute
    /// something else from then on. Says how many launches are left out, over all sizes.
    pub fn leave_out(&mut self, is_left_out: &dyn Fn(&StepLaunch) -> bool) -> usize {
        self.invalidate_graphs();
        let Self { members, module, .. } = self;
        let mut count = 0;
        for member in &mut members.list {
            let step = member.step;
            let general = std::iter::once(&mut member.general);
            for program in member.sized.iter_mut().map(|(_, program)| program).chain(general) {
                let launches = program.launches().into_iter().enumerate();
                let left_out: Vec<usize> = launches
                    .filter(|(_, launch)| is_left_out(&StepLaunch::of(module, step, launch)))
                    .map(|(i, _)| i)
                    .collect();
                count += left_out.len();
                if !left_out.is_empty() {
                    *program = program.without(&left_out);
                }
            }
        }
        count
    }

    /// The host's time for the driver's calls alone that the launches of a step take, which ran as
    /// `step` says: what a submit is held against. The work runs on what is staged.
    ///
    /// # Errors
    /// When a call fails.
    pub fn bare_submit(&mut self, step: Dispatch) -> Result<Option<Duration>, DeviceError> {
        let Self { members, graphs, device, symbols, .. } = self;
        let mut sizes = vec![0; symbols.bounds().len()];
        symbols.fill(&mut sizes, |class| step.sizes.rows_of(class));
        let mut parts = Vec::new();
        if let (StepMode::Full, Some(graph)) = (step.mode, graphs.full(step.sizes)) {
            parts.push(StepPart::Replay(graph));
            return device.bare_submit(&parts, &sizes);
        }
        let mut next = 0;
        while next < members.list.len() {
            let unit = graphs.unit_at(next);
            next = unit.end;
            let graph = graphs.ready_at(unit.start, &step.sizes);
            match graph.filter(|_| step.mode == StepMode::Piecewise) {
                Some(graph) => parts.push(StepPart::Replay(graph)),
                None => {
                    let programs = members.list[unit].iter().map(|m| m.program(&step.sizes));
                    parts.extend(programs.map(StepPart::Launch));
                }
            }
        }
        device.bare_submit(&parts, &sizes)
    }

    /// What the blocks of the graph of a whole step noted at its last replay; `None` where there
    /// is no such graph, or its device notes nothing.
    ///
    /// # Errors
    /// When work before failed.
    pub fn block_times(&mut self, sizes: StepSizes) -> Result<Option<GraphTimes>, DeviceError> {
        let Some(graph) = self.graphs.full(sizes) else { return Ok(None) };
        self.device.block_times(graph)
    }
}
