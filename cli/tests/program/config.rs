//! Where settings come from: flags over a file over what follows from the model.

use crate::bounded::Bound;
use crate::support::cli::{command, error_of, piecewise, root, stdout_of};
use serde_json::{Value, json};

pub(crate) const MODEL: &str = "examples/tiny-qwen3";
const SENTENCES: &str = "tests/fixtures/encoders/sentence_folder";

/// The settings that `generate` would run with, by key.
pub(crate) fn settings(extra: &[&str]) -> Value {
    let mut args = vec!["generate", "--model", MODEL, "--print-config", "--json"];
    args.extend(extra);
    serde_json::from_str(&stdout_of(&args)).unwrap()
}

pub(crate) fn file(text: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("piecewise.toml");
    std::fs::write(&path, text).unwrap();
    let path = path.to_str().unwrap().to_owned();
    (folder, path)
}

#[test]
fn flags_win_over_the_file_and_each_value_knows_where_it_came_from() {
    let text = "max_num_tokens = 128\ngraph_mode = \"piecewise\"\n[checks]\npoison = true\n";
    let (_folder, path) = file(text);
    let found = settings(&["--config", &path, "--max-num-tokens", "64", "--no-padding"]);
    let flag = |flag: &str, value: Value| json!({"value": value, "from": "flag", "source": flag});
    assert_eq!(found["max_num_tokens"], flag("--max-num-tokens", json!(64)));
    assert_eq!(found["padding"], flag("--no-padding", json!(false)));
    let from_file = |value: Value| json!({"value": value, "from": "file", "source": path});
    assert_eq!(found["graph_mode"], from_file(json!("piecewise")));
    assert_eq!(found["checks.poison"], from_file(json!(true)));
    assert_eq!(
        found["capture"],
        json!({"value": "startup", "from": "default", "source": "default"})
    );
    assert_eq!(found["capture_num_tokens"]["value"], json!([1, 2, 4, 8, 16, 32, 64]));
}

#[test]
fn flags_of_capture_set_their_keys() {
    let flags = ["--enforce-eager", "--capture", "lazy", "--capture-query-lengths", "1,4"];
    let more =
        ["--capture-attempts", "0", "--capture-exclude", "model.layers.0,model.layers.1.mlp"];
    let found = settings(&[&flags[..], &more].concat());
    let flag = |flag: &str, value: Value| json!({"value": value, "from": "flag", "source": flag});
    assert_eq!(found["graph_mode"], flag("--enforce-eager", json!("none")));
    assert_eq!(found["capture"], flag("--capture", json!("lazy")));
    assert_eq!(found["capture_query_lengths"], flag("--capture-query-lengths", json!([1, 4])));
    assert_eq!(found["capture_attempts"], flag("--capture-attempts", json!(0)));
    let layers = json!(["model.layers.0", "model.layers.1.mlp"]);
    assert_eq!(found["capture_exclude"], flag("--capture-exclude", layers));
    assert_eq!(found["max_num_rows"]["value"], 256, "as many as 64 sequences may bring");
    let error =
        error_of(&["generate", "--model", MODEL, "--enforce-eager", "--graph-mode", "full"]);
    assert!(error.contains("--enforce-eager"), "{error}");
    let lost =
        ["generate", "--model", MODEL, "--prompt", "a", "--capture-exclude", "model.layers.9"];
    let error = error_of(&lost);
    assert!(error.contains("no layer is called `model.layers.9`"), "{error}");
}

#[test]
fn the_file_of_the_current_directory_is_read() {
    let (folder, _) = file("max_num_tokens = 32");
    let model = root().join(MODEL);
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_piecewise"))
        .args(["inspect", "--print-config", "--model", model.to_str().unwrap()])
        .current_dir(folder.path())
        .bounded_output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("max_num_tokens = 32  # piecewise.toml\n"), "{text}");
}

/// Settings without the folder of the cache, of which each run has its own by the environment.
fn without_cache_dir(mut settings: toml::Table) -> toml::Table {
    let cache = settings.get_mut("cache").and_then(|cache| cache.as_table_mut()).unwrap();
    assert!(cache.remove("dir").is_some());
    settings
}

#[test]
fn what_is_printed_is_a_configuration_that_gives_itself() {
    let args = ["generate", "--model", MODEL, "--print-config", "--max-num-tokens", "32"];
    let printed = stdout_of(&args);
    let (_folder, path) = file(&printed);
    let values = |text: &str| -> toml::Table { without_cache_dir(text.parse().unwrap()) };
    let again = stdout_of(&["generate", "--model", MODEL, "--print-config", "--config", &path]);
    assert_eq!(values(&again), values(&printed));
}

#[test]
fn what_serves_requests_logs_a_line_every_ten_seconds_unless_it_is_told_otherwise() {
    let line = |args: &[&str]| {
        let printed = stdout_of(args);
        let line = printed.lines().find(|line| line.contains("stats_interval_seconds")).unwrap();
        line.to_owned()
    };
    let serve = ["serve", "--model", MODEL, "--print-config"];
    let ten = "stats_interval_seconds = 10  # from serving requests";
    assert_eq!(line(&serve), ten);
    let worker = ["worker", "--handshake", "tcp://127.0.0.1:1", "--rank", "0", "--model", MODEL];
    assert_eq!(line(&[&worker[..], &["--print-config"]].concat()), ten);
    let none = line(&[&serve[..], &["--stats-interval", "0"]].concat());
    assert_eq!(none, "stats_interval_seconds = 0  # --stats-interval");
    let unset = line(&["generate", "--model", MODEL, "--print-config"]);
    assert_eq!(unset, "# stats_interval_seconds is unset  # default");
}

/// Whatever a command is given, its settings are those of `compile`, but for how often it tells of
/// itself.
#[test]
fn every_command_has_the_same_settings_whatever_it_is_given() {
    let printed_of = |model: &str, args: &[&str]| -> toml::Table {
        let text = stdout_of(&[args, &["--model", model, "--print-config"]].concat());
        let mut settings = without_cache_dir(text.parse().unwrap());
        settings.remove("stats_interval_seconds");
        settings.remove("server");
        settings
    };
    let printed = |args: &[&str]| printed_of(MODEL, args);
    let compiled = printed(&["compile"]);
    assert_eq!(compiled["max_num_seqs"].as_integer(), Some(64));
    assert_eq!(compiled["max_seq_len"].as_integer(), Some(2048), "the model's own limit");
    assert_eq!(compiled["sampling_controls"].as_bool(), Some(true));
    let worker = ["worker", "--handshake", "tcp://127.0.0.1:1", "--rank", "0"];
    for args in [
        &["generate", "--prompt", "a"][..],
        &["generate", "--prompt", "a", "--prompt", "b", "--prompt", "c"],
        &["generate", "--prompt", "a", "--presence-penalty", "1"],
        &["chat"],
        &["logits", "--ids", "1,2"],
        &["serve"],
        &worker,
        &["cache", "explain"],
        &["inspect"],
        &["tune"],
    ] {
        assert_eq!(printed(args), compiled, "{args:?}");
    }
    let encode = ["encode", "--inputs", "x", "--out", "y"];
    let of_encoders: [(_, &[&[&str]]); 2] = [
        (SENTENCES, &[&["embed", "--text", "a"], &encode, &["serve"], &["inspect"]]),
        ("tests/fixtures/encoders/qwen2_5_vl_vision", &[&encode, &["cache", "explain"]]),
    ];
    for (model, commands) in of_encoders {
        let compiled = printed_of(model, &["compile"]);
        assert_eq!(compiled["graph_mode"].as_str(), Some("full"), "{model}");
        for args in commands {
            assert_eq!(printed_of(model, args), compiled, "{args:?}");
        }
    }
    let settings = stdout_of(&["serve", "--model", MODEL, "--print-config"]);
    assert!(!settings.contains("number of prompts"), "{settings}");
    assert!(settings.contains("max_num_seqs = 64  # from max_num_tokens"), "{settings}");
}

#[test]
fn the_help_says_how_many_sequences_run_where_nobody_says_so() {
    let of = |command: &str, extra: &[&str]| {
        let settings =
            stdout_of(&[&[command, "--model", MODEL, "--print-config"][..], extra].concat());
        let line = settings.lines().find_map(|line| line.strip_prefix("max_num_seqs = "));
        line.unwrap().split(' ').next().unwrap().to_owned()
    };
    for (command, extra, taken) in [
        ("compile", &[][..], "64"),
        ("compile", &["--max-num-tokens", "16"], "16"),
        ("serve", &[], "64"),
        ("inspect", &[], "64"),
        ("generate", &["--prompt", "a", "--prompt", "b"], "64"),
        ("logits", &["--ids", "1,2"], "64"),
    ] {
        assert_eq!(of(command, extra), taken, "{command} {extra:?}");
        let help = String::from_utf8(piecewise(&[command, "--help"]).stdout).unwrap();
        let help = help.split("--max-num-seqs").nth(1).unwrap();
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        let said = "[default: 64, or the tokens of a step where they are fewer]";
        assert!(help.contains(said), "{command}: {help}");
    }
}

/// The ledger of a short run, as `--stats --json` shows it; without what sampling goes by, states are
/// the KV pool and little else.
fn memory(extra: &[&str]) -> Value {
    let mut args = vec!["generate", "--model", MODEL, "--prompt", "a", "--max-tokens", "2"];
    args.extend(["--sampling-controls", "false"]);
    args.extend(["--stats", "--json"]);
    args.extend(extra);
    let output = piecewise(&args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice::<Value>(&output.stderr).unwrap()["memory"].clone()
}

#[test]
fn the_kv_pool_takes_what_the_budget_leaves_or_what_sequences_can_use() {
    let total = |ledger: &Value| {
        let parts = ["slots", "scratch", "weights", "states"];
        parts.iter().map(|part| ledger[part].as_u64().unwrap()).sum::<u64>()
    };
    // 6 layers of k and v, 2 heads of 64 values in bf16.
    let row = 6 * 2 * 2 * 64 * 2;
    let states = |ledger: &Value| ledger["states"].as_u64().unwrap();
    assert_eq!(states(&memory(&[])) / row, 2048);
    assert_eq!(states(&memory(&["--max-seq-len", "100"])) / row, 112);
    assert_eq!(states(&memory(&["--max-num-seqs", "8", "--max-seq-len", "100"])) / row, 112);
    let budget = 20 << 20;
    let four = ["--prompt", "b", "--prompt", "c", "--prompt", "d", "--max-seq-len", "512"];
    assert_eq!(states(&memory(&four)) / row, 2048);
    let tight = memory(&[&four[..], &["--memory-budget", "20MiB"]].concat());
    assert!(total(&tight) <= budget && total(&tight) > budget - 16 * row, "{tight}");
    let enough = memory(&["--memory-budget", "1GiB"]);
    assert_eq!(states(&enough) / row, 2048);
    let args = ["generate", "--model", MODEL, "--prompt", "a", "--memory-budget", "12MiB"];
    let error = error_of(&args);
    assert!(error.contains("memory_budget = 12582912"), "{error}");
}

/// What a short run says of itself with `--stats --json`, beside its text.
pub(crate) fn stats(extra: &[&str]) -> (String, Value) {
    let run = ["generate", "--model", MODEL, "--prompt", "def __init__(self", "--max-tokens", "16"];
    let output = piecewise(&[&run[..], &["--stats", "--json"], extra].concat());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    let line = said.lines().find(|line| line.starts_with('{')).unwrap();
    (String::from_utf8(output.stdout).unwrap(), serde_json::from_str(line).unwrap())
}

/// At start every graph; lazily those that the steps wanted, each by the first of them; in the
/// background none before a step has wanted it and was launched.
#[test]
fn graphs_are_captured_when_the_file_or_the_flag_says() {
    let (_folder, lazy) = file("capture = \"lazy\"");
    let (_folder, background) = file("capture = \"background\"");
    let (text, at_start) = stats(&[]);
    let captures = |found: &Value| found["statistics"]["captures"].as_u64().unwrap();
    let missing = |found: &Value| found["statistics"]["misses"]["not_captured"].as_u64().unwrap();
    assert_eq!((missing(&at_start), &at_start["misses"]), (0, &json!(0)), "{at_start}");
    for (when, args) in [
        ("lazy", ["--config", &lazy]),
        ("lazy", ["--capture", "lazy"]),
        ("background", ["--config", &background]),
        ("background", ["--capture", "background"]),
    ] {
        let (said, found) = stats(&args);
        assert_eq!(said, text, "{args:?}");
        if when == "lazy" {
            assert_eq!(missing(&found), 0, "{args:?}: {found}");
            assert!((1..captures(&at_start)).contains(&captures(&found)), "{args:?}: {found}");
        } else {
            assert!(missing(&found) > 0, "{args:?}: {found}");
        }
    }
}

#[test]
fn warnings_are_said_once() {
    let sizes = ["--capture-num-tokens", "1,8"];
    let args = [&["generate", "--model", MODEL, "--prompt", "a", "--max-tokens", "1"][..], &sizes];
    let output = piecewise(&args.concat());
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(said.matches("capture_num_tokens is below max_num_tokens").count(), 1, "{said}");
}

#[test]
fn a_plan_is_made_from_the_log_of_a_run() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("steps.jsonl");
    let log = log.to_str().unwrap();
    let prompts = ["--prompt", "def __init__(self", "--prompt", "import", "--prompt", "class"];
    let run = ["generate", "--model", MODEL, "--max-tokens", "9", "--ignore-eos"];
    stdout_of(&[&run[..], &prompts, &["--iteration-log", log]].concat());
    let lines = std::fs::read_to_string(log).unwrap();
    let mut steps: Vec<Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let head = steps.remove(0)["log"].take();
    let of = ["max_num_tokens", "max_num_seqs", "layers"].map(|key| head[key].as_u64().unwrap());
    assert_eq!(of, [512, 64, 6], "{head}");
    assert_eq!(head["model"], "tiny-qwen3");
    assert!(head["device"].as_str().unwrap().contains(" threads, "), "{head}");
    // Those of the checkpoint, in two bytes each.
    let numbers = 5_246_976;
    assert_eq!(
        (&head["parameters"], &head["weight_bytes"]),
        (&json!(numbers), &json!(2 * numbers))
    );
    assert_eq!(steps.len(), 9, "one of prompts and eight of decode");
    assert!(steps[0]["context_tokens"].as_u64() > Some(3), "{}", steps[0]);
    assert_eq!((&steps[0]["mode"], &steps[0]["rows"]), (&json!("piecewise"), &json!(3)));
    for step in &steps[1..] {
        assert_eq!((&step["mode"], &step["query_length"]), (&json!("full"), &json!(1)));
        assert_eq!((&step["generation_requests"], &step["size"]), (&json!(3), &json!(4)));
        assert!(step["wall_us"].as_f64() > Some(0.0), "{step}");
    }
    assert!(steps.iter().all(|step| step["gpu_us"].as_f64() > Some(0.0)), "{lines}");
    // The lists end where the server's steps may.
    let plan = ["plan", "--log", log, "--json", "--max-graphs", "4"];
    let plan: Value = serde_json::from_str(&stdout_of(&plan)).unwrap();
    let sizes = (&plan["decode_batch_sizes"], &plan["capture_num_tokens"]);
    assert_eq!(sizes, (&json!([3, 64]), &json!([steps[0]["tokens"], 512])), "{plan}");
    assert_eq!(plan["warnings"], json!([]));
    let costs = plan["costs"].as_str().unwrap();
    let expected = "modelled: 5.2 million parameters, 6 layers, 20 GB/s, 100 GFLOP/s";
    assert_eq!(costs, expected);
    // A flag is above the log, and a list that ends early says so.
    let shorter = ["plan", "--log", log, "--json", "--max-num-tokens", "64", "--leave-tail"];
    let plan: Value = serde_json::from_str(&stdout_of(&shorter)).unwrap();
    assert_eq!(plan["request"]["max_num_tokens"], 64);
    let early =
        |warning: &Value| warning["warning"] == "ends_below_bound" && warning["bound"] == 64;
    assert!(plan["warnings"].as_array().unwrap().iter().any(early), "{plan}");
    let headless = folder.path().join("headless.jsonl");
    let (_, rest) = lines.split_once('\n').unwrap();
    std::fs::write(&headless, rest).unwrap();
    let said = stdout_of(&["plan", "--log", headless.to_str().unwrap()]);
    for flag in ["--max-num-tokens", "--max-num-seqs"] {
        assert!(said.contains(&format!("larger steps would be launched: give {flag}")), "{said}");
    }
    let error = error_of(&[&run[..], &prompts, &["--iteration-log", "no/such/folder/x"]].concat());
    assert!(error.contains("no/such/folder/x"), "{error}");
}

#[test]
fn no_secret_is_in_what_is_printed() {
    let secret = "5e".repeat(32);
    let (_folder, path) = file(&secret);
    for args in [
        &["--cache-checksum-key-file", &path][..],
        &["--cache-remote", "s3://bucket/path", "--cache-remote-write"],
    ] {
        let args = [&["inspect", "--model", MODEL, "--print-config"][..], args].concat();
        let mut command = command(std::path::Path::new("."));
        let output =
            command.env("PIECEWISE_CACHE_CHECKSUM_KEY", &secret).args(args).bounded_output();
        let output = output.unwrap();
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("checksum_key_file") && !text.contains(&secret), "{text}");
    }
    let url = "https://user:secret@host/path?sig=secret";
    let error = error_of(&["inspect", "--model", MODEL, "--cache-remote", url]);
    assert!(error.contains("--cache-remote: cache.remote_url can't be \"https://host/path\""));
    assert!(!error.contains("secret"), "{error}");
    let error = error_of(&["cache", "list", "--cache-checksum-key-file", "no/such/file"]);
    assert!(error.contains("the checksum key of the cache can't be used: no/such/file"), "{error}");
}

#[test]
fn the_page_of_settings_and_the_schema_are_the_programs_own() {
    for (what, file) in
        [("reference", "docs/settings.md"), ("schema", "docs/piecewise.schema.json")]
    {
        let held = std::fs::read_to_string(root().join(file)).unwrap();
        let made = stdout_of(&["config", what]);
        assert!(held == made, "{file} is old: piecewise config {what} > {file}");
    }
}

#[test]
fn the_documented_example_is_a_configuration() {
    let text = std::fs::read_to_string(root().join("docs/configuration.md")).unwrap();
    let example = text.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let (_folder, path) = file(example);
    let found = settings(&["--config", &path]);
    assert_eq!(found["checks.poison"]["from"], "file");
    assert_eq!(stdout_of(&["config", "check", &path]), format!("{path}: ok\n"));
    let (_folder, path) = file("max_num_tokns = 4");
    let error = error_of(&["config", "check", &path]);
    assert!(error.contains("did you mean `max_num_tokens`?"), "{error}");
    let (_folder, path) = file("max_num_tokens = 4\nmax_num_seqs = 8");
    let error = error_of(&["config", "check", &path]);
    assert!(error.contains("max_num_seqs = 8 does not go with max_num_tokens = 4"), "{error}");
}

/// A flag that the page names sets the key that it is named for.
#[test]
fn every_flag_of_the_page_sets_its_key() {
    let page = stdout_of(&["config", "reference"]);
    let (_folder, items) = file("{\"path\":\"items\",\"tokens\":[4,5]}\n");
    let mut found = 0;
    for section in page.split("\n## `").skip(1) {
        let (key, rest) = section.split_once('`').unwrap();
        let head = rest.trim_start().lines().next().unwrap();
        let Some((_, flag)) = head.rsplit_once("; `--") else { continue };
        let flag = format!("--{}", flag.trim_end_matches('`'));
        let kind = head.split(';').next().unwrap();
        let choice = rest.split("\n- `").nth(1).map(|rest| rest.split('`').next().unwrap());
        let value = match (kind, key) {
            ("boolean", _) => None,
            // What is written again is checked.
            (_, "cache.remote_url") => Some("s3://bucket"),
            (_, "server.max_body") => Some("1024"),
            (_, "server.max_head") => Some("8192"),
            (_, "server.max_body_memory") => Some("1073741824"),
            (_, "server.kv_events_endpoint" | "server.kv_events_replay_endpoint") => {
                Some("tcp://127.0.0.1:1")
            }
            (_, "device") => Some("cpu"),
            (_, "max_num_tokens") => Some("64"),
            (_, "capture_item_log") => Some(&*items),
            (_, "cache.checksum_key_file" | "cache.dir") => Some("none/such"),
            (kind, _) if kind.contains("integer") || kind == "number" => Some("1"),
            _ => choice.or(Some("x")),
        };
        let mut args: Vec<&str> = flag.split(' ').collect();
        args.extend(value);
        found += 1;
        // Settings of encoders are flags of their commands.
        if ["max_num_frames", "capture_item_log"].contains(&key) {
            let embed = ["embed", "--model", SENTENCES, "--print-config"];
            let shown = stdout_of(&[&embed, &args[..]].concat());
            let mut lines = shown.lines().filter(|line| line.starts_with(&format!("{key} = ")));
            assert!(lines.any(|line| line.contains(&flag)), "{key}: {shown}");
            continue;
        }
        if key.starts_with("server.") {
            let serve = ["serve", "--model", MODEL, "--print-config"];
            let printed = piecewise(&[&serve, &args[..]].concat());
            let shown = String::from_utf8(printed.stdout).unwrap();
            let said = String::from_utf8(printed.stderr).unwrap();
            // What needs another key or another kind of model says so, and where it came from.
            let set = shown
                .lines()
                .any(|line| line.starts_with(&format!("{key} = ")) && line.ends_with(&flag));
            let refused = [format!("{flag}: {key} = "), format!("{flag} is for ")];
            let is_refused = refused.iter().any(|start| said.contains(start));
            assert!(set || is_refused, "{key}: {shown} {said}");
            continue;
        }
        let set = settings(&args);
        assert_eq!(set[key]["from"], "flag", "{key}: {args:?} {}", set[key]);
    }
    assert!(found >= 50, "{found}");
}

/// Pages have 16 rows; no setting of another name is taken and ignored.
#[test]
fn other_sizes_of_pages_are_refused_by_name() {
    let generate = ["generate", "--model", MODEL, "--prompt", "def"];
    for name in ["block_size", "page_size"] {
        let flag = format!("--{}", name.replace('_', "-"));
        let error = error_of(&[&generate[..], &[&flag, "32"]].concat());
        assert!(error.contains(&format!("unexpected argument '{flag}'")), "{error}");
        let (_folder, path) = file(&format!("{name} = 32\n"));
        let error = error_of(&[&generate[..], &["--config", &path]].concat());
        assert!(error.contains(&format!("there is no key `{name}`")), "{error}");
    }
}
