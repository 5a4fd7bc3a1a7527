//! What the program prints: help with examples, JSON for machines, the same text for a seed.

use crate::bounded::Bound;
use crate::support::cli::{piecewise, root, stdout_of};
use serde_json::Value;

const MODEL: &str = "examples/tiny-qwen3";
const FIXTURE: &str = "tests/fixtures/qwen3";

#[test]
fn every_help_has_examples() {
    let help = stdout_of(&["--help"]);
    assert!(help.contains("Examples:"), "{help}");
    let commands = help.split("Commands:").nth(1).unwrap().split("Options:").next().unwrap();
    // What a command does may go on in a line that is further in.
    let begins = commands.lines().filter(|line| line.find(|c| c != ' ') == Some(2));
    let names: Vec<&str> = begins.filter_map(|line| line.split_whitespace().next()).collect();
    assert!(names.len() >= 6, "{names:?}");
    for name in names.into_iter().filter(|&name| name != "help" && name != "Examples:") {
        let help = stdout_of(&[name, "--help"]);
        assert!(help.contains("Examples:"), "{name}");
    }
}

#[test]
fn json_is_all_that_is_on_standard_output() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (fused, out, steps) = (path("fused.pw"), path("out.safetensors"), path("steps.jsonl"));
    std::fs::write(&steps, "{\"tokens\":5}\n{\"tokens\":64}\n").unwrap();
    std::fs::write(&fused, stdout_of(&["inspect", "--model", FIXTURE, "--stop-after", "fuse"]))
        .unwrap();
    let weights = ["--weights", FIXTURE, "--ids", "1,2"];
    let commands: [&[&str]; 10] = [
        &["logits", "--model", FIXTURE, "--ids", "1,2", "--out", &out],
        &["inspect", "--model", FIXTURE],
        &["inspect", "--model", FIXTURE, "--sizes"],
        &["inspect", "--model", FIXTURE, "--stop-after", "split"],
        &["inspect", "--model", FIXTURE, "--print-config"],
        &["opt", &fused, "--pipeline", "split,destination", "--print-after", "all"],
        &["plan", "--log", &steps, "--max-graphs", "4"],
        &[&["run", fused.as_str()][..], &weights].concat(),
        &[&["run", fused.as_str(), "--print-config"][..], &weights].concat(),
        &["generate", "--model", MODEL, "--prompt", "a", "--max-tokens", "2", "--stats"],
    ];
    for command in commands {
        let text = stdout_of(&[command, &["--json"]].concat());
        let value: Value = serde_json::from_str(&text).unwrap_or_else(|error| {
            panic!("{command:?}: {error}: {text}");
        });
        assert!(value.is_object() || value.is_array(), "{command:?}");
    }
    let several = ["generate", "--model", MODEL, "--max-tokens", "2", "--json"];
    let text = stdout_of(&[&several[..], &["--prompt", "a", "--prompt", "b\nc"]].concat());
    let prompts: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["prompt"].clone())
        .collect();
    assert_eq!(prompts, ["a", "b\nc"]);
}

/// What a plan takes, to the byte of what runs; without lowering, as far as it is known.
#[test]
fn inspect_shows_the_ledger_of_what_runs() {
    let bounds = ["--max-num-tokens", "32", "--max-num-seqs", "1", "--max-seq-len", "64"];
    let flags = [&["--model", MODEL, "--dtype", "f32"][..], &bounds].concat();
    let inspect = |extra: &[&str]| stdout_of(&[&["inspect"], &flags[..], extra].concat());
    let memory = |text: &str| serde_json::from_str::<Value>(text).unwrap()["memory"].clone();
    let (planned, lowered) =
        (memory(&inspect(&["--json"])), memory(&inspect(&["--sizes", "--json"])));
    let run = ["generate", "--prompt", "a", "--max-tokens", "2", "--stats", "--json"];
    let output = piecewise(&[&run[..], &flags].concat());
    let ran = memory(String::from_utf8(output.stderr).unwrap().lines().last().unwrap());
    for part in ["weights", "states", "slots"] {
        assert!(ran[part].as_u64() > Some(0), "{part}: {ran}");
        assert_eq!([&planned[part], &lowered[part]], [&ran[part]; 2], "{part}");
    }
    for part in ["scratch", "modules", "graphs", "context"] {
        assert_eq!(lowered[part], ran[part], "{part}");
    }
    let table = inspect(&["--sizes"]);
    let line = table.lines().find(|line| line.starts_with("memory ")).unwrap();
    for part in ["weights ", "states ", "arena ", "pinned "] {
        assert!(line.contains(part), "{line}");
    }
}

#[test]
fn every_way_to_name_a_graph_leads_to_the_same_pieces() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("fused.pw");
    let of_model = ["inspect", "--model", FIXTURE, "--max-num-tokens", "8"];
    let fused = stdout_of(&[&of_model[..], &["--stop-after", "fuse"]].concat());
    std::fs::write(&file, fused).unwrap();
    let file = file.to_str().unwrap();
    let unique = |args: &[&str]| {
        let report = stdout_of(&[args, &["--json"]].concat());
        let report: Value = serde_json::from_str(&report).unwrap();
        report["unique"].clone()
    };
    let expected = unique(&of_model);
    assert!(!expected.as_array().unwrap().is_empty());
    assert_eq!(unique(&["inspect", file]), expected);
    assert_eq!(unique(&["inspect", "--model", file]), expected);
    // The weights of a preset are never looked for.
    let preset = unique(&["inspect", "--preset", "qwen3-0.6b", "--max-num-tokens", "8"]);
    assert_eq!(preset.as_array().unwrap().len(), expected.as_array().unwrap().len());
}

/// What runs is what the checkpoint stores, whatever its configuration says.
#[test]
fn inspect_shows_the_types_that_the_checkpoint_stores() {
    let folder = tempfile::tempdir().unwrap();
    let fixture = root().join(FIXTURE);
    std::fs::copy(fixture.join("model.safetensors"), folder.path().join("model.safetensors"))
        .unwrap();
    let config = std::fs::read_to_string(fixture.join("config.json")).unwrap();
    let config: Value = serde_json::from_str(&config).unwrap();
    let graph_of = |dtype: &str| {
        let mut config = config.clone();
        config["dtype"] = dtype.into();
        std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        let model = folder.path().to_str().unwrap();
        let args = ["inspect", "--model", model, "--dtype", "f32", "--stop-after", "fuse"];
        stdout_of(&args)
    };
    assert_eq!(graph_of("float32"), graph_of("bfloat16"));
}

#[test]
fn what_is_printed_for_people_is_aligned() {
    let text = stdout_of(&["inspect", "--model", FIXTURE, "--sizes", "--max-num-tokens", "2"]);
    assert!(text.lines().all(|line| line == line.trim_end()), "{text}");
    let slots: Vec<&str> = text
        .lines()
        .skip_while(|line| *line != "slots")
        .skip(1)
        .take_while(|line| !line.is_empty())
        .collect();
    let column = slots[0].find("kind").unwrap();
    for line in &slots[1..] {
        let kind = line[column..].split_whitespace().next().unwrap();
        assert!(["input", "boundary", "local", "output"].contains(&kind), "{line}");
    }
}

/// The texts of prompts, sampled.
fn sampled(prompts: &[&str], mode: &str, seed: &str) -> Vec<String> {
    let mut args = vec!["generate", "--model", MODEL, "--dtype", "f32", "--max-tokens", "24"];
    args.extend(["--json", "--temperature", "0.8", "--top-p", "0.95", "--graph-mode", mode]);
    args.extend(["--seed", seed]);
    prompts.iter().for_each(|prompt| args.extend(["--prompt", prompt]));
    let text = |line: &str| {
        let reply: Value = serde_json::from_str(line).unwrap();
        reply["text"].as_str().unwrap().to_owned()
    };
    stdout_of(&args).lines().map(text).collect()
}

#[test]
fn a_seed_gives_the_same_text_again_in_a_batch_or_alone_in_every_mode() {
    let first = "def __init__(self";
    let expected = sampled(&[first], "full_and_piecewise", "7");
    assert_ne!(sampled(&[first], "full_and_piecewise", "8"), expected, "another seed");
    for mode in ["none", "piecewise", "full"] {
        assert_eq!(sampled(&[first], mode, "7"), expected, "{mode}, alone");
        assert_eq!(sampled(&[first], mode, "7"), expected, "{mode}, again");
        let batch = sampled(&[first, "import", "class Foo"], mode, "7");
        assert_eq!(batch[0], expected[0], "{mode}, in a batch");
        assert_eq!(sampled(&["import"], mode, "8")[0], batch[1], "{mode}, the second alone");
    }
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_piecewise"))
        .args(["inspect", "--model", MODEL])
        .current_dir(root())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .bounded()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

/// Where no GPU is visible, which this makes sure of.
#[test]
fn auto_without_a_gpu_says_that_it_runs_on_the_cpu_and_why() {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_piecewise"))
        .args(["generate", "--model", MODEL, "--prompt", "a", "--max-tokens", "2"])
        .args(["--device", "auto"])
        .env("CUDA_VISIBLE_DEVICES", "")
        .current_dir(root())
        .bounded_output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    let reason = said.lines().find_map(|line| line.strip_prefix("running on the CPU: "));
    assert!(reason.is_some_and(|reason| reason.contains("CUDA")), "{said}");
    assert!(output.stdout.starts_with(b"a"));
}

#[test]
fn a_conversation_goes_on_from_what_it_keeps() {
    let generate = |more: &[&str]| -> Vec<Value> {
        let args = ["generate", "--model", MODEL, "--max-tokens", "6", "--ignore-eos", "--json"];
        let text = stdout_of(&[&args[..], &["--prompt", "def f("], more].concat());
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let alone = generate(&[]);
    let turns = generate(&["--then", "\nclass A", "--then", "\nimport"]);
    assert_eq!(
        turns,
        generate(&["--then", "\nclass A", "--then", "\nimport", "--graph-mode", "none"])
    );
    assert_eq!(turns.len(), 3);
    assert_eq!(turns[0], alone[0]);
    let prompts: Vec<_> = turns.iter().map(|turn| turn["prompt"].as_str().unwrap()).collect();
    assert_eq!(prompts, ["def f(", "\nclass A", "\nimport"]);
    let mut length = 0;
    for turn in &turns {
        let count = |key: &str| turn[key].as_array().unwrap().len() as u64;
        // The last id of a turn was sampled and not computed.
        assert_eq!(turn["usage"]["cached"], length.max(1) - 1);
        assert_eq!(turn["usage"]["prompt"], length + count("prompt_ids"));
        assert_eq!(turn["usage"]["generated"], 6);
        length += count("prompt_ids") + count("ids");
    }
}

#[test]
fn what_was_counted_is_written_and_every_step_is_a_hit_or_a_miss() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("steps.prom");
    let file = file.to_str().unwrap();
    let prompts = ["--prompt", "def __init__(self", "--prompt", "import", "--max-tokens", "5"];
    let flags = ["--graph-mode", "full_decode_only", "--metrics", file, "--stats", "--json"];
    let args = [&["generate", "--model", "examples/tiny-qwen3"][..], &prompts, &flags].concat();
    let output = piecewise(&args);
    let said = String::from_utf8(output.stderr).unwrap();
    let stats: Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
    let number = |name: &str| stats[name].as_u64().unwrap();
    assert_eq!(number("hits") + number("misses"), stats["statistics"]["steps"].as_u64().unwrap());
    assert_eq!(stats["statistics"]["misses"]["graph_mode"], 1, "the step of prompts: {stats}");
    let text = std::fs::read_to_string(file).unwrap();
    for line in [
        "piecewise_steps_total{mode=\"full\",size=\"2x1\"} 4",
        "piecewise_step_misses_total{reason=\"graph_mode\"} 1",
        "piecewise_step_gpu_seconds_count{mode=\"full\"} 4",
        "piecewise_requests{state=\"running\"} 0",
    ] {
        assert!(text.contains(&format!("{line}\n")), "no {line} in {text}");
    }
    let flags = ["--max-tokens", "1", "--metrics", "no/such/folder/x"];
    let output = piecewise(&[&args[..5], &flags].concat());
    assert!(!output.status.success());
    assert!(String::from_utf8(output.stderr).unwrap().contains("no/such/folder/x"));
}
