//! What configurations of families beyond Llama's mean, and what they may not say.

use super::tests::{merged, refuses, with};
use super::{
    Activation, ConfigError, DecoderConfig, ExpertsConfig, Family, LayerRope, RopeConfig,
    RopeScaling,
};
use crate::models::DecoderModel as _;
use serde_json::{Value, json};
use std::path::Path;

fn parse(config: &Value) -> Result<DecoderConfig, ConfigError> {
    DecoderConfig::parse(config.to_string().as_bytes(), Path::new("config.json"))
}

/// The windows of the first layers, and which of them a rope of their own turns.
fn layers(config: &DecoderConfig, most: usize) -> Vec<(Option<u32>, LayerRope)> {
    (0..most).map(|layer| config.attention_of(layer)).map(|of| (of.window, of.rope)).collect()
}

#[test]
fn a_file_that_states_nothing_but_its_type_has_the_defaults_of_that_type() {
    for (model_type, sizes, kv_heads, head_dim, vocab, positions, ids) in [
        ("gemma2", [2304, 9216, 26, 8], 4, 256, 256_000, 8192, (Some(2), vec![1])),
        ("gemma3_text", [2304, 9216, 26, 8], 4, 256, 262_208, 131_072, (Some(2), vec![1])),
        ("olmo2", [4096, 11_008, 32, 32], 32, 128, 50_304, 2048, (None, vec![50_279])),
        ("phi3", [3072, 8192, 32, 32], 32, 96, 32_064, 4096, (Some(1), vec![32_000])),
        ("granite", [4096, 11_008, 32, 32], 32, 128, 32_000, 2048, (Some(1), vec![2])),
        ("qwen3_moe", [2048, 6144, 24, 32], 4, 64, 151_936, 32_768, (None, vec![])),
        ("mixtral", [4096, 14_336, 32, 32], 8, 128, 32_000, 131_072, (Some(1), vec![2])),
        (
            "smollm3",
            [2048, 11_008, 36, 16],
            4,
            128,
            128_256,
            32_768,
            (Some(128_000), vec![128_001]),
        ),
    ] {
        let config = parse(&json!({"model_type": model_type})).unwrap();
        let DecoderConfig { hidden_size, intermediate_size, num_layers, num_heads, .. } = config;
        assert_eq!([hidden_size, intermediate_size, num_layers, num_heads], sizes, "{model_type}");
        assert_eq!((config.num_kv_heads, config.head_dim), (kv_heads, head_dim), "{model_type}");
        assert_eq!(config.vocab_size, vocab, "{model_type}");
        assert_eq!(config.max_position_embeddings, positions, "{model_type}");
        assert_eq!((config.bos_token_id, config.eos_token_ids), ids, "{model_type}");
        let is_tied = ["gemma2", "gemma3_text", "smollm3"].contains(&model_type);
        assert_eq!(config.tie_word_embeddings, is_tied, "{model_type}");
        let eps = if ["olmo2", "phi3", "mixtral"].contains(&model_type) { 1e-5 } else { 1e-6 };
        assert_eq!(config.rms_norm_eps, eps, "{model_type}");
    }
}

#[test]
fn null_is_what_a_missing_field_is() {
    let stated = json!({"model_type": "gemma3_text", "head_dim": null, "hidden_size": null,
        "vocab_size": null, "sliding_window": null, "rope_parameters": null, "layer_types": null});
    let absent = json!({"model_type": "gemma3_text"});
    assert_eq!(parse(&stated).unwrap(), parse(&absent).unwrap());
}

#[test]
fn gemma_2_has_windows_in_every_other_layer_and_caps() {
    let config = parse(&json!({"model_type": "gemma2"})).unwrap();
    let main = LayerRope::Main;
    let expected = [(Some(4096), main), (None, main), (Some(4096), main), (None, main)];
    assert_eq!(layers(&config, 4), expected);
    assert_eq!((config.score_softcap, config.logit_softcap), (Some(50.0), Some(30.0)));
    assert_eq!(config.score_scale(), 1.0 / 16.0);
    assert_eq!(config.activation, Activation::GeluTanh);
    let other = json!({"model_type": "gemma2", "query_pre_attn_scalar": 144,
        "attn_logit_softcapping": null, "final_logit_softcapping": 5});
    let other = parse(&other).unwrap();
    assert_eq!((other.score_softcap, other.logit_softcap), (None, Some(5.0)));
    assert_eq!(other.score_scale(), 1.0 / 12.0);
}

#[test]
fn gemma_3_has_two_ropes_and_a_pattern_or_a_list_of_layers() {
    let config = parse(&json!({"model_type": "gemma3_text"})).unwrap();
    assert_eq!(config.rope, RopeConfig::plain(1e6));
    assert_eq!(config.sliding_rope, Some(RopeConfig::plain(1e4)));
    let slides = |config: &DecoderConfig, layers: usize| -> Vec<bool> {
        (0..layers).map(|at| config.attention_of(at).rope == LayerRope::Sliding).collect()
    };
    assert_eq!(slides(&config, 7), [true, true, true, true, true, false, true]);
    let by_list = json!({"model_type": "gemma3_text", "num_hidden_layers": 2,
        "sliding_window_pattern": 2, "layer_types": ["full_attention", "sliding_attention"]});
    assert_eq!(slides(&parse(&by_list).unwrap(), 2), [false, true]);
    let linear =
        RopeConfig { scaling: RopeScaling::Linear { factor: 8.0 }, ..RopeConfig::plain(5e5) };
    let newer = json!({"model_type": "gemma3_text", "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8, "rope_theta": 5e5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 7e3}}});
    let older = json!({"model_type": "gemma3_text", "rope_theta": 5e5,
        "rope_local_base_freq": 7e3, "rope_scaling": {"rope_type": "linear", "factor": 8}});
    for form in [newer, older] {
        let config = parse(&form).unwrap();
        assert_eq!(config.rope, linear, "{form}");
        assert_eq!(config.sliding_rope, Some(RopeConfig::plain(7e3)), "{form}");
    }
    let bad = json!({"model_type": "gemma3_text", "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 0}}});
    let error = parse(&bad).unwrap_err();
    assert_eq!(error.field(), Some("rope_parameters.full_attention.factor"), "{error}");
}

#[test]
fn granites_factors_are_read_and_its_logits_divided() {
    let factors = json!({"embedding_multiplier": 12, "residual_multiplier": 0.22,
        "attention_multiplier": 0.0078125, "logits_scaling": 16});
    let config = with(Family::Granite, factors).unwrap();
    let of = config.multipliers;
    assert_eq!((of.embedding, of.residual, of.logits), (12.0, 0.22, 0.0625));
    assert_eq!(config.score_scale(), 0.0078125);
    refuses(Family::Granite, json!({"logits_scaling": 0}), "logits_scaling", "must be from");
}

#[test]
fn smollm_3_says_which_layers_a_rope_turns() {
    let ropes = |changes: Value| -> Vec<LayerRope> {
        let config = with(Family::SmolLM3, merged(json!({"num_hidden_layers": 4}), changes));
        layers(&config.unwrap(), 4).into_iter().map(|(_, rope)| rope).collect()
    };
    let (main, none) = (LayerRope::Main, LayerRope::None);
    assert_eq!(ropes(json!({})), [main, main, main, none]);
    assert_eq!(ropes(json!({"no_rope_layer_interval": 2})), [main, none, main, none]);
    assert_eq!(ropes(json!({"no_rope_layers": [0, 1, 1, 0]})), [none, main, main, none]);
    refuses(Family::SmolLM3, json!({"no_rope_layers": [1]}), "no_rope_layers", "1 entries for 2");
    refuses(Family::SmolLM3, json!({"no_rope_layers": [1, 2]}), "no_rope_layers", "from 0 to 1");
}

#[test]
fn phi_3_turns_a_part_of_a_head_by_divisors_for_short_and_long_sequences() {
    let rope = json!({"type": "su", "short_factor": [1, 2], "long_factor": [3, 4]});
    let changes = json!({"head_dim": 8, "partial_rotary_factor": 0.5, "rope_scaling": rope,
        "original_max_position_embeddings": 64});
    let config = with(Family::Phi3, changes.clone()).unwrap();
    let of = |length| config.rope.table(8, length);
    assert_eq!(of(64).frequencies, [1.0, 0.01 / 2.0]);
    assert_eq!(of(65).frequencies, [1.0 / 3.0, 0.01 / 4.0]);
    // 512 positions are 8 times 64: sqrt(1 + ln 8 / ln 64).
    assert!((of(65).factor - 1.5_f64.sqrt()).abs() < 1e-15);
    let few =
        json!({"rope_scaling": {"type": "longrope", "short_factor": [1], "long_factor": [1]}});
    refuses(Family::Phi3, merged(changes.clone(), few), "rope_scaling", "`short_factor` has 1");
    let lacking = json!({"rope_scaling": {"type": "longrope", "short_factor": [1, 2]}});
    refuses(Family::Phi3, merged(changes.clone(), lacking), "rope_scaling.long_factor", "missing");
    let odd = json!({"partial_rotary_factor": 0.4});
    refuses(Family::Phi3, merged(changes.clone(), odd), "partial_rotary_factor", "no pairs");
    for share in [json!(0), json!(-0.5), json!(1.5), json!("1")] {
        let changes = merged(changes.clone(), json!({"partial_rotary_factor": share}));
        refuses(Family::Phi3, changes, "partial_rotary_factor", "above 0");
    }
    let quantized = json!({"quantization_config": {"quant_method": "fp8"}});
    refuses(Family::Phi3, quantized, "quantization_config", "split as floats");
}

/// Numbers that transformers 5.24 prints for heads of 16.
#[test]
fn yarns_frequencies_are_those_of_transformers() {
    let [one, tenth] = [1.0_f64, 0.1].map(|scale| scale * 4.0_f64.ln());
    let of_four = 0.1 * one + 1.0;
    assert!((tenth + 1.0 - of_four).abs() < 1e-15);
    for (theta, changes, expected, factor) in [
        (
            2e4,
            json!({"factor": 4, "original_max_position_embeddings": 128}),
            [
                1.0,
                0.217_486_605,
                0.042_044_818_4,
                0.006_096_123_72,
                0.001_767_767_01,
                0.000_512_620_842,
                0.000_148_650_885,
                4.310_610_53e-5,
            ],
            of_four,
        ),
        (
            2e4,
            json!({"factor": 4, "original_max_position_embeddings": 128, "truncate": false}),
            [
                1.0,
                0.200_658_709,
                0.032_285_247,
                0.006_096_123_72,
                0.001_767_767_01,
                0.000_512_620_842,
                0.000_148_650_885,
                4.310_610_53e-5,
            ],
            of_four,
        ),
        (
            1e4,
            json!({"factor": 8, "original_max_position_embeddings": 320, "beta_fast": 16,
                   "beta_slow": 2, "mscale": 0.7, "mscale_all_dim": 1.0}),
            [
                1.0,
                0.316_227_764,
                0.056_250_002_2,
                0.003_952_847_33,
                0.001_249_999_97,
                0.000_395_284_733,
                0.000_125_000_006,
                3.952_847_33e-5,
            ],
            0.948_355_852_350_339_9,
        ),
        // The context is 512 positions long where nothing says how long it was.
        (
            1e4,
            json!({"factor": 8, "attention_factor": 1.5}),
            [
                1.0,
                0.247_052_938,
                0.056_250_002_2,
                0.010_870_33,
                0.001_249_999_97,
                0.000_395_284_733,
                0.000_125_000_006,
                3.952_847_33e-5,
            ],
            1.5,
        ),
    ] {
        let rope = merged(changes, json!({"rope_type": "yarn", "rope_theta": theta}));
        let config = json!({"head_dim": 16, "rope_parameters": rope});
        let table = with(Family::Qwen3, config).unwrap().rope.table(16, 1);
        for (found, expected) in table.frequencies.iter().zip(expected) {
            assert!((found / expected - 1.0).abs() < 1e-6, "{rope}: {found} for {expected}");
        }
        assert!((table.factor - factor).abs() < 1e-12, "{rope}: {}", table.factor);
    }
    let yarn = |changes| json!({"rope_scaling": merged(json!({"type": "yarn"}), changes)});
    refuses(Family::Qwen3, yarn(json!({})), "rope_scaling.factor", "missing");
    let swapped = yarn(json!({"factor": 4, "beta_slow": 32}));
    refuses(Family::Qwen3, swapped, "rope_scaling.beta_slow", "below `beta_fast`");
    let finetuned = yarn(json!({"factor": 4, "finetuned": true}));
    refuses(Family::Qwen3, finetuned, "rope_scaling.finetuned", "no such parameter");
}

#[test]
fn what_a_family_does_not_compute_is_refused_by_its_field() {
    let new = [
        Family::Gemma2,
        Family::Gemma3,
        Family::Olmo2,
        Family::Phi3,
        Family::Granite,
        Family::SmolLM3,
    ];
    for family in new {
        for (key, value) in [
            ("hidden_act", json!("relu")),
            ("num_experts", json!(8)),
            ("attention_sinks", json!(true)),
            ("rope_interleaved", json!(true)),
            ("vision_config", json!({"depth": 2})),
        ] {
            refuses(family, json!({key: value}), key, "not supported");
        }
        for types in [json!(["full_attention"]), json!(["chunked_attention", "full_attention"])] {
            if family != Family::Phi3 {
                refuses(family, json!({"layer_types": types}), "layer_types", "");
            }
        }
    }
    for family in [Family::Gemma2, Family::Gemma3] {
        for key in ["use_bidirectional_attention", "attention_bias"] {
            refuses(family, json!({key: true}), key, "not supported");
        }
        refuses(family, json!({"hidden_activation": "gelu"}), "hidden_activation", "tanh");
        refuses(family, json!({"query_pre_attn_scalar": 0}), "query_pre_attn_scalar", "must be");
        refuses(family, json!({"attn_logit_softcapping": -1}), "attn_logit_softcapping", "must be");
    }
    for family in [Family::Olmo2, Family::Granite] {
        refuses(family, json!({"sliding_window": 4}), "sliding_window", "no windows");
    }
    for key in ["partial_rotary_factor", "final_logit_softcapping", "residual_multiplier"] {
        refuses(Family::Olmo2, json!({key: 0.5}), key, "not supported");
    }
}

#[test]
fn experts_are_what_their_fields_say_or_refused_by_them() {
    let published = parse(&json!({"model_type": "qwen3_moe"})).unwrap();
    let experts = published.experts_of(0).unwrap();
    let ExpertsConfig { count, per_token, intermediate_size, renormalize, .. } = *experts;
    assert_eq!((count, per_token, intermediate_size, renormalize), (128, 8, 768, false));
    let mixtral = parse(&json!({"model_type": "mixtral"})).unwrap();
    let experts = mixtral.experts_of(31).unwrap();
    let ExpertsConfig { count, per_token, intermediate_size, renormalize, .. } = *experts;
    assert_eq!((count, per_token, intermediate_size, renormalize), (8, 2, 14_336, true));
    assert_eq!(mixtral.num_weights() / 1_000_000_000, 46);
    assert_eq!(mixtral.rope.theta, 1e6);

    let dense = |changes| {
        let config = merged(json!({"num_hidden_layers": 6}), changes);
        let config = with(Family::Qwen3Moe, config).unwrap();
        Vec::from_iter((0..6).filter(|&layer| config.experts_of(layer).is_none()))
    };
    assert_eq!(dense(json!({})), Vec::<usize>::new());
    assert_eq!(dense(json!({"mlp_only_layers": [4, 1]})), [1, 4]);
    assert_eq!(dense(json!({"decoder_sparse_step": 3})), [0, 1, 3, 4]);
    assert_eq!(dense(json!({"decoder_sparse_step": 2, "mlp_only_layers": [1]})), [0, 1, 2, 4]);

    for family in [Family::Qwen3Moe, Family::Mixtral] {
        let few = json!({"num_local_experts": 4, "num_experts_per_tok": 5});
        refuses(family, few, "num_experts_per_tok", "5 experts of 4");
        let two = json!({"num_local_experts": 8, "num_experts": 16});
        refuses(family, two, "num_local_experts", "num_experts");
        refuses(family, json!({"num_experts": 0}), "num_experts", "must be");
        refuses(family, json!({"num_local_experts": "8"}), "num_local_experts", "");
        refuses(
            family,
            json!({"shared_expert_intermediate_size": 64}),
            "shared_expert_intermediate_size",
            "not supported",
        );
        let packed = json!({"quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic",
            "weight_block_size": [128, 128]}});
        refuses(family, packed, "quantization_config", "as floats alone");
        let config = with(family, json!({})).unwrap();
        let error = config.quantized(piecewise_runtime::words::Quantize::Fp8).err().unwrap();
        assert!(error.contains("experts are not rounded"), "{error}");
    }
    let windows = |changes| with(Family::Qwen3Moe, changes).unwrap().attention_of(0).window;
    let on = json!({"use_sliding_window": true, "sliding_window": 32});
    assert_eq!(windows(on), Some(32));
    assert_eq!(windows(json!({"sliding_window": 32})), None);
    let mixtral = with(Family::Mixtral, json!({"sliding_window": 32})).unwrap();
    assert_eq!(mixtral.attention_of(1).window, Some(32));
    refuses(Family::Qwen3Moe, json!({"mlp_only_layers": [2]}), "mlp_only_layers", "from 0 to 1");
    refuses(Family::Qwen3Moe, json!({"decoder_sparse_step": 0}), "decoder_sparse_step", "must be");
    refuses(Family::Qwen3Moe, json!({"moe_intermediate_size": 0}), "moe_intermediate_size", "must");
    refuses(Family::Mixtral, json!({"moe_intermediate_size": 8}), "moe_intermediate_size", "not");
    refuses(Family::Mixtral, json!({"attention_bias": true}), "attention_bias", "no such biases");
}

#[test]
fn a_wrapper_holds_the_decoder_in_its_text_config() {
    let text = json!({"model_type": "gemma3_text", "hidden_size": 64, "head_dim": 32});
    let mut wrapper = json!({"architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3", "text_config": text, "vision_config": {"depth": 2},
        "image_token_index": 5, "torch_dtype": "bfloat16", "eos_token_id": [1, 106]});
    let config = parse(&wrapper).unwrap();
    assert_eq!((config.family, config.hidden_size), (Family::Gemma3, 64));
    assert_eq!(config.eos_token_ids, [1, 106]);
    assert!(config.tie_word_embeddings);
    // `text_config` alone is the same but for what the root says.
    let alone = merged(text.clone(), json!({"dtype": "bfloat16", "eos_token_id": [1, 106]}));
    assert_eq!(parse(&alone).unwrap(), DecoderConfig { towers: &[], ..config.clone() });
    let warnings = config.facts().warnings;
    assert!(warnings.iter().any(|text| text.contains("images of this model")), "{warnings:?}");
    for tensor in ["vision_tower.x.weight", "model.multi_modal_projector.w", "lm_head.weight"] {
        assert!(config.is_inert(tensor), "{tensor}");
    }
    assert!(!config.is_inert("language_model.model.layers.0.x.weight"));
    // Without a type of its own it is the usual one.
    wrapper["text_config"].as_object_mut().unwrap().remove("model_type");
    assert_eq!(parse(&wrapper).unwrap(), config);
    wrapper["text_config"]["num_hidden_layers"] = 0.into();
    let error = parse(&wrapper).unwrap_err();
    assert_eq!(error.field(), Some("text_config.num_hidden_layers"), "{error}");
    wrapper["text_config"] = Value::Null;
    assert_eq!(parse(&wrapper).unwrap_err().field(), Some("text_config"));
    let unknown = json!({"model_type": "mistral3", "text_config": {"model_type": "ministral3"}});
    let error = parse(&unknown).unwrap_err();
    assert_eq!(error.field(), Some("text_config.model_type"), "{error}");
}
