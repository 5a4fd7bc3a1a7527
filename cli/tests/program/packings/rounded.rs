//! Checkpoints in floats that are rounded when they are loaded, beside the same stored in few bits.

use super::layers::{Tensor, e4m3};
use super::{
    IDS, SIZES, Sizes, Tensors, checkpoint_of, ct, floats, formats, integers, with, write,
};
use crate::bounded::Bound;
use crate::support::cache::{checked, json as json_of, run as run_with};
use crate::support::cli::{command, error_of, logits, norm_error, stdout_of};
use half::bf16;
use serde_json::{Value, json};
use tempfile::TempDir;

/// `down_proj` has two groups of 128; other rows are no multiple of 128.
const WIDE: Sizes = Sizes { inner: 256, ..SIZES };

fn plain(sizes: Sizes) -> (Value, Tensors) {
    let formats = formats();
    let packed = formats.iter().find(|format| format.name == "packed asymmetric").unwrap();
    let (config, _, plain) = checkpoint_of(packed, sizes);
    (config, plain)
}

fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.bytes.as_chunks().0.iter().map(|x| f32::from_le_bytes(*x)).collect()
}

/// The code next to `x`, by looking at all; of two the even one.
fn nearest(x: f32) -> u8 {
    let off = |code: &u8| ((f64::from(e4m3(*code)) - f64::from(x.abs())).abs(), code & 1);
    let code = (0..0x7f_u8).min_by(|a, b| off(a).partial_cmp(&off(b)).unwrap()).unwrap();
    if x.is_sign_negative() { code | 0x80 } else { code }
}

fn largest(values: &[f32]) -> f32 {
    values.iter().fold(1e-10, |most, x| x.abs().max(most))
}

/// A layer as compressed-tensors keeps it, by the formulas of its scales.
fn stored(format: &str, weights: &Tensor) -> Vec<(&'static str, Tensor)> {
    let [out, inner] = weights.shape[..] else { panic!("a matrix") };
    let values = values(weights);
    if format == "fp8" {
        let scales: Vec<f32> = values.chunks(inner).map(|row| largest(row) / 448.0).collect();
        let codes = values.iter().enumerate().map(|(i, x)| [nearest(x / scales[i / inner])]);
        let codes = Tensor::of("F8_E4M3", &weights.shape, codes);
        return vec![("weight", codes), ("weight_scale", Tensor::f32(&[out, 1], &scales))];
    }
    let group = if inner % 128 == 0 { 128 } else { inner };
    let scales: Vec<f32> = values.chunks(group).map(|block| largest(block) / 7.5).collect();
    let code = |(i, x): (usize, &f32)| {
        ((x / scales[i / group]).round_ties_even().clamp(-8.0, 7.0) + 8.0) as u32
    };
    let codes: Vec<u32> = values.iter().enumerate().map(code).collect();
    let eight = |word: &[u32]| (0..).zip(word).map(|(i, code)| code << (4 * i)).sum();
    let words: Vec<u32> = codes.chunks(inner).flat_map(|row| row.chunks(8).map(eight)).collect();
    vec![
        ("weight_packed", Tensor::words(&[out, inner.div_ceil(8)], &words)),
        ("weight_scale", Tensor::f32(&[out, inner / group], &scales)),
    ]
}

/// A checkpoint in few bits; `numbers` are its tensors in f32.
fn all_stored(
    format: &str,
    config: &Value,
    plain: &Tensors,
    numbers: &Tensors,
) -> (Value, Tensors) {
    let mut tensors = Tensors::new();
    for (name, tensor) in plain {
        match name.strip_suffix("weight").filter(|module| module.ends_with("_proj.")) {
            Some(module) => {
                let parts = stored(format, &numbers[name]).into_iter();
                tensors.extend(parts.map(|(leaf, part)| (format!("{module}{leaf}"), part)));
            }
            None => drop(tensors.insert(name.clone(), tensor.clone())),
        }
    }
    if format == "fp8" {
        return (with(config, &ct(floats("channel", None), "float-quantized")), tensors);
    }
    let mut how = ct(integers(true, None), "pack-quantized");
    let group = |targets: &str, weights| json!({"targets": [targets], "weights": weights});
    how["config_groups"] = json!({
        "a": group("re:.*down_proj", integers(true, Some(128))),
        "b": group("Linear", integers(true, None)),
    });
    (with(config, &how), tensors)
}

fn folder(config: &Value, tensors: &Tensors) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), config, tensors);
    folder
}

fn path(folder: &TempDir) -> &str {
    folder.path().to_str().unwrap()
}

/// With every matrix in bf16, and the same numbers in f32.
fn in_bf16(config: &Value, plain: &Tensors) -> (Value, Tensors, Tensors) {
    let rounded = |tensor: &Tensor| -> Vec<f32> {
        values(tensor).iter().map(|x| bf16::from_f32(*x).to_f32()).collect()
    };
    let each = |make: fn(&[usize], &[f32]) -> Tensor| {
        let tensors = plain.iter();
        tensors.map(|(name, t)| (name.clone(), make(&t.shape, &rounded(t)))).collect()
    };
    let mut config = config.clone();
    config["dtype"] = "bfloat16".into();
    (config, each(Tensor::bf16), each(Tensor::f32))
}

const BOUNDS: [&str; 4] = ["--dtype", "f32", "--max-num-tokens", "8"];

#[test]
fn rounded_layers_are_those_of_a_checkpoint_that_was_stored_so() {
    let (config, plain) = plain(WIDE);
    for format in ["fp8", "int4"] {
        let (of_bf16, short, long) = in_bf16(&config, &plain);
        for (config, plain, numbers) in [(&config, &plain, &plain), (&of_bf16, &short, &long)] {
            let (how, tensors) = all_stored(format, config, plain, numbers);
            let (floats, stored) = (folder(config, plain), folder(&how, &tensors));
            let expected = logits(path(&stored), &IDS, &BOUNDS).1;
            let flags = [&BOUNDS[..], &["--quantize", format]].concat();
            let found = logits(path(&floats), &IDS, &flags).1;
            assert!(norm_error(&found, &logits(path(&floats), &IDS, &BOUNDS).1) > 1e-3);
            assert_eq!(norm_error(&found, &expected), 0.0, "{format}");
        }
        // Nothing that is compiled differs.
        let (how, tensors) = all_stored(format, &config, &plain, &plain);
        let (floats, stored) = (folder(&config, &plain), folder(&how, &tensors));
        let cache = tempfile::tempdir().unwrap();
        let compile = |model: &TempDir, flags: &[&str]| {
            let args = ["compile", "--json", "--model", path(model), "--max-num-tokens", "8"];
            json_of(&run_with(cache.path(), &[&args, flags].concat()))
        };
        assert_ne!(compile(&stored, &[])["compiled"], json!({}));
        assert_eq!(compile(&floats, &["--quantize", format])["compiled"], json!({}), "{format}");
    }
}

#[test]
fn the_error_of_each_layer_is_told_and_what_is_kept() {
    const MODEL: &str = "examples/tiny-qwen3";
    for (format, error) in [("fp8", 0.01..0.04), ("int4", 0.05..0.2)] {
        let cache = tempfile::tempdir().unwrap();
        let run = |more: &[&str]| {
            let args = ["generate", "--model", MODEL, "--prompt", "def", "--max-tokens", "2"];
            let args = [&args[..], &["--quantize", format, "--stats"], more].concat();
            let output = checked(command(cache.path()).args(args).bounded_output().unwrap());
            String::from_utf8(output.stderr).unwrap()
        };
        let said = run(&[]);
        let line = said.lines().find(|line| line.contains(&format!("rounded to {format}")));
        let line = line.unwrap_or_else(|| panic!("{said}"));
        assert!(line.contains("kept as stored: ") && line.contains("model.embed_tokens"), "{line}");
        let json = run(&["--json"]);
        let statistics = json.lines().find(|line| line.starts_with('{')).unwrap();
        let statistics: Value = serde_json::from_str(statistics).unwrap();
        let errors = statistics["rounding_errors"].as_object().unwrap();
        assert_eq!(said.matches("rounding error").count(), errors.len());
        assert!(errors.contains_key("model.layers.0.self_attn.q_proj"), "{errors:?}");
        assert_eq!(errors.len() % 7, 0, "{errors:?}");
        assert!(errors.values().all(|e| error.contains(&e.as_f64().unwrap())), "{errors:?}");
    }
}

/// One head of 8 makes `k_proj` and `v_proj` too small.
#[test]
fn layers_that_are_too_small_stay_as_they_are() {
    let (mut config, _) = plain(Sizes { heads: [6, 1], ..SIZES });
    config["head_dim"] = 8.into();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let args = ["inspect", "--model", path(&folder), "--quantize", "int4", "--json"];
    let plan: Value = serde_json::from_str(&stdout_of(&args)).unwrap();
    let shapes = plan["scaled"].as_array().unwrap().iter().map(|row| row["shape"].clone());
    let shapes = Vec::from_iter(shapes);
    // q alone, o, down, gate and up.
    assert_eq!(shapes, [json!([48, 64]), json!([64, 48]), json!([64, 160]), json!([320, 64])]);
}

#[test]
fn what_can_not_be_rounded_is_refused_by_its_name() {
    let ids = ["--ids", "1,2", "--out", "/dev/null"];
    let args = ["logits", "--model", "tests/fixtures/qwen3-awq", "--quantize", "fp8"];
    let error = error_of(&[&args[..], &ids].concat());
    for part in ["--quantize", "quantize = \"fp8\"", "quantization_config", "config.json"] {
        assert!(error.contains(part), "{error}");
    }
    let error = error_of(&["inspect", "examples/block.pw", "--quantize", "int4"]);
    assert!(error.contains("quantize = \"int4\" is not possible"), "{error}");
    let error = error_of(&["inspect", "--model", "examples/tiny-qwen3", "--quantize", "int5"]);
    assert!(error.contains("`int5`") && error.contains("`int4`"), "{error}");
    // A weight that no scale can stand for.
    let (config, mut tensors) = plain(SIZES);
    let name = "model.layers.0.mlp.up_proj.weight";
    let weights = tensors.get_mut(name).unwrap();
    weights.bytes[4 * 64..][..4].copy_from_slice(&f32::NAN.to_le_bytes());
    let file = tempfile::tempdir().unwrap();
    let toml = file.path().join("run.toml");
    std::fs::write(&toml, "quantize = \"fp8\"").unwrap();
    let folder = folder(&config, &tensors);
    let config_of_run = ["--config", toml.to_str().unwrap(), "--device", "cpu"];
    let args = ["logits", "--model", path(&folder)];
    let error = error_of(&[&args[..], &ids, &config_of_run].concat());
    for part in [name, "row 1", "fp8", "no number"] {
        assert!(error.contains(part), "{error}");
    }
    let args = ["inspect", "--model", path(&folder), "--print-config"];
    let shown = stdout_of(&[&args[..], &config_of_run].concat());
    assert!(shown.contains("quantize = \"fp8\""), "{shown}");
}

#[test]
fn a_folder_is_measured_with_its_layers_rounded() {
    let args = ["bench", "--model", "examples/tiny-qwen3", "--quantize", "int4", "--batch", "1"];
    let more = ["--steps", "2", "--graph-mode", "none", "--context", "16", "--json"];
    let report: Value = serde_json::from_str(&stdout_of(&[&args[..], &more].concat())).unwrap();
    assert_eq!(report["model"], "tiny-qwen3-int4");
}
