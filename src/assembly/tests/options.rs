//! What a configuration says of how a model is built.

use super::*;
use crate::assembly::options::build_options;
use piecewise_backend::tuning::TuneMode;
use piecewise_runtime::batch::RoleMap;
use piecewise_runtime::config::{ConfigLayers, RuntimeConfig};
use piecewise_runtime::words::{CompileLevel, OnCaptureFailure, SymbolTable};
use std::time::Duration;

fn config(text: &str) -> RuntimeConfig {
    ConfigLayers::new().file("piecewise.toml", text).unwrap().finish().unwrap().config
}

/// Of a graph that returns logits and what it samples of them.
fn roles() -> RoleMap {
    let bounds = StepBounds {
        max_tokens: 512,
        max_rows: 64,
        max_sequences: 64,
        max_length: 64,
        kv_rows: 0,
        state_slots: 0,
    };
    let b = Builder::new("bigram").weight_dtype(DType::F32);
    let step = StepInputs::declare(&b, &bounds);
    let logits = b.weight("table", [24, 24]).gather(step.ids).gather(step.logit_rows);
    let graph = b.finish([logits, step.sample(logits)]).unwrap();
    let symbols = SymbolTable::new(graph.symbols()).unwrap();
    RoleMap::resolve(&graph, &symbols, &OpRegistry::builtin()).unwrap()
}

#[test]
fn a_failed_capture_is_an_error_where_steps_must_replay_and_else_launches() {
    let of = |text: &str| {
        let options = build_options(&config(text), None, 1, Purpose::Generate).unwrap();
        options.on_capture_failure
    };
    assert_eq!(of(""), OnCaptureFailure::Launch);
    assert_eq!(of("on_capture_failure = \"error\""), OnCaptureFailure::Error);
    assert_eq!(of("strict = true"), OnCaptureFailure::Error);
}

/// Of a start; what tunes has no limit.
#[test]
fn nothing_is_measured_unless_that_is_asked_for_and_then_for_so_long() {
    let of = |text: &str| {
        let options = build_options(&config(text), None, 1, Purpose::Generate).unwrap();
        (options.tune, options.tune_budget)
    };
    assert_eq!(of("").0, TuneMode::Load);
    assert_eq!(of("tune = \"measure\""), (TuneMode::Measure, Duration::from_secs(20)));
    let seconds = "tune = \"measure\"\ntune_seconds = 3";
    assert_eq!(of(seconds), (TuneMode::Measure, Duration::from_secs(3)));
}

#[test]
fn levels_that_fuse_nothing_measure_nothing() {
    use CompileLevel::{Compile, Eager, Piecewise, Trace};
    for (level, measures) in [(Eager, false), (Trace, false), (Compile, true), (Piecewise, true)] {
        let config = RuntimeConfig { level, tune: TuneMode::Measure, ..Default::default() };
        let options = build_options(&config, Some(&roles()), 2, Purpose::Generate).unwrap();
        assert_eq!(options.tune == TuneMode::Measure, measures);
        assert_eq!(options.tuning_steps.is_empty(), !measures);
    }
}

#[test]
fn what_is_read_back_follows_the_purpose() {
    let (config, roles) = (RuntimeConfig::default(), roles());
    let generate = build_options(&config, Some(&roles), 2, Purpose::Generate).unwrap();
    assert_eq!((generate.read_outputs, generate.max_logit_rows), (vec![1], 64));
    let logits = build_options(&config, Some(&roles), 2, Purpose::Logits).unwrap();
    assert_eq!((logits.read_outputs, logits.max_logit_rows), (vec![1, 0], 512));
}
