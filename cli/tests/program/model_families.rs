//! The fixtures of every family against logits of a float64 reference at every position.

use crate::support::cli::{logits, norm_error, root};
use safetensors::SafeTensors;

const FIXTURES: [&str; 6] =
    ["llama3", "llama3-older-form", "mistral", "qwen2", "qwen3", "qwen3-sharded"];

/// Checkpoints whose linear layers are in 8 or 4 bits, with logits of exactly what the codes stand for.
const QUANTIZED: [&str; 4] = ["qwen3-fp8-block", "qwen3-int4-g128", "qwen3-awq", "qwen3-gptq"];

/// The prompt of a case, its logits at every position, and what is written greedily after it.
struct Case {
    ids: Vec<i64>,
    logits: Vec<f32>,
    greedy: Vec<i64>,
}

fn cases(fixture: &str) -> [Case; 4] {
    let golden = root().join("tests/fixtures").join(fixture).join("golden.safetensors");
    let golden = std::fs::read(golden).unwrap();
    let golden = SafeTensors::deserialize(&golden).unwrap();
    [0, 1, 2, 3].map(|case| {
        let words = |name: &str| -> Vec<[u8; 4]> {
            let tensor = golden.tensor(&format!("{name}_{case}")).unwrap();
            tensor.data().chunks_exact(4).map(|word| word.try_into().unwrap()).collect()
        };
        let ids = |name| -> Vec<i64> {
            words(name).into_iter().map(|word| i64::from(i32::from_le_bytes(word))).collect()
        };
        let logits = words("logits").into_iter().map(f32::from_le_bytes).collect();
        Case { ids: ids("ids"), logits, greedy: ids("greedy") }
    })
}

fn check(fixture: &str, flags: &[&str]) {
    let model = format!("tests/fixtures/{fixture}");
    for (case, Case { ids, logits: expected, .. }) in cases(fixture).into_iter().enumerate() {
        let mut flags = flags.to_vec();
        flags.extend(["--dtype", "f32"]);
        let (shape, found) = logits(&model, &ids, &flags);
        assert_eq!(shape, [ids.len(), expected.len() / ids.len()]);
        for position in 0..ids.len() {
            let row = position * shape[1]..(position + 1) * shape[1];
            let error = norm_error(&found[row.clone()], &expected[row]);
            assert!(error < 1e-4, "{fixture} case {case} position {position}: {error}");
        }
    }
}

#[test]
fn logits_equal_the_reference_at_every_position() {
    for fixture in FIXTURES {
        check(fixture, &[]);
    }
}

#[test]
fn so_they_do_in_chunks_and_piecewise_and_unfused() {
    for fixture in FIXTURES {
        check(fixture, &["--max-num-tokens", "32", "--graph-mode", "piecewise", "--strict"]);
        check(fixture, &["--level", "eager"]);
    }
}

/// Each whole prompt is within 2e-5 of the reference, and what is likeliest after it and after each
/// of the tokens that follow is what the reference writes.
fn check_quantized(fixture: &str, prompts: &[usize], flags: &[&str]) {
    let model = format!("tests/fixtures/{fixture}");
    let flags = [flags, &["--dtype", "f32"]].concat();
    let cases = cases(fixture).into_iter().enumerate().filter(|(case, _)| prompts.contains(case));
    for (case, Case { ids, logits: expected, greedy }) in cases {
        let all = [&ids[..], &greedy[..greedy.len() - 1]].concat();
        let (shape, found) = logits(&model, &all, &flags);
        let error = norm_error(&found[..expected.len()], &expected);
        assert!(error < 2e-5, "{fixture} case {case} {flags:?}: {error}");
        let rows = found.chunks_exact(shape[1]).skip(ids.len() - 1);
        let likeliest = rows.map(|row| {
            let largest = row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
            largest.map_or(-1, |(id, _)| id as i64)
        });
        assert_eq!(likeliest.collect::<Vec<_>>(), greedy, "{fixture} case {case} {flags:?}");
    }
}

#[test]
fn quantized_checkpoints_are_what_their_codes_stand_for() {
    for fixture in QUANTIZED {
        check_quantized(fixture, &[0, 1, 2, 3], &[]);
    }
}

#[test]
fn so_they_are_in_every_mode_and_in_steps_of_one_token() {
    for fixture in QUANTIZED {
        for mode in ["none", "piecewise", "full", "full_and_piecewise"] {
            check_quantized(fixture, &[2], &["--graph-mode", mode, "--max-num-tokens", "32"]);
        }
        check_quantized(fixture, &[2], &["--max-num-tokens", "1"]);
        check_quantized(fixture, &[2], &["--level", "eager"]);
        check_quantized(fixture, &[3], &["--check", "poison,addresses"]);
    }
}

#[test]
fn in_bf16_they_are_near() {
    for fixture in QUANTIZED {
        let model = format!("tests/fixtures/{fixture}");
        for (case, Case { ids, logits: expected, .. }) in cases(fixture).into_iter().enumerate() {
            let (_, found) = logits(&model, &ids, &["--dtype", "bf16"]);
            let error = norm_error(&found, &expected);
            assert!(error < 3e-2, "{fixture} case {case}: {error}");
        }
    }
}
