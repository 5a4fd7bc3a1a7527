//! What a step did when, on the host and by the device's clock: marks between its parts, which are
//! read when its outputs are.

use super::staging::BLOCKS;
use crate::words::{Dispatch, SpanKind, StepSpan, StepTrace};
use piecewise_backend::device::{Device, DeviceError, Event};
use std::time::{Duration, Instant};

/// The marks of the steps on their way.
pub(super) struct Tracer {
    origin: Instant,
    /// The mark that times of the device are counted from, and its own time.
    since: (Event, Duration),
    turns: [Turn; BLOCKS],
    spare: Vec<Event>,
    pub(super) done: Vec<StepTrace>,
}

struct Turn {
    start: Option<Event>,
    marks: Vec<(SpanKind, Event)>,
    submitted: Option<(Dispatch, (Duration, Duration))>,
}

impl Tracer {
    /// Starts a trace: the device's clock and the host's are at zero together.
    pub(super) fn start(device: &mut dyn Device) -> Result<Self, DeviceError> {
        let mark = device.mark(None)?;
        device.elapsed(&mark, &mark)?;
        let turn = || Turn { start: None, marks: Vec::new(), submitted: None };
        Ok(Self {
            origin: Instant::now(),
            since: (mark, Duration::ZERO),
            turns: std::array::from_fn(|_| turn()),
            spare: Vec::new(),
            done: Vec::new(),
        })
    }

    /// Marks the start of a step.
    pub(super) fn begin(
        &mut self,
        device: &mut dyn Device,
        turn: usize,
    ) -> Result<(), DeviceError> {
        let Self { turns, spare, .. } = self;
        let turn = &mut turns[turn];
        spare.extend(turn.start.take());
        spare.extend(turn.marks.drain(..).map(|(_, mark)| mark));
        turn.submitted = None;
        turn.start = Some(device.mark(spare.pop())?);
        Ok(())
    }

    /// Marks the end of a part of the step that is submitted at `turn`.
    pub(super) fn mark(
        &mut self,
        device: &mut dyn Device,
        turn: usize,
        kind: SpanKind,
    ) -> Result<(), DeviceError> {
        let mark = device.mark(self.spare.pop())?;
        self.turns[turn].marks.push((kind, mark));
        Ok(())
    }

    pub(super) fn submitted(&mut self, turn: usize, started: Instant, report: Dispatch) {
        let started = started.saturating_duration_since(self.origin);
        self.turns[turn].submitted = Some((report, (started, self.origin.elapsed())));
    }

    /// Reads the marks of a step whose outputs have arrived, which were waited for from `waiting` on.
    pub(super) fn read(
        &mut self,
        device: &mut dyn Device,
        turn: usize,
        waiting: Instant,
    ) -> Result<(), DeviceError> {
        let Self { origin, since, turns, spare, done, .. } = self;
        let turn = &mut turns[turn];
        let (Some((report, submit)), Some(start)) = (turn.submitted, &turn.start) else {
            return Ok(());
        };
        let began = since.1 + device.elapsed(&since.0, start)?;
        let mut spans = Vec::with_capacity(turn.marks.len());
        let mut before = began;
        for (kind, mark) in &turn.marks {
            let end = (began + device.elapsed(start, mark)?).max(before);
            spans.push(StepSpan { kind: *kind, start: before, end });
            before = end;
        }
        turn.submitted = None;
        spare.extend(turn.marks.drain(..).map(|(_, mark)| mark));
        if let Some(start) = turn.start.take() {
            spare.push(std::mem::replace(since, (start, began)).0);
        }
        let read = (waiting.saturating_duration_since(*origin), origin.elapsed());
        done.push(StepTrace { report, submit, read, spans });
        Ok(())
    }
}
