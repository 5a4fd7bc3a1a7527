//! What happens before the first token.

use crate::model::{Model, qwen3_0_6b};
use crate::piecewise_side::{MAX_LENGTH, graph, planned};
use piecewise::assembly::Notice;
use piecewise::models::DecoderConfig;
use piecewise_backend::weights::{NormalWeights, WeightSource};
use piecewise_ir::dtype::DType;
use piecewise_runtime::engine::Request;
use piecewise_runtime::words::Progress;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

const RUNS: usize = 5;

/// Prints how long each phase takes, the median of a few runs.
pub fn measure(tiny: &Path, threads: usize) -> anyhow::Result<()> {
    println!(
        "\n{:<24} {:>9} {:>9} {:>9} {:>9} {:>9} {:>11}",
        "ms", "build", "passes", "compile", "weights", "capture", "first token"
    );
    let model = Model::load(tiny)?;
    line("tiny-qwen3", &model.config, &model.weights, threads)?;
    let normal = NormalWeights { std: 0.02, seed: 1 };
    for layers in [2, 6, 28, 60] {
        let text = serde_json::to_vec(&qwen3_0_6b(layers))?;
        let config = DecoderConfig::parse(&text, Path::new("config.json"))?;
        line(&format!("0.6B shape, {layers} layers"), &config, &normal, threads)?;
    }
    Ok(())
}

fn line(
    name: &str,
    config: &DecoderConfig,
    weights: &(impl WeightSource + Clone + 'static),
    threads: usize,
) -> anyhow::Result<()> {
    let mut runs = Vec::new();
    for _ in 0..RUNS {
        runs.push(phases(config, weights, threads)?);
    }
    print!("{name:<24}");
    for phase in 0..6 {
        let mut times: Vec<Duration> = runs.iter().map(|run| run[phase]).collect();
        times.sort_unstable();
        let width = if phase == 5 { 11 } else { 9 };
        print!(" {:>width$.1}", times[RUNS / 2].as_secs_f64() * 1e3);
    }
    println!();
    Ok(())
}

fn phases(
    config: &DecoderConfig,
    weights: &(impl WeightSource + Clone + 'static),
    threads: usize,
) -> anyhow::Result<[Duration; 6]> {
    let started = Instant::now();
    let graph = graph(config, DType::BF16)?;
    let built = Instant::now();
    // When compiling, loading and capturing ended.
    let ends = Arc::new(Mutex::new([built; 3]));
    let noted = Arc::clone(&ends);
    let planned = planned(graph, weights.clone(), threads, move |notice| {
        let Notice::Progress(progress) = notice else { return };
        let mut ends = noted.lock().unwrap_or_else(PoisonError::into_inner);
        match progress {
            Progress::Compiling { .. } => *ends = [Instant::now(); 3],
            Progress::Loading { .. } => ends[1..].fill(Instant::now()),
            Progress::Measuring { .. } | Progress::Capturing { .. } => ends[2] = Instant::now(),
        }
    })?;
    let passed = Instant::now();
    let mut engine = planned.engine()?;
    let ready = Instant::now();
    let mut ends = *ends.lock().unwrap_or_else(PoisonError::into_inner);
    ends[2] = ready;
    let prompt: Vec<u32> = (0..8).collect();
    assert!(prompt.len() < MAX_LENGTH as usize);
    engine.add(Request::new(prompt, 1))?;
    engine.run(&mut Vec::new())?;
    Ok([
        built - started,
        passed - built,
        ends[0] - passed,
        ends[1] - ends[0],
        ends[2] - ends[1],
        ready.elapsed(),
    ])
}
