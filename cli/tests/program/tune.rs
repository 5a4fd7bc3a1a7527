//! `piecewise tune`, and what a start does with what it left.

use crate::bounded::Bound;
use crate::support::cli::{command, error_of, piecewise, stdout_of};
use serde_json::Value;
use std::path::Path;

const MODEL: [&str; 8] = [
    "--model",
    "examples/tiny-qwen3",
    "--max-num-tokens",
    "8",
    "--max-seq-len",
    "32",
    "--capture-num-tokens",
    "1,8",
];

fn json(cache: &Path, args: &[&str]) -> Value {
    let output = command(cache).args(args).args(MODEL).arg("--json").bounded_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn tune_measures_to_its_end_once_and_shows_gains_beside_spreads() {
    let cache = tempfile::tempdir().unwrap();
    let cache = cache.path();
    let mode = ["tune", "--graph-mode", "piecewise"];
    let first = json(cache, &mode);
    let gains = first["gains"].as_array().unwrap();
    assert!(!gains.is_empty(), "{first}");
    for gain in gains {
        assert_eq!(gain["origin"], "measured");
        let of = |key: &str| gain[key].as_f64().unwrap();
        assert!(of("before_us") > 0.0 && of("after_us") > 0.0 && of("spread") > 0.0, "{gain}");
    }
    assert_eq!(first["report"]["unmeasured"], 0);
    let again = json(cache, &mode);
    let from_before = |gain: &Value| gain["origin"] == "remembered";
    assert!(again["gains"].as_array().unwrap().iter().all(from_before), "{again}");
    let shown = command(cache).args(mode).args(MODEL).bounded_output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    let count = format!("measured  0 choices in 0.0 s, {} known from before", gains.len());
    for line in ["choice", "gain", "spread", "step in pieces", &count] {
        assert!(shown.contains(line), "no {line:?} in\n{shown}");
    }
}

#[test]
fn tune_says_why_it_can_not_remember_or_measure() {
    let of = |args: &[&str]| error_of(&[&["tune"], &MODEL[..], args].concat());
    let read_only = of(&["--cache-read-only"]);
    assert!(read_only.contains("not to be changed (cache.read_only)"), "{read_only}");
    let without = of(&["--no-cache"]);
    assert!(without.contains("there is nothing to remember in"), "{without}");
    let unusable = of(&["--cache-dir", "Cargo.toml"]);
    for part in ["there is nothing to remember in", "the cache in Cargo.toml is not used"] {
        assert!(unusable.contains(part), "{unusable}");
    }
    let eager = of(&["--level", "eager"]);
    assert!(eager.contains("nothing to measure; use level"), "{eager}");
}

/// Requests wait for no measurement, whatever the settings say.
#[test]
fn what_serves_loads_where_it_is_told_to_measure() {
    let worker = ["worker", "--handshake", "tcp://127.0.0.1:1", "--rank", "0", "--model", MODEL[1]];
    for args in [&["serve", "--model", MODEL[1]][..], &worker] {
        let args = [args, &["--tune", "measure", "--print-config"]].concat();
        let output = piecewise(&args);
        let (shown, said) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(shown.contains("tune = \"load\""), "{shown}{said}");
        assert!(said.contains("run `piecewise tune` with the same settings"), "{said}");
    }
    let generate = ["generate", "--model", MODEL[1], "--tune", "measure", "--print-config"];
    assert!(stdout_of(&generate).contains("tune = \"measure\""), "at start, for who asks");
}

/// An encoder on the CPU has one way of everything.
#[test]
fn tune_says_where_there_is_nothing_to_choose() {
    let shown = stdout_of(&["tune", "--model", "tests/fixtures/encoders/bert"]);
    assert!(shown.starts_with("nothing   to choose: each part has one way"), "{shown}");
}
