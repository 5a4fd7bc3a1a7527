//! What a user can get wrong, through the program: an error that names the file or the setting,
//! an exit code that is not 0, no panic.

use crate::support::cli::{error_of, piecewise, root, stdout_of};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

const MODEL: &str = "examples/tiny-qwen3";
const FIXTURE: &str = "tests/fixtures/qwen3";

/// A copy of a model folder that a test may spoil.
struct Copy(tempfile::TempDir);

impl Copy {
    fn of(model: &str) -> Self {
        let copy = Self(tempfile::tempdir().unwrap());
        for file in std::fs::read_dir(root().join(model)).unwrap() {
            let file = file.unwrap();
            std::fs::copy(file.path(), copy.file(file.file_name().to_str().unwrap())).unwrap();
        }
        copy
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn path(&self) -> &str {
        self.0.path().to_str().unwrap()
    }

    fn edit_config(&self, changes: &Value) {
        let file = self.file("config.json");
        let mut config: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        for (key, value) in changes.as_object().unwrap() {
            config[key] = value.clone();
        }
        std::fs::write(file, config.to_string()).unwrap();
    }
}

fn check(error: &str, parts: &[&str]) {
    for part in parts {
        assert!(error.contains(part), "no {part:?} in: {error}");
    }
}

/// The error of `logits` on a folder.
fn logits_error(model: &str, extra: &[&str]) -> String {
    let args = ["logits", "--model", model, "--ids", "1,2,3", "--out", "/dev/null"];
    error_of(&[&args[..], extra].concat())
}

fn generate_error(extra: &[&str]) -> String {
    error_of(&[&["generate", "--model", MODEL][..], extra].concat())
}

#[test]
fn a_folder_that_is_not_there_or_has_nothing_in_it() {
    check(&logits_error("no/such/folder", &[]), &["no/such/folder/config.json"]);
    let empty = tempfile::tempdir().unwrap();
    check(&logits_error(empty.path().to_str().unwrap(), &[]), &["config.json"]);
    let folder = Copy::of(FIXTURE);
    std::fs::remove_file(folder.file("model.safetensors")).unwrap();
    check(&logits_error(folder.path(), &[]), &[folder.path(), "safetensors"]);
}

#[test]
fn weights_that_are_cut_or_of_another_model() {
    let folder = Copy::of(FIXTURE);
    let file = folder.file("model.safetensors");
    let whole = std::fs::read(&file).unwrap();
    for length in [0, 7, 8, 100, whole.len() / 2, whole.len() - 1] {
        std::fs::write(&file, &whole[..length]).unwrap();
        check(&logits_error(folder.path(), &[]), &["model.safetensors"]);
    }
    let mut huge = whole.clone();
    huge[..8].copy_from_slice(&(u64::MAX / 2).to_le_bytes());
    std::fs::write(&file, &huge).unwrap();
    check(&logits_error(folder.path(), &[]), &["model.safetensors"]);
    std::fs::copy(root().join("tests/fixtures/qwen2/model.safetensors"), &file).unwrap();
    check(&logits_error(folder.path(), &[]), &["tensor `", "config.json"]);
    std::fs::copy(root().join("tests/fixtures/llama3/model.safetensors"), &file).unwrap();
    check(&logits_error(folder.path(), &[]), &["model.safetensors", "shape [320, 128]"]);
}

#[test]
fn configurations_that_do_not_fit_the_weights_or_anything() {
    let cases = [
        (json!({"hidden_size": 98}), "model.embed_tokens.weight"),
        (json!({"intermediate_size": 128}), "mlp.gate_proj.weight"),
        (json!({"num_hidden_layers": 3, "layer_types": null}), "model.layers.2."),
        (json!({"tie_word_embeddings": false}), "lm_head.weight"),
        (json!({"hidden_size": 0}), "hidden_size"),
        (json!({"hidden_size": -4}), "hidden_size"),
        (json!({"hidden_size": 10_u64.pow(18)}), "hidden_size"),
        (json!({"num_hidden_layers": 1_000_000_000}), "num_hidden_layers"),
        (json!({"num_attention_heads": 5}), "num_key_value_heads"),
        (json!({"vocab_size": 1_u64 << 32}), "vocab_size"),
        (json!({"head_dim": 63}), "head_dim"),
        (json!({"head_dim": 4096}), "head_dim"),
        (json!({"max_position_embeddings": 0}), "max_position_embeddings"),
        (json!({"rms_norm_eps": -1}), "rms_norm_eps"),
        (json!({"dtype": "float8_e4m3fn"}), "dtype"),
        (json!({"layer_types": ["sliding_attention", "full_attention"]}), "layer_types"),
        (json!({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}), "model_type"),
        (json!({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4}}), "rope_type"),
        (json!({"hidden_act": "gelu"}), "hidden_act"),
    ];
    for (changes, named) in cases {
        let folder = Copy::of(FIXTURE);
        folder.edit_config(&changes);
        check(&logits_error(folder.path(), &[]), &[named]);
    }
    let folder = Copy::of(FIXTURE);
    std::fs::write(folder.file("config.json"), "{\"hidden_size\": 96,").unwrap();
    check(&logits_error(folder.path(), &[]), &["config.json", "line 1"]);
}

#[test]
fn experts_that_do_not_fit_are_named() {
    for (changes, named) in [
        (json!({"num_local_experts": 9}), ["model.layers.0.mlp.gate.weight", "[9, 80]"]),
        (json!({"num_local_experts": 7}), ["model.layers.0.mlp.gate.weight", "[7, 80]"]),
        (json!({"moe_intermediate_size": 40}), ["mlp.experts.0.gate_proj.weight", "[40, 80]"]),
        (
            json!({"mlp_only_layers": [0, 1]}),
            ["model.layers.0.mlp.gate_proj.weight", "config.json"],
        ),
        (json!({"mlp_only_layers": [3]}), ["mlp_only_layers", "from 0 to 2"]),
        (json!({"num_experts_per_tok": 9}), ["num_experts_per_tok", "9 experts of 8"]),
    ] {
        let folder = Copy::of("tests/fixtures/qwen3-moe");
        folder.edit_config(&changes);
        check(&logits_error(folder.path(), &[]), &named);
    }
    for (fixture, removed) in [
        ("qwen3-moe", "model.layers.2.mlp.gate.weight"),
        ("qwen3-moe", "model.layers.2.mlp.experts.7.down_proj.weight"),
        ("mixtral", "model.layers.1.block_sparse_moe.gate.weight"),
    ] {
        let folder = Copy::of(&format!("tests/fixtures/{fixture}"));
        let file = folder.file("model.safetensors");
        let bytes = std::fs::read(&file).unwrap();
        let mut tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap().tensors();
        tensors.retain(|(name, _)| name != removed);
        safetensors::serialize_to_file(tensors, None, &file).unwrap();
        check(&logits_error(folder.path(), &[]), &[removed, folder.path()]);
    }
}

#[test]
fn settings_out_of_range_name_the_setting() {
    let cases: [(&[&str], &str); 13] = [
        (&["--max-num-tokens", "0"], "max_num_tokens = 0"),
        (&["--max-num-tokens", "2147483648"], "max_num_tokens"),
        (&["--max-num-tokens", "2147483647"], "lower max_num_tokens"),
        (&["--max-num-tokens", "18446744073709551615"], "--max-num-tokens"),
        (&["--max-num-seqs", "0"], "max_num_seqs = 0"),
        (&["--max-num-seqs", "600"], "max_num_seqs = 600"),
        (&["--max-seq-len", "0"], "max_seq_len = 0"),
        (&["--max-seq-len", "513"], "max_seq_len = 513"),
        (&["--memory-budget", "1KiB"], "memory_budget = 1024"),
        (&["--memory-budget", "lots"], "--memory-budget"),
        (&["--capture-num-tokens", "0"], "capture_num_tokens contains 0"),
        (&["--capture-num-tokens", "4,1024"], "capture_num_tokens contains 1024"),
        (&["--decode-batch-sizes", "1,65"], "decode_batch_sizes contains 65"),
    ];
    for (flags, named) in cases {
        check(&logits_error(FIXTURE, flags), &[named]);
    }
    check(&logits_error(FIXTURE, &["--splitting-ops", "no.such_op"]), &["no.such_op"]);
    check(&logits_error(FIXTURE, &["--dtype", "f64"]), &["--dtype", "bf16"]);
    check(&logits_error(FIXTURE, &["--graph-mode", "fast"]), &["fast", "full_and_piecewise"]);
}

#[test]
fn a_configuration_file_that_is_wrong_names_file_and_key() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("my.toml");
    let with = |text: &[u8]| {
        std::fs::write(&path, text).unwrap();
        logits_error(FIXTURE, &["--config", path.to_str().unwrap()])
    };
    let unknown = with(b"capture_num_token = [1, 2]");
    check(&unknown, &["my.toml", "`capture_num_token`", "did you mean `capture_num_tokens`?"]);
    check(&with(b"max_num_tokens = \"many\""), &["my.toml", "max_num_tokens"]);
    check(&with(b"max_num_tokens = "), &["my.toml"]);
    check(&with(b"dtype = \"i64\""), &["dtype", "bf16"]);
    check(&with(b"device = \"vulkan\""), &["my.toml", "device", "cpu", "cuda:N"]);
    check(&with(b"device = \"cuda:sm_90\""), &["device cuda:sm_90", "cuda:N"]);
    let renamed = with(b"target = \"cpu\"");
    check(&renamed, &["my.toml", "`target`", "it is called `device`"]);
    let flag = ["inspect", "--model", FIXTURE, "--target", "cpu"];
    check(&error_of(&flag), &["--target"]);
    check(&with(&[0xff, 0xfe]), &["my.toml"]);
    check(&with(&vec![b'#'; 2 << 20]), &["my.toml", "larger"]);
    check(&logits_error(FIXTURE, &["--config", "no/such.toml"]), &["no/such.toml"]);
    check(&logits_error(FIXTURE, &["--config", "/"]), &["can't read the configuration /"]);
}

#[test]
fn prompts_ids_and_sampling() {
    check(&generate_error(&["--prompt", ""]), &["prompt", "at least one"]);
    check(&generate_error(&[]), &["--prompt"]);
    check(&generate_error(&["--prompt", "a", "--temperature", "-1"]), &["temperature = -1"]);
    check(&generate_error(&["--prompt", "a", "--temperature", "NaN"]), &["temperature"]);
    check(&generate_error(&["--prompt", "a", "--top-p", "1.5"]), &["top_p = 1.5"]);
    check(&generate_error(&["--prompt", "a", "--top-p", "-0.5"]), &["top_p = -0.5"]);
    check(&generate_error(&["--prompt", "a", "--top-k", "4294967295"]), &["top_k"]);
    check(&generate_error(&["--prompt", "a", "--max-tokens", "0"]), &["max_tokens"]);
    let long = "def ".repeat(100);
    let error = generate_error(&["--prompt", &long, "--max-seq-len", "64"]);
    check(&error, &["prompt 1", "64"]);
    let ids =
        |ids: &str| error_of(&["logits", "--model", FIXTURE, "--ids", ids, "--out", "/dev/null"]);
    check(&ids("1,320,2"), &["320", "vocab_size"]);
    check(&ids("1,-2"), &["--ids"]);
    check(&ids("4294967296"), &["--ids"]);
    let many = vec!["1"; 513].join(",");
    check(&ids(&many), &["513", "512"]);
    let error = error_of(&["logits", "--model", FIXTURE, "--prompt", "a", "--out", "/dev/null"]);
    check(&error, &["tokenizer.json"]);
    let args = ["logits", "--model", FIXTURE, "--ids", "1", "--out", "no/such/folder/x"];
    check(&error_of(&args), &["no/such/folder/x"]);
}

#[test]
fn a_tokenizer_of_another_model() {
    let folder = Copy::of(FIXTURE);
    std::fs::copy(root().join(MODEL).join("tokenizer.json"), folder.file("tokenizer.json"))
        .unwrap();
    let args = ["generate", "--model", folder.path(), "--prompt", "a"];
    check(&error_of(&args), &["tokenizer.json", "vocab_size"]);
    std::fs::write(folder.file("tokenizer.json"), "{}").unwrap();
    check(&error_of(&args), &["tokenizer.json"]);
}

/// The module of the fixture after a pass, in a file.
fn dumped(folder: &Path, pass: &str) -> (String, String) {
    let text = stdout_of(&["inspect", "--model", FIXTURE, "--stop-after", pass]);
    let path = folder.join(format!("{pass}.pw"));
    std::fs::write(&path, &text).unwrap();
    (path.to_str().unwrap().to_owned(), text)
}

#[test]
fn texts_cut_anywhere_do_not_parse_and_say_where() {
    let folder = tempfile::tempdir().unwrap();
    let (fused, text) = dumped(folder.path(), "fuse");
    let (_, planned) = dumped(folder.path(), "plan");
    let cut = folder.path().join("cut.pw");
    let cut_path = cut.to_str().unwrap();
    let weights = ["--weights", FIXTURE, "--ids", "1,2"];
    let end = text.trim_end().len();
    // A step prime to the length of lines and columns of the text meets every kind of token.
    for length in (0..end).step_by(257) {
        std::fs::write(&cut, &text.as_bytes()[..length]).unwrap();
        check(&error_of(&["opt", cut_path]), &["cut.pw", "error at "]);
    }
    for length in (0..end).step_by(2503) {
        std::fs::write(&cut, &text.as_bytes()[..length]).unwrap();
        check(&error_of(&[&["run", cut_path][..], &weights].concat()), &["cut.pw", "error at "]);
    }
    for length in (end..planned.trim_end().len()).step_by(997) {
        std::fs::write(&cut, &planned.as_bytes()[..length]).unwrap();
        let args = [&["run", &fused, "--plan", cut_path][..], &weights].concat();
        check(&error_of(&args), &["cut.pw"]);
    }
}

#[test]
fn a_plan_with_overlapping_bytes_is_refused_with_its_code() {
    let folder = tempfile::tempdir().unwrap();
    let (fused, _) = dumped(folder.path(), "fuse");
    let (planned, text) = dumped(folder.path(), "plan");
    let offset =
        |line: &str| line.split(" at ").nth(1).unwrap().split(' ').next().unwrap().to_owned();
    let line_of = |kind: &str| text.lines().find(|line| line.contains(kind)).unwrap();
    // Both are live while the first region runs.
    let (boundary, local) = (line_of(" boundary v0 "), line_of(" local v1 "));
    let moved = local.replace(&offset(local), &offset(boundary));
    let edited = folder.path().join("edited.pw");
    std::fs::write(&edited, text.replace(local, &moved)).unwrap();
    let edited = edited.to_str().unwrap();
    let weights = ["--weights", FIXTURE, "--ids", "1,2"];
    let with_plan =
        |plan: &str| [&["run", &fused, "--plan", plan][..], &weights].concat().join(" ");
    stdout_of(&with_plan(&planned).split(' ').collect::<Vec<_>>());
    let error = error_of(&with_plan(edited).split(' ').collect::<Vec<_>>());
    check(&error, &["edited.pw", "B0301", "overlap"]);
    check(&error_of(&[&["run", edited][..], &weights].concat()), &["edited.pw", "B0301"]);
    for command in ["inspect", "compile"] {
        check(&error_of(&[command, edited]), &["edited.pw", "B0301"]);
    }
    let other = ["--weights", "tests/fixtures/llama3", "--ids", "1,2"];
    check(&error_of(&[&["run", &fused][..], &other].concat()), &["llama3", "shape"]);
    check(&error_of(&[&["run", &fused, "--plan", &fused][..], &weights].concat()), &["no plan"]);
}

#[test]
fn a_bound_that_the_text_of_a_graph_states_itself() {
    let folder = tempfile::tempdir().unwrap();
    let (fused, _) = dumped(folder.path(), "fuse");
    for command in [&["inspect"][..], &["inspect", "--model"], &["compile"]] {
        let args = [command, &[&fused, "--max-num-tokens", "8"]].concat();
        check(&error_of(&args), &["--max-num-tokens", "can't be 8", "says 512"]);
    }
    let file = folder.path().join("my.toml");
    std::fs::write(&file, "max_num_tokens = 8").unwrap();
    let config = ["--config", file.to_str().unwrap()];
    let run = ["run", &fused, "--weights", FIXTURE, "--ids", "1"];
    for command in [&["inspect", &fused][..], &["compile", &fused], &run] {
        check(&error_of(&[command, &config].concat()), &["my.toml: max_num_tokens", "says 512"]);
    }
    // What the text says may be said, and how much memory there is the text does not say.
    stdout_of(&["inspect", &fused, "--max-num-tokens", "512", "--memory-budget", "64MiB"]);
}

#[test]
fn passes_and_pipelines_that_do_not_exist() {
    let folder = tempfile::tempdir().unwrap();
    let (fused, _) = dumped(folder.path(), "fuse");
    check(&error_of(&["opt", &fused, "--pipeline", "canonicalise"]), &["canonicalise"]);
    check(&error_of(&["opt", &fused, "--pipeline", "split{at=["]), &["pipeline column 11"]);
    check(&error_of(&["opt", "no/such.pw"]), &["no/such.pw"]);
    check(&error_of(&["opt", "/"]), &["can't read /"]);
}

#[test]
fn errors_go_to_standard_error_with_json_too() {
    let model = ["--model", "no/such/folder", "--json"];
    for command in [
        &["generate", "--prompt", "a"][..],
        &["logits", "--ids", "1", "--out", "/dev/null"],
        &["inspect"],
        &["compile"],
    ] {
        let output = piecewise(&[command, &model].concat());
        assert_eq!(output.status.code(), Some(1));
        assert!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
        check(&String::from_utf8(output.stderr).unwrap(), &["no/such/folder"]);
    }
}
