//! Names that there are not and files that can't be written are refused before anything is done.

use crate::bounded::Bound;
use crate::support::cache::{MODEL, checked, compile, entry_to_damage, files, logits, run};
use crate::support::cli::{command, error_of, stdout_of};
use serde_json::Value;
use std::path::Path;

/// The module of the model after a pass, in a file.
fn dumped(folder: &Path, pass: &str) -> String {
    let text = stdout_of(&["inspect", "--model", MODEL, "--stop-after", pass]);
    let path = folder.join(format!("{pass}.pw"));
    std::fs::write(&path, &text).unwrap();
    path.to_str().unwrap().to_owned()
}

fn says(args: &[&str], parts: &[&str]) {
    let error = error_of(args);
    for part in parts {
        assert!(error.contains(part), "{args:?}: no {part:?} in: {error}");
    }
}

#[test]
fn passes_that_do_not_run_are_named_with_those_that_do() {
    let folder = tempfile::tempdir().unwrap();
    let fused = dumped(folder.path(), "fuse");
    let planned = dumped(folder.path(), "plan");
    for flag in ["--stop-after", "--print-after"] {
        says(&["opt", &fused, flag, "fusee"], &["`fusee`", "did you mean `fuse`?", "cse, dce"]);
        let inspect = ["inspect", "--model", MODEL, flag, "fusee"];
        says(&inspect, &["`fusee`", "did you mean `fuse`?"]);
        let generate = ["generate", "--model", MODEL, "--prompt", "a", flag, "fusee"];
        says(&generate, &["`fusee`", "did you mean `fuse`?"]);
        says(&["inspect", &planned, flag, "fuse"], &["`fuse`", "no pass runs at all"]);
        let eager = ["inspect", "--model", MODEL, "--level", "eager", flag, "fuse"];
        says(&eager, &["`fuse`", "what runs: split, destination, plan"]);
    }
    let short = ["opt", &fused, "--pipeline", "fuse,split"];
    says(&[&short[..], &["--stop-after", "plan"]].concat(), &["`plan`", "what runs: fuse, split"]);
    let dumps = ["--dump-dir", folder.path().to_str().unwrap(), "--dump-passes", "plan"];
    says(&[&short[..], &dumps].concat(), &["`plan`", "what runs: fuse, split"]);
    says(&[&short[..], &["--bisect", "99"]].concat(), &["--bisect 99", "has 2 passes"]);
    stdout_of(&[&short[..], &["--bisect", "2", "--stop-after", "fuse"]].concat());
}

#[test]
fn layers_that_are_not_there_are_named_by_what_plans() {
    let typo = ["--capture-exclude", "model.layers.9"];
    for command in [
        &["inspect", "--model", MODEL][..],
        &["compile", "--model", MODEL],
        &["generate", "--model", MODEL, "--prompt", "a"],
    ] {
        says(&[command, &typo].concat(), &["no layer is called `model.layers.9`"]);
    }
    let inside = ["--capture-exclude", "model.layers.1.mlp"];
    stdout_of(&[&["inspect", "--model", MODEL][..], &inside].concat());
}

#[test]
fn outputs_that_can_t_be_written_are_known_before_the_work() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache");
    let bad = folder.path().join("no/such/x.safetensors");
    let bad = bad.to_str().unwrap();
    let fused = dumped(folder.path(), "fuse");
    let bert = "tests/fixtures/encoders/bert";
    let generate = ["generate", "--model", MODEL, "--prompt", "a"];
    let embed = ["embed", "--model", bert, "--text", "a"];
    let bench = ["bench", "--model", MODEL, "--batch", "1", "--context", "8", "--cache-dir"];
    let bench = [&bench[..], &[cache.to_str().unwrap()]].concat();
    let worker = ["worker", "--model", MODEL, "--handshake", "tcp://127.0.0.1:1", "--rank", "0"];
    let serve = ["serve", "--model", MODEL, "--port", "0"];
    for args in [
        [&serve[..], &["--iteration-log", bad]].concat(),
        [&serve[..], &["--trace", bad]].concat(),
        [&worker[..], &["--trace", bad]].concat(),
        [&generate[..], &["--metrics", bad]].concat(),
        [&generate[..], &["--iteration-log", bad]].concat(),
        [&generate[..], &["--trace", bad]].concat(),
        vec!["logits", "--model", MODEL, "--ids", "1", "--out", bad],
        vec!["run", &fused, "--weights", MODEL, "--ids", "1", "--out", bad],
        vec!["inspect", "--model", MODEL, "--sizes", "--html", bad],
        [&embed[..], &["--out", bad]].concat(),
        [&embed[..], &["--item-log", bad]].concat(),
        vec![
            "encode",
            "--model",
            bert,
            "--inputs",
            "tests/fixtures/encoders/bert/golden.safetensors",
            "--out",
            bad,
        ],
        [&bench[..], &["--costs", bad]].concat(),
    ] {
        let output = command(&cache).args(&args).bounded_output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}: {said}");
        assert!(said.contains("no/such/x.safetensors"), "{args:?}: {said}");
        assert!(output.stdout.is_empty() && !cache.exists(), "{args:?} worked first: {said}");
    }
    let pictures = folder.path().join("file");
    std::fs::write(&pictures, "").unwrap();
    let state = pictures.join("state");
    let worker = [&worker[..], &["--state-dir", state.to_str().unwrap()]].concat();
    let output = command(&cache).args(&worker).bounded_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains("file/state is of no use"), "{said}");
    assert!(!cache.exists(), "it worked first: {said}");
    // What fails later leaves what was there.
    let metrics = folder.path().join("metrics.prom");
    std::fs::write(&metrics, "kept").unwrap();
    let long = ["--max-seq-len", "8", "--prompt", "a longer text than that by far, is it not?"];
    let flags = ["--metrics", metrics.to_str().unwrap()];
    error_of(&[&["generate", "--model", MODEL][..], &long, &flags].concat());
    assert_eq!(std::fs::read(&metrics).unwrap(), b"kept");
}

#[test]
fn an_export_of_nothing_is_an_error_and_a_healed_cache_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache");
    compile(&cache, &[]);
    let archive = folder.path().join("a.pwc");
    let export = |filter: &str| {
        let args = ["cache", "export", archive.to_str().unwrap(), "--filter", filter];
        command(&cache).args(args).bounded_output().unwrap()
    };
    let failed = export("sm_9O");
    let said = String::from_utf8(failed.stderr).unwrap();
    assert!(
        failed.status.code() == Some(1) && said.contains("there is no entry with \"sm_9O\""),
        "{said}"
    );
    assert!(!archive.exists());
    let list = |filter: &str| {
        let listed =
            command(&cache).args(["cache", "list", "--filter", filter]).bounded_output().unwrap();
        String::from_utf8(checked(listed).stderr).unwrap()
    };
    let said = list("sm_9O");
    assert!(said.contains("entries has \"sm_9O\" in its kind, key or factors"), "{said}");
    assert!(!list("piece").contains("entries has"));
    let error =
        error_of(&["generate", "--model", MODEL, "--prompt", "a", "--pack-dir", "/dev/null/packs"]);
    assert!(error.contains("--pack-dir /dev/null/packs: there is no such folder"), "{error}");
    checked(export("piece"));
    assert!(archive.exists());

    let damaged = entry_to_damage(&cache, "piece");
    std::fs::write(&damaged, "not an entry").unwrap();
    let verify = || command(&cache).args(["cache", "verify"]).bounded_output().unwrap();
    assert_eq!(
        verify().status.code(),
        Some(1),
        "a bad entry would be served to nobody, yet it is bad"
    );
    logits(&cache, &[]);
    let set_aside = files(&cache).keys().filter(|path| path.extension().is_some()).count();
    let healed = checked(verify());
    let said = String::from_utf8(healed.stdout).unwrap();
    assert!(set_aside > 0 && said.contains("1 bad entries were set aside before"), "{said}");
    run(&cache, &["cache", "verify", "--repair"]);
    let said = String::from_utf8(run(&cache, &["cache", "verify"]).stdout).unwrap();
    assert!(!said.contains("set aside"), "{said}");
}

#[test]
fn a_file_of_settings_is_checked_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("my.toml");
    let file = path.to_str().unwrap();
    let text = "max_num_tokns = 4\ndevice = \"vulkan\"\n\n[checks]\nposion = true\n\n[cache]\n\
                max_bytes = 0\n";
    std::fs::write(&path, text).unwrap();
    let error = error_of(&["config", "check", file]);
    for (line, wrong) in [
        (1, "did you mean `max_num_tokens`?"),
        (2, "device: "),
        (5, "did you mean `checks.poison`?"),
        (8, "cache.max_bytes = 0 is out of range"),
    ] {
        let place = format!("{file}:{line}: ");
        assert!(error.lines().any(|said| said.contains(&place) && said.contains(wrong)), "{error}");
    }
    std::fs::write(&path, "capture_num_tokens = [8, 1]\nlevel = 3\n").unwrap();
    let said =
        checked(command(folder.path()).args(["config", "check", file]).bounded_output().unwrap());
    assert_eq!(String::from_utf8(said.stdout).unwrap(), format!("{file}: ok\n"));
    let warned = String::from_utf8(said.stderr).unwrap();
    assert!(warned.contains(&format!("warning: {file}: steps of 9 to 512 tokens")), "{warned}");
}

#[test]
fn words_of_other_servers_mean_what_they_mean_there() {
    let flags = ["--level", "3", "--graph-mode", "FULL_AND_PIECEWISE", "--max-model-len", "64"];
    let sizes = ["--capture-num-tokens", "8,4,4", "--max-num-batched-tokens", "8"];
    let args = ["inspect", "--model", MODEL, "--print-config", "--json"];
    let settings: Value =
        serde_json::from_str(&stdout_of(&[&args[..], &flags, &sizes].concat())).unwrap();
    let value = |key: &str| settings[key]["value"].to_string();
    assert_eq!(value("level"), "\"piecewise\"");
    assert_eq!(value("graph_mode"), "\"full_and_piecewise\"");
    assert_eq!((value("capture_num_tokens"), value("max_seq_len")), ("[4,8]".into(), "64".into()));
    assert_eq!(value("max_num_tokens"), "8");
    let memory = ["serve", "--model", MODEL, "--gpu-memory-utilization", "0.9"];
    says(&memory, &["--gpu-memory-utilization", "write --memory-fraction"]);
    says(&["inspect", "--model", MODEL, "--level", "7"], &["--level", "unknown level `7`"]);
}

#[test]
fn what_a_command_is_not_for_is_said_as_another_says_it() {
    says(&["bench"], &["--model <DIR|NAME>", "--preset <NAME>"]);
    says(&["embed", "--model", MODEL, "--text", "a"], &["writes text and has no embeddings"]);
    says(&["bogus"], &["unrecognized subcommand 'bogus'"]);
    let doctor = stdout_of(&["doctor"]);
    for row in ["piecewise ", "cpu ", "driver ", "CUDA ", "cache ", "config "] {
        assert!(doctor.lines().any(|line| line.trim_start().starts_with(row)), "{row}: {doctor}");
    }
    assert!(doctor.lines().all(|line| line.chars().count() <= 100), "{doctor}");
}
