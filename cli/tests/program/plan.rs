//! `piecewise plan`, run as a program.

use crate::bounded::Bound;
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

fn piecewise(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_piecewise"))
        .arg("plan")
        .args(arguments)
        .env_remove("RUST_BACKTRACE")
        .bounded_output()
        .unwrap()
}

fn stdout(arguments: &[&str]) -> String {
    let output = piecewise(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn json(arguments: &[&str]) -> Value {
    let arguments: Vec<&str> = arguments.iter().copied().chain(["--json"]).collect();
    serde_json::from_str(&stdout(&arguments)).unwrap()
}

fn failure(arguments: &[&str]) -> String {
    let output = piecewise(arguments);
    assert!(!output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert!(output.stdout.is_empty());
    String::from_utf8(output.stderr).unwrap()
}

struct Files(TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

/// Mixed steps of 10, 20, 500 and 512 tokens and decodes of 1, 7 and 8 sequences.
fn small_log() -> String {
    let mut log = String::new();
    for (context, generation, steps) in
        [(9, 1, 10), (20, 0, 10), (500, 0, 3), (508, 4, 1), (0, 1, 5), (0, 7, 20), (0, 8, 2)]
    {
        for _ in 0..steps {
            log.push_str(&format!(
                "{{\"context_tokens\": {context}, \"generation_requests\": {generation}}}\n"
            ));
        }
    }
    log
}

/// Mixed steps by their tokens, so many of each.
fn mixed(steps: &[(u32, usize)]) -> String {
    let of = |&(tokens, steps): &(u32, usize)| format!("{{\"tokens\": {tokens}}}\n").repeat(steps);
    steps.iter().map(of).collect()
}

fn list(report: &Value, key: &str) -> Vec<u64> {
    report[key].as_array().unwrap().iter().map(|size| size.as_u64().unwrap()).collect()
}

#[test]
fn padding_objective_by_hand() {
    let files = Files::new();
    let log = files.write("log.jsonl", &small_log());
    let report = json(&["--log", &log, "--objective", "padding", "--max-graphs", "4"]);
    assert_eq!(list(&report, "capture_num_tokens"), [10, 20, 512]);
    assert_eq!(list(&report, "decode_batch_sizes"), [8]);
    assert_eq!(report["padding_tokens"], 3 * 12 + 5 * 7 + 20);
    assert_eq!(report["real_tokens"], 100 + 200 + 1500 + 512 + 5 + 140 + 16);
    assert_eq!(report["coverage"], 1.0);
    assert_eq!(report["coverage_by_kind"]["decode"]["steps"], 27);
    assert_eq!(report["graphs"], 4);
    let exact = json(&["--log", &log, "--objective", "padding", "--max-graphs", "64"]);
    assert_eq!(exact["padding_tokens"], 0);
    assert_eq!(exact["graphs"], 7);
}

#[test]
fn the_largest_sizes_cover_the_stated_maxima() {
    let files = Files::new();
    let log = files.write("log.jsonl", &small_log());
    let limits = ["--max-num-tokens", "2048", "--max-num-seqs", "64"];
    for objective in ["time", "padding"] {
        let report = json(
            &[&["--log", &log, "--objective", objective, "--max-graphs", "6"], &limits[..]]
                .concat(),
        );
        assert_eq!(list(&report, "capture_num_tokens").last(), Some(&2048));
        assert_eq!(list(&report, "decode_batch_sizes").last(), Some(&64));
    }
}

#[test]
fn the_printed_toml_is_the_plan() {
    let files = Files::new();
    let log = files.write("log.jsonl", &small_log());
    let text = stdout(&["--log", &log, "--max-graphs", "5"]);
    let start = text.find("capture_num_tokens = ").unwrap();
    let end = start + text[start..].find("\n\n").unwrap();
    let config: toml::Table = text[start..end].parse().unwrap();
    let report = json(&["--log", &log, "--max-graphs", "5"]);
    for key in ["capture_num_tokens", "decode_batch_sizes"] {
        let printed: Vec<u64> = config[key]
            .as_array()
            .unwrap()
            .iter()
            .map(|size| u64::try_from(size.as_integer().unwrap()).unwrap())
            .collect();
        assert_eq!(printed, list(&report, key));
    }
}

#[test]
fn the_report_reads_well() {
    let files = Files::new();
    let log = files.write("log.jsonl", &(small_log() + "{\"context_tokens\": -1}\n"));
    let text = stdout(&["--log", &log, "--max-graphs", "5"]).replace(&log, "log.jsonl");
    insta::assert_snapshot!(text);
}

#[test]
fn help_has_examples() {
    let help = stdout(&["--help"]);
    assert!(help.contains("Examples:") && help.contains("--check piecewise.toml"), "{help}");
}

#[test]
fn reads_standard_input() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_piecewise"))
        .args(["plan", "--log", "-", "--max-graphs", "2", "--objective", "padding", "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .bounded()
        .unwrap();
    child.stdin.take().unwrap().write_all(mixed(&[(16, 5), (60, 9), (64, 1)]).as_bytes()).unwrap();
    let output = child.wait_with_output();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(list(&report, "capture_num_tokens"), [16, 64]);
    assert_eq!(report["padding_tokens"], 36);
}

#[test]
fn one_graph_serves_everything_when_it_must() {
    let files = Files::new();
    let log = files.write("log.jsonl", &small_log());
    let report = json(&["--log", &log, "--max-graphs", "1", "--objective", "padding"]);
    assert_eq!(list(&report, "capture_num_tokens"), [512]);
    assert_eq!(list(&report, "decode_batch_sizes"), [0_u64; 0]);
    assert_eq!(report["coverage"], 1.0);
    let warnings = report["warnings"].as_array().unwrap();
    let names = Vec::from_iter(warnings.iter().map(|warning| warning["warning"].as_str().unwrap()));
    assert_eq!(names, ["no_bound", "decodes_share_token_sizes"]);
}

#[test]
fn bad_input_is_refused_with_a_reason() {
    let files = Files::new();
    let log = files.write("log.jsonl", &small_log());
    let empty = files.write("empty.jsonl", "");
    let negative =
        files.write("negative.jsonl", "{\"context_tokens\": -5, \"generation_requests\": 1}\n");
    let absurd = files
        .write("absurd.jsonl", "{\"context_tokens\": 99999999999, \"generation_requests\": 1}");
    let point = |tokens: u32| {
        format!(
            "{{\"path\":\"piecewise\",\"tokens\":{tokens},\"us\":{tokens}}}\n{{\"path\":\"full\",\"tokens\":{tokens},\"us\":{tokens}}}\n"
        )
    };
    let gappy = files.write("gappy.jsonl", &(point(1) + &point(16) + &point(512)));
    let short = files.write("short.jsonl", &(point(1) + &point(16) + &point(64)));
    let no_full = files.write("no_full.jsonl", "{\"path\":\"piecewise\",\"tokens\":512,\"us\":9}\n{\"path\":\"piecewise\",\"tokens\":64,\"us\":9}\n{\"path\":\"piecewise\",\"tokens\":256,\"us\":9}\n{\"path\":\"piecewise\",\"tokens\":8,\"us\":9}\n");
    let broken = files.write("broken.jsonl", "{\"path\":\"full\",\"tokens\":8,\"us\":\"fast\"}\n");
    for (arguments, reason) in [
        (vec!["--log", &empty], "the log has no step to plan for"),
        (vec!["--log", &negative], "`context_tokens` is -5: negative"),
        (vec!["--log", &absurd], "is 99999999999: absurd"),
        (vec!["--log", "/dev/null/at/all"], "cannot read /dev/null/at/all"),
        (vec!["--log", &log, "--max-graphs", "0"], "--max-graphs is 0"),
        (vec!["--log", &log, "--max-graphs=-3"], "invalid value"),
        (vec!["--log", &log, "--max-graphs", "999999"], "above 4096"),
        (vec!["--log", &log, "--max-num-tokens", "100"], "the log has a step of 512 tokens"),
        (vec!["--log", &log, "--max-num-tokens", "0"], "--max-num-tokens is 0"),
        (vec!["--log", &log, "--max-num-seqs", "5"], "the log has a step of 8 sequences"),
        (vec!["--log", &log, "--costs", &gappy], "have a gap: nothing between 16 and 512"),
        (vec!["--log", &log, "--costs", &short], "have a gap: nothing between 64 and 512"),
        (vec!["--log", &log, "--costs", &no_full], "have no point of path `full`"),
        (vec!["--log", &log, "--costs", &broken], "line 1 of the costs is no cost point"),
        (vec!["--log", &log, "--objective", "padding", "--leave-tail"], "objective `padding`"),
        (vec!["--max-graphs", "8"], "--log <FILE>"),
    ] {
        let error = failure(&arguments);
        assert!(error.contains(reason), "{arguments:?}: {error}");
    }
}

#[test]
fn measured_costs_with_launches_make_launching_an_option() {
    let files = Files::new();
    let log = files.write("log.jsonl", &mixed(&[(10, 90), (512, 10)]));
    let mut costs = String::new();
    for tokens in [1_u16, 4, 16, 64, 256, 512] {
        costs.push_str(&format!(
            "{{\"path\":\"piecewise\",\"tokens\":{tokens},\"us\":{0}}}\n{{\"path\":\"launched\",\"tokens\":{tokens},\"us\":{1}}}\n",
            100.0 + 9.5 * f64::from(tokens),
            600 + 9 * tokens
        ));
    }
    let costs = files.write("costs.jsonl", &costs);
    let plan = ["--log", &log, "--costs", &costs, "--max-graphs", "1"];
    let report = json(&plan);
    assert_eq!(list(&report, "capture_num_tokens"), [512]);
    assert_eq!(report["coverage"], 0.1);
    assert_eq!(report["expected_us"], 90.0 * 690.0 + 10.0 * 4964.0);
    let never = json(&[&plan[..], &["--launched", "never"]].concat());
    assert_eq!(never["coverage"], 1.0);
    assert!(never["expected_us"].as_f64() > report["expected_us"].as_f64());

    let covered = piecewise(&[&plan[..], &["--require-coverage", "10"]].concat());
    assert_eq!(covered.status.code(), Some(0));
    let uncovered = piecewise(&[&plan[..], &["--require-coverage", "95"]].concat());
    assert_eq!(uncovered.status.code(), Some(3));
    let message = String::from_utf8(uncovered.stderr).unwrap();
    assert!(message.contains("coverage is 10.00 %"), "{message}");
    assert!(!uncovered.stdout.is_empty());
}

#[test]
fn checks_a_configuration() {
    let files = Files::new();
    let log = files.write("log.jsonl", &small_log());
    let config = files.write(
        "piecewise.toml",
        "max_num_tokens = 512\nmax_num_seqs = 8\n\
         capture_num_tokens = [64, 128, 256, 1024]\ndecode_batch_sizes = [4]\n",
    );
    let check = ["--log", &log, "--check", &config];
    insta::assert_snapshot!(stdout(&check).replace(&log, "log.jsonl"));
    let report = json(&check);
    let found = |finding: &str| {
        let findings = report["findings"].as_array().unwrap().iter();
        findings.filter(|f| f["finding"] == finding).count()
    };
    assert_eq!((found("uncovered"), found("gap"), found("unused")), (1, 3, 1));
    // The file's bounds are the file's business, and so are those of the log where it has none.
    let tight = files.write(
        "tight.toml",
        "max_num_tokens = 128\ncapture_num_tokens = [64, 128]\ndecode_batch_sizes = [8]\n",
    );
    let bounds = |log: &str, config: &str| {
        let report = json(&["--log", log, "--check", config]);
        let findings = report["findings"].as_array().unwrap().iter();
        let of = |finding: &str, key: &str| {
            let found = findings.clone().find(|found| found["finding"] == finding);
            found.map(|found| found[key].clone())
        };
        (of("bound_below_log", "largest"), of("uncovered", "to"))
    };
    assert_eq!(bounds(&log, &tight), (Some(512.into()), Some(512.into())));
    let said = stdout(&["--log", &log, "--check", &tight]);
    assert!(said.contains("max_num_tokens = 128 is below a step of 512 in the log"), "{said}");
    let unbound =
        files.write("unbound.toml", "capture_num_tokens = [64, 512]\ndecode_batch_sizes = [8]\n");
    assert_eq!(bounds(&log, &unbound), (None, None));
    let head = "{\"log\":{\"max_num_tokens\":2048,\"max_num_seqs\":8}}\n";
    let headed = files.write("headed.jsonl", &(head.to_owned() + &small_log()));
    assert_eq!(bounds(&headed, &unbound), (None, Some(2048.into())));
    let decode_only =
        files.write("decode.toml", "capture_num_tokens = []\ndecode_batch_sizes = [8]\n");
    let status = |config: &str| {
        let arguments = ["--log", &log, "--check", config, "--require-coverage", "95"];
        piecewise(&arguments).status.code()
    };
    assert_eq!(status(&decode_only), Some(3));
    assert_eq!(status(&config), Some(0));
}
