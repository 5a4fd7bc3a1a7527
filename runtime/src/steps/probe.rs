//! Probing capture support: what an op declares is an upper bound. It is captured as every graph is,
//! with a step that brings nothing, and what replays do with other batches is held against launches.

use super::compare::Trace;
use super::compiled::CompiledModel;
use super::staging::Filling;
use crate::batch::{Probe, ProbeStep, made_up};
use crate::device::Probed;
use crate::words::{ModelError, StepMode, roles};
use piecewise_backend::device::DeviceError;
use piecewise_ir::dtype::DType;
use piecewise_ir::entity::Value;
use piecewise_ir::graph::ValueDef;
use piecewise_ir::module::Step;
use piecewise_ir::op::Op;
use piecewise_kernels::step::{CaptureSupport, LaunchContext, StepContext};
use rustc_hash::FxHashMap;

/// Rows of each state that probed steps may touch: their pages are the pool's first.
const STATE_ROWS: u64 = 1024;

/// States with a row for each sequence or each row of logits, which may be as long as the vocabulary.
const OF_SEQUENCES: [&str; 4] =
    [roles::SEQUENCE_STATE, roles::SAMPLED, roles::SAMPLE_MASKS, roles::SAMPLE_TOKENS];

enum Finding {
    /// Replays do what launches do.
    Same,
    /// Replays do something else, and what.
    Differs(String),
    /// The made-up steps could not be run, and why.
    Nothing(String),
}

impl CompiledModel {
    /// Probes every member with a custom op that declares support, once for all members of the same
    /// unique piece. What no probe could show is not believed. States are left with other bytes in them.
    pub(crate) fn probe(&mut self, probes: &[Probe]) -> Result<(), ModelError> {
        for i in 0..self.members.list.len() {
            let Some(unique) = self.probed_unique(i) else { continue };
            let first = (0..i).find(|&other| self.probed_unique(other) == Some(unique));
            if let Some(first) = first {
                self.members.list[i].probed = self.members.list[first].probed.clone();
                continue;
            }
            let declared = self.members.list[i].general.capture_support();
            for probe in probes.iter().filter(|probe| probe.support <= declared) {
                let reason = match self.held_against_launches(i, probe)? {
                    Finding::Same => continue,
                    Finding::Nothing(why) if probe.believes => {
                        tracing::warn!(
                            "{} is believed that it can be captured for {declared:?}, which no probe \
                             shows: {why}; `checks.compare` holds each replay against launches",
                            self.ops_of(&self.members.list[i])
                        );
                        continue;
                    }
                    Finding::Differs(reason) | Finding::Nothing(reason) => reason,
                };
                let support = match probe.support {
                    CaptureSupport::Always => CaptureSupport::UniformBatch,
                    CaptureSupport::UniformBatch => CaptureSupport::SingleTokenDecode,
                    CaptureSupport::SingleTokenDecode | CaptureSupport::Never => {
                        CaptureSupport::Never
                    }
                };
                self.members.list[i].probed = Some(Probed { support, reason });
                tracing::warn!(
                    "{}; it says that it can be captured for {declared:?}, which probe_capture = \
                     false believes",
                    self.hindrance(&self.members.list[i])
                );
                break;
            }
        }
        Ok(())
    }

    /// The unique piece of a member that has a custom op and is captured.
    fn probed_unique(&self, member: usize) -> Option<piecewise_ir::entity::UniquePieceId> {
        if self.members.list[member].excluded_by.is_some() {
            return None;
        }
        let usage = &self.module.stitch()?.uses[self.members.list[member].step.id()];
        let graph = self.module.graph();
        let is_custom = |node: &_| matches!(graph.node(*node).op, Op::Custom(_));
        usage.nodes.iter().any(is_custom).then_some(usage.unique)
    }

    fn held_against_launches(
        &mut self,
        member: usize,
        probe: &Probe,
    ) -> Result<Finding, ModelError> {
        if probe.steps.is_empty() {
            let why = "no step of made-up values that would show more fits the bounds of the graph";
            return Ok(Finding::Nothing(why.to_owned()));
        }
        let mut sizes = vec![0; self.symbols.bounds().len()];
        self.symbols.fill(&mut sizes, |class| probe.sizes.rows_of(class));
        let Self { members, device, staging, symbols, memory, .. } = self;
        let program = members.list[member].program(&probe.sizes);
        let counts = staging.fill_empty(symbols)?;
        device.write(memory.arena.base, &staging.mirror)?;
        let staged = staging.staged(&sizes);
        let context = StepContext { counts: &counts, sizes: &sizes, inputs: &staged };
        match device.launch(program, LaunchContext::Step(&context)) {
            Err(error) if !error.is_lost() && probe.believes => {
                return Ok(Finding::Nothing(format!("a step of no rows is refused: {error}")));
            }
            launched => launched?,
        }
        drop(staged);
        let captured = match device.capture("probe", &[program], &sizes) {
            Ok(captured) => captured,
            Err(error) if error.is_lost() => return Err(error.into()),
            Err(error) => return Ok(Finding::Differs(error.to_string())),
        };
        let mut patterns = FxHashMap::default();
        for step in &probe.steps {
            let mut traces = [Trace::default(), Trace::default()];
            for (trace, replays) in traces.iter_mut().zip([true, false]) {
                self.stage(member, step, probe, &sizes, &mut patterns)?;
                let ran = match replays {
                    true => self.device.replay(&captured),
                    false => self.launch_member(member, step, probe, &sizes),
                };
                match ran {
                    Ok(()) => {}
                    Err(error) if error.is_lost() => return Err(error.into()),
                    Err(error) if replays && !probe.believes => {
                        return Ok(Finding::Differs(error.to_string()));
                    }
                    Err(error) => {
                        let why = format!("a step of made-up values is refused: {error}");
                        return Ok(Finding::Nothing(why));
                    }
                }
                self.note(member, step, probe, trace)?;
            }
            let [replayed, launched] = &traces;
            let same = replayed.hold_against(launched, self.module.graph(), StepMode::Full);
            if let Err(ModelError::ReplayDiffers { value, .. }) = same {
                let reason = format!("a replay with another batch writes {value} otherwise");
                return Ok(Finding::Differs(reason));
            }
        }
        Ok(Finding::Same)
    }

    /// Stages a step, gives a member's operands values of no meaning, and computes what depends on
    /// the inputs alone.
    fn stage(
        &mut self,
        member: usize,
        step: &ProbeStep,
        probe: &Probe,
        sizes: &[u64],
        patterns: &mut FxHashMap<DType, Vec<u8>>,
    ) -> Result<(), ModelError> {
        let Self { staging, device, memory, .. } = self;
        step.with(|step| staging.fill(step, step.counts, sizes, Filling::Whole))?;
        device.write(memory.arena.base, &staging.mirror)?;
        for value in self.touched(member) {
            let graph = self.module.graph();
            let Some(address) = self.memory.address(graph, value) else { continue };
            let ty = graph.ty(value);
            let bytes = match graph.def(value) {
                ValueDef::State(_) => self.state_prefix(value, probe),
                _ => ty.bytes(sizes),
            };
            let pattern = patterns.entry(ty.dtype).or_insert_with(|| made_up(ty.dtype));
            let mut filled = pattern.repeat((bytes as usize).div_ceil(pattern.len()));
            filled.truncate(bytes as usize);
            self.device.write(address, &filled)?;
        }
        for i in 0..self.members.list.len() {
            if i != member && matches!(self.members.list[i].step, Step::Prologue(_)) {
                self.launch_member(i, step, probe, sizes)?;
            }
        }
        Ok(())
    }

    fn launch_member(
        &mut self,
        member: usize,
        step: &ProbeStep,
        probe: &Probe,
        sizes: &[u64],
    ) -> Result<(), DeviceError> {
        let Self { staging, device, members, .. } = self;
        let staged = staging.staged(sizes);
        let program = members.list[member].program(&probe.sizes);
        step.with(|step| {
            let context = StepContext { counts: step.counts, sizes, inputs: &staged };
            device.launch(program, LaunchContext::Step(&context))
        })
    }

    /// Notes what a member left: its results, and of its states what a step may touch.
    fn note(
        &mut self,
        member: usize,
        step: &ProbeStep,
        probe: &Probe,
        trace: &mut Trace,
    ) -> Result<(), DeviceError> {
        let touched = self.touched(member).into_iter();
        let prefixes = touched.map(|value| (value, self.state_prefix(value, probe)));
        let prefixes: Vec<_> = prefixes.filter(|(_, bytes)| *bytes > 0).collect();
        let Self { device, module, memory, members, .. } = self;
        let member = &members.list[member];
        step.with(|step| trace.add_results(&mut **device, module, memory, member, step.counts))?;
        for (value, bytes) in prefixes {
            trace.add_prefix(&mut **device, module, memory, value, bytes)?;
        }
        Ok(())
    }

    /// The operands of a member that are neither staged nor loaded.
    fn touched(&self, member: usize) -> Vec<Value> {
        let graph = self.module.graph();
        let Some(stitch) = self.module.stitch() else { return Vec::new() };
        let operands = stitch.uses[self.members.list[member].step.id()].operands.iter();
        let is_touched = |value: &&Value| {
            matches!(graph.def(**value), ValueDef::Result { .. } | ValueDef::State(_))
        };
        operands.filter(is_touched).copied().collect()
    }

    /// Bytes of a state that probed steps may touch; 0 of what is none.
    fn state_prefix(&self, value: Value, probe: &Probe) -> u64 {
        let graph = self.module.graph();
        let ValueDef::State(state) = graph.def(value) else { return 0 };
        let rows = match graph.states()[state].role.as_deref() {
            Some(role) if OF_SEQUENCES.contains(&role) => probe.sizes.tokens.rows(),
            _ => STATE_ROWS,
        };
        let bounds = &self.memory.layout().bounds;
        let ty = graph.ty(value);
        ty.bytes(bounds).min(rows.saturating_mul(ty.row().bytes(bounds)))
    }
}
