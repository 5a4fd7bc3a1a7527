//! How long steps of a graph take.

use super::device::submitted;
use super::error::TrialError;
use super::feed::{Feed, Given};
use crate::assembly::Planned;
use piecewise_kernels::op::OpRegistry;
use piecewise_runtime::words::{Dispatch, ModelError};
use serde::Serialize;
use std::time::{Duration, Instant};

/// How often a step runs that is timed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Repeats {
    /// Untimed runs before the others.
    pub warmup: u64,
    /// Timed runs.
    pub steps: u64,
}

/// What the runs of one step took.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct StepTiming {
    /// How the last one ran, and at which size.
    pub ran: String,
    /// Wall time of each run, from the submit to the outputs on the host, in their order.
    pub times: Vec<Duration>,
}

impl StepTiming {
    /// The mean, in microseconds.
    pub fn mean_us(&self) -> f64 {
        let sum: Duration = self.times.iter().sum();
        sum.as_secs_f64() * 1e6 / self.times.len().max(1) as f64
    }

    /// The time within which a share of the runs were done, in microseconds, by nearest rank; 0 of none.
    pub fn percentile_us(&self, percent: u64) -> f64 {
        let mut sorted = self.times.clone();
        sorted.sort_unstable();
        let rank = (sorted.len() as u64 * percent).div_ceil(100).max(1) as usize;
        sorted.get(rank - 1).map_or(0.0, |time| time.as_secs_f64() * 1e6)
    }
}

/// Times the first step of each of `given` on one model of what is planned, whose graph `ops` were planned
/// with; states keep what earlier runs left there.
///
/// # Errors
/// When it can't be compiled, what is given does not fit, or a step fails.
pub fn time_planned(
    planned: Planned,
    ops: &OpRegistry,
    given: &[Given],
    repeats: Repeats,
) -> Result<Vec<StepTiming>, TrialError> {
    let graph = planned.module().graph().clone();
    let feeds = given.iter().map(|given| Feed::of(&graph, ops, given));
    let feeds = feeds.collect::<Result<Vec<_>, _>>()?;
    let mut model = planned.model()?;
    let mut timings = Vec::with_capacity(feeds.len());
    for feed in &feeds {
        let Some(step) = feed.steps.first() else { continue };
        let (mut times, mut ran) = (Vec::with_capacity(repeats.steps as usize), String::new());
        for run in 0..repeats.warmup + repeats.steps {
            let started = Instant::now();
            let ticket = submitted(&mut model, step)?;
            model.read(&ticket)?;
            if run >= repeats.warmup {
                times.push(started.elapsed());
            }
            ran = model.last_step().map_or(ran, said);
        }
        timings.push(StepTiming { ran, times });
    }
    match timings.is_empty() {
        true => Err(ModelError::Unplanned { part: "step" }.into()),
        false => Ok(timings),
    }
}

/// How a step ran, in words.
fn said(dispatch: Dispatch) -> String {
    let (how, size) = (dispatch.mode.name(), dispatch.sizes.whole());
    match dispatch.fallback {
        None => format!("{how} at {size}"),
        Some(reason) => format!("{how} at {size}: {}", reason.name()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_and_ranks_are_of_all_runs() {
        let times = Vec::from_iter((1..=100).rev().map(Duration::from_micros));
        let timing = StepTiming { ran: String::new(), times };
        assert!((timing.mean_us() - 50.5).abs() < 1e-9);
        let ranks = [1, 50, 99, 100].map(|percent| timing.percentile_us(percent).round());
        assert_eq!(ranks, [1.0, 50.0, 99.0, 100.0]);
        let none = StepTiming { ran: String::new(), times: Vec::new() };
        assert_eq!((none.mean_us(), none.percentile_us(99)), (0.0, 0.0));
    }
}
