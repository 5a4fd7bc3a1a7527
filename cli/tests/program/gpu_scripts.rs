//! The scripts that read reports of `bench --json` on a machine with a GPU: what they print of a report.

use crate::support::cli::stdout_of;
use serde_json::{Value, json};
use std::path::Path;

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
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/gpu");
    let mut command = std::process::Command::new("python3");
    let output = command.arg(scripts.join(script)).args(files).output().expect("python3");
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
