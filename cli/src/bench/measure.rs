//! Runs the rows.

use super::args::{BenchArgs, ModeArg};
use super::report::{FirstPrompt, ModeReport, Report, Start};
use super::rows::{Figures, Row, RowHead, Yardstick, failures};
use super::subject::{Bounds, Subject};
use super::workload::{Lengths, Sequences, Workload, check_counts, sequences};
use super::{super::progress::BuildBars, costs};
use piecewise_runtime::measure::{CaptureReport, DynStepTimer, PlannedStep, StepRecord, Traffic};
use piecewise_runtime::mode::GraphMode;
use std::io::Write;

/// The most tokens of a step that computes prompts before the rows.
const PROMPT_TOKENS: u64 = 512;

/// Measures every row in every mode.
pub(super) fn run(args: &BenchArgs) -> anyhow::Result<Report> {
    let mixed = args.mixed_totals();
    check_counts("--batch", &args.batch, false)?;
    check_counts("--context", &args.context, false)?;
    check_counts("--mixed", &mixed, true)?;
    check_counts("--capture-num-tokens", &args.capture_num_tokens, true)?;
    let subject = Subject::open(args)?;
    let count = sequences(&args.batch, !mixed.is_empty());
    let workloads = workloads(args, &mixed, count, subject.config.vocab_size as u64);
    let needs = Sequences::of(&workloads, count);
    let bounds = bounds(args, &mixed, &needs);
    let (mut timer, mut start) = subject.build(args, &bounds)?;
    let timer = &mut *timer;
    // Prompts are launched, so that nothing is captured before its turn.
    timer.recapture(GraphMode::None, &mut |_| {})?;
    let vocab = subject.config.vocab_size as u64;
    compute_prompts(
        timer,
        &needs.prompts(bounds.max_tokens.min(PROMPT_TOKENS), vocab),
        &mut start,
    )?;
    let yardstick = Yardstick {
        bandwidth: timer.read_bandwidth()?,
        cache_bytes: timer.cache_bytes(),
        traffic: Traffic::of(timer.module().graph()),
    };
    let device = timer.device_model();
    let mut report = Report {
        engine: "piecewise",
        version: env!("CARGO_PKG_VERSION"),
        model: subject.name.clone(),
        dtype: subject.dtype.to_string(),
        device: device.clone(),
        read_bandwidth: yardstick.bandwidth,
        traffic: yardstick.traffic,
        start,
        modes: Vec::new(),
    };
    let mut captures = Vec::new();
    for &mode in &args.graph_mode {
        let captured = capture(timer, mode);
        let rows = workloads.iter().map(|workload| {
            let names = (&*report.model, &*report.dtype, &*device);
            let head = RowHead::new(names, mode, workload);
            let measured = match &captured {
                Ok(_) => measure(timer, mode, workload, &yardstick),
                Err(error) => Err(anyhow::anyhow!("{error:#}")),
            };
            let row = match measured {
                Ok((figures, failures)) => Row { head, figures: Some(figures), failures },
                Err(error) => Row { head, figures: None, failures: vec![format!("{error:#}")] },
            };
            // A closed standard error leaves nobody to tell.
            let _ = writeln!(std::io::stderr(), "{}", row.summary());
            row
        });
        let rows: Vec<Row> = rows.collect();
        let captured = captured.ok();
        report.modes.push(ModeReport::new(mode, captured.as_ref(), rows));
        captures.push(captured);
    }
    if let Some(file) = &args.costs {
        let modes = args.graph_mode.iter().zip(&report.modes).zip(&captures);
        let modes: Vec<_> = modes
            .map(|((&mode, measured), captured)| costs::ModeCosts {
                mode,
                rows: measured.rows.iter().collect(),
                captured: captured.as_ref(),
            })
            .collect();
        costs::write(file, &costs::points(&modes))?;
    }
    Ok(report)
}

fn workloads(args: &BenchArgs, mixed: &[u64], sequences: u64, vocab: u64) -> Vec<Workload> {
    let lengths = |timed| Lengths { warmup: args.warmup(timed), timed };
    let decodes = args.context.iter().flat_map(|&context| {
        let lengths = lengths(args.steps);
        args.batch.iter().map(move |&batch| Workload::decode(batch, context, lengths, vocab))
    });
    let context = args.context.iter().copied().max().unwrap_or(1);
    let lengths = lengths(args.mixed_steps());
    let mixed = mixed.iter().map(|&n| Workload::mixed(n, context, sequences, lengths, vocab));
    decodes.chain(mixed).collect()
}

/// The lists: batches and their sequences, and for each mixed batch the power of two that holds
/// it, unless sizes were given.
fn bounds(args: &BenchArgs, mixed: &[u64], needs: &Sequences) -> Bounds {
    let mut batches = args.batch.clone();
    batches.push(needs.room.len() as u64);
    ascending(&mut batches);
    let mut tokens = args.capture_num_tokens.clone();
    if tokens.is_empty() {
        tokens.extend(mixed.iter().map(|total| total.next_power_of_two()));
    }
    tokens.extend(&batches);
    ascending(&mut tokens);
    let largest = tokens.iter().chain(mixed).copied().max().unwrap_or(1);
    let prompt = needs.prefix.iter().copied().max().unwrap_or(0).min(PROMPT_TOKENS);
    Bounds {
        tokens,
        batches,
        max_tokens: largest.max(prompt),
        positions: needs.room.clone(),
        mode: GraphMode::Full,
    }
}

fn ascending(sizes: &mut Vec<u64>) {
    sizes.sort_unstable();
    sizes.dedup();
}

fn compute_prompts(
    timer: &mut dyn DynStepTimer,
    prompts: &[PlannedStep],
    start: &mut Start,
) -> anyhow::Result<()> {
    if let [first, rest @ ..] = prompts {
        let records = timer.run(std::slice::from_ref(first), true)?;
        let ms = records.first().map_or(0.0, |record| record.wall.as_secs_f64() * 1e3);
        start.first_prompt = Some(FirstPrompt { tokens: first.tokens(), ms });
        timer.run(rest, true)?;
    }
    Ok(())
}

fn capture(timer: &mut dyn DynStepTimer, mode: ModeArg) -> anyhow::Result<CaptureReport> {
    let mut bars = BuildBars::new();
    let captured = timer.recapture(mode.graph_mode(), &mut |progress| bars.show(progress));
    bars.finish();
    Ok(captured?)
}

/// Runs a workload launched, then as its mode does, from the same keys, values and ids.
fn measure(
    timer: &mut dyn DynStepTimer,
    mode: ModeArg,
    workload: &Workload,
    yardstick: &Yardstick,
) -> anyhow::Result<(Figures, Vec<String>)> {
    let timed = |mut records: Vec<StepRecord>| {
        let range = workload.timed_range();
        records.truncate(range.end);
        records.split_off(range.start)
    };
    let launched = timed(timer.run(&workload.steps, true)?);
    let records = timed(timer.run(&workload.steps, false)?);
    let figures = Figures::of(&records, workload, yardstick);
    let failures = failures(mode, &figures, &records, &launched);
    Ok((figures, failures))
}
