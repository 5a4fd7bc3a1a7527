//! Runs the `piecewise` binary.

use crate::bounded::Bound;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The repository: where it was when this was built, or the current directory for a test binary
/// that was carried to another machine.
pub(crate) fn root() -> &'static Path {
    match std::env::var_os("PIECEWISE_BIN") {
        Some(_) => Path::new("."),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap(),
    }
}

/// The binary: PIECEWISE_BIN, or the one that was built with the tests.
fn binary() -> OsString {
    std::env::var_os("PIECEWISE_BIN").unwrap_or_else(|| env!("CARGO_BIN_EXE_piecewise").into())
}

/// A run of the binary in the repository with this compile cache.
pub(crate) fn command(cache: &Path) -> Command {
    let mut command = Command::new(binary());
    command.current_dir(root()).env("PIECEWISE_CACHE_DIR", cache).env("HF_HUB_OFFLINE", "1");
    command
}

/// Runs the binary in the repository, with a compile cache of its own.
pub(crate) fn piecewise(args: &[&str]) -> Output {
    let cache = tempfile::tempdir().unwrap();
    command(cache.path()).args(args).bounded_output().unwrap()
}

/// The flags that choose the device of PIECEWISE_TEST_DEVICE, on which nothing is measured; cpu if unset.
pub(crate) fn device_flags() -> [String; 4] {
    let device = std::env::var("PIECEWISE_TEST_DEVICE").unwrap_or_else(|_| "cpu".to_owned());
    ["--device".to_owned(), device, "--tune".to_owned(), "off".to_owned()]
}

/// Runs the binary and returns its standard output; its failure fails the test.
pub(crate) fn stdout_of(args: &[&str]) -> String {
    let output = piecewise(args);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "piecewise {} failed:\n{errors}", args.join(" "));
    String::from_utf8(output.stdout).unwrap()
}

/// Runs the binary, which must fail, and returns its standard error.
pub(crate) fn error_of(args: &[&str]) -> String {
    let output = piecewise(args);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "piecewise {} should have failed", args.join(" "));
    assert!(output.stdout.is_empty(), "piecewise {} printed before it failed", args.join(" "));
    assert!(!errors.contains("panicked"), "piecewise {} panicked:\n{errors}", args.join(" "));
    errors
}

/// The logits `f32 [tokens, vocab]` that `piecewise logits` writes for `ids`.
pub(crate) fn logits(model: &str, ids: &[i64], extra: &[&str]) -> (Vec<usize>, Vec<f32>) {
    let folder = tempfile::tempdir().unwrap();
    let out: PathBuf = folder.path().join("logits.safetensors");
    let ids: Vec<String> = ids.iter().map(i64::to_string).collect();
    let ids = ids.join(",");
    let mut args = vec!["logits", "--model", model, "--ids", &ids, "--out", out.to_str().unwrap()];
    args.extend(extra);
    let device = device_flags();
    args.extend(device.iter().map(String::as_str));
    stdout_of(&args);
    read_logits(&out)
}

/// Reads the tensor `logits` of a file.
pub(crate) fn read_logits(file: &Path) -> (Vec<usize>, Vec<f32>) {
    let bytes = std::fs::read(file).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let tensor = tensors.tensor("logits").unwrap();
    let values = tensor.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()));
    (tensor.shape().to_vec(), values.collect())
}

/// ||a - b|| / ||b||; infinite where a NaN is.
pub(crate) fn norm_error(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let sum = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>();
    let difference = sum(&mut a.iter().zip(b).map(|(a, b)| f64::from(*a) - f64::from(*b)));
    let norm = sum(&mut b.iter().map(|b| f64::from(*b)));
    let error = (difference / norm).sqrt();
    if error.is_nan() { f64::INFINITY } else { error }
}
