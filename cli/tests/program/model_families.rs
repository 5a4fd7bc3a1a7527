//! The fixtures of every family against logits of a float64 reference at every position.

use crate::support::cli::{logits, norm_error, root};
use safetensors::SafeTensors;

const FIXTURES: [&str; 6] =
    ["llama3", "llama3-older-form", "mistral", "qwen2", "qwen3", "qwen3-sharded"];

fn check(fixture: &str, flags: &[&str]) {
    let model = format!("tests/fixtures/{fixture}");
    let golden = std::fs::read(root().join(&model).join("golden.safetensors")).unwrap();
    let golden = SafeTensors::deserialize(&golden).unwrap();
    for case in 0..4 {
        let words = |name: &str| -> Vec<[u8; 4]> {
            let tensor = golden.tensor(&format!("{name}_{case}")).unwrap();
            tensor.data().chunks_exact(4).map(|word| word.try_into().unwrap()).collect()
        };
        let ids: Vec<i64> =
            words("ids").into_iter().map(|word| i64::from(i32::from_le_bytes(word))).collect();
        let expected: Vec<f32> = words("logits").into_iter().map(f32::from_le_bytes).collect();
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
