//! Random input against what reads it: a few cases in every run, the same each time, and others for as many
//! seconds as `PIECEWISE_FUZZ_SECONDS` says (`tests/fuzz.sh`). Nothing may panic, hang or take much memory.

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use std::fmt::Debug;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Cases of a run that is not told how long to go on.
const FEW: u32 = 48;
/// What a case that hangs has taken, when it is looked for.
const HANGS: Duration = Duration::from_secs(120);
/// The most resident memory of a process that looks for more than a few, in kilobytes.
const MOST_MEMORY: u64 = 3 << 20;

fn seconds() -> Option<Duration> {
    let text = std::env::var("PIECEWISE_FUZZ_SECONDS").ok()?;
    let seconds = text.parse().map(Duration::from_secs);
    Some(seconds.unwrap_or_else(|_| panic!("PIECEWISE_FUZZ_SECONDS={text:?} is no number")))
}

/// Holds `check` for cases of `strategy`; a case that fails is shown, made as small as it gets.
pub(crate) fn fuzz<S>(name: &str, strategy: &S, check: impl Fn(S::Value))
where
    S: Strategy,
    S::Value: Debug,
{
    let config = Config { cases: FEW, failure_persistence: None, ..Config::default() };
    let started = Instant::now();
    let Some(time) = seconds() else {
        return run(&mut TestRunner::new_with_rng(config, seeded()), strategy, &check);
    };
    let (mut cases, mut longest) = (0_u64, Duration::ZERO);
    while started.elapsed() < time {
        let mut runner = TestRunner::new(config.clone());
        let measured = std::cell::Cell::new((cases, longest));
        run(&mut runner, strategy, |case| {
            let begun = Instant::now();
            let _watched = Watched::new(name, &case);
            check(case);
            let (cases, longest) = measured.get();
            measured.set((cases + 1, longest.max(begun.elapsed())));
        });
        (cases, longest) = measured.get();
    }
    let memory = peak();
    println!(
        "{name}: {cases} cases in {:.0?}, the longest {longest:.2?}, {memory} kB at most",
        started.elapsed()
    );
    assert!(memory < MOST_MEMORY, "{name}: {memory} kB");
}

fn seeded() -> proptest::test_runner::TestRng {
    let algorithm = proptest::test_runner::RngAlgorithm::ChaCha;
    proptest::test_runner::TestRng::deterministic_rng(algorithm)
}

fn run<S>(runner: &mut TestRunner, strategy: &S, check: impl Fn(S::Value))
where
    S: Strategy,
    S::Value: Debug,
{
    let checked = |case| {
        check(case);
        Ok::<_, TestCaseError>(())
    };
    if let Err(error) = runner.run(strategy, checked) {
        panic!("{error}");
    }
}

/// Ends the process where a case takes too long, and shows it: nothing else ends one that hangs.
struct Watched(Option<mpsc::Sender<()>>);

impl Watched {
    fn new(name: &str, case: &impl Debug) -> Self {
        let (ended, has_ended) = mpsc::channel();
        let shown = format!("{name} hangs: {case:?}");
        std::thread::spawn(move || {
            if has_ended.recv_timeout(HANGS) == Err(mpsc::RecvTimeoutError::Timeout) {
                println!("{shown}");
                std::process::abort();
            }
        });
        Self(Some(ended))
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        drop(self.0.take());
    }
}

/// The most memory that this process has had, in kilobytes; 0 where the system does not say.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}
