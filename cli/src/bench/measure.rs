//! Runs the rows.

use super::super::out_file::OutFile;
use super::super::progress::watcher;
use super::bounds::Bounds;
use super::report::{FirstPrompt, ModeReport, Report, Start};
use super::rows::{Figures, Row, RowHead, Yardstick, failures};
use super::settings::Bench;
use super::subject::Subject;
use super::workload::{Lengths, Sequences, Workload, check_counts, sequences};
use super::{costs, launches};
use piecewise::assembly::Notice;
use piecewise_runtime::measure::{BytesToRead, CaptureReport, ModelTimer, PlannedStep, StepRecord};
use piecewise_runtime::words::GraphMode;
use piecewise_runtime::words::sizes::SizeList;
use std::io::Write;

/// The most tokens of a step that computes prompts before the rows.
const PROMPT_TOKENS: u64 = 512;

/// What is measured, before anything is planned.
pub(super) struct Prepared {
    pub(super) subject: Subject,
    pub(super) bounds: Bounds,
    workloads: Vec<Workload>,
    needs: Sequences,
}

/// Reads the model's configuration, and finds what the rows need.
pub(super) fn prepare(args: &Bench) -> anyhow::Result<Prepared> {
    let mixed = args.mixed_totals();
    let batches = args.batches();
    let counts = batches.iter().flat_map(|batch| [batch.sequences, batch.tokens()]);
    check_counts("--batch", &counts.collect::<Vec<_>>(), !args.prefill.is_empty())?;
    check_counts("--context", &args.context, false)?;
    check_counts("--mixed", &mixed, true)?;
    check_counts("--capture-num-tokens", &args.capture_num_tokens, true)?;
    let prompts = args.prefill.iter().flat_map(|prompts| [prompts.tokens, prompts.total()]);
    check_counts("--prefill", &prompts.collect::<Vec<_>>(), true)?;
    let subject = Subject::open(args)?;
    let count = sequences(&batches, !mixed.is_empty(), &args.prefill);
    let workloads = workloads(args, &mixed, count, subject.vocab);
    if args.timeline.is_some() {
        launches::check_timeline(workloads.len(), &args.modes())?;
    }
    let needs = Sequences::of(&workloads, count);
    let bounds = bounds(args, &mixed, &needs)?;
    Ok(Prepared { subject, bounds, workloads, needs })
}

/// Measures every row in every mode.
pub(super) fn run(args: &Bench) -> anyhow::Result<Report> {
    let Prepared { mut subject, bounds, workloads, needs } = prepare(args)?;
    let costs_file = args.costs.as_deref().map(OutFile::claim).transpose()?;
    OutFile::check(args.timeline.as_ref())?;
    let modes = args.modes();
    let (mut timer, mut start) = subject.build(args, &bounds)?;
    let timer = &mut timer;
    // Prompts are launched, so that nothing is captured before its turn.
    timer.recapture(GraphMode::None, &mut |_| {})?;
    let vocab = subject.vocab;
    compute_prompts(
        timer,
        &needs.prompts(bounds.max_tokens.min(PROMPT_TOKENS), vocab),
        &mut start,
    )?;
    launches::leave_out(timer, &args.without)?;
    let yardstick = Yardstick {
        bandwidth: timer.read_bandwidth()?,
        cache_bytes: timer.cache_bytes(),
        traffic: BytesToRead::of(timer.model().module().graph()),
    };
    let device = timer.device_model();
    let mut report = Report {
        engine: "piecewise",
        version: env!("CARGO_PKG_VERSION"),
        model: subject.name.clone(),
        dtype: subject.dtype.to_string(),
        level: args.config.level,
        device: device.clone(),
        versions: timer.versions(),
        read_bandwidth: yardstick.bandwidth,
        traffic: yardstick.traffic,
        start,
        without: args.without.iter().map(ToString::to_string).collect(),
        modes: Vec::new(),
        timeline: None,
    };
    let mut captures = Vec::new();
    for &mode in &modes {
        let captured = capture(timer, mode);
        let rows = workloads.iter().map(|workload| {
            let names = (&*report.model, &*report.dtype, &*device);
            let head = RowHead::new(names, mode, workload);
            let measured = match &captured {
                Ok(_) => measure(timer, args, mode, workload, &yardstick),
                Err(error) => Err(anyhow::anyhow!("{error:#}")),
            };
            let Measured { figures, failures, kernels, timeline } =
                measured.unwrap_or_else(|error| Measured {
                    failures: vec![format!("{error:#}")],
                    ..Measured::default()
                });
            report.timeline = timeline.or(report.timeline.take());
            let row = Row { head, figures, failures, kernels };
            // A closed standard error leaves nobody to tell.
            let _ = writeln!(std::io::stderr(), "{}", row.summary());
            row
        });
        let rows: Vec<Row> = rows.collect();
        let captured = captured.ok();
        report.modes.push(ModeReport::new(mode, captured.as_ref(), rows));
        captures.push(captured);
    }
    if let Some(file) = costs_file {
        let modes = modes.iter().zip(&report.modes).zip(&captures);
        let modes: Vec<_> = modes
            .map(|((&mode, measured), captured)| costs::ModeCosts {
                mode,
                rows: measured.rows.iter().collect(),
                captured: captured.as_ref(),
            })
            .collect();
        file.write(|path| costs::write(path, &costs::points(&modes)))?;
    }
    Ok(report)
}

fn workloads(args: &Bench, mixed: &[u64], sequences: u64, vocab: u64) -> Vec<Workload> {
    let lengths = |timed| Lengths { warmup: args.warmup(timed), timed };
    let decodes = args.context.iter().flat_map(|&context| {
        let lengths = lengths(args.steps);
        args.batches()
            .into_iter()
            .map(move |batch| Workload::decode(batch, context, lengths, vocab))
    });
    let context = args.context.iter().copied().max().unwrap_or(1);
    let lengths = lengths(args.mixed_steps());
    let mixed = mixed.iter().map(|&n| Workload::mixed(n, context, sequences, lengths, vocab));
    let prefill = args.prefill.iter();
    let prefill = prefill.map(|&prompts| Workload::prefill(prompts, context, lengths, vocab));
    decodes.chain(mixed).chain(prefill).collect()
}

/// The lists: batches and their sequences, and for each mixed batch and all prompts of a step the
/// size of the default pattern that holds it, unless sizes were given.
fn bounds(args: &Bench, mixed: &[u64], needs: &Sequences) -> anyhow::Result<Bounds> {
    let given = args.batches();
    let mut batches: Vec<u64> = given.iter().map(|batch| batch.sequences).collect();
    let mut query_lengths: Vec<u64> = given.iter().map(|batch| batch.query_length).collect();
    let prompts = || args.prefill.iter().map(|prompts| prompts.total());
    batches.push(needs.room.len() as u64);
    query_lengths.push(1);
    ascending(&mut batches);
    ascending(&mut query_lengths);
    let mut tokens = args.sizes()?;
    if tokens.is_empty() {
        let totals = mixed.iter().copied().chain(prompts());
        tokens.extend(totals.map(usual_size));
    }
    tokens.extend(given.iter().map(|batch| batch.tokens()).chain(batches.iter().copied()));
    ascending(&mut tokens);
    let largest = tokens.iter().chain(mixed).copied().chain(prompts()).max().unwrap_or(1);
    // Longer ones are computed in several steps.
    let most = PROMPT_TOKENS.min(args.config.max_num_tokens);
    let prompt = needs.prefix.iter().copied().max().unwrap_or(0).min(most);
    Ok(Bounds {
        tokens,
        batches,
        query_lengths,
        max_tokens: largest.max(prompt),
        positions: needs.room.clone(),
        mode: GraphMode::Full,
    })
}

/// The size that so many tokens run at where an engine has the default list.
fn usual_size(tokens: u64) -> u64 {
    let usual = SizeList::default_pattern(tokens.next_power_of_two());
    usual.padded(tokens).unwrap_or(tokens)
}

fn ascending(sizes: &mut Vec<u64>) {
    sizes.sort_unstable();
    sizes.dedup();
}

fn compute_prompts(
    timer: &mut ModelTimer,
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

fn capture(timer: &mut ModelTimer, mode: GraphMode) -> anyhow::Result<CaptureReport> {
    let mut watch = watcher();
    Ok(timer.recapture(mode, &mut |progress| watch(Notice::Progress(progress)))?)
}

/// A row as it was measured.
#[derive(Default)]
struct Measured {
    figures: Option<Figures>,
    failures: Vec<String>,
    kernels: Vec<launches::KernelCount>,
    timeline: Option<launches::TimelineReport>,
}

/// Runs a workload launched, then as its mode does, from the same keys, values and ids.
fn measure(
    timer: &mut ModelTimer,
    args: &Bench,
    mode: GraphMode,
    workload: &Workload,
    yardstick: &Yardstick,
) -> anyhow::Result<Measured> {
    let timed = |mut records: Vec<StepRecord>| {
        let range = workload.timed_range();
        records.truncate(range.end);
        records.split_off(range.start)
    };
    let launched = timed(timer.run(&workload.steps, true)?);
    let records = timed(timer.run(&workload.steps, false)?);
    let mut figures = Figures::of(&records, workload, yardstick);
    // Where it was measured that another way is faster, a row's steps go that way together.
    let is_chosen = |record: &&StepRecord| {
        args.config.measure_padding || record.fallback.is_some_and(|reason| reason.is_chosen())
    };
    let taken = records.first().filter(is_chosen).map(|record| record.mode);
    let mode = taken.unwrap_or(workload.step_mode(mode));
    let failures = failures(mode, &figures, &records, &launched, args.without.is_empty());
    let (mut kernels, mut timeline) = (Vec::new(), None);
    if let Some(record @ StepRecord { sizes, .. }) = records.last() {
        if args.launches {
            kernels = launches::kernel_counts(&timer.step_launches(*sizes));
        }
        if let Some(file) = &args.timeline {
            timeline = Some(launches::write_timeline(file, timer.timeline(*sizes)?)?);
        }
        // Last: it runs the step again, on what this left.
        let driver = timer.bare_submit(record)?;
        figures = figures.with_driver_us(driver.map(|time| time.as_secs_f64() * 1e6));
    }
    Ok(Measured { figures: Some(figures), failures, kernels, timeline })
}
