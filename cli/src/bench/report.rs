//! Everything that a run measured.

use super::launches::TimelineReport;
use super::rows::Row;
use piecewise_backend::device::measure::{ReadBandwidth, Versions};
use piecewise_backend::tuning::TuningReport;
use piecewise_runtime::device::ChosenWays;
use piecewise_runtime::measure::{BytesToRead, CaptureReport, HeldBytes};
use piecewise_runtime::steps::CompiledModel;
use piecewise_runtime::words::{BuildTimes, CompileCounts, CompileLevel, GraphMode, Ledger};
use serde::Serialize;
use std::time::Duration;

/// What `bench` prints as JSON, and its table is made from.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Report {
    pub(super) engine: &'static str,
    pub(super) version: &'static str,
    pub(super) model: String,
    pub(super) dtype: String,
    pub(super) level: CompileLevel,
    pub(super) device: String,
    /// Of the device's driver and libraries.
    pub(super) versions: Versions,
    pub(super) read_bandwidth: ReadBandwidth,
    /// Bytes of a step that are counted.
    pub(super) traffic: BytesToRead,
    pub(super) start: Start,
    /// Launches that were left out: what the rows computed is not held then.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) without: Vec<String>,
    pub(super) modes: Vec<ModeReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) timeline: Option<TimelineReport>,
}

/// What `bench --startup` prints.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct StartReport {
    pub(super) engine: &'static str,
    pub(super) version: &'static str,
    pub(super) model: String,
    pub(super) dtype: String,
    pub(super) device: String,
    /// Of the device's driver and libraries.
    pub(super) versions: Versions,
    pub(super) start: Start,
    pub(super) captured: ModeReport,
    pub(super) start_without_load_s: f64,
}

/// What came before the first step.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Start {
    /// Building the graph and running the passes.
    pub(super) plan_s: f64,
    /// Opening the device and its libraries.
    pub(super) open_s: f64,
    /// Compiling every unique piece at every size.
    pub(super) compile_s: f64,
    /// Mapping memory and making weights.
    pub(super) load_s: f64,
    /// Binding programs to the addresses of arena, weights and states.
    pub(super) bind_s: f64,
    /// Choosing ways by measurement: no part of the start.
    pub(super) measure_s: f64,
    /// Warming up and capturing, where that is part of building.
    pub(super) capture_s: f64,
    /// How many choices were measured and remembered.
    pub(super) tuning: TuningReport,
    /// How each piece runs at each size at which there is a choice.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) choices: Vec<ChosenWays>,
    /// What was compiled, and what the cache had.
    pub(super) entries: CompileCounts,
    pub(super) memory: Ledger,
    /// The device's free memory, by its driver: once it is open, and once the model is built.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) free_bytes: Option<[u64; 2]>,
    /// What the parts of the memory held at the end of a start alone, by the driver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) held_bytes: Option<HeldBytes>,
    pub(super) first_prompt: Option<FirstPrompt>,
}

/// The first step of all, a prompt.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(super) struct FirstPrompt {
    pub(super) tokens: u64,
    /// To the sampled id on the host.
    pub(super) ms: f64,
}

/// The rows of one graph mode, with what its capture took.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct ModeReport {
    pub(super) mode: String,
    pub(super) captured: Option<Captured>,
    pub(super) rows: Vec<Row>,
}

/// The graphs of a mode.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(super) struct Captured {
    pub(super) graphs: usize,
    /// The captures alone, without the warm-up before them.
    pub(super) capture_s: f64,
    /// The captures and the warm-up before them.
    pub(super) total_s: f64,
    /// Device memory; `None` where the device can't tell.
    pub(super) bytes: Option<u64>,
    pub(super) launches: u64,
    pub(super) nodes: u64,
    pub(super) programmatic_edges: u64,
}

impl Report {
    pub(super) fn rows(&self) -> impl Iterator<Item = &Row> {
        self.modes.iter().flat_map(|mode| &mode.rows)
    }

    pub(super) fn has_failed(&self) -> bool {
        self.rows().any(|row| !row.failures.is_empty())
    }
}

impl Start {
    /// `all` is from opening the device to the built model.
    pub(super) fn of(plan: Duration, all: Duration, model: &CompiledModel) -> Self {
        let BuildTimes { compile, load, bind, measure, capture } = model.build_times();
        let parts = compile + load + bind + measure + capture;
        Self {
            plan_s: plan.as_secs_f64(),
            open_s: all.saturating_sub(parts).as_secs_f64(),
            compile_s: compile.as_secs_f64(),
            load_s: load.as_secs_f64(),
            bind_s: bind.as_secs_f64(),
            measure_s: measure.as_secs_f64(),
            capture_s: capture.as_secs_f64(),
            tuning: model.statistics().tuning,
            choices: model.chosen_ways(),
            entries: model.statistics().compile.clone(),
            memory: model.ledger(),
            free_bytes: None,
            held_bytes: None,
            first_prompt: None,
        }
    }

    /// Of a start: everything but making weights, which a published model would read.
    pub(super) fn without_load(&self) -> f64 {
        self.plan_s + self.open_s + self.compile_s + self.bind_s + self.capture_s
    }
}

impl Captured {
    pub(super) fn of(report: &CaptureReport) -> Self {
        let capture: Duration = report.graphs.iter().map(|graph| graph.time).sum();
        Self {
            graphs: report.graphs.len(),
            capture_s: capture.as_secs_f64(),
            total_s: report.time.as_secs_f64(),
            bytes: report.bytes,
            launches: report.shape.launches,
            nodes: report.shape.nodes,
            programmatic_edges: report.shape.programmatic_edges,
        }
    }
}

impl ModeReport {
    pub(super) fn new(mode: GraphMode, captured: Option<&CaptureReport>, rows: Vec<Row>) -> Self {
        Self { mode: mode.name().to_owned(), captured: captured.map(Captured::of), rows }
    }
}
