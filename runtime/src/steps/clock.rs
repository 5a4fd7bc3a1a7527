//! How long steps take.

use super::staging::BLOCKS;
use crate::observe::Statistics;
use crate::words::{StepMode, StepTimes};
use piecewise_backend::device::{Device, DeviceError, Event};
use std::time::Instant;

/// The marks around the steps on their way and the times of those that were read, by turn.
pub(super) struct StepClock {
    /// Whether the device's clock is asked.
    pub(super) marks_steps: bool,
    turns: [Turn; BLOCKS],
    last_done: Option<Instant>,
}

struct Turn {
    step: Option<(Instant, StepMode)>,
    start: Option<Event>,
    end: Option<Event>,
    is_marked: bool,
    times: Option<StepTimes>,
}

impl StepClock {
    pub(super) fn new() -> Self {
        let turn = || Turn { step: None, start: None, end: None, is_marked: false, times: None };
        Self { marks_steps: false, turns: std::array::from_fn(|_| turn()), last_done: None }
    }

    /// Marks the start of a step on the device, before anything of it is enqueued.
    pub(super) fn start(
        &mut self,
        device: &mut dyn Device,
        turn: usize,
    ) -> Result<(), DeviceError> {
        let turn = &mut self.turns[turn];
        (turn.step, turn.times, turn.is_marked) = (None, None, false);
        if self.marks_steps {
            turn.start = Some(device.mark(turn.start.take())?);
        }
        Ok(())
    }

    /// Marks its end, once everything of it is enqueued.
    pub(super) fn end(&mut self, device: &mut dyn Device, turn: usize) -> Result<(), DeviceError> {
        let turn = &mut self.turns[turn];
        if self.marks_steps && turn.start.is_some() {
            turn.end = Some(device.mark(turn.end.take())?);
            turn.is_marked = true;
        }
        Ok(())
    }

    /// Says how the step ran whose submit began at `submitted`.
    pub(super) fn submitted(&mut self, turn: usize, submitted: Instant, mode: StepMode) {
        self.turns[turn].step = Some((submitted, mode));
    }

    /// Notes and counts the times of a step whose outputs have arrived, the first time that they
    /// are asked for.
    pub(super) fn read(
        &mut self,
        device: &mut dyn Device,
        turn: usize,
        stats: &mut Statistics,
    ) -> Result<(), DeviceError> {
        let turn = &mut self.turns[turn];
        let Some((submitted, mode)) = turn.step else { return Ok(()) };
        let ended = Instant::now();
        let gpu = match (&turn.start, &turn.end) {
            (Some(start), Some(end)) if turn.is_marked => Some(device.elapsed(start, end)?),
            _ => None,
        };
        turn.step = None;
        let since = self.last_done.map_or(submitted, |done| done.max(submitted));
        self.last_done = Some(ended);
        let wall = ended.saturating_duration_since(since);
        stats.wall_time[mode as usize].add(wall);
        if let Some(gpu) = gpu {
            stats.gpu_time[mode as usize].add(gpu);
        }
        turn.times = Some(StepTimes { wall, gpu });
        Ok(())
    }

    /// The times of the last step of a turn, once it was read.
    pub(super) fn times(&self, turn: usize) -> Option<StepTimes> {
        self.turns[turn].times
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::FakeDevice;
    use std::sync::atomic::Ordering;

    #[test]
    fn a_time_that_could_not_be_read_is_read_when_it_is_asked_for_again() {
        let mut device = FakeDevice::default();
        let (mut clock, mut stats) = (StepClock::new(), Statistics::default());
        clock.marks_steps = true;
        clock.start(&mut device, 0).unwrap();
        clock.end(&mut device, 0).unwrap();
        clock.submitted(0, Instant::now(), StepMode::Full);
        device.faults.failing_elapsed.store(1, Ordering::Relaxed);
        clock.read(&mut device, 0, &mut stats).unwrap_err();
        clock.read(&mut device, 0, &mut stats).unwrap();
        assert!(clock.times(0).is_some_and(|times| times.gpu.is_some()));
        clock.read(&mut device, 0, &mut stats).unwrap();
        assert_eq!(stats.gpu_time[StepMode::Full as usize].count(), 1);
    }
}
