//! Runs of the program with a compile cache, and what they leave in it.

use super::cli::command;
use crate::bounded::Bound;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

pub(crate) const MODEL: &str = "examples/tiny-qwen3";
pub(crate) const SETTINGS: [&str; 4] = ["--max-num-tokens", "32", "--capture-num-tokens", "1,8,32"];

pub(crate) fn checked(output: Output) -> Output {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

pub(crate) fn run(cache: &Path, args: &[&str]) -> Output {
    checked(command(cache).args(args).bounded_output().unwrap())
}

pub(crate) fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap()
}

pub(crate) fn compile(cache: &Path, extra: &[&str]) -> Value {
    let args = [&["compile", "--model", MODEL, "--json"][..], &SETTINGS, extra].concat();
    json(&run(cache, &args))
}

/// The logits of a prompt.
pub(crate) fn logits(cache: &Path, extra: &[&str]) -> Vec<u8> {
    logits_and_warnings(command(cache), extra).0
}

/// The logits that a command of its own environment computes, and what it warned about.
pub(crate) fn logits_and_warnings(mut command: Command, extra: &[&str]) -> (Vec<u8>, Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    // Whoever runs the command writes there.
    let all = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(folder.path(), all).unwrap();
    let out = folder.path().join("logits.safetensors");
    let ids = ["--ids", "326,680,596,12,7,91,200,33,4", "--out", out.to_str().unwrap()];
    command.args([&["logits", "--model", MODEL][..], &ids, &SETTINGS, extra].concat());
    let output = checked(command.bounded_output().unwrap());
    (std::fs::read(out).unwrap(), warnings(&output))
}

/// The lines of standard error that warn.
pub(crate) fn warnings(output: &Output) -> Vec<String> {
    let errors = String::from_utf8_lossy(&output.stderr);
    let is_warning = |line: &&str| line.contains("WARN") || line.starts_with("warning:");
    errors.lines().filter(is_warning).map(str::to_owned).collect()
}

/// Generated text and the statistics of the run.
pub(crate) fn generate(cache: &Path, extra: &[&str]) -> (Vec<u8>, Value) {
    let args = ["generate", "--model", MODEL, "--prompt", "def __init__(self", "--json", "--stats"];
    let output = run(cache, &[&args[..], &SETTINGS, &["--max-tokens", "8"], extra].concat());
    let errors = String::from_utf8(output.stderr).unwrap();
    let statistics = errors.lines().find(|line| line.starts_with('{')).unwrap();
    let statistics: Value = serde_json::from_str(statistics).unwrap();
    (output.stdout, statistics["statistics"]["compile"].clone())
}

/// The files of a cache by name below it.
pub(crate) fn files(cache: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut pending = vec![cache.to_owned()];
    while let Some(dir) = pending.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => pending.push(path),
                false => {
                    let name = path.strip_prefix(cache).unwrap().to_owned();
                    found.insert(name, std::fs::read(&path).unwrap());
                }
            }
        }
    }
    found
}

/// The largest entry of a kind of at most 20 kB, in a cache that a run has filled.
pub(crate) fn entry_to_damage(cache: &Path, kind: &str) -> PathBuf {
    logits(cache, &[]);
    let entries = files(cache).into_iter().filter(|(path, bytes)| {
        let folder = path.parent().and_then(Path::file_name).unwrap();
        folder == kind && bytes.len() <= 20_000
    });
    let (path, _) = entries.max_by_key(|(_, bytes)| bytes.len()).unwrap();
    cache.join(path)
}
