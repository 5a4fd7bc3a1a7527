//! Histograms that are counted without a lock.

use super::exposition::{Labels, distribution, histogram};
use prometheus::proto::MetricFamily;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Counted without a lock, so that whoever reads makes no step wait.
#[derive(Debug, Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    pub(super) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// How values are spread over bounds.
#[derive(Debug)]
pub(super) struct Spread {
    bounds: &'static [f64],
    /// One for each bound, and one for what is above all of them.
    counts: Vec<Count>,
    /// In units of `unit`.
    sum: Count,
    unit: f64,
}

impl Spread {
    /// Of times, whose bounds are seconds.
    pub(super) fn of_times(bounds: &'static [f64]) -> Self {
        Self::new(bounds, 1e-9)
    }

    /// Of whole numbers.
    pub(super) fn of_numbers(bounds: &'static [f64]) -> Self {
        Self::new(bounds, 1.0)
    }

    fn new(bounds: &'static [f64], unit: f64) -> Self {
        let counts = (0..=bounds.len()).map(|_| Count::default()).collect();
        Self { bounds, counts, sum: Count::default(), unit }
    }

    fn note(&self, value: f64, units: u64) {
        self.counts[self.bounds.partition_point(|&bound| bound < value)].add(1);
        self.sum.add(units);
    }

    pub(super) fn time(&self, time: Duration) {
        self.note(time.as_secs_f64(), u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    pub(super) fn number(&self, number: u64) {
        self.note(number as f64, number);
    }

    pub(super) fn family(&self, name: &str, help: &str, labels: Labels) -> MetricFamily {
        let counts: Vec<u64> = self.counts.iter().map(Count::get).collect();
        let sum = self.sum.get() as f64 * self.unit;
        let bounds = self.bounds.iter().copied();
        histogram(name, help, vec![distribution(labels, bounds, &counts, sum)])
    }
}
