//! The tiny model against the reference tokens and logits that are shipped with it.

use crate::bounded::Bound;
use crate::overflowing::overflowing_model;
use crate::support::cli::{command, device_flags, logits, norm_error, root, stdout_of};
use serde_json::Value;

const MODEL: &str = "examples/tiny-qwen3";
const MODES: [&str; 5] = ["none", "piecewise", "full", "full_decode_only", "full_and_piecewise"];
const SIZES: [&str; 2] = ["1,2,4,8,16,32,64", "7,64"];

fn golden() -> Vec<Value> {
    let text = std::fs::read_to_string(root().join(MODEL).join("golden.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn ids(value: &Value) -> Vec<i64> {
    value.as_array().unwrap().iter().map(|id| id.as_i64().unwrap()).collect()
}

fn generate(prompts: &[&Value], extra: &[&str]) -> Vec<Vec<i64>> {
    let mut args = vec![
        "generate",
        "--model",
        MODEL,
        "--dtype",
        "f32",
        "--max-tokens",
        "64",
        "--ignore-eos",
        "--json",
    ];
    for prompt in prompts {
        args.extend(["--prompt", prompt["prompt"].as_str().unwrap()]);
    }
    args.extend(extra);
    let device = device_flags();
    args.extend(device.iter().map(String::as_str));
    let lines = stdout_of(&args);
    let replies: Vec<Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(replies.len(), prompts.len());
    for (reply, prompt) in replies.iter().zip(prompts) {
        assert_eq!(reply["prompt"], prompt["prompt"]);
        assert_eq!(reply["prompt_ids"], prompt["ids"]);
        assert_eq!(reply["finish_reason"], "length");
    }
    replies.iter().map(|reply| ids(&reply["ids"])).collect()
}

fn check_tokens(mode: &str, sizes: &str) {
    let golden = golden();
    let flags = ["--graph-mode", mode, "--capture-num-tokens", sizes, "--max-num-tokens", "64"];
    let all: Vec<&Value> = golden.iter().collect();
    let expected: Vec<_> = golden.iter().map(|case| ids(&case["greedy_fp32"])).collect();
    assert_eq!(generate(&all, &flags), expected, "all prompts in one batch, {mode} at {sizes}");
    for (case, expected) in golden.iter().zip(&expected) {
        let alone = generate(&[case], &flags);
        assert_eq!(
            alone,
            std::slice::from_ref(expected),
            "{} alone, {mode} at {sizes}",
            case["prompt"]
        );
    }
}

#[test]
fn greedy_tokens_equal_the_reference_in_every_mode_and_size_list() {
    for mode in MODES {
        for sizes in SIZES {
            check_tokens(mode, sizes);
        }
    }
}

/// What is asked of sampling comes by flags, and log-probabilities are those of `logits`.
#[test]
fn log_probabilities_biases_and_penalties_come_by_flags() {
    let golden = golden();
    let case = &golden[0];
    let reply = |extra: &[&str]| -> Value {
        let mut args = vec!["generate", "--model", MODEL, "--dtype", "f32", "--ignore-eos"];
        args.extend(["--json", "--max-tokens", "8", "--prompt", case["prompt"].as_str().unwrap()]);
        args.extend(extra);
        let device = device_flags();
        args.extend(device.iter().map(String::as_str));
        serde_json::from_str(&stdout_of(&args)).unwrap()
    };
    let told = reply(&["--logprobs", "3"]);
    let expected = ids(&case["greedy_fp32"]);
    let found = ids(&told["ids"]);
    assert_eq!(found, expected[..8]);
    let all = [ids(&case["ids"]), found.clone()].concat();
    let (shape, logits) = logits(MODEL, &all, &["--dtype", "f32"]);
    let rows = logits.chunks_exact(shape[1]).skip(all.len() - 9);
    assert_eq!(told["logprobs"].as_array().unwrap().len(), 8);
    for ((row, told), id) in rows.zip(told["logprobs"].as_array().unwrap()).zip(&found) {
        let sum: f64 = row.iter().map(|&logit| f64::from(logit).exp()).sum();
        let close = |id: usize, found: &Value| {
            let expected = f64::from(row[id]) - sum.ln();
            assert!((found.as_f64().unwrap() - expected).abs() < 1e-4, "{found}, not {expected}");
        };
        close(*id as usize, &told["logprob"]);
        let top = told["top"].as_array().unwrap();
        assert_eq!((top.len(), told["rank"].as_u64(), top[0][0].as_i64()), (3, Some(1), Some(*id)));
        top.iter().for_each(|pair| close(pair[0].as_u64().unwrap() as usize, &pair[1]));
    }
    let bias = format!("{}=-100", expected[0]);
    assert_ne!(ids(&reply(&["--logit-bias", &bias])["ids"])[0], expected[0]);
    let spread = ids(&reply(&["--presence-penalty", "50", "--min-p", "0.5"])["ids"]);
    let distinct: std::collections::BTreeSet<_> = spread.iter().collect();
    assert_eq!(distinct.len(), 8, "{spread:?}");
}

#[test]
fn greedy_tokens_equal_the_reference_with_poison_and_at_every_level() {
    let golden = golden();
    let all: Vec<&Value> = golden.iter().collect();
    let expected: Vec<_> = golden.iter().map(|case| ids(&case["greedy_fp32"])).collect();
    assert_eq!(generate(&all, &["--check", "poison,addresses"]), expected);
    for level in ["eager", "trace", "compile"] {
        assert_eq!(generate(&all, &["--level", level]), expected, "{level}");
    }
}

#[test]
fn the_top_logits_equal_the_reference() {
    for case in golden() {
        let prompt = ids(&case["ids"]);
        let (shape, values) = logits(MODEL, &prompt, &["--dtype", "f32"]);
        assert_eq!(shape[0], prompt.len());
        let last = &values[(prompt.len() - 1) * shape[1]..];
        for (id, expected) in
            ids(&case["top8_ids"]).iter().zip(case["top8_logits"].as_array().unwrap())
        {
            let found = f64::from(last[*id as usize]);
            let expected = expected.as_f64().unwrap();
            assert!((found - expected).abs() < 1e-3, "id {id}: {found} is not {expected}");
        }
    }
}

#[test]
fn bf16_logits_are_close_to_f32() {
    let (mut bf16, mut f32) = (Vec::new(), Vec::new());
    for case in golden() {
        let mut tokens = ids(&case["ids"]);
        tokens.extend(ids(&case["greedy_fp32"]));
        bf16.extend(logits(MODEL, &tokens, &["--dtype", "bf16"]).1);
        f32.extend(logits(MODEL, &tokens, &["--dtype", "f32"]).1);
    }
    let error = norm_error(&bf16, &f32);
    assert!(error < 2e-2, "{error}");
}

/// In bf16 the model writes what the one that it was made from writes; in f16 nothing that would look
/// like text.
#[test]
fn a_model_that_leaves_the_range_of_f16_says_so_and_what_to_try() {
    let model = overflowing_model(&root().join(MODEL));
    let cache = tempfile::tempdir().unwrap();
    let generate = |model: &str, dtype: &str, extra: &[&str]| {
        let args = ["generate", "--model", model, "--dtype", dtype, "--max-tokens", "6"];
        let prompts = ["--prompt", "import", "--prompt", "def"];
        let mut command = command(cache.path());
        command.args(args).args(prompts).args(extra).args(device_flags()).bounded_output().unwrap()
    };
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let folder = model.path().to_str().unwrap();
    let expected = generate(MODEL, "bf16", &["--json"]);
    let found = generate(folder, "bf16", &["--json"]);
    assert!(found.status.success(), "{}", text(&found.stderr));
    assert_eq!(text(&found.stdout), text(&expected.stdout));
    let says = |message: &str| ["NaN", "f16", "--dtype bf16"].iter().all(|p| message.contains(p));
    for extra in [&["--json"][..], &[], &["--temperature", "1"], &["--then", "more", "--json"]] {
        let output = generate(folder, "f16", extra);
        let error = text(&output.stderr);
        assert!(!output.status.success() && says(&error) && error.contains("prompt 1"), "{error}");
        let replies = text(&output.stdout);
        if extra.contains(&"--json") {
            let replies: Vec<Value> =
                replies.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            assert_eq!(replies.len(), 2, "each prompt once: {replies:?}");
            for reply in replies {
                assert_eq!(reply["finish_reason"], "bad_logits");
                assert_eq!(reply["ids"], serde_json::json!([]));
                assert!(says(reply["error"].as_str().unwrap()), "{reply}");
            }
        }
    }
}
