//! The fixtures of every family against logits of a float64 reference at every position.

use crate::support::cli::{error_of, logits, norm_error, root};
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

/// Families that differ from Llama in more than numbers.
const FAMILIES: [&str; 8] =
    ["gemma2", "gemma3", "granite", "mistral-window", "olmo2", "phi3", "qwen3-yarn", "smollm3"];

/// Families whose layers, or some of them, have experts.
const SPARSE: [&str; 2] = ["mixtral", "qwen3-moe"];

/// Which divisors `longrope` takes follows from the longest sequence, and those of a prompt in transformers
/// from its own length: of this fixture three prompts stay within the original context.
fn bounds_of(fixture: &str, case: usize) -> &'static [&'static str] {
    match (fixture, case) {
        ("phi3", 0..=2) => &["--max-seq-len", "64"],
        _ => &[],
    }
}

/// Each whole prompt is within 2e-5 of the reference, and what is likeliest after it and after each
/// of the tokens that follow is what the reference writes.
fn check_exactly(fixture: &str, prompts: &[usize], flags: &[&str]) {
    let model = format!("tests/fixtures/{fixture}");
    let cases = cases(fixture).into_iter().enumerate().filter(|(case, _)| prompts.contains(case));
    for (case, Case { ids, logits: expected, greedy }) in cases {
        let flags = [flags, bounds_of(fixture, case), &["--dtype", "f32"]].concat();
        let all = [&ids[..], &greedy[..greedy.len() - 1]].concat();
        let (shape, found) = logits(&model, &all, &flags);
        let width = shape[1];
        for position in 0..ids.len() {
            let row = position * width..(position + 1) * width;
            let error = norm_error(&found[row.clone()], &expected[row]);
            assert!(error < 2e-5, "{fixture} case {case} position {position} {flags:?}: {error}");
        }
        let rows = found.chunks_exact(width).skip(ids.len() - 1);
        let likeliest = rows.map(|row| {
            let largest = row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
            largest.map_or(-1, |(id, _)| id as i64)
        });
        assert_eq!(likeliest.collect::<Vec<_>>(), greedy, "{fixture} case {case} {flags:?}");
    }
}

/// In every mode, by chunks, token by token, unfused, and with what nobody may read filled with NaN.
fn check_in_every_mode(fixtures: &[&str]) {
    for fixture in fixtures {
        for mode in ["none", "piecewise", "full", "full_and_piecewise"] {
            check_exactly(fixture, &[2], &["--graph-mode", mode, "--max-num-tokens", "32"]);
        }
        check_exactly(fixture, &[2], &["--max-num-tokens", "1"]);
        check_exactly(fixture, &[2], &["--level", "eager"]);
        check_exactly(fixture, &[3], &["--check", "poison,addresses"]);
    }
}

#[test]
fn quantized_checkpoints_are_what_their_codes_stand_for() {
    for fixture in QUANTIZED {
        check_exactly(fixture, &[0, 1, 2, 3], &[]);
    }
}

#[test]
fn so_they_are_in_every_mode_and_in_steps_of_one_token() {
    check_in_every_mode(&QUANTIZED);
}

#[test]
fn families_equal_their_references() {
    for fixture in FAMILIES.into_iter().chain(SPARSE) {
        check_exactly(fixture, &[0, 1, 2, 3], &[]);
    }
}

#[test]
fn so_do_families_in_every_mode_and_in_steps_of_one_token() {
    check_in_every_mode(&FAMILIES);
    check_in_every_mode(&SPARSE);
}

/// Chunks that end within a window, at its end and past it.
#[test]
fn chunks_over_the_edge_of_a_window_change_nothing() {
    for fixture in ["gemma2", "gemma3", "mistral-window", "phi3"] {
        for chunk in ["7", "16", "24"] {
            check_exactly(fixture, &[3], &["--max-num-tokens", chunk]);
        }
    }
}

#[test]
fn in_bf16_they_are_near() {
    for fixture in QUANTIZED.into_iter().chain(FAMILIES).chain(SPARSE) {
        let model = format!("tests/fixtures/{fixture}");
        for (case, Case { ids, logits: expected, .. }) in cases(fixture).into_iter().enumerate() {
            let flags = [bounds_of(fixture, case), &["--dtype", "bf16"]].concat();
            let (_, found) = logits(&model, &ids, &flags);
            let error = norm_error(&found, &expected);
            assert!(error < 3e-2, "{fixture} case {case}: {error}");
        }
    }
}

/// A folder of the published shape: the decoder's fields in `text_config`, its tensors under another
/// prefix, and a tower beside it.
fn wrapped(fixture: &str, prefix: &str, wrapper: &str) -> tempfile::TempDir {
    let from = root().join("tests/fixtures").join(fixture);
    let folder = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(from.join("config.json")).unwrap();
    let text: serde_json::Value = serde_json::from_str(&text).unwrap();
    let config = serde_json::json!({
        "model_type": wrapper, "text_config": text, "vision_config": {"num_hidden_layers": 1},
    });
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let weights = std::fs::read(from.join("model.safetensors")).unwrap();
    let weights = SafeTensors::deserialize(&weights).unwrap();
    let mut tensors: Vec<_> = weights
        .iter()
        .map(|(name, view)| {
            let name = match (name.strip_prefix("model."), prefix.strip_suffix(".model")) {
                (Some(rest), _) => format!("{prefix}.{rest}"),
                (None, Some(outer)) => format!("{outer}.{name}"),
                (None, None) => name.to_owned(),
            };
            (name, view)
        })
        .collect();
    let tower = tensors[0].1.clone();
    tensors.push(("vision_tower.post_layernorm.weight".to_owned(), tower));
    let bytes = safetensors::serialize(tensors, None).unwrap();
    std::fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
    folder
}

#[test]
fn a_decoder_in_a_wrapper_has_the_bits_of_the_decoder_alone() {
    for (fixture, wrapper, prefix) in [
        ("gemma3", "gemma3", "language_model.model"),
        ("gemma3", "gemma3", "model.language_model"),
        ("mistral-window", "mistral3", "language_model.model"),
    ] {
        let folder = wrapped(fixture, prefix, wrapper);
        let [.., Case { ids, .. }, _] = cases(fixture);
        let flags = ["--dtype", "f32"];
        let alone = logits(&format!("tests/fixtures/{fixture}"), &ids, &flags);
        let within = logits(folder.path().to_str().unwrap(), &ids, &flags);
        assert_eq!(within, alone, "{fixture} under {prefix}");
        let tokenizer = root().join("tests/fixtures/qwen2_5_vl/tokenizer.json");
        std::fs::copy(tokenizer, folder.path().join("tokenizer.json")).unwrap();
        let model = folder.path().to_str().unwrap();
        let args = ["generate", "--model", model, "--prompt", "a", "--image", "x.png"];
        let error = error_of(&args);
        assert!(error.contains("reads text alone: --image takes"), "{error}");
    }
}

/// What a configuration says wrongly by one thing, such as a window off by one, is far above every bar: so
/// would be what the program does wrongly.
#[test]
fn windows_caps_ropes_and_factors_that_are_planted_wrongly_are_found() {
    let swapped = serde_json::json!(["full_attention", "sliding_attention", "full_attention"]);
    for (fixture, field, value) in [
        ("mistral-window", "/sliding_window", 25.into()),
        ("mistral-window", "/sliding_window", 23.into()),
        ("gemma2", "/sliding_window", 19.into()),
        ("gemma2", "/layer_types", swapped),
        ("gemma2", "/attn_logit_softcapping", serde_json::Value::Null),
        ("gemma2", "/final_logit_softcapping", serde_json::Value::Null),
        ("gemma2", "/query_pre_attn_scalar", 32.into()),
        ("gemma3", "/sliding_window", 21.into()),
        ("gemma3", "/rope_parameters/full_attention/factor", 1.into()),
        ("gemma3", "/rope_parameters/sliding_attention/rope_theta", 1e6.into()),
        ("phi3", "/sliding_window", 48.into()),
        ("phi3", "/rope_parameters/long_factor/1", 7.into()),
        ("phi3", "/max_position_embeddings", 256.into()),
        ("qwen3-yarn", "/rope_parameters/factor", 8.into()),
        ("qwen3-yarn", "/rope_parameters/original_max_position_embeddings", 64.into()),
        ("smollm3", "/no_rope_layers/1", 1.into()),
        ("granite", "/attention_multiplier", 0.25.into()),
        ("granite", "/residual_multiplier", 1.into()),
        ("granite", "/embedding_multiplier", 1.into()),
        ("granite", "/logits_scaling", 1.into()),
        ("olmo2", "/rms_norm_eps", 1e-6.into()),
        ("mixtral", "/num_experts_per_tok", 1.into()),
        ("mixtral", "/num_experts_per_tok", 3.into()),
        ("mixtral", "/rope_parameters/rope_theta", 1e4.into()),
        ("qwen3-moe", "/num_experts_per_tok", 3.into()),
        ("qwen3-moe", "/norm_topk_prob", false.into()),
    ] {
        let from = root().join("tests/fixtures").join(fixture);
        let folder = tempfile::tempdir().unwrap();
        let config = std::fs::read_to_string(from.join("config.json")).unwrap();
        let mut config: serde_json::Value = serde_json::from_str(&config).unwrap();
        *config.pointer_mut(field).unwrap() = value;
        std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        let weights = "model.safetensors";
        std::fs::copy(from.join(weights), folder.path().join(weights)).unwrap();
        let [.., Case { ids, logits: expected, .. }] = cases(fixture);
        let model = folder.path().to_str().unwrap();
        let (_, found) = logits(model, &ids, &["--dtype", "f32"]);
        let error = norm_error(&found, &expected);
        assert!(error > 1e-2, "{fixture} {field}: {error}");
    }
}
