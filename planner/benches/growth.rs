//! Time and memory of the capture planner: a million-step log of 8,192 distinct sizes, and growth
//! over the number of distinct sizes N and of graphs K.
//!
//! `cargo bench -p piecewise-planner`, under `taskset -c 0,1` for two cores.

#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::error::Error;
use std::io::Write as _;
use std::time::{Duration, Instant};

use piecewise_planner::StepMode;
use piecewise_planner::{
    IterationLogWriter, IterationRecord, ModelledCosts, Objective, PlanRequest, ReadOptions,
    StepKind, Traffic, plan, read_log,
};

const STEPS: u64 = 1_000_000;
const SIZES: u64 = 8192;

fn main() -> Result<(), Box<dyn Error>> {
    let log = million_step_log()?;
    let costs = ModelledCosts::default().costs();
    println!("log: {STEPS} steps, {SIZES} distinct sizes, {:.1} MB", log.len() as f64 / 1e6);

    let (read, elapsed) = timed(|| read_log(&log[..], ReadOptions::default()));
    let traffic = read?.traffic;
    println!("read:                                {:>8.3} s", elapsed.as_secs_f64());
    for objective in [Objective::Time, Objective::Padding] {
        let request = PlanRequest { objective, max_graphs: Some(64), ..PlanRequest::default() };
        let (found, elapsed) = timed(|| plan(request.on(&traffic, &costs)));
        println!(
            "plan, {objective:?}, K to {:<3}:              {:>8.3} s",
            found?.curve.len(),
            elapsed.as_secs_f64()
        );
    }
    if let Some(peak) = peak_memory() {
        println!("peak memory, log included: {peak}");
    }

    println!("\nplan, time objective, K = 64");
    println!("{:>8} {:>10} {:>22}", "N", "ms", "ns / (K N log2 N)");
    for distinct in [1024, 2048, 4096, 8192, 16384, 32768, 65536, 131_072] {
        row(distinct, 64, distinct, &costs)?;
    }
    println!("\nplan, time objective, N = 8192");
    println!("{:>8} {:>10} {:>22}", "K", "ms", "ns / (K N log2 N)");
    for graphs in [64, 128, 256, 512, 1024] {
        row(8192, graphs, graphs, &costs)?;
    }
    std::io::stdout().flush()?;
    Ok(())
}

fn row(
    distinct: u32,
    graphs: u32,
    label: u32,
    costs: &piecewise_planner::StepCosts,
) -> Result<(), Box<dyn Error>> {
    let mut traffic = Traffic::default();
    let mut random = 1_u64;
    for tokens in 1..=distinct {
        traffic.add(StepKind::Mixed, tokens, 1 + next(&mut random) % 200)?;
    }
    let request = PlanRequest { max_graphs: Some(graphs as usize), ..PlanRequest::default() };
    let mut best = Duration::MAX;
    for _ in 0..5 {
        let (found, elapsed) = timed(|| plan(request.on(&traffic, costs)));
        found?;
        best = best.min(elapsed);
    }
    let (n, k) = (f64::from(distinct), f64::from(graphs));
    println!(
        "{label:>8} {:>10.2} {:>22.3}",
        best.as_secs_f64() * 1e3,
        best.as_secs_f64() * 1e9 / (k * n * n.log2())
    );
    Ok(())
}

fn million_step_log() -> Result<Vec<u8>, Box<dyn Error>> {
    let mut bytes = Vec::new();
    let mut log = IterationLogWriter::new(&mut bytes);
    let mut random = 7_u64;
    for step in 0..STEPS {
        let tokens = if step < SIZES { step } else { next(&mut random) % SIZES } as u32 + 1;
        let generation_requests = (next(&mut random) % 200) as u32 % tokens;
        log.write(&IterationRecord {
            context_tokens: tokens - generation_requests,
            generation_requests,
            sequences: generation_requests + 1,
            rows: generation_requests + 1,
            query_length: None,
            tokens: None,
            mode: StepMode::Piecewise,
            size: Some(tokens.next_multiple_of(256)),
            fallback: None,
            gpu_us: Some(5000.0 + f64::from(tokens)),
            wall_us: Some(5100.0 + f64::from(tokens)),
        })?;
    }
    log.flush()?;
    drop(log);
    Ok(bytes)
}

fn timed<T>(run: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let result = run();
    (result, start.elapsed())
}

/// A step of the SplitMix64 generator.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn peak_memory() -> Option<String> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().to_owned())
}
