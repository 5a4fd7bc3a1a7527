//! The models of the repository, and a small one of any number of layers.

use piecewise::models::DecoderConfig;
use std::path::Path;

/// Every model folder, by its path in the repository.
pub(crate) const MODELS: [&str; 7] = [
    "examples/tiny-qwen3",
    "tests/fixtures/llama3",
    "tests/fixtures/llama3-older-form",
    "tests/fixtures/mistral",
    "tests/fixtures/qwen2",
    "tests/fixtures/qwen3",
    "tests/fixtures/qwen3-sharded",
];

/// A model of this many layers that is small in every other way.
#[allow(dead_code, reason = "tests of the command line only name the models")]
pub(crate) fn small_model(layers: usize) -> DecoderConfig {
    small("qwen3", layers)
}

/// The same with experts in each layer.
#[allow(dead_code, reason = "tests of the command line only name the models")]
pub(crate) fn small_sparse_model(layers: usize) -> DecoderConfig {
    small("qwen3_moe", layers)
}

#[allow(dead_code, reason = "tests of the command line only name the models")]
fn small(model_type: &str, layers: usize) -> DecoderConfig {
    let mut config = serde_json::json!({
        "model_type": model_type,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "vocab_size": 61,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": true,
    });
    if model_type == "qwen3_moe" {
        config["num_experts"] = 5.into();
        config["num_experts_per_tok"] = 2.into();
        config["moe_intermediate_size"] = 24.into();
    }
    DecoderConfig::parse(config.to_string().as_bytes(), Path::new("config.json")).unwrap()
}
