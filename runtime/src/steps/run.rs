//! Running the members of a step: replayed, or launched one by one.

use super::audit::audit_addresses;
use super::compare::Trace;
use super::compiled::CompiledModel;
use super::graphs::GraphSet;
use super::staging::BLOCKS;
use crate::words::{Dispatch, GraphKey, ModelError, SpanKind, StepMode, StepSizes, SymbolClass};
use piecewise_backend::device::{Device, DeviceError};
use piecewise_kernels::step::{LaunchContext, StepContext};

/// One way through the members of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub mode: StepMode,
    pub sizes: StepSizes,
    /// Whether only members over rows run, for rows beyond those of the first call. What they
    /// read lives to the end of the step, by the lifetime rule of the plan.
    pub head_again: bool,
}

/// What became of a graph that a step was to replay.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Replayed {
    Submitted,
    /// Nothing of it ran.
    Refused,
    NotThere,
}

impl CompiledModel {
    /// Runs the members of a step; whether a graph was refused.
    pub(super) fn run(
        &mut self,
        dispatch: &Dispatch,
        counts: &[u64],
        sizes: &[u64],
        head_again: bool,
    ) -> Result<bool, ModelError> {
        let fallback = dispatch.fallback.filter(|reason| !reason.is_chosen());
        if let (Some(reason), true) = (fallback, self.strict) {
            let tokens = dispatch.sizes.tokens.rows();
            return Err(ModelError::Strict { tokens, reason: reason.name() });
        }
        let run = Run { mode: dispatch.mode, sizes: dispatch.sizes, head_again };
        if self.checks.compare && run.mode != StepMode::None {
            return self.run_compared(run, counts, sizes);
        }
        self.run_as(run, counts, sizes, None)
    }

    /// Replays a step, launches it again from a copy of its states, and compares. A full replay
    /// is one unit, so only what it leaves is compared. Whether a graph was refused.
    fn run_compared(
        &mut self,
        run: Run,
        counts: &[u64],
        sizes: &[u64],
    ) -> Result<bool, ModelError> {
        let states = self.memory.states;
        let mut before = vec![0; states.bytes as usize];
        self.device.read(states.base, &mut before)?;
        let mut was_refused = false;
        let by_member = run.mode == StepMode::Piecewise;
        let mut traces = [Trace::default(), Trace::default()];
        for (trace, mode) in traces.iter_mut().zip([run.mode, StepMode::None]) {
            if mode == StepMode::None {
                self.device.write(states.base, &before)?;
            }
            let members = by_member.then_some(&mut *trace);
            was_refused |= self.run_as(Run { mode, ..run }, counts, sizes, members)?;
            trace.add_end(&mut *self.device, &self.module, &self.memory, counts)?;
        }
        traces[0].hold_against(&traces[1], self.module.graph(), run.mode)?;
        Ok(was_refused)
    }

    /// Replays or launches the members of a step; `trace` gets what each graph, or else each member, writes
    /// for those after it. From a graph that is refused on, and nothing of that ran, all is launched;
    /// whether there was one.
    pub(super) fn run_as(
        &mut self,
        run: Run,
        counts: &[u64],
        sizes: &[u64],
        mut trace: Option<&mut Trace>,
    ) -> Result<bool, ModelError> {
        let Self { staging, graphs, members, device, stats, module, memory, checks, .. } = self;
        let ranges = self.ranges.as_ref();
        let _step = ranges.map(|ranges| ranges.step(run.mode));
        let tracer = &mut self.tracer;
        let turn = (self.next_step as usize) % BLOCKS;
        let strict = self.strict;
        let replay = |device: &mut dyn Device, graphs: &mut GraphSet, key, members: &[_]| {
            let Some(slot) = graphs.slot_mut(key) else { return Ok(Replayed::NotThere) };
            if let (true, Some(graph)) = (checks.addresses, slot.ready()) {
                audit_addresses((module, memory), graph, members)?;
            }
            match slot.replay(|graph| device.replay_at(graph, sizes)) {
                Ok(true) => Ok(Replayed::Submitted),
                Ok(false) => Ok(Replayed::NotThere),
                Err(error @ DeviceError::Refused { .. }) if !strict => {
                    tracing::warn!("{error}; it is launched instead, and captured again");
                    Ok(Replayed::Refused)
                }
                Err(error) => Err(ModelError::from(error)),
            }
        };
        let mut was_refused = false;
        if run.mode == StepMode::Full {
            match replay(&mut **device, graphs, GraphKey::Full(run.sizes), &members.list)? {
                Replayed::Submitted => {
                    stats.count_whole(run.sizes.whole());
                    if let Some(tracer) = tracer {
                        tracer.mark(&mut **device, turn, SpanKind::Whole)?;
                    }
                    return Ok(false);
                }
                Replayed::Refused => was_refused = true,
                Replayed::NotThere => {}
            }
        }
        let staged = staging.staged(sizes);
        let context = StepContext { counts, sizes, inputs: &staged };
        let mut next = 0;
        while next < members.list.len() {
            let unit = graphs.unit_at(next);
            next = unit.end;
            let of_unit = &members.list[unit.clone()];
            if run.head_again && of_unit[0].class() != Some(SymbolClass::Rows) {
                continue;
            }
            let key = graphs.key_at(unit.start, &run.sizes);
            let replayed = match key.filter(|_| run.mode == StepMode::Piecewise && !was_refused) {
                Some(key) => {
                    let _part = ranges.and_then(|ranges| ranges.members(&unit));
                    replay(&mut **device, graphs, key, of_unit)?
                }
                None => Replayed::NotThere,
            };
            was_refused |= replayed == Replayed::Refused;
            if replayed == Replayed::Submitted {
                let pieces = of_unit.iter().filter(|member| member.is_captured_piece());
                stats.count_pieces(pieces.filter_map(|piece| piece.size(&run.sizes)));
                if let Some(tracer) = &mut *tracer {
                    tracer.mark(&mut **device, turn, SpanKind::of_replayed(&unit))?;
                }
            } else {
                for (member, of_member) in unit.clone().zip(of_unit) {
                    let _part = ranges.and_then(|ranges| ranges.member(member));
                    let program = of_member.program(&run.sizes);
                    device.launch(program, LaunchContext::Step(&context))?;
                    if let Some(tracer) = &mut *tracer {
                        tracer.mark(
                            &mut **device,
                            turn,
                            SpanKind::Member { member, replayed: false },
                        )?;
                    }
                }
            }
            if let Some(trace) = &mut trace {
                trace.add_unit(&mut **device, module, memory, (unit, of_unit), counts)?;
            }
        }
        Ok(was_refused)
    }
}
