//! Sides that take turns at the same generation.

use crate::bandwidth::Bandwidth;
use crate::candle_side::{self, Candle};
use crate::model::Model;
use crate::piecewise_side::Piecewise;
use crate::{ACTIVATIONS, Args, profile, report};
use piecewise_ir::dtype::DType;
use std::time::{Duration, Instant};

/// A way to decode one sequence greedily.
pub trait Side {
    /// Its name and type.
    fn name(&self) -> &str;
    /// Forgets the sequence before and runs a prompt that `steps` steps will follow; returns the
    /// first id.
    fn start(&mut self, prompt: &[u32], steps: usize) -> anyhow::Result<u32>;
    /// One more id.
    fn step(&mut self) -> anyhow::Result<u32>;
    /// Bytes that a step must read at this length of the context; 0 if not known.
    fn bytes_read(&self, context: u64) -> u64;
}

/// A side slower than the fastest of its kind by this factor is not measured further.
const HOPELESS: f64 = 3.0;
/// Steps before the first turn of a generation, and of the trial of a side.
const WARM_UP: usize = 4;

/// Measures piecewise and candle with one model.
pub fn run(
    args: &Args,
    model: &Model,
    pool: &rayon::ThreadPool,
    threads: usize,
) -> anyhow::Result<()> {
    let prompt: Vec<u32> =
        (0..args.prompt).map(|i| (i * 7919 % model.config.vocab_size) as u32).collect();
    let mut ours: Vec<Piecewise> = Vec::new();
    for activations in ACTIVATIONS {
        ours.push(Piecewise::new(model, activations, threads)?);
    }
    println!("\n{}, context {} to {}", model.name, prompt.len(), prompt.len() + args.steps);
    let theirs = if args.alone { Vec::new() } else { working(model, pool, &prompt)? };
    let mut sides: Vec<Box<dyn Side + '_>> = Vec::new();
    sides.extend(ours.into_iter().map(|side| Box::new(side) as Box<dyn Side>));
    sides.extend(theirs.into_iter().map(|side| Box::new(side) as Box<dyn Side>));
    let mut bandwidth = Bandwidth::new(pool);
    let times = take_turns(args, &mut sides, &prompt, &mut bandwidth)?;
    let context = (prompt.len() + args.steps / 2) as u64;
    report::table(&sides, &times, context, &bandwidth);
    if args.profile {
        for activations in ACTIVATIONS {
            profile::show(model, activations, threads, &prompt, args.steps)?;
        }
    }
    Ok(())
}

/// The types in which candle runs this model, the hopelessly slow ones reported and left out.
fn working<'p>(
    model: &Model,
    pool: &'p rayon::ThreadPool,
    prompt: &[u32],
) -> anyhow::Result<Vec<Candle<'p>>> {
    let mut tried: Vec<(Candle<'p>, f64)> = Vec::new();
    let mut fastest = f64::INFINITY;
    for dtype in candle_side::DTYPES {
        let mut side = Candle::new(model, dtype, pool)?;
        match trial(&mut side, prompt) {
            Err(error) => println!("{} does not run: {error}", side.name()),
            Ok(ms) if ms > fastest * HOPELESS => {
                println!("{} takes {ms:.1} ms per token and is left out", side.name());
            }
            Ok(ms) => {
                fastest = fastest.min(ms);
                tried.push((side, ms));
            }
        }
    }
    tried.retain(|(side, ms)| {
        let kept = *ms <= fastest * HOPELESS;
        if !kept {
            println!("{} takes {ms:.1} ms per token and is left out", side.name());
        }
        kept
    });
    Ok(tried.into_iter().map(|(side, _)| side).collect())
}

fn trial(side: &mut dyn Side, prompt: &[u32]) -> anyhow::Result<f64> {
    side.start(&prompt[..prompt.len().min(8)], WARM_UP)?;
    side.step()?;
    let started = Instant::now();
    side.step()?;
    Ok(started.elapsed().as_secs_f64() * 1e3)
}

/// The times of the steps of each side: in turns of a few steps each, first in order, then in
/// reverse, so that what else the machine does falls on all.
fn take_turns(
    args: &Args,
    sides: &mut [Box<dyn Side + '_>],
    prompt: &[u32],
    bandwidth: &mut Bandwidth<'_>,
) -> anyhow::Result<Vec<Vec<Duration>>> {
    let mut times = vec![Vec::new(); sides.len()];
    for _ in 0..args.rounds {
        for side in sides.iter_mut() {
            side.start(prompt, args.steps + WARM_UP)?;
            for _ in 0..WARM_UP {
                side.step()?;
            }
        }
        for turn in 0..args.steps.div_ceil(args.turn) {
            bandwidth.pass();
            let mut order: Vec<usize> = (0..sides.len()).collect();
            if turn % 2 == 1 {
                order.reverse();
            }
            for i in order {
                for step in 0..args.turn.min(args.steps - turn * args.turn) {
                    let started = Instant::now();
                    sides[i].step()?;
                    // The first one finds the caches full of the other sides' data.
                    if step > 0 {
                        times[i].push(started.elapsed());
                    }
                }
            }
        }
    }
    Ok(times)
}

/// The name of an activation type in front of a profile.
pub fn label(model: &Model, activations: DType) -> String {
    format!("{}, {activations} activations", model.name)
}
