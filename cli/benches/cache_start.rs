//! What the compile cache saves at a start: planning and compiling, without weights or a device,
//! from an empty cache and from one that the run before has filled.
//!
//! ```text
//! cargo bench --bench cache_start                                # for the CPU
//! cargo bench --bench cache_start -- --device cuda:sm_90a         # needs NVRTC, no GPU
//! ```

#![allow(clippy::print_stdout, reason = "the table is what this is for")]

use anyhow::{Context, ensure};
use clap::Parser;
use serde_json::Value;
use std::path::Path;
use std::process::Command;

const MODELS: [[&str; 2]; 3] =
    [["--model", "examples/tiny-qwen3"], ["--preset", "qwen3-0.6b"], ["--preset", "qwen3-8b"]];

#[derive(Debug, Parser)]
struct Args {
    /// What is compiled for.
    #[arg(long, default_value = "cpu")]
    device: String,
    /// Pairs of a cold and a warm start; medians are printed.
    #[arg(long, default_value_t = 11, value_parser = clap::value_parser!(u16).range(1..))]
    runs: u16,
    /// What `cargo bench` passes to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}

/// A run of `piecewise compile`.
struct Start {
    report: Value,
}

impl Start {
    #[expect(clippy::disallowed_methods, reason = "a measurement has no bound")]
    fn run(model: [&str; 2], device: &str, cache: &Path) -> anyhow::Result<Self> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_piecewise"));
        command.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).arg("compile").args(model);
        let output =
            command.args(["--json", "--device", device, "--cache-dir"]).arg(cache).output();
        let output = output.context("can't run piecewise")?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{model:?}: {errors}");
        Ok(Self { report: serde_json::from_slice(&output.stdout)? })
    }

    fn milliseconds(&self, key: &str) -> f64 {
        self.report[key].as_f64().unwrap_or(f64::NAN) * 1e3
    }

    fn compiling(&self) -> f64 {
        self.milliseconds("seconds") - self.milliseconds("planning_seconds")
    }

    fn compiled(&self) -> usize {
        self.report["compiled"].as_object().map_or(0, serde_json::Map::len)
    }
}

/// Entries of a cache and their bytes.
fn contents(cache: &Path) -> anyhow::Result<(usize, u64)> {
    let mut found = (0, 0);
    for kind in std::fs::read_dir(cache.join("v1"))? {
        for entry in std::fs::read_dir(kind?.path())? {
            found.0 += 1;
            found.1 += entry?.metadata()?.len();
        }
    }
    Ok(found)
}

fn median(starts: &[Start], of: impl Fn(&Start) -> f64) -> f64 {
    let mut values: Vec<f64> = starts.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> anyhow::Result<()> {
    let Args { device, runs, bench: _ } = Args::parse();
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or_default();
    println!("device {device}, medians of {runs} runs in ms, load {load} at the start\n");
    println!("| | passes | a layer | before compiling | cold | warm | entries | bytes |");
    println!("|---|---|---|---|---|---|---|---|");
    for model in MODELS {
        let (mut cold, mut warm, mut kept) = (Vec::new(), Vec::new(), (0, 0));
        for _ in 0..runs {
            let cache = tempfile::tempdir()?;
            cold.push(Start::run(model, &device, cache.path())?);
            warm.push(Start::run(model, &device, cache.path())?);
            ensure!(warm.iter().all(|start| start.compiled() == 0), "a warm start compiled");
            kept = contents(cache.path())?;
        }
        let name = model[1].rsplit('/').next().unwrap_or(model[1]);
        let per_layer = median(&warm, |start| start.milliseconds("passes_seconds_per_layer"));
        println!(
            "| {name} | {:.1} | {per_layer:.2} | {:.1} | {:.1} | {:.1} | {} | {} |",
            median(&warm, |start| start.milliseconds("passes_seconds")),
            median(&warm, |start| start.milliseconds("planning_seconds")),
            median(&cold, Start::compiling),
            median(&warm, Start::compiling),
            kept.0,
            kept.1,
        );
    }
    Ok(())
}
