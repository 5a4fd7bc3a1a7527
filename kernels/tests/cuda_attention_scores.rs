//! Windows, caps of scores and sinks in every kernel of paged attention: on the host against the f64
//! reference, with NaN in the pages that no row of a sequence sees, and through NVRTC.

use crate::attention::{Checked, PADDING, Step};
use crate::emulate::{available, floats, try_emulate_hiding};
use crate::nvrtc::Nvrtc;
use piecewise_ir::dtype::DType::{self, BF16, F16, F32};
use piecewise_kernels::cuda::PRELUDE;

const ONE: &[&str] = &["attention_split"];
const SPLIT: &[&str] = &["attention_split", "attention_combine"];
const DECODE_ONE: &[&str] = &["attention_decode"];
const DECODE: &[&str] = &["attention_decode", "attention_combine"];
const BOTH: &[&str] = &["attention_decode", "attention_combine", "attention_prefill"];
const BOTH_ONE: &[&str] = &["attention_decode", "attention_prefill"];

/// Chunks that start a sequence, that go on past the window, and all of them beside decodes.
const RAGGED: ([i32; 7], [i32; 7]) = ([130, 300, 5, 64, 0, 201, 77], [130, 64, 5, 17, 0, 1, 2]);
const DECODES: ([i32; 7], [i32; 7]) = ([1, 15, 16, 17, 0, 100, 700], [1, 1, 1, 1, 0, 1, 1]);
const TOKENS: ([i32; 3], [i32; 3]) = ([37, 70, 333], [20, 5, 2]);

/// By what a step differs from one that sees all.
#[derive(Clone, Copy)]
enum Of {
    Window(u32),
    Cap,
    Sinks(DType),
    /// All three.
    All,
}

fn with(of: Of, step: Step<'_>) -> Step<'_> {
    match of {
        Of::Window(window) => Step { window: Some(window), ..step },
        Of::Cap => Step { softcap: Some(0.75), ..step },
        Of::Sinks(dtype) => Step { sinks: Some(dtype), ..step },
        Of::All => Step { window: Some(37), softcap: Some(0.75), sinks: Some(BF16), ..step },
    }
}

/// Each kernel that can be chosen, by a step that is given to it.
fn steps() -> [(&'static str, Step<'static>, &'static [&'static str]); 9] {
    let of = |lengths: &'static [i32], queries: &'static [i32]| Step {
        lengths,
        queries,
        ..Step::default()
    };
    let many = Step { heads: [10, 10], padding_rows: 40, ..of(&DECODES.0, &DECODES.1) };
    let ragged = of(&RAGGED.0, &RAGGED.1);
    [
        ("split", Step { dtypes: [F32, BF16], ..of(&TOKENS.0, &TOKENS.1) }, SPLIT),
        (
            "split_one",
            Step { dtypes: [F32; 2], dims: [16, 16], heads: [4, 4], ..of(&[280], &[270]) },
            ONE,
        ),
        ("decode", of(&DECODES.0, &DECODES.1), DECODE),
        ("decode_one", many, DECODE_ONE),
        ("tokens", Step { dims: [256, 256], heads: [4, 1], ..of(&TOKENS.0, &TOKENS.1) }, DECODE),
        ("prefill", Step { dims: [128, 128], ..ragged }, BOTH),
        (
            "prefill_wide",
            Step { dims: [192, 128], dtypes: [F16; 2], heads: [3, 1], ..ragged },
            BOTH,
        ),
        ("warpgroups", Step { padding_rows: 8400, capability: (9, 0), ..ragged }, BOTH),
        (
            "stays",
            Step {
                padding_rows: 8400,
                absent: 150,
                capability: (9, 0),
                ..of(&[33, 1200, 1, 150, 1023, 1024, 2000], &[1, 2, 1, 140, 1, 1, 1])
            },
            BOTH_ONE,
        ),
    ]
}

/// Few pages are seen of a narrow window, which are not worth ranges.
fn entries_of(of: Of, kernel: &str, entries: &'static [&'static str]) -> &'static [&'static str] {
    match (of, kernel) {
        (Of::Window(..=48) | Of::All, "decode") | (Of::Window(..=16), "tokens") => DECODE_ONE,
        (Of::Window(..=1000) | Of::All, "stays") => BOTH,
        _ => entries,
    }
}

fn every_kernel(of: Of, name: &str) {
    if available() {
        for (kernel, step, entries) in steps() {
            let entries = entries_of(of, kernel, entries);
            with(of, step).check(&format!("scores_{name}_{kernel}"), entries);
        }
    }
}

#[test]
fn a_row_sees_its_window_and_no_page_before_it_is_read() {
    every_kernel(Of::Window(37), "window");
    every_kernel(Of::Window(1), "own");
}

#[test]
fn a_window_of_many_pages() {
    every_kernel(Of::Window(160), "wide_window");
}

#[test]
fn scores_are_capped() {
    every_kernel(Of::Cap, "cap");
}

#[test]
fn a_sink_joins_the_sum_of_its_head_once() {
    every_kernel(Of::Sinks(BF16), "sinks");
    let (_, step, entries) = steps()[0];
    if available() {
        with(Of::Sinks(F32), step).check("scores_sinks_f32", entries);
    }
}

#[test]
fn windows_caps_and_sinks_together() {
    every_kernel(Of::All, "all");
}

/// Where a window is so wide that blocks of a cluster share what a long sequence sees of it.
#[test]
fn clusters_share_the_window_of_a_long_sequence() {
    if !available() {
        return;
    }
    let (kernel, step, entries) = steps()[8];
    let step = Step { window: Some(1100), sinks: Some(F32), ..step };
    step.check(&format!("scores_long_{kernel}"), entries);
    let every_range = ["warp == 0 && split == 0;", "warp == 0;"];
    let error = error_with(&step, "scores_planted_long", entries, every_range);
    assert!(error > 0.012, "{error}");
}

/// Token by token past three windows: the keys that are seen start anywhere in a page.
#[test]
fn decodes_at_every_place_of_a_page() {
    let lengths: Vec<i32> = (20..90).collect();
    let step = Step {
        heads: [2, 2],
        lengths: &lengths,
        queries: &[1; 70],
        padding_rows: PADDING,
        query_length: Some(1),
        window: Some(20),
        ..Step::default()
    };
    if available() {
        step.check("scores_places", DECODE_ONE);
    }
}

/// What a step computes does not depend on its company, nor on how far the pool reaches.
#[test]
fn a_windowed_decode_has_the_same_bits_whatever_is_beside_it() {
    if !available() {
        return;
    }
    let of = |lengths, queries, padding_rows| {
        let step = Step { lengths, queries, padding_rows, ..Step::default() };
        with(Of::All, step).check("scores_company", DECODE_ONE)
    };
    let alone = of(&[333, 0, 0], &[1, 0, 0], 3);
    assert_eq!(of(&[333, 700, 20], &[1, 1, 1], 1)[..alone.len()], alone);
}

/// The largest difference from the reference; NaN counts as infinite.
fn error_with(step: &Step<'_>, name: &str, entries: &[&str], edit: [&str; 2]) -> f64 {
    let Checked { mut case, expected, .. } = step.made(name, entries);
    let sources = case.launches.iter().filter(|launch| launch.source.contains(edit[0]));
    assert!(sources.count() > 0, "{name}: no source has {:?}", edit[0]);
    for launch in &mut case.launches {
        launch.source = launch.source.replace(edit[0], edit[1]);
    }
    let got = try_emulate_hiding(name, &case, &[]).unwrap().pop().unwrap();
    let got = floats(step.dtypes[0], &got);
    let apart = got.iter().zip(&expected.data).map(|(a, b)| (a - b).abs());
    apart.map(|x| if x.is_nan() { f64::INFINITY } else { x }).fold(0.0, f64::max)
}

/// Wrong windows, caps and sinks are found by what every kernel is held to.
#[test]
fn planted_windows_caps_and_sinks_are_found() {
    if !available() {
        return;
    }
    // Those of prompts cut no keys into ranges here, where a sink might be counted twice.
    let cut = ["split", "decode"];
    let first_range = ["== 0 && blockIdx.z == 0)", "warp == 0 && split == 0;"];
    let planted = |kernel: &&str| ["split", "decode", "prefill", "warpgroups"].contains(kernel);
    for (kernel, step, entries) in steps().into_iter().filter(|(kernel, ..)| planted(kernel)) {
        let mut faults = vec![
            (
                "one_more",
                Of::Window(37),
                ["seen > WINDOW ? seen - WINDOW : 0", "seen > WINDOW + 1 ? seen - WINDOW - 1 : 0"],
            ),
            (
                "one_less",
                Of::Window(37),
                ["seen > WINDOW ? seen - WINDOW : 0", "seen >= WINDOW ? seen - WINDOW + 1 : 0"],
            ),
            ("neighbour", Of::Sinks(F32), ["sink_score(sinks[", "sink_score(sinks[1 ^ "]),
            ("twice_the_cap", Of::Cap, ["#define CAP ", "#define CAP 2.0f * "]),
        ];
        if cut.contains(&kernel) {
            let at = usize::from(entries[0] == "attention_decode");
            let every =
                first_range[at].replace(" && blockIdx.z == 0", "").replace(" && split == 0", "");
            let every: &'static str = every.leak();
            faults.push(("each_range", Of::Sinks(F32), [first_range[at], every]));
        }
        for (fault, of, edit) in faults {
            let name = format!("scores_planted_{fault}_{kernel}");
            let entries = entries_of(of, kernel, entries);
            let error = error_with(&with(of, step), &name, entries, edit);
            assert!(error > 0.012, "{name}: {error}");
        }
    }
}

/// What no call asks for leaves no trace in a source.
#[test]
fn a_call_without_them_has_the_source_that_it_had() {
    for (name, step, entries) in steps() {
        for launch in step.made(name, entries).case.launches {
            for word in ["SLIDING", "CAPPED", "SINK", "seen_from", "share_of_cap"] {
                assert!(!launch.source.contains(word), "{name} has {word}");
            }
        }
    }
}

#[test]
fn nvrtc_takes_every_form() {
    let Some(nvrtc) = Nvrtc::find() else { return };
    for of in [Of::Window(37), Of::Window(1100), Of::Cap, Of::Sinks(F16), Of::All] {
        for (name, step, entries) in steps() {
            let step = with(of, step);
            let arch = if step.capability == (9, 0) { "sm_90a" } else { "sm_80" };
            for launch in step.made(name, entries_of(of, name, entries)).case.launches {
                let arch = if launch.source.contains("wgmma") { "sm_90a" } else { arch };
                if let Err(log) = nvrtc.compile(&launch.source, PRELUDE, arch, &launch.options) {
                    panic!("{name}: {log}");
                }
            }
        }
    }
}
