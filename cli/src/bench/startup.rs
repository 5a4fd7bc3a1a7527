//! A start alone: what a server with the usual lists would wait for before its first step.

use super::super::progress::watcher;
use super::bounds::Bounds;
use super::report::{Captured, ModeReport, StartReport};
use super::settings::Bench;
use super::subject::Subject;
use piecewise::assembly::Notice;
use piecewise_runtime::words::GraphMode;

/// Sizes in tokens, in pieces.
const TOKENS: [u64; 14] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192];

/// Decode batches, whole.
const BATCHES: [u64; 8] = [1, 2, 4, 8, 16, 32, 64, 128];

/// Positions of each sequence.
const POSITIONS: u64 = 512;

/// The model, and the bounds of such a server.
pub(super) fn prepare(args: &Bench) -> anyhow::Result<(Subject, Bounds)> {
    let subject = Subject::open(args)?;
    let most = BATCHES[BATCHES.len() - 1] as usize;
    let longest = subject.longest.min(POSITIONS);
    let bounds = Bounds {
        tokens: TOKENS.to_vec(),
        batches: BATCHES.to_vec(),
        query_lengths: vec![1],
        max_tokens: TOKENS[TOKENS.len() - 1],
        positions: vec![longest / 16 * 16; most],
        mode: GraphMode::FullAndPiecewise,
    };
    Ok((subject, bounds))
}

pub(super) fn run(args: &Bench) -> anyhow::Result<StartReport> {
    let (mut subject, bounds) = prepare(args)?;
    let mode = bounds.mode;
    let (mut timer, mut start) = subject.build(args, &bounds)?;
    let mut watch = watcher();
    let report = timer.recapture(mode, &mut |progress| watch(Notice::Progress(progress)))?;
    let captured = Captured::of(&report);
    // The programs were warmed up once before, as a server's are.
    let without_load = start.without_load() + captured.capture_s;
    let (device, versions) = (timer.device_model(), timer.versions());
    start.held_bytes = timer.give_back()?;
    Ok(StartReport {
        engine: "piecewise",
        version: env!("CARGO_PKG_VERSION"),
        model: subject.name.clone(),
        dtype: subject.dtype.to_string(),
        device,
        versions,
        start,
        captured: ModeReport {
            mode: mode.name().to_owned(),
            captured: Some(captured),
            rows: Vec::new(),
        },
        start_without_load_s: without_load,
    })
}
