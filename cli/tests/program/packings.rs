//! Checkpoints in every packing that is read, beside the same weights as plain floats.
//!
//! Each is made here from random codes, scales and zero points: packed the way its format says, and
//! unpacked by what the codes mean. Both are run, and must agree.

mod faults;
mod layers;
mod rounded;

use crate::support::cli::{error_of, logits, norm_error, stdout_of};
use layers::{
    Made, Rng, Tensor, awq, ct_packed, fp8_block, fp8_block_ct, fp8_rows, fp8_tensor, gptq,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

/// The sizes of a layer.
#[derive(Clone, Copy)]
struct Sizes {
    hidden: usize,
    inner: usize,
    /// Of queries, and of keys and values.
    heads: [usize; 2],
}

/// Blocks below do not divide `inner`: the last are partial.
const SIZES: Sizes = Sizes { hidden: 64, inner: 160, heads: [6, 2] };
const DIM: usize = 16;
const VOCAB: usize = 48;

type Tensors = BTreeMap<String, Tensor>;

fn write(folder: &Path, config: &Value, tensors: &Tensors) {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, tensor) in tensors {
        let at = [data.len(), data.len() + tensor.bytes.len()];
        data.extend_from_slice(&tensor.bytes);
        let described = json!({"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": at});
        header.insert(name.clone(), described);
    }
    let header = Value::Object(header).to_string();
    let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat();
    std::fs::write(folder.join("model.safetensors"), file).unwrap();
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
}

struct Format {
    name: &'static str,
    quantization: Value,
    /// Of a layer by its name; `None` of one that is kept as it is.
    make: fn(&str, &mut Rng, [usize; 2]) -> Option<Made>,
}

fn ct(weights: Value, format: &str) -> Value {
    json!({
        "quant_method": "compressed-tensors", "format": format, "ignore": ["lm_head"],
        "config_groups": {"group_0": {
            "targets": ["Linear"], "weights": weights,
            "input_activations": {"num_bits": 8, "dynamic": true},
        }},
    })
}

fn integers(symmetric: bool, group: Option<usize>) -> Value {
    let strategy = if group.is_some() { "group" } else { "channel" };
    json!({
        "num_bits": 4, "type": "int", "symmetric": symmetric, "strategy": strategy,
        "group_size": group,
    })
}

fn floats(strategy: &str, block: Option<[usize; 2]>) -> Value {
    json!({
        "num_bits": 8, "type": "float", "symmetric": true, "strategy": strategy,
        "block_structure": block,
    })
}

fn of_gptq(group: i64, symmetric: bool, format: &str) -> Value {
    json!({
        "quant_method": "gptq", "bits": 4, "group_size": group, "desc_act": false,
        "sym": symmetric, "checkpoint_format": format,
    })
}

fn formats() -> Vec<Format> {
    let format = |name, quantization, make| Format { name, quantization, make };
    let fp8 = |block: Option<[usize; 2]>, scheme: &str| json!({"quant_method": "fp8", "activation_scheme": scheme, "weight_block_size": block});
    let awq_of = |group: i64| json!({"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": true});
    let mixed = json!({
        "quant_method": "compressed-tensors", "format": "mixed-precision",
        "ignore": ["lm_head", "re:.*q_proj"],
        "config_groups": {
            "a": {
                "targets": ["re:.*(down|up)_proj$"], "format": "float-quantized",
                "weights": floats("channel", None),
            },
            "b": {
                "targets": ["Linear"], "format": "pack-quantized",
                "weights": integers(true, Some(32)),
            },
        },
    });
    vec![
        format("block fp8", fp8(Some([32, 48]), "dynamic"), |_, rng, shape| {
            Some(fp8_block(rng, shape))
        }),
        format("static fp8", fp8(None, "static"), |_, rng, shape| Some(fp8_tensor(rng, shape))),
        format(
            "fp8 by channel",
            ct(floats("channel", None), "float-quantized"),
            |_, rng, shape| Some(fp8_rows(rng, shape)),
        ),
        format(
            "fp8 by block of compressed-tensors",
            ct(floats("block", Some([32, 48])), "float-quantized"),
            |_, rng, shape| Some(fp8_block_ct(rng, shape)),
        ),
        format("packed", ct(integers(true, Some(32)), "pack-quantized"), |_, rng, shape| {
            Some(ct_packed(rng, shape, 32, true))
        }),
        format(
            "packed asymmetric",
            ct(integers(false, Some(32)), "pack-quantized"),
            |_, rng, shape| Some(ct_packed(rng, shape, 32, false)),
        ),
        format("packed by channel", ct(integers(true, None), "pack-quantized"), |_, rng, shape| {
            Some(ct_packed(rng, shape, shape[1], true))
        }),
        format("awq", awq_of(32), |_, rng, shape| Some(awq(rng, shape, 32))),
        format("awq by channel", awq_of(-1), |_, rng, shape| Some(awq(rng, shape, shape[1]))),
        format("gptq", of_gptq(32, true, "gptq"), |_, rng, shape| Some(gptq(rng, shape, 32, None))),
        format("gptq asymmetric", of_gptq(32, false, "gptq"), |_, rng, shape| {
            Some(gptq(rng, shape, 32, Some(1)))
        }),
        format("gptq v2 asymmetric", of_gptq(32, false, "gptq_v2"), |_, rng, shape| {
            Some(gptq(rng, shape, 32, Some(0)))
        }),
        format("packed in 64", ct(integers(true, Some(64)), "pack-quantized"), |_, rng, shape| {
            Some(ct_packed(rng, shape, 64, true))
        }),
        format("awq in 64", awq_of(64), |_, rng, shape| Some(awq(rng, shape, 64))),
        format("gptq in 64", of_gptq(64, true, "gptq"), |_, rng, shape| {
            Some(gptq(rng, shape, 64, None))
        }),
        format("gptq by channel", of_gptq(-1, true, "gptq_v2"), |_, rng, shape| {
            Some(gptq(rng, shape, shape[1], None))
        }),
        format("mixed", mixed, |name, rng, shape| match name {
            "q_proj" => None,
            "down_proj" | "up_proj" => Some(fp8_rows(rng, shape)),
            _ => Some(ct_packed(rng, shape, 32, true)),
        }),
    ]
}

/// The configuration, the packed tensors and the plain ones.
fn checkpoint(format: &Format) -> (Value, Tensors, Tensors) {
    checkpoint_of(format, SIZES)
}

fn checkpoint_of(format: &Format, sizes: Sizes) -> (Value, Tensors, Tensors) {
    let Sizes { hidden, inner, heads } = sizes;
    let rng = &mut Rng(format.name.len() as u64);
    let config = json!({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "dtype": "float32",
        "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": 1,
        "num_attention_heads": heads[0], "num_key_value_heads": heads[1], "head_dim": DIM,
        "vocab_size": VOCAB, "max_position_embeddings": 64, "rms_norm_eps": 1e-6,
        "tie_word_embeddings": false,
    });
    let mut plain = Tensors::new();
    let mut floats = |name: &str, shape: &[usize], base: f32, spread: f32, rng: &mut Rng| {
        let n: usize = shape.iter().product();
        let values: Vec<f32> = (0..n).map(|_| base + spread * rng.unit()).collect();
        plain.insert(name.to_owned(), Tensor::f32(shape, &values));
    };
    floats("model.embed_tokens.weight", &[VOCAB, hidden], 0.0, 1.0, rng);
    floats("lm_head.weight", &[VOCAB, hidden], 0.0, 0.2, rng);
    for norm in ["norm", "layers.0.input_layernorm", "layers.0.post_attention_layernorm"] {
        floats(&format!("model.{norm}.weight"), &[hidden], 1.0, 0.2, rng);
    }
    for norm in ["q_norm", "k_norm"] {
        floats(&format!("model.layers.0.self_attn.{norm}.weight"), &[DIM], 1.0, 0.2, rng);
    }
    let mut packed = plain.clone();
    for (place, name, shape) in [
        ("self_attn", "q_proj", [heads[0] * DIM, hidden]),
        ("self_attn", "k_proj", [heads[1] * DIM, hidden]),
        ("self_attn", "v_proj", [heads[1] * DIM, hidden]),
        ("self_attn", "o_proj", [hidden, heads[0] * DIM]),
        ("mlp", "gate_proj", [inner, hidden]),
        ("mlp", "up_proj", [inner, hidden]),
        ("mlp", "down_proj", [hidden, inner]),
    ] {
        let module = format!("model.layers.0.{place}.{name}");
        let (tensors, weights) = (format.make)(name, rng, shape).unwrap_or_else(|| {
            let weights: Vec<f32> = (0..shape[0] * shape[1]).map(|_| 0.1 * rng.unit()).collect();
            (vec![("weight", Tensor::f32(&shape, &weights))], weights)
        });
        packed.extend(tensors.into_iter().map(|(leaf, t)| (format!("{module}.{leaf}"), t)));
        plain.insert(format!("{module}.weight"), Tensor::f32(&shape, &weights));
    }
    (config, packed, plain)
}

const IDS: [i64; 12] = [5, 17, 3, 40, 22, 8, 31, 1, 46, 12, 12, 29];

fn run(config: &Value, tensors: &Tensors) -> Vec<f32> {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), config, tensors);
    logits(folder.path().to_str().unwrap(), &IDS, &["--dtype", "f32", "--max-num-tokens", "8"]).1
}

fn with(config: &Value, quantization: &Value) -> Value {
    let mut config = config.clone();
    config["quantization_config"] = quantization.clone();
    config
}

#[test]
fn every_packing_is_the_floats_that_its_codes_mean() {
    for format in formats() {
        let (config, packed, plain) = checkpoint(&format);
        let found = run(&with(&config, &format.quantization), &packed);
        let error = norm_error(&found, &run(&config, &plain));
        assert!(error < 2e-5, "{}: {error}", format.name);
    }
}

/// Merging cuts and joins by heads: one of keys and values, three, and six of queries.
#[test]
fn any_number_of_heads_is_kept_in_any_packing() {
    let formats = formats();
    for name in ["block fp8", "static fp8", "packed asymmetric", "awq", "gptq v2 asymmetric"] {
        let format = formats.iter().find(|format| format.name == name).unwrap();
        for heads in [[6, 1], [6, 3]] {
            let (config, packed, plain) = checkpoint_of(format, Sizes { heads, ..SIZES });
            let found = run(&with(&config, &format.quantization), &packed);
            let error = norm_error(&found, &run(&config, &plain));
            assert!(error < 2e-5, "{name}, {heads:?}: {error}");
        }
    }
}

/// A fault in any tensor shows: what neighbours have in its place makes other logits.
#[test]
fn every_tensor_of_a_packing_is_read_from_its_place() {
    let unread = ["input_scale", "weight_shape", "g_idx"];
    for format in formats() {
        let (config, packed, plain) = checkpoint(&format);
        let config_of_packed = with(&config, &format.quantization);
        let expected = run(&config, &plain);
        let symmetric = format.quantization["sym"] == true;
        let layer = "model.layers.0.mlp.down_proj.";
        for (name, tensor) in packed.range(layer.to_owned()..) {
            let Some(leaf) = name.strip_prefix(layer) else { break };
            let is_unread = unread.contains(&leaf) || (leaf == "qzeros" && symmetric);
            if is_unread || tensor.bytes.len() <= 4 {
                continue;
            }
            let mut faulty = packed.clone();
            let size = match tensor.dtype {
                "F8_E4M3" => 1,
                "F16" | "BF16" => 2,
                _ => 4,
            };
            faulty.get_mut(name).unwrap().bytes.rotate_left(size);
            let error = norm_error(&run(&config_of_packed, &faulty), &expected);
            assert!(error > 2e-4, "{}: {leaf} moved by one changes {error}", format.name);
        }
    }
}

/// Holds what a run of a checkpoint is refused with against its parts.
fn refused(config: &Value, tensors: &Tensors, parts: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), config, tensors);
    let model = folder.path().to_str().unwrap();
    let ids = ["--ids", "1,2", "--out", "/dev/null", "--device", "cpu"];
    let error = error_of(&[&["logits", "--model", model], &ids[..]].concat());
    for part in parts {
        assert!(error.contains(part), "{error:?} lacks {part:?}");
    }
}

#[test]
fn what_would_be_read_wrongly_is_refused_before_anything_runs() {
    let formats = formats();
    let of = |name: &str| formats.iter().find(|format| format.name == name).unwrap();
    let module = "model.layers.0.mlp.up_proj";
    let (config, packed, _) = checkpoint(of("gptq"));
    let gptq = with(&config, &of("gptq").quantization);
    let mut ordered = packed.clone();
    ordered.get_mut(&format!("{module}.g_idx")).unwrap().bytes.rotate_left(64);
    refused(&gptq, &ordered, &["model.safetensors", &format!("{module}.g_idx"), "desc_act"]);
    let mut other = gptq.clone();
    other["quantization_config"]["group_size"] = 16.into();
    refused(&other, &packed, &["model.safetensors", ".scales", "shape"]);
    other["quantization_config"]["desc_act"] = true.into();
    refused(&other, &packed, &["config.json", "`quantization_config.desc_act`"]);
    let mut without = packed.clone();
    without.remove(&format!("{module}.scales"));
    refused(&gptq, &without, &[&format!("{module}.scales")]);

    let format = of("fp8 by channel");
    let (config, packed, _) = checkpoint(format);
    // Without a configuration codes would be taken for weights, without their scales.
    refused(&config, &packed, &["e4m3", "quantization_config"]);
    let mut skips = with(&config, &format.quantization);
    skips["quantization_config"]["ignore"] = json!(["lm_head", module]);
    refused(&skips, &packed, &["e4m3", module, "quantization_config"]);
    // A layer in floats whose scales were left behind.
    let mut left = packed;
    let [out, inner] = [SIZES.inner, SIZES.hidden];
    left.insert(format!("{module}.weight"), Tensor::f32(&[out, inner], &vec![0.5; out * inner]));
    refused(&skips, &left, &[&format!("{module}.weight_scale"), "quantization_config"]);
}

#[test]
fn inspect_says_how_products_are_kept() {
    let model = "tests/fixtures/qwen3-awq";
    let json = stdout_of(&["inspect", "--model", model, "--json"]);
    let plan: Value = serde_json::from_str(&json).unwrap();
    let rows = plan["scaled"].as_array().unwrap();
    // q, k and v; o; gate and up; down: of two layers each.
    assert_eq!(rows.len(), 4, "{rows:?}");
    for row in rows {
        let extents: Vec<u64> =
            row["shape"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect();
        let (weights, groups) = (extents[0] * extents[1], extents[0] * (extents[1] / 32));
        assert_eq!(
            (&row["dtype"], &row["bits"], &row["zeros"]),
            (&json!("i4"), &json!(4), &json!(true))
        );
        assert_eq!((&row["block"], &row["products"]), (&json!([1, 32]), &json!(2)));
        assert_eq!(row["bytes"], json!(2 * weights / 2));
        // Scales in f32; zeros in half a byte, each line of whole bytes.
        let zeros = extents[0] * (extents[1] / 32).div_ceil(2);
        assert_eq!(row["scale_bytes"], json!(2 * (4 * groups + zeros)));
    }
    assert!(stdout_of(&["inspect", "--model", model]).contains("products with scales"));
    let plain = stdout_of(&["inspect", "--model", "tests/fixtures/qwen3"]);
    assert!(!plain.contains("products with scales"), "{plain}");
}
