//! Any `quantization_config` is taken or refused by its field, and nothing is allocated hugely for it.

use crate::support::counting_allocator::peak_bytes;
use piecewise::models::{DecoderBounds, DecoderConfig, decoder};
use piecewise_ir::dtype::DType;
use piecewise_testing::soak;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::{Map, Value, json};
use std::path::Path;

const BOUNDS: DecoderBounds = DecoderBounds {
    activations: DType::F32,
    max_tokens: 4,
    max_rows: 2,
    max_sequences: 2,
    max_length: 16,
    kv_rows: 32,
    state_slots: 0,
    embedding_rows: 0,
    sampling_controls: false,
};

/// Bytes at a time: an expression may take 10 MB, and its parts some more.
const MOST: usize = 64 << 20;

fn configurations() -> Vec<Value> {
    let group = |weights: Value, targets: Value, format: &str| {
        json!({
            "targets": targets, "weights": weights, "format": format, "output_activations": null,
            "input_activations": {"num_bits": 8, "dynamic": true},
        })
    };
    let floats = json!({
        "num_bits": 8, "type": "float", "symmetric": true, "strategy": "block",
        "block_structure": [128, 128], "dynamic": false, "observer_kwargs": {},
    });
    let integers = json!({
        "num_bits": 4, "type": "int", "symmetric": false, "strategy": "group", "group_size": 128,
        "actorder": "weight",
    });
    vec![
        json!({
            "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
            "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head"],
        }),
        json!({
            "quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": true,
            "version": "gemm", "modules_to_not_convert": null,
        }),
        json!({
            "quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": false, "sym": false,
            "checkpoint_format": "gptq_v2", "lm_head": false, "pack_dtype": "int32", "dynamic": {},
            "meta": {"quantizer": ["x"]}, "damp_percent": 0.01,
        }),
        json!({
            "quant_method": "compressed-tensors", "format": "mixed-precision",
            "ignore": ["lm_head", "re:.*gate$"], "kv_cache_scheme": null, "version": "0.12",
            "quantization_status": "compressed",
            "config_groups": {
                "a": group(floats, json!(["re:.*down_proj"]), "float-quantized"),
                "b": group(integers, json!(["Linear"]), "pack-quantized"),
            },
        }),
    ]
}

/// Values that files have somewhere, odd ones and large ones.
fn value() -> impl Strategy<Value = Value> {
    let numbers = vec![0_i64, 1, -1, 2, 3, 4, 8, 16, 31, 128, 1 << 20, 1 << 40, i64::MAX, i64::MIN];
    let words = vec![
        "fp8",
        "awq",
        "gptq",
        "compressed-tensors",
        "e4m3",
        "e5m2",
        "dynamic",
        "static",
        "gemm",
        "gemv",
        "gptq_v2",
        "int",
        "float",
        "tensor",
        "channel",
        "group",
        "block",
        "tensor_group",
        "pack-quantized",
        "float-quantized",
        "naive-quantized",
        "nvfp4-pack-quantized",
        "Linear",
        "re:",
        "re:(",
        "re:.*",
        "re:a{1000}{1000}{1000}",
        "re:(a|b|c){0,1000}{0,1000}",
        "",
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        select(numbers).prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        select(words).prop_map(Value::from),
        "\\PC{0,12}".prop_map(Value::from),
        Just(Value::from("x".repeat(1 << 16))),
    ];
    leaf.prop_recursive(2, 8, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-z_]{1,8}", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// The places of a value and of all in it.
fn places(value: &Value, at: &str, found: &mut Vec<String>) {
    found.push(at.to_owned());
    let mut inside = |key: String, value| places(value, &format!("{at}/{key}"), found);
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| inside(key.clone(), value)),
        Value::Array(list) => {
            list.iter().enumerate().for_each(|(i, value)| inside(i.to_string(), value));
        }
        _ => {}
    }
}

/// What is done to a place.
#[derive(Clone, Debug)]
enum Change {
    Replace(Value),
    Remove,
    Add(String, Value),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        4 => value().prop_map(Change::Replace),
        1 => Just(Change::Remove),
        2 => ("[a-z_]{1,10}", value()).prop_map(|(key, value)| Change::Add(key, value)),
    ]
}

fn apply(config: &mut Value, at: &Index, change: Change) {
    let mut found = Vec::new();
    places(config, "", &mut found);
    let place = at.get(&found);
    match change {
        Change::Replace(value) => *config.pointer_mut(place).unwrap() = value,
        Change::Remove => {
            let Some((outer, key)) = place.rsplit_once('/') else { return };
            match config.pointer_mut(outer) {
                Some(Value::Object(map)) => drop(map.remove(key)),
                Some(Value::Array(list)) => drop(list.remove(key.parse().unwrap())),
                _ => {}
            }
        }
        Change::Add(key, value) => {
            if let Some(Value::Object(map)) = config.pointer_mut(place) {
                map.insert(key, value);
            }
        }
    }
}

fn check(quantization: Value) -> Result<(), TestCaseError> {
    let mut config: Map<String, Value> = serde_json::from_value(json!({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "dtype": "float32",
        "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 1,
        "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 32, "vocab_size": 64,
        "max_position_embeddings": 64,
    }))
    .unwrap();
    config.insert("quantization_config".to_owned(), quantization);
    let text = Value::from(config).to_string();
    let work = || match DecoderConfig::parse(text.as_bytes(), Path::new("config.json")) {
        // What is taken has a graph, or says why it has none.
        Ok(config) => Ok(decoder(&config, &BOUNDS, |_| None).map(|graph| graph.weights().len())),
        Err(error) => Err((error.field().unwrap_or_default().to_owned(), error.to_string())),
    };
    let (result, peak) = peak_bytes(work);
    prop_assert!(peak < MOST, "{} bytes", peak);
    match result {
        Ok(Ok(weights)) => prop_assert!(weights > 0),
        Ok(Err(errors)) => prop_assert!(!errors.to_string().is_empty()),
        Err((field, said)) => {
            prop_assert!(said.starts_with("config.json: "), "{}", said);
            prop_assert!(field.starts_with("quantization_config"), "{}: {}", field, said);
            prop_assert!(said.contains(&format!("`{field}`")), "{}", said);
            prop_assert!(said.len() < 1200, "{} bytes: {}", said.len(), said);
        }
    }
    Ok(())
}

#[test]
fn configurations_that_nobody_changed_are_taken() {
    for quantization in configurations() {
        let mut config = json!({
            "model_type": "qwen3", "hidden_size": 128, "intermediate_size": 256,
            "num_hidden_layers": 1, "num_attention_heads": 6, "num_key_value_heads": 3,
            "head_dim": 32, "vocab_size": 64,
        });
        config["quantization_config"] = quantization;
        let config =
            DecoderConfig::parse(config.to_string().as_bytes(), Path::new("config.json")).unwrap();
        decoder(&config, &BOUNDS, |_| None).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(soak(600)))]

    #[test]
    fn any_change_of_a_configuration_is_taken_or_refused_by_its_field(
        config in select(configurations()),
        changes in prop::collection::vec((any::<Index>(), change()), 1..4),
    ) {
        let mut config = config;
        for (at, change) in changes {
            apply(&mut config, &at, change);
        }
        check(config)?;
    }

    #[test]
    fn any_value_is_taken_or_refused_by_its_field(value in value()) {
        check(value)?;
    }
}
