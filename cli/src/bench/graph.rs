//! `piecewise bench graph`: steps of a textual graph, launched and replayed.

use super::super::load::print_settings;
use super::super::model_args::SharedArgs;
use super::super::preset_weights::WEIGHTS;
use super::super::print::{print_line, print_report};
use super::super::progress::watcher;
use super::super::set_keys::put;
use super::super::trial_args::TrialArgs;
use anyhow::ensure;
use comfy_table::{CellAlignment, Table, presets};
use piecewise::assembly::{Assembly, Registries};
use piecewise::device::DeviceSpec;
use piecewise::models::Checkpoint;
use piecewise::trial::{Given, Repeats, StepTiming, Trial, time_planned};
use piecewise_runtime::config::ConfigLayers;
use piecewise_runtime::words::GraphMode;
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;

/// Measure steps of a textual graph, launched and replayed: the mean and the 99th percentile
/// of their wall time.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  piecewise bench graph graph.pw --rows 1,8,64
  piecewise bench graph graph.pw --weights DIR --input x=@batch.safetensors --graph-mode none,full

A step reads what --input gives and random values else, and is over when its outputs are on the host.")]
pub(crate) struct GraphBenchArgs {
    /// A textual graph, with its plan or without.
    pub(super) file: PathBuf,
    /// The folder of the checkpoint; random weights without it.
    #[arg(long, value_name = "DIR")]
    pub(super) weights: Option<PathBuf>,
    /// Rows of the steps, as far as the graph's bounds and --input leave them open: a row of the table
    /// each [default: 5].
    #[arg(long, value_name = "N,..", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) rows: Vec<u64>,
    #[command(flatten)]
    pub(super) trial: TrialArgs,
    /// Timed steps.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub(super) steps: u64,
    /// Untimed steps before them.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(0..=100_000))]
    pub(super) warmup: u64,
    #[command(flatten)]
    pub(super) on: Measured,
}

/// In what a subject is measured, and how that is shown.
#[derive(Debug, clap::Args)]
pub(super) struct Measured {
    /// Which modes to measure.
    #[arg(
        long,
        value_name = "MODE,..",
        value_delimiter = ',',
        default_values = ["none", "piecewise", "full"]
    )]
    pub(super) graph_mode: Vec<GraphMode>,
    /// The device: cpu, cuda, cuda:N, or auto [default: cpu].
    #[arg(long, value_name = "DEVICE")]
    pub(super) device: Option<DeviceSpec>,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) shared: SharedArgs,
}

impl Measured {
    /// The settings that all modes have in common.
    pub(super) fn layers(&self) -> anyhow::Result<ConfigLayers> {
        put(self.shared.layers()?, "device", self.device.map(|device| device.to_string()))
    }
}

/// What was timed of one subject in one mode; times are microseconds.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Row {
    mode: &'static str,
    /// How large it is, in words.
    subject: String,
    /// How the last step ran, or all did.
    ran: String,
    /// How many were timed.
    steps: usize,
    mean_us: f64,
    p50_us: f64,
    p99_us: f64,
}

impl Row {
    pub(super) fn of(mode: GraphMode, subject: String, timing: StepTiming) -> Self {
        Self {
            mode: mode.name(),
            subject,
            steps: timing.times.len(),
            mean_us: timing.mean_us(),
            p50_us: timing.percentile_us(50),
            p99_us: timing.percentile_us(99),
            ran: timing.ran,
        }
    }
}

pub(super) fn run(args: &GraphBenchArgs, registries: &Registries) -> anyhow::Result<ExitCode> {
    let layers = args.on.layers()?;
    let subject = || args.assembly(&layers, registries);
    if args.on.shared.print_config {
        return print_settings(&subject()?.settings()?, args.on.json);
    }
    let given = args.trial.given(Trial::new(subject()?)?.graph())?;
    let rows = Vec::from_iter(match args.rows.is_empty() {
        true => vec![None],
        false => args.rows.iter().copied().map(Some).collect(),
    });
    let given = Vec::from_iter(rows.iter().map(|&rows| Given { rows, ..given.clone() }));
    let repeats = Repeats { warmup: args.warmup, steps: args.steps };
    let mut measured = Vec::new();
    for &mode in &args.on.graph_mode {
        let planned = subject()?.graph_mode(mode).plan()?;
        ensure!(planned.is_whole(), "there is no plan to its end, and so nothing to measure");
        let timings = time_planned(planned, &registries.ops, &given, repeats)?;
        measured.extend(rows.iter().zip(timings).map(|(&rows, timing)| {
            let subject = rows.map_or("as given".to_owned(), |rows| format!("{rows} rows"));
            Row::of(mode, subject, timing)
        }));
    }
    print_report(args.on.json, &serde_json::json!({ "rows": measured }), || show(&measured))?;
    Ok(ExitCode::SUCCESS)
}

impl GraphBenchArgs {
    fn assembly(&self, layers: &ConfigLayers, registries: &Registries) -> anyhow::Result<Assembly> {
        let assembly = Assembly::file(&self.file)?.registries(registries.clone());
        let assembly = assembly.configure(layers.clone()).watch(watcher());
        Ok(match &self.weights {
            Some(folder) => assembly.checkpoint(Checkpoint::open(folder)?),
            None => assembly.weights(WEIGHTS),
        })
    }
}

pub(super) fn show(measured: &[Row]) -> anyhow::Result<()> {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["mode", "of", "steps", "mean us", "p50 us", "p99 us", "ran"]);
    for row in measured {
        let time = |time: f64| format!("{time:.1}");
        table.add_row([
            row.mode.to_owned(),
            row.subject.clone(),
            row.steps.to_string(),
            time(row.mean_us),
            time(row.p50_us),
            time(row.p99_us),
            row.ran.clone(),
        ]);
    }
    for column in table.column_iter_mut().skip(1).take(5) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.lines().try_for_each(|line| print_line(line.trim_end()))
}
