use super::kept::Quantization;
use super::stored::{Stored, ZeroPoints};
use crate::models::config::error::ConfigError;
use crate::models::config::fields::Fields;
use serde_json::{Value, json};
use std::path::Path;

fn read(how: &Value) -> Result<Quantization, ConfigError> {
    let config = json!({ "quantization_config": how });
    let root = Fields::root(Path::new("config.json"), &config)?;
    Ok(Quantization::read(&root)?.expect("the field is there"))
}

const MODULE: &str = "model.layers.3.mlp.up_proj";

fn stored(how: Value) -> Option<Stored> {
    read(&how).unwrap().stored(MODULE)
}

fn packed(weights: Value) -> Value {
    json!({
        "quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    })
}

#[test]
fn each_method_is_a_way_to_keep_a_layer() {
    let scale = "weight_scale_inv";
    let fp8 = json!({
        "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
        "weight_block_size": [128, 64],
    });
    assert_eq!(stored(fp8), Some(Stored::Float8 { block: Some([128, 64]), scale }));
    let tensor = json!({"quant_method": "fp8", "activation_scheme": "static"});
    let scale = "weight_scale";
    assert_eq!(stored(tensor), Some(Stored::Float8 { block: None, scale }));
    let awq = json!({"quant_method": "awq", "bits": 4, "group_size": 32, "version": "GEMM"});
    assert_eq!(stored(awq), Some(Stored::Awq { group: Some(32) }));
    for (sym, format, zeros) in [
        (true, "gptq", ZeroPoints::Symmetric),
        (true, "gptq_v2", ZeroPoints::Symmetric),
        (false, "gptq", ZeroPoints::LessOne),
        (false, "gptq_v2", ZeroPoints::Stored),
    ] {
        let gptq = json!({
            "quant_method": "gptq", "bits": 4, "group_size": -1, "desc_act": false, "sym": sym,
            "checkpoint_format": format, "damp_percent": 0.01, "meta": {"quantizer": ["x"]},
        });
        assert_eq!(stored(gptq), Some(Stored::Gptq { group: None, zeros }));
    }
    let four = |symmetric, strategy, group: Option<u64>| {
        packed(json!({
            "num_bits": 4, "type": "int", "symmetric": symmetric, "strategy": strategy,
            "group_size": group, "actorder": null, "observer": "minmax",
        }))
    };
    let (group, zeros) = (Some(128), ZeroPoints::Stored);
    assert_eq!(stored(four(false, "group", group)), Some(Stored::Packed { group, zeros }));
    let (group, zeros) = (None, ZeroPoints::Symmetric);
    assert_eq!(stored(four(true, "channel", None)), Some(Stored::Packed { group, zeros }));
    let eight = |strategy, block: Value| {
        let mut how = packed(json!({
            "num_bits": 8, "type": "float", "symmetric": true, "strategy": strategy,
            "block_structure": block,
        }));
        how["format"] = "float-quantized".into();
        stored(how)
    };
    assert_eq!(eight("channel", Value::Null), Some(Stored::Float8Rows));
    assert_eq!(eight("tensor", Value::Null), Some(Stored::Float8 { block: None, scale }));
    let block = Some([128, 128]);
    assert_eq!(eight("block", json!([128, 128])), Some(Stored::Float8 { block, scale }));
}

#[test]
fn what_is_not_done_is_refused_by_its_field() {
    let gptq = |key: &str, value: Value| {
        let mut how = json!({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": true});
        how[key] = value;
        how
    };
    let ct = |path: &str, value: Value| {
        let mut how = packed(json!({
            "num_bits": 4, "type": "int", "symmetric": true, "strategy": "group", "group_size": 32,
        }));
        *how.pointer_mut(path).unwrap_or(&mut Value::Null) = value.clone();
        if let Some((at, key)) = path.rsplit_once('/') {
            how.pointer_mut(at).unwrap()[key] = value;
        }
        how
    };
    let cases = [
        ("quant_method", json!({"quant_method": "bitsandbytes"})),
        ("quant_method", json!({"bits": 4})),
        ("fmt", json!({"quant_method": "fp8", "fmt": "e5m2"})),
        ("weight_block_size", json!({"quant_method": "fp8", "weight_block_size": [128]})),
        ("weight_block_size", json!({"quant_method": "fp8", "weight_block_size": [0, 128]})),
        ("scale_fmt", json!({"quant_method": "fp8", "scale_fmt": "ue8m0"})),
        ("version", json!({"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemv"})),
        (
            "zero_point",
            json!({"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": false}),
        ),
        ("bits", json!({"quant_method": "awq", "bits": 8, "group_size": 32})),
        ("group_size", json!({"quant_method": "awq", "bits": 4})),
        ("bits", gptq("bits", json!(3))),
        ("desc_act", gptq("desc_act", json!(true))),
        ("group_size", gptq("group_size", json!(0))),
        ("group_size", gptq("group_size", json!(1_u64 << 40))),
        ("lm_head", gptq("lm_head", json!(true))),
        ("checkpoint_format", gptq("checkpoint_format", json!("marlin"))),
        ("dynamic", gptq("dynamic", json!({"-:down": {}}))),
        ("sym", gptq("sym", Value::Null)),
        ("rotation", gptq("rotation", json!("hadamard"))),
        ("format", ct("/format", json!("marlin-24"))),
        ("kv_cache_scheme", ct("/kv_cache_scheme", json!({"num_bits": 8}))),
        ("sparsity_config", ct("/sparsity_config", json!({"format": "dense"}))),
        ("config_groups", ct("/config_groups", Value::Null)),
        ("ignore", ct("/ignore", json!(["re:("]))),
        ("num_bits", ct("/config_groups/group_0/weights/num_bits", json!(8))),
        ("strategy", ct("/config_groups/group_0/weights/strategy", json!("tensor_group"))),
        ("actorder", ct("/config_groups/group_0/weights/actorder", json!("group"))),
        ("group_size", ct("/config_groups/group_0/weights/group_size", json!(-4))),
        ("targets", ct("/config_groups/group_0/targets", Value::Null)),
    ];
    for (field, how) in cases {
        let error = read(&how).expect_err(&format!("{how} is taken"));
        let named = error.field().unwrap_or_default();
        assert!(named.rsplit('.').next() == Some(field), "{how}: `{named}` of {error}");
        assert!(named.starts_with("quantization_config."), "{how}: `{named}` of {error}");
        assert!(error.to_string().starts_with("config.json: "), "{error}");
    }
}

#[test]
fn no_message_is_as_long_as_what_it_is_about() {
    let (long, group) = ("x".repeat(1 << 16), "/config_groups/group_0/format");
    for (place, value, field) in [
        ("/format", json!(long), "quantization_config.format"),
        (group, json!(long), "quantization_config.config_groups.group_0.format"),
        ("/ignore", json!([format!("re:({long}")]), "quantization_config.ignore"),
    ] {
        let mut how = packed(json!({"num_bits": 4, "type": "int", "strategy": "channel"}));
        how["config_groups"]["group_0"]["format"] = Value::Null;
        *how.pointer_mut(place).unwrap() = value;
        let error = read(&how).unwrap_err();
        assert_eq!(error.field(), Some(field), "{error}");
        assert!(error.to_string().len() < 600, "{error}");
    }
}

#[test]
fn a_field_is_named_by_all_objects_that_it_stands_in() {
    let how = packed(json!({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 0}));
    let error = read(&how).unwrap_err();
    let field = "quantization_config.config_groups.group_0.weights.group_size";
    assert_eq!(error.field(), Some(field), "{error}");
    let mut how = packed(json!({}));
    how["config_groups"]["group_0"] = Value::Null;
    let error = read(&how).unwrap_err();
    assert_eq!(error.field(), Some("quantization_config.config_groups.group_0"), "{error}");
}

#[test]
fn modules_are_named_by_path_by_expression_and_by_kind() {
    let how = |skipped: Value| {
        let how = json!({"quant_method": "fp8", "modules_to_not_convert": skipped});
        read(&how).unwrap()
    };
    let names = how(json!(["lm_head", "model.layers.1", "mlp.gate_proj", "up"]));
    assert!(names.stored("model.layers.1.self_attn.q_proj").is_none());
    assert!(names.stored("model.layers.10.self_attn.q_proj").is_some());
    assert!(names.stored("model.layers.2.mlp.gate_proj").is_none());
    // A part of a word names nothing.
    assert!(names.stored("model.layers.2.mlp.up_proj").is_some());
    assert!(how(json!(null)).stored("lm_head").is_none(), "a head is not quantized unless named");

    let weights = json!({"num_bits": 8, "type": "float", "strategy": "channel"});
    let four = json!({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32});
    let mixed = read(&json!({
        "quant_method": "compressed-tensors", "format": "mixed-precision",
        "ignore": ["re:.*self_attn.*", "model.layers.0.mlp.down_proj"],
        "config_groups": {
            "a": {"targets": ["re:.*down_proj"], "weights": weights, "format": "float-quantized"},
            "b": {"targets": ["Linear"], "weights": four, "format": "pack-quantized"},
        },
    }));
    let mixed = mixed.unwrap();
    let of = |module: &str| mixed.stored(module);
    assert_eq!(of("model.layers.1.mlp.down_proj"), Some(Stored::Float8Rows));
    assert!(matches!(of("model.layers.1.mlp.up_proj"), Some(Stored::Packed { .. })));
    assert!(matches!(of("lm_head"), Some(Stored::Packed { .. })), "`Linear` names the head too");
    assert_eq!(of("model.layers.0.mlp.down_proj"), None);
    assert_eq!(of("model.language_model.layers.1.self_attn.q_proj"), None);
}

#[test]
fn tensors_without_use_are_those_of_quantized_layers() {
    let how = read(&json!({
        "quant_method": "gptq", "bits": 4, "group_size": 32, "sym": true,
        "modules_to_not_convert": ["model.layers.0"],
    }));
    let how = how.unwrap();
    assert!(how.is_inert(&format!("{MODULE}.g_idx")));
    assert!(
        how.is_inert(&format!("{MODULE}.qzeros")),
        "symmetric codes have their zero in the middle"
    );
    assert!(!how.is_inert(&format!("{MODULE}.scales")));
    assert!(!how.is_inert("model.layers.0.mlp.up_proj.g_idx"));
}
