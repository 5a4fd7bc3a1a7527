//! Encoders inside of larger checkpoints, by what stands before the names of their tensors, and
//! what a configuration may not say.

use crate::support::safetensors_file::{folder_with, write};
use crate::text_encoders::{TensorFile, folder};
use piecewise::encoding::{Encoder, ImageItem, ItemEncoder, TextEncoder, TextItem, VisionEncoder};
use piecewise::models::encoder::{
    Modality, TextEncoderConfig, TextOutput, VisionConfig, is_encoder,
};
use piecewise_runtime::config::ConfigLayers;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde_json::{Value, json};
use std::path::Path;

/// The weights of a fixture but those whose names begin with `without`.
fn without(name: &str, without: &str) -> Vec<u8> {
    let bytes = std::fs::read(folder(name).join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap().tensors();
    let count = tensors.len();
    let kept = Vec::from_iter(tensors.into_iter().filter(|(name, _)| !name.starts_with(without)));
    assert!(kept.len() < count);
    safetensors::serialize(kept, None).unwrap()
}

/// The weights of a fixture with `prefix` before every name instead of `own`, beside tensors of
/// another part.
fn renamed(name: &str, own: &str, prefix: &str) -> Vec<u8> {
    let bytes = std::fs::read(folder(name).join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let dot = |prefix: &str| if prefix.is_empty() { String::new() } else { format!("{prefix}.") };
    let names = tensors.tensors().into_iter().map(|(name, view)| {
        let rest = name.strip_prefix(&dot(own)).unwrap_or(&name).to_owned();
        (format!("{}{rest}", dot(prefix)), view)
    });
    let zeros = [0; 24];
    let other = TensorView::new(Dtype::F32, vec![2, 3], &zeros).unwrap();
    let others = [("language_model.lm_head.weight".to_owned(), other)];
    safetensors::serialize(names.chain(others), None).unwrap()
}

fn config(name: &str) -> Value {
    let text = std::fs::read_to_string(folder(name).join("config.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn layers() -> ConfigLayers {
    let layers = ConfigLayers::new().set("cache.enabled", false).unwrap();
    layers.set("dtype", "f32").unwrap().set("max_num_tokens", 64).unwrap()
}

fn same_outputs<M: ItemEncoder>(
    name: &str,
    own: &str,
    prefixes: &[&str],
    config: &Value,
    load: impl Fn(&Path) -> Encoder<M>,
    item: M::Item,
) {
    let items = [item];
    let run = |folder: &Path| load(folder).encode(&items).pop().unwrap().unwrap();
    let expected = run(&folder(name));
    for prefix in prefixes {
        let folder = folder_with(&renamed(name, own, prefix));
        write(folder.path(), "config.json", config.to_string().as_bytes());
        assert!(run(folder.path()) == expected, "{name} behind {prefix:?}");
    }
}

#[test]
fn towers_are_found_by_their_prefix() {
    for (name, model_type, own, prefixes) in [
        ("siglip", "siglip", "", &["vision_model", "vision_tower.vision_model"][..]),
        ("clip", "clip", "vision_model", &["", "vision_model", "model.vision_tower.vision_model"]),
        ("vit", "vit", "", &["vit"]),
        ("qwen2_5_vl_vision", "qwen2_5_vl", "", &["visual", "model.visual"]),
        ("qwen3_vl_vision", "qwen3_vl", "", &["visual", "model.visual"]),
        ("qwen3_vl_vision", "qwen3_vl_moe", "", &["model.visual"]),
        // The model type of the whole is not one of a tower.
        ("clip", "llava", "vision_model", &["vision_tower.vision_model"]),
        ("siglip", "paligemma", "", &["vision_tower.vision_model"]),
        ("siglip", "gemma3", "", &["model.vision_tower.vision_model"]),
    ] {
        let mut tower = config(name);
        if model_type == "qwen3_vl_moe" {
            tower["model_type"] = model_type.into();
        }
        let is_qwen = name.starts_with("qwen");
        let whole = match name {
            "vit" => tower,
            _ => json!({
                "model_type": model_type, "vision_config": tower,
                "text_config": {"hidden_size": 8}, "rope_scaling": {"mrope_section": [1, 2]},
            }),
        };
        let made = tempfile::tempdir().unwrap();
        write(made.path(), "config.json", whole.to_string().as_bytes());
        assert_eq!(Modality::of(made.path()).unwrap(), Modality::Vision, "{model_type}");
        let is_alone = ["siglip", "clip", "vit"].contains(&model_type);
        assert_eq!(is_encoder(made.path()).unwrap(), is_alone, "{model_type}");
        let (grid, width) = if is_qwen { ([1, 4, 6], 2) } else { ([1, 6, 6], 1) };
        let patch = if name == "qwen2_5_vl_vision" { 6 } else { 8 };
        let elements = grid.iter().product::<usize>() * 3 * width * patch * patch;
        let patches = (0..elements).map(|i| (i as f32 * 0.37).sin()).collect();
        let load = |folder: &Path| VisionEncoder::load(folder, layers(), |_| {}).unwrap();
        same_outputs(name, own, prefixes, &whole, load, ImageItem { grid, patches });
    }
}

/// A SigLIP's configuration says so, of a ViT the checkpoint shows it.
#[test]
fn towers_without_a_pooler_give_their_rows_alone() {
    let patches = (0..6 * 6 * 3 * 8 * 8).map(|i| (i as f32 * 0.37).sin()).collect();
    let items = [ImageItem { grid: [1, 6, 6], patches }];
    let load = |folder: &Path| VisionEncoder::load(folder, layers(), |_| {});
    let run = |folder: &Path| load(folder).unwrap().encode(&items).pop().unwrap().unwrap();
    for (name, pooler) in [("siglip", "head."), ("vit", "pooler.")] {
        let made = folder_with(&without(name, pooler));
        let mut config = config(name);
        if name == "siglip" {
            write(made.path(), "config.json", config.to_string().as_bytes());
            let error = load(made.path()).unwrap_err().to_string();
            assert!(error.contains("head."), "{error}");
            config["vision_use_head"] = false.into();
        }
        write(made.path(), "config.json", config.to_string().as_bytes());
        let whole = run(&folder(name));
        assert_eq!(whole.len(), 2);
        assert!(run(made.path()) == whole[..1], "{name}");
    }
}

#[test]
fn encoders_of_text_are_found_by_their_prefix() {
    for (name, prefixes) in [
        ("bert", &["bert"][..]),
        ("xlm_roberta", &["roberta"]),
        ("modernbert", &["model"]),
        ("qwen3_embedding", &["model"]),
    ] {
        let outputs = [TextOutput::Embedding, TextOutput::Rows];
        let load = |folder: &Path| TextEncoder::load(folder, layers(), &outputs, |_| {}).unwrap();
        let ids = TensorFile::open(name).ints("ids_0");
        let item = TextItem { ids, token_types: Vec::new() };
        same_outputs(name, "", prefixes, &config(name), load, item);
    }
}

/// What a tower does not compute is refused by the field's name, alone and inside a larger model.
#[test]
fn options_of_towers_that_change_the_maths_are_refused() {
    let file = Path::new("config.json");
    let parse = |value: &Value| VisionConfig::parse(value.to_string().as_bytes(), file);
    for (name, whole, key, value) in [
        ("siglip", "siglip", "num_register_tokens", json!(4)),
        ("clip", "clip", "layer_scale_init_value", json!(0.1)),
        ("vit", "vit", "pooler_act", json!("gelu")),
        ("vit", "vit", "pooler_output_size", json!(7)),
        ("vit", "vit", "qk_norm", json!(true)),
        ("qwen2_5_vl_vision", "qwen2_5_vl", "use_sliding_window_attention", json!(true)),
        ("qwen2_5_vl_vision", "qwen2_5_vl", "quantization_config", json!({"bits": 4})),
        ("qwen3_vl_vision", "qwen3_vl", "rope_parameters", json!({"rope_theta": 5e5})),
        ("qwen3_vl_vision", "qwen3_vl", "num_experts", json!(8)),
    ] {
        let mut tower = config(name);
        assert!(parse(&tower).is_ok(), "{name}");
        tower[key] = value.clone();
        let error = parse(&tower).unwrap_err().to_string();
        let named = if key == "rope_parameters" { "rope_theta" } else { key };
        assert!(error.contains(named), "{name}: {error}");
        if name != "vit" {
            let inside = json!({"model_type": whole, "vision_config": tower});
            let error = parse(&inside).unwrap_err().to_string();
            assert!(error.contains(named), "{name} inside {whole}: {error}");
        }
    }
    let quantized = json!({
        "model_type": "siglip", "vision_config": config("siglip"),
        "quantization_config": {"bits": 8},
    });
    assert!(parse(&quantized).unwrap_err().to_string().contains("quantization_config"));
    let other = json!({"model_type": "llava", "vision_config": {"model_type": "pixtral"}});
    assert!(parse(&other).unwrap_err().to_string().contains("model_type"));
    // What says nothing about the maths is let through.
    let mut harmless = config("clip");
    harmless["num_beams"] = 1.into();
    harmless["pruned_heads"] = json!({});
    assert!(parse(&harmless).is_ok());
}

#[test]
fn options_of_text_that_change_the_maths_are_refused() {
    let file = Path::new("config.json");
    let parse = |value: &Value| TextEncoderConfig::parse(value.to_string().as_bytes(), file);
    for (name, key, value) in [
        ("bert", "position_embedding_type", json!("relative_key")),
        ("bert", "is_decoder", json!(true)),
        ("bert", "add_cross_attention", json!(true)),
        ("bert", "hidden_act", json!("mish")),
        ("bert", "quantization_config", json!({"bits": 8})),
        ("bert", "pruned_heads", json!({"0": [1]})),
        ("xlm_roberta", "position_embedding_type", json!("relative_key_query")),
        ("xlm_roberta", "adapter_size", json!(4)),
        ("modernbert", "norm_bias", json!(true)),
        ("modernbert", "attention_bias", json!(true)),
        ("modernbert", "mlp_bias", json!(true)),
        ("modernbert", "hidden_activation", json!("mish")),
        ("modernbert", "qk_norm", json!(true)),
        ("qwen3_embedding", "layer_types", json!(vec!["sliding_attention"; 3])),
        ("qwen3_embedding", "num_experts", json!(8)),
        ("qwen3_embedding", "rope_parameters", json!({"rope_type": "dynamic", "factor": 4.0})),
        ("bert", "model_type", json!("deberta-v2")),
    ] {
        let mut own = config(name);
        assert!(parse(&own).is_ok(), "{name}");
        own[key] = value;
        let error = parse(&own).unwrap_err().to_string();
        let named = match key {
            "rope_parameters" => "rope_type",
            key => key,
        };
        assert!(error.contains(named), "{name}, {key}: {error}");
    }
    // A window bounds no text: it is computed.
    let mut windowed = config("qwen3_embedding");
    windowed["layer_types"] = json!(vec!["sliding_attention"; 3]);
    windowed["sliding_window"] = json!(4);
    windowed["use_sliding_window"] = json!(true);
    let longest = |config: &Value| parse(config).unwrap().longest();
    assert_eq!(longest(&windowed), longest(&config("qwen3_embedding")));
    // What says nothing about the maths is let through.
    let mut harmless = config("bert");
    harmless["classifier_dropout"] = json!(0.1);
    harmless["label2id"] = json!({"A": 0});
    assert!(parse(&harmless).is_ok());
}

/// Checkpoints of before transformers call the tensors of a layer norm so.
#[test]
fn layer_norms_of_old_checkpoints_are_gamma_and_beta() {
    let bytes = std::fs::read(folder("bert").join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let outputs = [TextOutput::Embedding, TextOutput::Rows, TextOutput::Pooler];
    let run = |folder: &Path| {
        let mut encoder = TextEncoder::load(folder, layers(), &outputs, |_| {}).unwrap();
        let ids = TensorFile::open("bert").ints("ids_0");
        encoder.encode(&[TextItem { ids, token_types: Vec::new() }]).pop().unwrap().unwrap()
    };
    let expected = run(&folder("bert"));
    for prefix in ["", "bert."] {
        let mut norms = 0;
        let renamed = tensors.tensors().into_iter().map(|(name, view)| {
            let old = name
                .replace("LayerNorm.weight", "LayerNorm.gamma")
                .replace("LayerNorm.bias", "LayerNorm.beta");
            norms += usize::from(old != name);
            (format!("{prefix}{old}"), view)
        });
        let file = safetensors::serialize(Vec::from_iter(renamed), None).unwrap();
        assert!(norms > 0);
        let made = folder_with(&file);
        write(made.path(), "config.json", config("bert").to_string().as_bytes());
        assert!(run(made.path()) == expected, "behind {prefix:?}");
    }
}
