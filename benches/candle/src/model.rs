//! What is decoded: a configuration with weights.

use crate::weights::Weights;
use candle_core::Device;
use piecewise::models::DecoderConfig;
use serde_json::{Value, json};
use std::path::Path;

/// A model that both sides build.
pub struct Model {
    pub name: &'static str,
    pub config: DecoderConfig,
    pub candle: candle_transformers::models::qwen3::Config,
    pub weights: Weights,
}

impl Model {
    /// A Qwen3 folder with its weights, which must be of bf16.
    pub fn load(folder: &Path) -> anyhow::Result<Self> {
        let json: Value = serde_json::from_slice(&std::fs::read(folder.join("config.json"))?)?;
        let file = folder.join("model.safetensors");
        let weights = Weights(candle_core::safetensors::load(file, &Device::Cpu)?);
        Self::new("tiny-qwen3", &json, weights)
    }

    /// The shape of Qwen3-0.6B, with random weights.
    pub fn qwen3_0_6b() -> anyhow::Result<Self> {
        let json = qwen3_0_6b(28);
        let weights = Weights::random(&shapes(&json))?;
        Self::new("Qwen3-0.6B shape", &json, weights)
    }

    fn new(name: &'static str, json: &Value, weights: Weights) -> anyhow::Result<Self> {
        let text = serde_json::to_vec(json)?;
        let config = DecoderConfig::parse(&text, Path::new("config.json"))?;
        let mut json = json.clone();
        // Candle knows the older key.
        json["rope_theta"] = json["rope_parameters"]["rope_theta"].clone();
        Ok(Self { name, config, candle: serde_json::from_value(json)?, weights })
    }
}

/// A configuration as Qwen3-0.6B's, of `layers` layers.
pub fn qwen3_0_6b(layers: usize) -> Value {
    json!({
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_act": "silu",
        "attention_bias": false,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": layers,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151_936,
        "max_position_embeddings": 4096,
        "max_window_layers": 28,
        "sliding_window": null,
        "use_sliding_window": false,
        "tie_word_embeddings": true,
        "rope_parameters": { "rope_theta": 1e6, "rope_type": "default" },
        "rms_norm_eps": 1e-6,
        "dtype": "bfloat16",
    })
}

/// Names and shapes of the tensors of a Qwen3 checkpoint.
fn shapes(config: &Value) -> Vec<(String, Vec<usize>)> {
    let size = |name: &str| config[name].as_u64().unwrap_or(0) as usize;
    let (hidden, inner, dim) = (size("hidden_size"), size("intermediate_size"), size("head_dim"));
    let (q, kv) = (size("num_attention_heads") * dim, size("num_key_value_heads") * dim);
    let mut all = vec![
        ("model.embed_tokens.weight".to_owned(), vec![size("vocab_size"), hidden]),
        ("model.norm.weight".to_owned(), vec![hidden]),
    ];
    for layer in 0..size("num_hidden_layers") {
        let tensors: [(&str, Vec<usize>); 11] = [
            ("input_layernorm", vec![hidden]),
            ("post_attention_layernorm", vec![hidden]),
            ("self_attn.q_norm", vec![dim]),
            ("self_attn.k_norm", vec![dim]),
            ("self_attn.q_proj", vec![q, hidden]),
            ("self_attn.k_proj", vec![kv, hidden]),
            ("self_attn.v_proj", vec![kv, hidden]),
            ("self_attn.o_proj", vec![hidden, q]),
            ("mlp.gate_proj", vec![inner, hidden]),
            ("mlp.up_proj", vec![inner, hidden]),
            ("mlp.down_proj", vec![hidden, inner]),
        ];
        all.extend(
            tensors.map(|(name, shape)| (format!("model.layers.{layer}.{name}.weight"), shape)),
        );
    }
    all
}
