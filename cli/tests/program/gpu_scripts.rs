//! The scripts that run on a machine with a GPU: what they print of reports of `bench --json`.

use crate::bounded::Bound;
use crate::support::cli::stdout_of;
use serde_json::{Value, json};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

const BENCH: [&str; 14] = [
    "bench",
    "--model",
    "examples/tiny-qwen3",
    "--context",
    "24",
    "--steps",
    "4",
    "--warmup",
    "1",
    "--batch",
    "1,3",
    "--graph-mode",
    "full,piecewise",
    "--json",
];

/// A report of the CPU, where no driver is called.
fn report() -> Value {
    serde_json::from_str(&stdout_of(&BENCH)).unwrap()
}

/// Whether a script of `tests/gpu` ends well, and what it prints of these reports.
fn said(script: &str, reports: &[Value]) -> (bool, String) {
    let folder = tempfile::tempdir().unwrap();
    let files = Vec::from_iter((0..reports.len()).map(|i| folder.path().join(i.to_string())));
    for (file, report) in files.iter().zip(reports) {
        std::fs::write(file, report.to_string()).unwrap();
    }
    said_by(Command::new("python3").arg(scripts().join(script)).args(files))
}

fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/gpu")
}

fn said_by(command: &mut Command) -> (bool, String) {
    let output = command.bounded_output().expect("python3");
    (output.status.success(), String::from_utf8(output.stdout).unwrap())
}

#[test]
fn versions_are_a_row_where_the_device_has_any() {
    let mut report = report();
    let (is_well, of_cpu) = said("rows.py", &[report.clone()]);
    assert!(is_well && !of_cpu.contains("versions"), "{of_cpu}");
    report["versions"] = json!({"cuda": "13.0", "driver": "580.1"});
    let (_, of_gpu) = said("rows.py", &[report.clone()]);
    let row = "tiny-qwen3 versions\tok\tcuda 13.0, driver 580.1\n";
    assert_eq!(of_gpu, row.to_owned() + &of_cpu);
    // The peer's report knows of none.
    report.as_object_mut().unwrap().remove("versions");
    assert_eq!(said("rows.py", &[report]), (true, of_cpu));
}

/// The report of a device with a driver: for each step what its submit and the driver's calls take, of one
/// sequence and of 128 in one graph, then in pieces.
fn with_driver(report: &Value, times: [(f64, f64); 4]) -> Value {
    let mut report = report.clone();
    for (i, (submit, driver)) in times.into_iter().enumerate() {
        let row = &mut report["modes"][i / 2]["rows"][i % 2];
        row["batch"] = json!([1, 128][i % 2]);
        row["submit_us"]["median"] = json!(submit);
        row["driver_us"] = json!(driver);
        row["host_us"] = json!(submit - driver);
    }
    report
}

#[test]
fn what_the_host_path_costs_is_held_by_the_best_of_several_runs() {
    let mut report = report();
    report["modes"][0]["rows"][1]["batch"] = json!(128);
    report["modes"][1]["rows"][1]["batch"] = json!(128);
    let (is_well, said_of_cpu) = said("host.py", &[report.clone()]);
    assert!(is_well && said_of_cpu.matches("\tnone\t").count() == 4, "{said_of_cpu}");
    let good = [(13.0, 3.5), (44.0, 5.0), (180.0, 150.0), (240.0, 190.0)];
    let busy = good.map(|(submit, driver)| (3.0 * submit, 2.0 * driver));
    let runs = |times: &[_]| {
        let reports = Vec::from_iter(times.iter().map(|times| with_driver(&report, *times)));
        let (is_well, said) = said("host.py", &reports);
        let failed = said.lines().filter(|line| line.contains("\tFAILED\t"));
        let failed = Vec::from_iter(failed.map(|line| line.split('\t').next().unwrap()));
        assert_eq!((said.lines().count(), is_well), (4, failed.is_empty()), "{said}");
        (failed.join(", "), said.clone())
    };
    let (failed, text) = runs(&[busy, good, busy]);
    assert_eq!(failed, "");
    assert!(text.contains("submit 1 full\tok\t9.5 us of 10 (32.0, 9.5, 32.0)"), "{text}");
    assert!(text.contains("submit 128 piecewise\tok\t1.26 times of 1.3 "), "{text}");
    let all = ["1 full", "128 full", "1 piecewise", "128 piecewise"];
    let all = all.map(|step| format!("tiny-qwen3 submit {step}"));
    assert_eq!(runs(&[busy; 3]).0, all.join(", "));
    // Each by itself, just above its bar; driver's calls in a slow spell excuse nothing.
    let above = [(13.6, 3.5), (45.1, 5.0), (196.0, 150.0), (248.0, 190.0)];
    for (i, step) in all.iter().enumerate() {
        let (mut one, mut slow_calls) = (good, good);
        one[i] = above[i];
        slow_calls[i] = if i < 2 { above[i] } else { (above[i].0, 2.0 * above[i].1) };
        assert_eq!(runs(&[one, slow_calls]).0, *step);
    }
    // A step that failed has no figures, and one that is not there holds nothing.
    let mut lacking = with_driver(&report, good);
    lacking["modes"][0]["rows"][0] = json!({
        "model": "tiny-qwen3", "kind": "decode", "batch": 1, "mode": "full", "failures": ["no memory"],
    });
    lacking["modes"].as_array_mut().unwrap().pop();
    let (is_well, text) = said("host.py", &[lacking]);
    assert!(!is_well && text.contains("submit 1 full\tFAILED\tno memory"), "{text}");
    assert_eq!(text.matches("FAILED\tno run has such a row").count(), 2, "{text}");
}

/// What `modes.py` says of decodes of one row and of three that take so many milliseconds launched, in
/// pieces and in one graph: whether all is held, and the result and text of each line.
fn modes_said(model: &str, walls: [[f64; 3]; 2]) -> (bool, Vec<String>) {
    let rows = |mode: usize| {
        let row = |(batch, walls): (u64, [f64; 3])| {
            json!({
                "kind": "decode", "batch": batch, "context": 512, "tokens": batch,
                "wall_ms": {"p10": walls[mode]}, "failures": [],
            })
        };
        [1, 3].into_iter().zip(walls).map(row).collect::<Vec<_>>()
    };
    let names = ["none", "piecewise", "full"].into_iter().enumerate();
    let modes = Vec::from_iter(names.map(|(i, name)| json!({"mode": name, "rows": rows(i)})));
    let (is_held, text) = said("modes.py", &[json!({"model": model, "modes": modes})]);
    (is_held, text.lines().map(str::to_owned).collect())
}

#[test]
fn steps_in_pieces_are_held_to_launched_ones_and_to_one_graph() {
    let good = [2.0, 2.02, 1.99];
    let (is_held, lines) = modes_said("qwen3-8b", [good; 2]);
    let text = "ok\t2.000 launched, 2.020 in pieces (1.010), 1.990 in one graph (1.015)";
    let steps = ["1x512", "3x512"];
    let expected = steps.map(|step| format!("qwen3-8b decode {step} in pieces\t{text}"));
    assert_eq!((is_held, lines), (true, expected.to_vec()));
    let failed = |model, walls| {
        let (is_held, lines) = modes_said(model, walls);
        let failed = lines.iter().map(|line| line.contains("\tFAILED\t"));
        let failed = <[bool; 2]>::try_from(Vec::from_iter(failed)).unwrap();
        assert_eq!(is_held, failed == [false; 2], "{lines:?}");
        failed
    };
    let above_launched = [2.0, 2.05, 2.04];
    assert_eq!(failed("qwen3-8b", [above_launched, good]), [true, false]);
    assert_eq!(failed("qwen3-8b", [good, above_launched]), [false, true]);
    // One graph is a bar for one row alone, of the models that have one.
    let above_graph = [2.0, 2.0, 1.92];
    assert_eq!(failed("qwen3-8b", [above_graph; 2]), [true, false]);
    assert_eq!(failed("qwen3-0.6b", [above_graph; 2]), [false; 2]);
    assert_eq!(failed("qwen3-0.6b", [[2.0, 2.0, 1.6]; 2]), [true, false]);
    assert_eq!(failed("llama-3.2-1b", [[2.0, 2.0, 1.6]; 2]), [false; 2]);
}

/// Where it was measured to be faster, a step of mode `piecewise` was launched: it is shown as that, and
/// nothing that is held of pieces is held of it.
#[test]
fn a_step_that_was_launched_by_choice_is_none_in_pieces() {
    let mut report = report();
    let mut launched = report["modes"][0].clone();
    launched["mode"] = json!("none");
    report["modes"].as_array_mut().unwrap().push(launched);
    let row = &mut report["modes"][1]["rows"][1];
    (row["path"], row["chosen"]) = (json!("launched"), json!("launches_faster"));
    let slow = row["wall_ms"]["p10"].as_f64().unwrap() + 1e3;
    row["wall_ms"]["p10"] = json!(slow);
    let (_, text) = said("modes.py", std::slice::from_ref(&report));
    let chosen = format!("decode 3x24 in pieces\tok\t{slow:.3} launched by choice, ");
    assert!(text.contains(&chosen), "{text}");
    let (_, text) = said("rows.py", &[report]);
    let row = text.lines().find(|line| line.contains("decode 3x24 piecewise")).unwrap();
    assert!(row.contains("launched by choice: launches_faster"), "{row}");
}

#[test]
fn a_step_in_pieces_without_the_other_modes_is_not_held() {
    let (is_held, text) = said("modes.py", &[report()]);
    assert!(!is_held && text.lines().count() == 2, "{text}");
    assert_eq!(text.matches("FAILED\tmeasured in full, piecewise alone\n").count(), 2, "{text}");
    let mut report = report();
    let mut launched = report["modes"][0].clone();
    launched["mode"] = json!("none");
    report["modes"].as_array_mut().unwrap().push(launched);
    report["modes"][0]["rows"][1] = json!({
        "kind": "decode", "batch": 3, "context": 24, "tokens": 3, "failures": ["no memory"],
    });
    let (is_held, text) = said("modes.py", &[report]);
    assert!(!is_held && text.contains("measured in none, piecewise alone"), "{text}");
    assert_eq!(said("modes.py", &[]), (false, String::new()));
}

/// In place of `decode.py`: it notes when it begins, when it is timed and when it ends, and fails at 8
/// sequences before it is ready, at prompts of 512 tokens for good, and never ends at 9 of either.
const PEER: &str = r#"
import json, os, sys, time
given = dict(zip(sys.argv[1:], sys.argv[2:]))
step = given["--batch"] or "p" + given["--prefill"]
def note(what):
    with open(os.path.join(os.path.dirname(__file__), "notes"), "a") as notes:
        notes.write(f"{what} {step}\n")
note("begins")
if step in ("9", "p9"):
    time.sleep(600)
if step == "p512":
    sys.exit("the driver is gone")
row = {"failures": ["no memory"]}
if step != "8":
    print("compiled", "ready", sep="\n", file=sys.stderr, flush=True)
    sys.stdin.readline()
    note("timed")
    row = {"gpu_ms": {"median": 5.0}, "compile_s": 12.3, "failures": []}
note("ends")
print(json.dumps({"versions": {"torch": "2.11"}, "modes": [{"mode": "it", "rows": [row]}]}))
"#;

/// In place of `piecewise`: the rows that it is asked for.
const OURS: &str = r#"#!/usr/bin/env python3
import json, sys
given = dict(zip(sys.argv[1:], sys.argv[2:]))
def row(kind, batch, tokens):
    shape = {"kind": kind, "batch": batch, "context": int(given["--context"]), "tokens": tokens}
    return shape | {"mode": "full", "gpu_ms": {"median": 2.0}}
rows = [row("decode", int(n), int(n)) for n in given["--batch"].split(",")]
rows += [row("prefill", 1, int(n)) for n in given["--prefill"].split(",")]
start = {"plan_s": 0.5, "open_s": 1.0, "compile_s": 3.0}
print(json.dumps({"versions": {"cuda": "13.0"}, "start": start, "modes": [{"rows": rows}]}))
"#;

/// Whether `peer.py` ends well with these arguments, what it prints, and what its peers noted.
fn peer_said(args: &[&str]) -> (bool, String, String) {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for name in ["peer.py", "rows.py"] {
        std::fs::copy(scripts().join(name), at(name)).unwrap();
    }
    std::fs::write(at("decode.py"), PEER).unwrap();
    std::fs::write(at("piecewise"), OURS).unwrap();
    std::fs::set_permissions(at("piecewise"), Permissions::from_mode(0o755)).unwrap();
    let mut peer = Command::new("python3");
    let (is_well, text) = said_by(peer.arg(at("peer.py")).arg(at("piecewise")).args(args));
    (is_well, text, std::fs::read_to_string(at("notes")).unwrap_or_default())
}

#[test]
fn a_peer_is_timed_alone_beside_our_rows_and_one_that_fails_is_a_row_without_figures() {
    let (is_well, text, notes) = peer_said(&["--batch", "1,8", "qwen3-8b"]);
    let measured = "ok\t5.000 / 2.000 ms, 2.50 times, 12 s to compile, torch 2.11";
    let expected = [
        "versions\tok\tcuda 13.0",
        "start\tok\t4.5 s to compile all rows",
        &format!("decode 1x512 full\t{measured}"),
        "decode 8x512 full\tnone\t2.000 ms; no memory",
        "prefill 512 full\tnone\t2.000 ms; the driver is gone",
        &format!("prefill 2048 full\t{measured}"),
    ];
    let expected = expected.map(|line| format!("qwen3-8b {line}\n")).concat();
    assert_eq!((is_well, text), (true, expected));
    // Three find room beside each other; what one of them notes before it is timed has no order.
    let notes = Vec::from_iter(notes.lines());
    let (first, second) = notes.split_at(notes.len() - 3);
    assert_eq!(second, ["begins p2048", "timed p2048", "ends p2048"]);
    assert_eq!(first[4..], ["timed 1", "ends 1"], "{first:?}");
}

#[test]
fn nothing_is_timed_beside_a_peer_that_compiles_too_long() {
    let args = ["--batch", "9", "--prefill", "9", "--compile-seconds", "1", "llama-3.2-1b"];
    let (is_well, text, notes) = peer_said(&args);
    let late = "full\tnone\t2.000 ms; not compiled within 1 s\n";
    let rows = ["decode 9x512", "prefill 9"].map(|row| format!("llama-3.2-1b {row} {late}"));
    assert!(is_well && text.ends_with(&rows.concat()), "{text}");
    assert!(!notes.contains("timed"), "{notes}");
}

/// A checkpoint that the script makes is read, and its second start compiles nothing.
#[test]
fn starts_are_timed_from_a_checkpoint_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new("python3");
    command.arg(scripts().join("start.py")).arg(env!("CARGO_BIN_EXE_piecewise"));
    command.args(["--shape", "tiny", "--device", "cpu", "--times", "1", "--folder"]);
    command.arg(folder.path()).current_dir(scripts().join("../.."));
    let (is_well, text) = said_by(&mut command);
    let rows = Vec::from_iter(text.lines().map(|line| Vec::from_iter(line.split('\t'))));
    assert!(is_well && rows.len() == 3 && rows.iter().all(|row| row[1] == "ok"), "{text}");
    let compiled = |row: usize| rows[row][2].split_once(" s (").unwrap().1.to_owned();
    assert!(!compiled(1).starts_with("0 compiled"), "{text}");
    assert_eq!(compiled(2), "0 compiled, 0 of packs)");
    assert_eq!(folder.path().read_dir().unwrap().count(), 0, "nothing is left");
}
