use std::path::Path;

use serde_json::{Value, json};

use super::{ConfigError, DecoderConfig, Family, RopeScaling};
use piecewise_ir::dtype::DType;

fn base(family: Family) -> Value {
    json!({
        "architectures": [family.architecture()],
        "model_type": family.model_type(),
        "hidden_size": 64,
        "intermediate_size": 160,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "vocab_size": 320,
        "max_position_embeddings": 512,
        "sliding_window": null,
    })
}

fn parse(config: &Value) -> Result<DecoderConfig, ConfigError> {
    DecoderConfig::parse(config.to_string().as_bytes(), Path::new("config.json"))
}

/// The configuration of `family` with the fields of `changes` put in; `"absent"` removes one.
pub(super) fn with(family: Family, changes: Value) -> Result<DecoderConfig, ConfigError> {
    let mut config = base(family);
    for (key, value) in changes.as_object().unwrap() {
        if value == "absent" {
            config.as_object_mut().unwrap().remove(key);
        } else {
            config[key] = value.clone();
        }
    }
    parse(&config)
}

/// Checks that `changes` are refused with an error that names the file, `field` and `part`.
pub(super) fn refuses(family: Family, changes: Value, field: &str, part: &str) {
    let error = with(family, changes.clone()).expect_err(&format!("{family} accepts {changes}"));
    assert_eq!(error.field(), Some(field), "{changes}: {error}");
    let text = error.to_string();
    assert!(
        text.starts_with("config.json: ") && text.contains(&format!("`{field}`")),
        "{changes}: {text}"
    );
    assert!(text.contains(part), "{changes}: {text:?} lacks {part:?}");
}

/// Those whose layers are Llama's but for biases, norms of q and k and windows.
const FAMILIES: [Family; 4] = [Family::Qwen3, Family::Qwen2, Family::Llama, Family::Mistral];

#[test]
fn families_differ_as_their_code_does() {
    let of = |family| with(family, json!({})).unwrap();
    let flags = |config: &DecoderConfig| {
        (config.qk_norm, config.qkv_bias, config.output_bias, config.mlp_bias)
    };
    assert_eq!(flags(&of(Family::Qwen3)), (true, false, false, false));
    assert_eq!(flags(&of(Family::Qwen2)), (false, true, false, false));
    assert_eq!(flags(&of(Family::Llama)), (false, false, false, false));
    assert_eq!(flags(&of(Family::Mistral)), (false, false, false, false));
    let both = json!({"attention_bias": true, "mlp_bias": true});
    assert_eq!(flags(&with(Family::Llama, both).unwrap()), (false, true, true, true));
    let attention = json!({"attention_bias": true});
    assert_eq!(flags(&with(Family::Qwen3, attention).unwrap()), (true, true, true, false));
    refuses(Family::Mistral, json!({"attention_bias": true}), "attention_bias", "no such biases");
    for family in [Family::Qwen3, Family::Qwen2, Family::Mistral] {
        refuses(family, json!({"mlp_bias": true}), "mlp_bias", "no such biases");
    }
}

#[test]
fn defaults_are_those_of_transformers() {
    let absent = json!({
        "max_position_embeddings": "absent", "head_dim": "absent", "num_attention_heads": 32,
        "num_key_value_heads": "absent", "hidden_size": 128,
    });
    let of = |family| with(family, absent.clone()).unwrap();
    for (family, positions, kv_heads, head_dim, bos, eos) in [
        (Family::Qwen3, 32_768, 32, 128, None, vec![]),
        (Family::Qwen2, 32_768, 32, 4, None, vec![]),
        (Family::Llama, 2_048, 32, 4, Some(1), vec![2]),
        (Family::Mistral, 131_072, 8, 4, Some(1), vec![2]),
    ] {
        let config = of(family);
        assert_eq!(config.max_position_embeddings, positions, "{family}");
        assert_eq!(config.num_kv_heads, kv_heads, "{family}");
        assert_eq!(config.head_dim, head_dim, "{family}");
        assert_eq!((config.bos_token_id, config.eos_token_ids), (bos, eos), "{family}");
        assert_eq!(config.rms_norm_eps, 1e-6);
        assert!(!config.tie_word_embeddings);
        assert_eq!(config.dtype, None);
        assert_eq!((config.rope.theta, config.rope.scaling), (10_000.0, RopeScaling::None));
    }
    let null = with(Family::Mistral, json!({"num_key_value_heads": null})).unwrap();
    assert_eq!(null.num_kv_heads, 4);
    let null = with(Family::Llama, json!({"bos_token_id": null, "eos_token_id": null})).unwrap();
    assert_eq!((null.bos_token_id, null.eos_token_ids), (None, vec![]));
    assert_eq!(with(Family::Qwen3, json!({"head_dim": null})).unwrap().head_dim, 128);
}

#[test]
fn the_architecture_is_known_and_unambiguous() {
    for family in FAMILIES {
        assert_eq!(with(family, json!({"model_type": "absent"})).unwrap().family, family);
        assert_eq!(with(family, json!({"architectures": "absent"})).unwrap().family, family);
        assert_eq!(with(family, json!({"architectures": []})).unwrap().family, family);
    }
    let neither = json!({"model_type": null, "architectures": null});
    refuses(Family::Llama, neither, "architectures", "missing");
    for (changes, field) in [
        (json!({"architectures": ["Qwen2MoeForCausalLM"]}), "architectures"),
        (json!({"architectures": ["LlamaForSequenceClassification"]}), "architectures"),
        (json!({"architectures": ["LlamaForCausalLM", "LlamaModel"]}), "architectures"),
        (json!({"architectures": "LlamaForCausalLM"}), "architectures"),
        (json!({"architectures": [1]}), "architectures"),
        (json!({"model_type": "gemma4"}), "model_type"),
        (json!({"model_type": 7}), "model_type"),
        (json!({"model_type": "mistral"}), "model_type"),
    ] {
        refuses(Family::Llama, changes, field, "");
    }
}

/// How much each of the two layers sees.
fn windows(family: Family, changes: &Value) -> Vec<Option<u32>> {
    let config = with(family, changes.clone());
    let config = config.unwrap_or_else(|error| panic!("{changes}: {error}"));
    assert_eq!(config.max_position_embeddings, 512, "{changes}");
    (0..2).map(|layer| config.attention_of(layer).window).collect()
}

#[test]
fn layers_have_the_windows_that_the_code_of_their_family_gives_them() {
    let (none, all) = ([None; 2], |window| [Some(window); 2]);
    let on = json!({"sliding_window": 4, "use_sliding_window": true, "max_window_layers": 1});
    for (family, changes, expected) in [
        (Family::Qwen2, json!({"sliding_window": 4, "use_sliding_window": false}), none),
        (Family::Qwen3, json!({"sliding_window": 4}), none),
        (Family::Qwen3, json!({"sliding_window": "absent"}), none),
        (Family::Qwen3, json!({"sliding_window": null, "use_sliding_window": true}), none),
        (Family::Qwen2, on.clone(), [None, Some(4)]),
        (Family::Qwen2, merged(on.clone(), json!({"max_window_layers": 2})), none),
        (
            Family::Qwen3,
            merged(on.clone(), json!({"layer_types": ["sliding_attention", "full_attention"]})),
            [Some(4), None],
        ),
        (
            Family::Qwen3,
            merged(on, json!({"sliding_window": "absent", "max_window_layers": 0})),
            all(4096),
        ),
        (Family::Mistral, json!({"sliding_window": 511}), all(511)),
        (Family::Mistral, json!({"sliding_window": "absent"}), all(4096)),
        (Family::Mistral, json!({"sliding_window": null}), none),
        (Family::Mistral, json!({"sliding_window": 4, "use_sliding_window": false}), all(4)),
        (Family::Llama, json!({"sliding_window": 4, "use_sliding_window": false}), none),
        (Family::Llama, json!({"sliding_window": 512}), none),
        (Family::Llama, json!({"layer_types": ["full_attention", "full_attention"]}), none),
    ] {
        assert_eq!(windows(family, &changes), expected, "{family} {changes}");
    }
    for window in [json!(4), json!(511)] {
        refuses(Family::Llama, json!({"sliding_window": window}), "sliding_window", "no windows");
    }
    for family in FAMILIES {
        for window in [json!(0), json!(-1), json!(1u64 << 40)] {
            refuses(family, json!({"sliding_window": window}), "sliding_window", "must be from 1");
        }
    }
}

#[test]
fn kinds_of_layers_that_do_not_fit_are_refused() {
    for types in [
        json!(["full_attention"]),
        json!(["full_attention", "chunked_attention"]),
        json!(["full_attention", "sliding_attention"]),
        json!("full_attention"),
    ] {
        for family in FAMILIES {
            refuses(family, json!({"layer_types": types}), "layer_types", "");
        }
    }
}

#[test]
fn options_that_change_the_maths_are_refused_by_name() {
    for family in FAMILIES {
        for (key, value) in [
            ("hidden_act", json!("gelu")),
            ("hidden_act", json!("swiglu")),
            ("hidden_activation", json!("gelu")),
            ("num_experts", json!(8)),
            ("num_local_experts", json!(8)),
            ("num_experts_per_tok", json!(2)),
            ("moe_intermediate_size", json!(64)),
            ("final_logit_softcapping", json!(30.0)),
            ("attn_logit_softcapping", json!(50.0)),
            ("residual_multiplier", json!(0.5)),
            ("logit_scale", json!(0.5)),
            ("scale_emb", json!(12)),
            ("partial_rotary_factor", json!(0.5)),
            ("partial_rotary_factor", json!("1")),
            ("rotary_dim", json!(16)),
            ("attention_chunk_size", json!(64)),
            ("use_qk_norm", json!(true)),
            ("no_rope_layers", json!([1])),
            ("use_bias", json!(true)),
            ("auto_map", json!({"AutoModel": "custom.Model"})),
            ("vision_config", json!({"depth": 2})),
            ("add_cross_attention", json!(true)),
            ("is_encoder_decoder", json!(true)),
        ] {
            refuses(family, json!({key: value}), key, "not supported");
        }
    }
}

#[test]
fn silu_has_another_name() {
    for family in FAMILIES {
        let [one, other] = ["silu", "swish"].map(|name| with(family, json!({"hidden_act": name})));
        assert_eq!(one.unwrap(), other.unwrap());
    }
}

#[test]
fn harmless_keys_are_ignored_and_unknown_ones_listed() {
    let config = with(
        Family::Llama,
        json!({
            "attention_dropout": 0.1, "use_cache": false, "pretraining_tp": 4, "pad_token_id": -1,
            "transformers_version": "4.40.0", "initializer_range": 0.02, "unsloth_fixed": true,
            "is_encoder_decoder": false, "tie_encoder_decoder": false, "pruned_heads": {},
            "quantization_config": null, "partial_rotary_factor": 1, "hidden_act": null,
            "favourite_colour": "blue", "seed": 3, "empty": [],
        }),
    )
    .unwrap();
    assert_eq!(config.ignored_keys, ["favourite_colour", "seed"]);
}

#[test]
fn absurd_numbers_are_refused_with_field_and_value() {
    for key in [
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "vocab_size",
        "max_position_embeddings",
    ] {
        for value in
            [json!(0), json!(-1), json!(u64::MAX), json!(i64::MIN), json!(1e300), json!(1u64 << 40)]
        {
            refuses(Family::Llama, json!({key: value}), key, &format!("is {value}"));
        }
        for value in [json!("64"), json!(true), json!([64]), json!({"a": 1}), json!(64.5)] {
            refuses(Family::Llama, json!({key: value}), key, "expected a whole number");
        }
    }
    for key in [
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "vocab_size",
    ] {
        refuses(Family::Llama, json!({key: null}), key, "missing");
        refuses(Family::Llama, json!({key: "absent"}), key, "missing");
    }
    for value in [json!(0), json!(-1e-6), json!(2.0), json!(1e-300)] {
        refuses(Family::Llama, json!({"rms_norm_eps": value}), "rms_norm_eps", "must be from");
    }
    refuses(Family::Llama, json!({"rms_norm_eps": "1e-6"}), "rms_norm_eps", "expected a number");
    refuses(
        Family::Llama,
        json!({"tie_word_embeddings": 1}),
        "tie_word_embeddings",
        "true or false",
    );
}

#[test]
fn a_whole_number_may_be_written_as_a_float() {
    let config = with(Family::Llama, json!({"hidden_size": 128.0})).unwrap();
    assert_eq!(config.hidden_size, 128);
}

#[test]
fn sizes_that_do_not_fit_each_other_are_refused() {
    refuses(Family::Llama, json!({"num_key_value_heads": 3}), "num_key_value_heads", "(4)");
    refuses(Family::Llama, json!({"num_key_value_heads": 8}), "num_key_value_heads", "(4)");
    refuses(Family::Llama, json!({"head_dim": 31}), "head_dim", "even");
    refuses(Family::Llama, json!({"head_dim": null, "hidden_size": 66}), "hidden_size", "(4)");
    refuses(Family::Llama, json!({"head_dim": null, "hidden_size": 60}), "hidden_size", "even");
    refuses(
        Family::Llama,
        json!({"head_dim": null, "hidden_size": 1 << 20}),
        "hidden_size",
        "2048",
    );
    let huge =
        json!({"hidden_size": 1 << 20, "intermediate_size": 1 << 22, "num_hidden_layers": 4096});
    refuses(Family::Llama, huge, "num_hidden_layers", "weights");
}

#[test]
fn token_ids_may_be_one_or_a_list() {
    let config =
        with(Family::Llama, json!({"bos_token_id": 5, "eos_token_id": [7, 9, 7]})).unwrap();
    assert_eq!((config.bos_token_id, config.eos_token_ids), (Some(5), vec![7, 9]));
    for value in [json!(320), json!(-1), json!([1, 1u64 << 40])] {
        refuses(Family::Llama, json!({"eos_token_id": value}), "eos_token_id", "from 0 to 319");
    }
    for value in [json!("</s>"), json!([null]), json!(1.5)] {
        refuses(Family::Llama, json!({"eos_token_id": value}), "eos_token_id", "a token id");
    }
    refuses(Family::Llama, json!({"bos_token_id": [1, 2]}), "bos_token_id", "one token");
}

#[test]
fn the_generation_config_takes_precedence() {
    let mut config = with(Family::Llama, json!({"bos_token_id": 5, "eos_token_id": 7})).unwrap();
    let file = Path::new("generation_config.json");
    config.apply_generation_config(br#"{"temperature": 0.6}"#, file).unwrap();
    assert_eq!((config.bos_token_id, &config.eos_token_ids), (Some(5), &vec![7]));
    config.apply_generation_config(br#"{"eos_token_id": [8, 9]}"#, file).unwrap();
    assert_eq!((config.bos_token_id, &config.eos_token_ids), (Some(5), &vec![8, 9]));
    let before = config.clone();
    for text in [r#"{"bos_token_id": 1, "eos_token_id": 9999}"#, "{", "[]", ""] {
        let error = config.apply_generation_config(text.as_bytes(), file).unwrap_err().to_string();
        assert!(error.starts_with("generation_config.json: "), "{error}");
        assert_eq!(config, before);
    }
}

#[test]
fn dtype_has_two_names() {
    for (value, dtype) in
        [("bfloat16", DType::BF16), ("torch.float16", DType::F16), ("float32", DType::F32)]
    {
        for key in ["dtype", "torch_dtype"] {
            assert_eq!(with(Family::Qwen2, json!({key: value})).unwrap().dtype, Some(dtype));
        }
    }
    refuses(Family::Qwen2, json!({"dtype": "float64"}), "dtype", "bfloat16");
    refuses(Family::Qwen2, json!({"torch_dtype": "auto"}), "torch_dtype", "bfloat16");
    let both = json!({"dtype": "bfloat16", "torch_dtype": "float16"});
    refuses(Family::Qwen2, both, "dtype", "`torch_dtype` is \"float16\"");
}

fn llama3() -> Value {
    json!({
        "factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1,
        "original_max_position_embeddings": 128,
    })
}

pub(super) fn merged(mut one: Value, other: Value) -> Value {
    one.as_object_mut().unwrap().extend(other.as_object().unwrap().clone());
    one
}

#[test]
fn both_forms_of_rope_read_the_same() {
    let newer = merged(llama3(), json!({"rope_type": "llama3", "rope_theta": 5e5}));
    let newer = with(Family::Llama, json!({"rope_parameters": newer})).unwrap();
    assert_eq!(
        newer.rope.scaling,
        RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: 128,
        }
    );
    for key in ["rope_type", "type"] {
        let scaling = merged(llama3(), json!({key: "llama3"}));
        let older = json!({"rope_theta": 500_000, "rope_scaling": scaling});
        assert_eq!(with(Family::Llama, older).unwrap(), newer);
    }
    let linear = json!({"rope_scaling": {"type": "linear", "rope_type": "linear", "factor": 2}});
    let linear = with(Family::Llama, linear).unwrap();
    assert_eq!(linear.rope.scaling, RopeScaling::Linear { factor: 2.0 });
    for nothing in [json!(null), json!({}), json!({"rope_type": "default"})] {
        let config =
            with(Family::Llama, json!({"rope_scaling": nothing, "rope_theta": 7})).unwrap();
        assert_eq!((config.rope.theta, config.rope.scaling), (7.0, RopeScaling::None));
    }
}

#[test]
fn rope_that_is_not_computed_is_refused() {
    for (key, parent) in [("rope_parameters", "rope_parameters"), ("rope_scaling", "rope_scaling")]
    {
        let field = |name: &str| format!("{parent}.{name}");
        for kind in ["dynamic", "mrope", "proportional", ""] {
            let scaling = json!({"rope_type": kind, "factor": 4.0});
            refuses(Family::Qwen2, json!({key: scaling}), &field("rope_type"), "llama3");
            let scaling = json!({"type": kind, "factor": 4.0});
            refuses(Family::Qwen2, json!({key: scaling}), &field("type"), "llama3");
        }
        for (change, name) in [
            (json!({"partial_rotary_factor": 0.5}), "partial_rotary_factor"),
            (json!({"mrope_section": [1, 2]}), "mrope_section"),
            (json!({"full_attention": {"rope_type": "default"}}), "full_attention"),
            (json!({"factor": 2.0}), "factor"),
            (json!({"rope_type": 1}), "rope_type"),
            (json!({"rope_type": "linear"}), "factor"),
            (json!({"rope_type": "linear", "factor": 0}), "factor"),
            (json!({"rope_type": "linear", "factor": "2"}), "factor"),
            (
                json!({"rope_type": "linear", "factor": 2, "attention_factor": 1.2}),
                "attention_factor",
            ),
            (json!({"rope_type": "linear", "type": "llama3", "factor": 2}), "rope_type"),
            (json!({"rope_theta": 0}), "rope_theta"),
            (json!({"rope_theta": -10_000}), "rope_theta"),
            (json!({"rope_theta": "10000"}), "rope_theta"),
        ] {
            refuses(Family::Qwen2, json!({key: change}), &field(name), "");
        }
        let complete = merged(llama3(), json!({"rope_type": "llama3"}));
        for name in
            ["factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"]
        {
            let lacking = merged(complete.clone(), json!({name: null}));
            refuses(Family::Llama, json!({key: lacking}), &field(name), "missing");
            let zero = merged(complete.clone(), json!({name: 0}));
            refuses(Family::Llama, json!({key: zero}), &field(name), "must be");
        }
        let swapped = merged(complete, json!({"low_freq_factor": 4.0}));
        refuses(Family::Llama, json!({key: swapped}), &field("high_freq_factor"), "above");
        refuses(Family::Llama, json!({key: [1]}), key, "an object");
    }
}

#[test]
fn contradicting_forms_of_rope_are_refused() {
    let theta = json!({"rope_theta": 1e4, "rope_parameters": {"rope_theta": 1e6}});
    refuses(Family::Llama, theta, "rope_parameters.rope_theta", "`rope_theta` is 10000.0");
    let scaling = json!({
        "rope_parameters": {"rope_type": "default"},
        "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    });
    refuses(Family::Llama, scaling, "rope_parameters", "`rope_scaling`");
    let same = json!({
        "rope_theta": 1e6,
        "rope_parameters": {"rope_theta": 1e6, "rope_type": "linear", "factor": 2},
        "rope_scaling": {"type": "linear", "factor": 2.0},
    });
    assert_eq!(with(Family::Llama, same).unwrap().rope.theta, 1e6);
}

#[test]
fn frequencies_follow_the_published_formulas() {
    let default = with(Family::Llama, json!({"head_dim": 8, "rope_theta": 1e4})).unwrap();
    let close = |config: &DecoderConfig, expected: &[f64]| {
        let found = config.rope.table(config.head_dim, 512).frequencies;
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            assert!((found / expected - 1.0).abs() < 1e-14, "{found} for {expected}");
        }
    };
    close(&default, &[1.0, 0.1, 0.01, 0.001]);
    let linear = json!({"head_dim": 8, "rope_scaling": {"type": "linear", "factor": 4}});
    let linear = with(Family::Llama, linear).unwrap();
    close(&linear, &[0.25, 0.025, 0.0025, 0.00025]);

    // Wavelengths 6.3, 63, 628 and 6283 beside the bounds 128 / 4 and 128 / 1: kept, between the
    // two, and twice divided. Between: 128 / 62.83 = 2.0372, smooth = (2.0372 - 1) / 3.
    let scaling = merged(llama3(), json!({"rope_type": "llama3"}));
    let llama3 = json!({"head_dim": 8, "rope_theta": 1e4, "rope_scaling": scaling});
    let llama3 = with(Family::Llama, llama3).unwrap();
    let smooth = (128.0 * 0.1 / std::f64::consts::TAU - 1.0) / 3.0;
    let between = 0.1 * (smooth + (1.0 - smooth) / 8.0);
    close(&llama3, &[1.0, between, 0.01 / 8.0, 0.001 / 8.0]);
}
