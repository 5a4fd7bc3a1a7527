#[path = "../../../../tests/support/skip.rs"]
mod skip;

use super::*;
use crate::dispatch::Dispatcher;
use crate::words::sizes::SizeList;
use crate::words::{FallbackReason, GraphMode, StepMode, StepShape};
use piecewise_backend::artifact::PieceSize;
use std::sync::atomic::{AtomicU64, Ordering};

fn dispatcher() -> Dispatcher {
    let list = |max| SizeList::new("sizes", vec![1, max], "bound", max).unwrap();
    Dispatcher {
        mode: GraphMode::FullAndPiecewise,
        tokens: list(8),
        batches: list(4),
        query_lengths: vec![1],
        max_tokens: 8,
        max_rows: 4,
        max_sequences: 4,
        padding: true,
        own: Vec::new(),
        rules: Default::default(),
    }
}

/// Figures of three steps: a decode of 3, a prompt of 5, and one that found no graph.
fn snapshot() -> Snapshot {
    let mut statistics = Statistics::default();
    let dispatcher = dispatcher();
    let uniform = PieceSize::Uniform { sequences: 4, query_length: 1 };
    statistics.prepare(
        FallbackReason::ALL.iter().map(|reason| reason.name()),
        [PieceSize::Exact(8)].into_iter(),
        [uniform].into_iter(),
        [PieceSize::Exact(8), uniform].into_iter(),
    );
    let shapes = [(3, 3, Some(1)), (5, 1, None), (5, 1, None)];
    for (i, (tokens, sequences, query_length)) in shapes.into_iter().enumerate() {
        let own = Default::default();
        let shape = StepShape { tokens, rows: sequences, sequences, own, query_length };
        let mut step = dispatcher.dispatch(shape);
        if i == 2 {
            (step.mode, step.fallback) = (StepMode::None, Some(FallbackReason::NotCaptured));
        }
        statistics.count_step(&step, tokens, Duration::from_micros(30));
        statistics.gpu_time[step.mode as usize].add(Duration::from_micros(300));
        statistics.wall_time[step.mode as usize].add(Duration::from_millis(3));
    }
    statistics.captures = 4;
    statistics.compile.compiled.insert("piece", 7);
    let memory =
        Ledger { slots: 1024, scratch: 256, weights: 4096, states: 512, ..Ledger::default() };
    let load = EngineLoad { running: 3, kv_pages: 8, free_kv_pages: 6, ..EngineLoad::default() };
    Snapshot { statistics, memory, graphs: 4, load }
}

#[test]
fn every_step_is_a_hit_or_a_miss_with_its_reason() {
    let stats = snapshot().statistics;
    assert_eq!((stats.hits(), stats.misses(), stats.steps), (2, 1, 3));
    assert_eq!(stats.misses["not_captured"], 1);
    assert_eq!(stats.steps_by_kind.values().sum::<u64>(), 3);
    assert_eq!((stats.real_tokens, stats.padded_tokens), (13, 20));
}

#[test]
fn the_text_is_prometheus_own() {
    let metrics = Metrics::new();
    metrics.publish(snapshot());
    let own = prometheus::IntCounter::new("server_requests_total", "Requests.").unwrap();
    metrics.registry().register(Box::new(own.clone())).unwrap();
    own.inc();
    let text = metrics.text().unwrap();
    let bucket = "piecewise_step_gpu_seconds_bucket{mode=\"full\",le=\"0.0005\"} 1\n";
    assert!(text.contains(bucket), "{text}");
    // What this process and this build are is not the same twice.
    let build = format!("version=\"{}\"}} 1\n", env!("CARGO_PKG_VERSION"));
    assert!(text.contains(&build) && text.contains("process_cpu_seconds_total "), "{text}");
    let varies = ["_bucket{", "process_", "build_info{"];
    let lines =
        text.split_inclusive('\n').filter(|line| !varies.iter().any(|part| line.contains(part)));
    insta::assert_snapshot!(lines.collect::<String>());
}

#[test]
fn a_count_that_something_else_keeps_is_read_whenever_somebody_asks() {
    let metrics = Metrics::new();
    let kept = Arc::new(AtomicU64::new(1));
    let read = {
        let kept = Arc::clone(&kept);
        move || kept.load(Ordering::Relaxed)
    };
    metrics.count("lines_lost_total", "Lines.", read.clone()).unwrap();
    for n in [1, 7] {
        kept.store(n, Ordering::Relaxed);
        let text = metrics.text().unwrap();
        assert!(text.contains(&format!("# TYPE lines_lost_total counter\nlines_lost_total {n}\n")));
    }
    assert!(metrics.count("lines_lost_total", "Lines.", read.clone()).is_err(), "there is one");
    assert!(metrics.count("lines lost", "Lines.", read).is_err(), "no name");
}

/// Debian's package `prometheus` has the tool.
#[test]
#[expect(clippy::disallowed_methods, reason = "it ends with its input")]
fn promtool_finds_nothing_wrong() {
    let metrics = Metrics::new();
    metrics.publish(snapshot());
    let tool = std::process::Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn();
    let mut tool = match tool {
        Ok(tool) => tool,
        Err(error) => {
            return skip::skipped("PIECEWISE_REQUIRE_PROMTOOL", format!("promtool: {error}"));
        }
    };
    let mut input = tool.stdin.take().unwrap();
    std::io::Write::write_all(&mut input, metrics.text().unwrap().as_bytes()).unwrap();
    drop(input);
    let said = tool.wait_with_output().unwrap();
    let text = [said.stdout, said.stderr].concat();
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&text));
    assert!(text.is_empty(), "{}", String::from_utf8_lossy(&text));
}

#[test]
fn a_line_tells_what_happened_since_the_one_before() {
    let Snapshot { statistics, load, .. } = snapshot();
    let mut before = Statistics::default();
    let line = |before: &Statistics| line_of(before, &statistics, load, Duration::from_secs(2));
    assert_eq!(
        line(&before),
        "3 steps: 66.7% replayed, 35.0% padding, 6 tokens/s; 3 running, 0 waiting, 25.0% of the KV \
         pool; 1 launched: not_captured"
    );
    before = statistics.clone();
    before.steps -= 1;
    before.steps_by_mode[StepMode::Full as usize] -= 1;
    assert!(
        line(&before).starts_with("1 steps: 100.0% replayed, 0.0% padding"),
        "{}",
        line(&before)
    );
    let mut ticker = Ticker::new(Duration::ZERO);
    let (_, warning) = ticker.line(&statistics, load).unwrap();
    let warning = warning.unwrap();
    let said =
        "66.7% of 3 steps that could replay did, under 95%: most of the others for not_captured";
    assert!(warning.starts_with(said), "{warning}");
    // What the mode or a choice launches is not amiss, and one of twenty may miss.
    let mut ticker = Ticker::new(Duration::ZERO);
    let mut well = statistics.clone();
    well.steps_by_mode[StepMode::Full as usize] += 17;
    *well.misses.entry(Statistics::LAUNCHED_BY_MODE).or_default() += 30;
    *well.misses.entry("launches_faster").or_default() += 30;
    well.steps += 77;
    assert_eq!(ticker.line(&well, load).unwrap().1, None);
    let mut ticker = Ticker::new(Duration::ZERO);
    assert!(ticker.line(&statistics, load).is_some());
    assert_eq!(ticker.line(&statistics, load), None, "nothing ran since");
}
