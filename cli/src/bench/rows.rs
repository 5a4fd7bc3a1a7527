//! A row: what was measured of a workload in a mode, and whether it is to be believed.

use super::launches::KernelCount;
use super::workload::{Shape, Workload};
use piecewise_backend::device::measure::ReadBandwidth;
use piecewise_planner::CostPath;
use piecewise_runtime::measure::{BytesToRead, StepRecord};
use piecewise_runtime::words::{FallbackReason, GraphMode, StepMode};
use serde::Serialize;
use std::time::Duration;

/// Median and spread, by nearest rank.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) p10: f64,
    pub(super) p90: f64,
}

impl Spread {
    /// Of times, in units of `unit` nanoseconds.
    fn of(times: impl Iterator<Item = Duration>, unit: f64) -> Self {
        let mut sorted: Vec<Duration> = times.collect();
        sorted.sort_unstable();
        let at = |percent: usize| {
            let rank = (sorted.len() * percent).div_ceil(100);
            let time = sorted.get(rank.saturating_sub(1));
            time.map_or(0.0, |time| time.as_nanos() as f64 / unit)
        };
        Self { median: at(50), p10: at(10), p90: at(90) }
    }
}

/// What a row is about.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct RowHead {
    pub(super) engine: &'static str,
    pub(super) model: String,
    pub(super) dtype: String,
    pub(super) device: String,
    /// `decode`, `mixed` or `prefill`.
    pub(super) kind: &'static str,
    pub(super) mode: String,
    pub(super) batch: u64,
    /// The mean context that was asked for; 0 where prompts begin.
    pub(super) context: u64,
    pub(super) tokens: u64,
}

/// What was measured of a row, over its timed steps.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Figures {
    /// Tokens that a step ran at, padding included.
    pub(super) size: u64,
    /// How the steps ran, which is another way than the row's mode where that was chosen.
    pub(super) path: CostPath,
    /// Why they ran another way: a fallback by its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) chosen: Option<&'static str>,
    /// How many steps were timed.
    pub(super) steps: usize,
    pub(super) gpu_ms: Spread,
    pub(super) wall_ms: Spread,
    pub(super) submit_us: Spread,
    /// The driver's calls alone that its launches take; `None` where there is no driver.
    pub(super) driver_us: Option<f64>,
    /// What a submit has above that: the batch, staging, events and dispatch, by the median of the one and
    /// of the other.
    pub(super) host_us: Option<f64>,
    /// Of the step of the median; every step has as many.
    pub(super) graph_launches: u64,
    pub(super) plain_launches: u64,
    pub(super) nodes: u64,
    pub(super) programmatic_edges: u64,
    /// Bytes that a step must read, on average.
    pub(super) bytes: u64,
    pub(super) gb_per_s: f64,
    /// Of the measured read bandwidth; `None` where what is read fits in the last cache twice.
    pub(super) read_share: Option<f64>,
}

/// A workload and what was measured of it.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Row {
    #[serde(flatten)]
    pub(super) head: RowHead,
    #[serde(flatten)]
    pub(super) figures: Option<Figures>,
    /// Why the row does not count.
    pub(super) failures: Vec<String>,
    /// The kernels of its step, where they were asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) kernels: Vec<KernelCount>,
}

/// What rows are held against.
#[derive(Clone, Copy, Debug)]
pub(super) struct Yardstick {
    pub(super) bandwidth: ReadBandwidth,
    pub(super) cache_bytes: u64,
    pub(super) traffic: BytesToRead,
}

impl Row {
    /// `decode 8 x 512`, or `decode 8x4 x 512` of four tokens each, `mixed 300`, `prefill 2048` or
    /// `prefill 4 x 512`.
    pub(super) fn step(&self) -> String {
        match self.head.kind {
            "decode" if self.head.tokens > self.head.batch => {
                let each = self.head.tokens / self.head.batch.max(1);
                format!("decode {}x{each} x {}", self.head.batch, self.head.context)
            }
            "decode" => format!("decode {} x {}", self.head.batch, self.head.context),
            "prefill" if self.head.batch > 1 => {
                format!("prefill {} x {}", self.head.batch, self.head.tokens / self.head.batch)
            }
            kind => format!("{kind} {}", self.head.tokens),
        }
    }

    /// The mode, and how its steps ran where another way was chosen.
    pub(super) fn mode(&self) -> String {
        let mode = &self.head.mode;
        match self.figures.as_ref().filter(|figures| figures.chosen.is_some()) {
            Some(figures) => format!("{mode}, {}", figures.path),
            None => mode.clone(),
        }
    }

    /// One line, for whoever waits.
    pub(super) fn summary(&self) -> String {
        let what = format!("{} {}", self.step(), self.mode());
        match (&self.figures, self.failures.first()) {
            (_, Some(failure)) => format!("{what}: FAILED: {failure}"),
            (Some(figures), None) => format!("{what}: {:.3} ms", figures.gpu_ms.median),
            (None, None) => what,
        }
    }
}

impl RowHead {
    /// Of a workload in a mode.
    pub(super) fn new(
        (model, dtype, device): (&str, &str, &str),
        mode: GraphMode,
        workload: &Workload,
    ) -> Self {
        let (kind, context) = match workload.shape {
            Shape::Decode { context, .. } => ("decode", context),
            Shape::Mixed { context, .. } => ("mixed", context),
            Shape::Prefill { prompts, .. } if prompts.decodes == 0 => ("prefill", 0),
            Shape::Prefill { context, .. } => ("mixed", context),
        };
        Self {
            engine: "piecewise",
            model: model.to_owned(),
            dtype: dtype.to_owned(),
            device: device.to_owned(),
            kind,
            mode: mode.name().to_owned(),
            batch: workload.sequences() as u64,
            context,
            tokens: workload.tokens(),
        }
    }
}

impl Figures {
    /// Puts in what the driver's calls alone take.
    pub(super) fn with_driver_us(self, driver_us: Option<f64>) -> Self {
        // Two medians of few runs: a submit can come out shorter than the calls in it.
        let host_us = driver_us.map(|us| (self.submit_us.median - us).max(0.0));
        Self { driver_us, host_us, ..self }
    }

    /// Of the timed records of a workload.
    pub(super) fn of(records: &[StepRecord], workload: &Workload, yardstick: &Yardstick) -> Self {
        let steps = workload.timed();
        let sum: u64 = steps.iter().map(|step| yardstick.traffic.bytes(step)).sum();
        let bytes = sum / (steps.len() as u64).max(1);
        let gpu_ms = Spread::of(records.iter().map(|record| record.device), 1e6);
        let rate = bytes as f64 / (gpu_ms.median / 1e3).max(1e-9);
        let from_memory = bytes >= 2 * yardstick.cache_bytes;
        let typical = records.get(records.len() / 2);
        let launches = typical.map(|record| record.launches).unwrap_or_default();
        Self {
            size: typical.map_or(0, |record| record.sizes.tokens.rows()),
            path: match typical.map_or(StepMode::None, |record| record.mode) {
                StepMode::None => CostPath::Launched,
                StepMode::Piecewise => CostPath::Piecewise,
                StepMode::Full => CostPath::Full,
            },
            chosen: typical
                .and_then(|record| record.fallback)
                .filter(|reason| reason.is_chosen())
                .map(FallbackReason::name),
            steps: records.len(),
            gpu_ms,
            wall_ms: Spread::of(records.iter().map(|record| record.wall), 1e6),
            submit_us: Spread::of(records.iter().map(|record| record.submit), 1e3),
            driver_us: None,
            host_us: None,
            graph_launches: launches.graph_launches,
            plain_launches: launches.plain_launches,
            nodes: launches.graph_nodes,
            programmatic_edges: launches.programmatic_edges,
            bytes,
            gb_per_s: rate / 1e9,
            read_share: from_memory.then_some(rate / yardstick.bandwidth.best),
        }
    }
}

/// Why a row does not count: `records` are its timed steps, `launched` the same steps launched.
/// What a step without some launches samples, and what it would have to read, is not held.
pub(super) fn failures(
    mode: StepMode,
    figures: &Figures,
    records: &[StepRecord],
    launched: &[StepRecord],
    is_whole: bool,
) -> Vec<String> {
    let mut failures = Vec::new();
    let steps = |wrong: &dyn Fn(&StepRecord) -> bool| records.iter().filter(|r| wrong(r)).count();
    let fell_back = records.iter().filter_map(|r| r.fallback).filter(|reason| !reason.is_chosen());
    if let Some(reason) = fell_back.clone().next() {
        failures.push(format!("{} steps fell back: {}", fell_back.count(), reason.name()));
    } else if let other @ 1.. = steps(&|record| record.mode != mode) {
        failures.push(format!("{other} steps did not run in mode {}", mode.name()));
    }
    let one_launch = |record: &StepRecord| {
        record.launches.graph_launches == 1 && record.launches.plain_launches == 0
    };
    if mode == StepMode::Full
        && let Some(record) = records.iter().find(|record| !one_launch(record))
    {
        let counts = record.launches;
        failures.push(format!(
            "full mode took {} graph launches and {} plain ones in a step, not one",
            counts.graph_launches, counts.plain_launches
        ));
    }
    if let Some(share) = figures.read_share.filter(|share| is_whole && *share > 1.0) {
        let percent = 100.0 * share;
        failures.push(format!("{percent:.1}% of the read bandwidth: the timing can't be right"));
    }
    let differs = records.iter().zip(launched).position(|(a, b)| a.ids != b.ids);
    if let Some(step) = differs.filter(|_| is_whole) {
        failures.push(format!("timed step {step} sampled other ids than its launched run"));
    }
    if records.len() != launched.len() || records.is_empty() {
        failures.push(format!("{} timed steps, {} launched", records.len(), launched.len()));
    }
    failures
}

/// The lines that list a row's kernels.
pub(super) fn kernel_lines(row: &Row) -> Vec<String> {
    if row.kernels.is_empty() {
        return Vec::new();
    }
    let mut lines = vec![format!("launches of {} {}", row.step(), row.head.mode)];
    let line = |kernel: &KernelCount| {
        format!("  {:>5} x {:<20} {}", kernel.launches, kernel.kernel, kernel.paths.join(", "))
    };
    lines.extend(row.kernels.iter().map(|kernel| line(kernel).trim_end().to_owned()));
    lines
}

#[cfg(test)]
mod tests;
