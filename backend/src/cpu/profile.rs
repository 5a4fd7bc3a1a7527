//! Times of launches, taken on the stepping thread while a profile is on.

use super::program::BoundCall;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a launch took while a profile was on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LaunchTime {
    /// The label of the program that it is part of.
    pub label: String,
    /// Its name: its op and the first value that it defines.
    pub name: String,
    /// How often it ran while the profile was on.
    pub runs: u64,
    /// All of its runs together.
    pub time: Duration,
}

/// Times by bound call, in the order of their first runs.
#[derive(Debug, Default)]
pub(super) struct Profile {
    times: Vec<(Arc<BoundCall>, u64, Duration)>,
    next: usize,
}

impl Profile {
    /// Adds a run that began at `started`. Calls come in the same order in every step, so the
    /// one after the last is looked at first.
    pub(super) fn add(&mut self, call: &Arc<BoundCall>, started: Instant) {
        let time = started.elapsed();
        let is_it = |entry: &(Arc<BoundCall>, u64, Duration)| Arc::ptr_eq(&entry.0, call);
        let at = match self.times.get(self.next).is_some_and(is_it) {
            true => Some(self.next),
            false => self.times.iter().position(is_it),
        };
        let at = at.unwrap_or_else(|| {
            self.times.push((Arc::clone(call), 0, Duration::ZERO));
            self.times.len() - 1
        });
        self.times[at].1 += 1;
        self.times[at].2 += time;
        self.next = at + 1;
    }

    pub(super) fn into_times(self) -> Vec<LaunchTime> {
        let times = self.times.into_iter().map(|(call, runs, time)| LaunchTime {
            label: call.label.as_ref().to_owned(),
            name: call.name.clone(),
            runs,
            time,
        });
        times.collect()
    }
}
