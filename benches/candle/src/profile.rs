//! Where the time of a step goes.

use crate::contest::{Side, label};
use crate::model::Model;
use crate::piecewise_side::Piecewise;
use anyhow::Context;
use piecewise_backend::cpu::CpuDevice;
use piecewise_ir::dtype::DType;
use piecewise_runtime::engine::Engine;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Prints the launches of a decode step, equal ones of all layers together, the longest first.
pub fn show(
    model: &Model,
    activations: DType,
    threads: usize,
    prompt: &[u32],
    steps: usize,
) -> anyhow::Result<()> {
    let mut side = Piecewise::new(model, activations, threads)?;
    side.start(prompt, steps + 4)?;
    for _ in 0..4 {
        side.step()?;
    }
    device(&mut side.engine)?.start_profile();
    let started = Instant::now();
    for _ in 0..steps {
        side.step()?;
    }
    let wall = started.elapsed();
    let mut launches: BTreeMap<String, (u64, Duration)> = BTreeMap::new();
    for launch in device(&mut side.engine)?.take_profile() {
        let (runs, time) = launches.entry(launch.name).or_default();
        *runs += launch.runs;
        *time += launch.time;
    }
    let mut launches: Vec<_> = launches.into_iter().collect();
    launches.sort_by_key(|(_, (_, time))| std::cmp::Reverse(*time));
    let per_step = |time: Duration| time.as_secs_f64() * 1e6 / steps as f64;
    println!("\n{}: {:.1} us per step", label(model, activations), per_step(wall));
    println!(
        "{:<28} {:>8} {:>10} {:>10} {:>7}",
        "launch", "a step", "us each", "us a step", "share"
    );
    let mut rest = wall;
    for (name, (runs, time)) in launches {
        rest = rest.saturating_sub(time);
        println!(
            "{name:<28} {:>8.0} {:>10.2} {:>10.1} {:>6.1}%",
            runs as f64 / steps as f64,
            time.as_secs_f64() * 1e6 / runs as f64,
            per_step(time),
            100.0 * time.as_secs_f64() / wall.as_secs_f64(),
        );
    }
    println!("{:<28} {:>8} {:>10} {:>10.1}", "outside launches", "", "", per_step(rest));
    Ok(())
}

/// The device of an engine, to have its launches timed.
fn device(engine: &mut Engine) -> anyhow::Result<&mut CpuDevice> {
    let device = engine.model_mut().device_mut().downcast_mut();
    device.context("the engine runs on another device")
}
