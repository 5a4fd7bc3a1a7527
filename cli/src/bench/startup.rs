//! A start alone: what a server with the usual lists would wait for before its first step.

use super::super::progress::watcher;
use super::args::BenchArgs;
use super::report::{Captured, ModeReport, StartReport};
use super::subject::{Bounds, Subject};
use piecewise::assembly::Notice;
use piecewise_runtime::mode::GraphMode;

/// Sizes in tokens, in pieces.
const TOKENS: [u64; 14] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192];

/// Decode batches, whole.
const BATCHES: [u64; 8] = [1, 2, 4, 8, 16, 32, 64, 128];

/// Positions of each sequence.
const POSITIONS: u64 = 512;

/// Starts.
pub(super) fn run(args: &BenchArgs) -> anyhow::Result<StartReport> {
    let mut subject = Subject::open(args)?;
    let mode = GraphMode::FullAndPiecewise;
    let most = BATCHES[BATCHES.len() - 1] as usize;
    let longest = (subject.config.max_position_embeddings as u64).min(POSITIONS);
    let bounds = Bounds {
        tokens: TOKENS.to_vec(),
        batches: BATCHES.to_vec(),
        query_lengths: vec![1],
        max_tokens: TOKENS[TOKENS.len() - 1],
        positions: vec![longest / 16 * 16; most],
        mode,
    };
    let (mut timer, start) = subject.build(args, &bounds)?;
    let mut watch = watcher();
    let report = timer.recapture(mode, &mut |progress| watch(Notice::Progress(progress)))?;
    let captured = Captured::of(&report);
    // The programs were warmed up once before, as a server's are.
    let without_load = start.without_load() + captured.capture_s;
    Ok(StartReport {
        engine: "piecewise",
        version: env!("CARGO_PKG_VERSION"),
        model: subject.name.clone(),
        dtype: subject.dtype.to_string(),
        device: timer.device_model(),
        start,
        captured: ModeReport {
            mode: mode.name().to_owned(),
            captured: Some(captured),
            rows: Vec::new(),
        },
        start_without_load_s: without_load,
    })
}
