//! Folders of sentence-transformers: which rows of a text are its embedding is read from the folder,
//! and what is not computed is refused by name.

use crate::support::safetensors_file::write;
use crate::text_encoders::{TensorFile, folder};
use piecewise::encoding::{TextEncoder, TextItem};
use piecewise::models::encoder::{TextEncoderConfig, TextOutput};
use piecewise_runtime::config::ConfigLayers;
use piecewise_testing::norm_error;
use serde_json::{Value, json};
use tempfile::TempDir;

fn module(kind: &str, path: &str) -> Value {
    json!({ "type": format!("sentence_transformers.models.{kind}"), "path": path })
}

/// The fixture of BERT with modules beside it.
fn sentence_folder(modules: &[Value], pooling: &Value) -> TempDir {
    let made = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(folder("bert").join(file), made.path().join(file)).unwrap();
    }
    std::fs::create_dir(made.path().join("1_Pooling")).unwrap();
    write(made.path(), "modules.json", json!(modules).to_string().as_bytes());
    write(made.path(), "1_Pooling/config.json", pooling.to_string().as_bytes());
    made
}

fn embedding(of: &TempDir, ids: &[u32], token_types: &[u32]) -> Vec<f64> {
    let layers = ConfigLayers::new().set("cache.enabled", false).unwrap();
    let layers = layers.set("dtype", "f32").unwrap().set("max_num_tokens", 64).unwrap();
    let outputs = [TextOutput::Embedding];
    let mut encoder = TextEncoder::load(of.path(), layers, &outputs, |_| {}).unwrap();
    let item = TextItem { ids: ids.to_vec(), token_types: token_types.to_vec() };
    let outputs = encoder.encode(&[item]).pop().unwrap().unwrap();
    outputs[0].iter().map(|&x| f64::from(x)).collect()
}

/// What sentence-transformers itself makes of texts with a folder that it saved.
#[test]
fn a_folder_of_sentence_transformers_equals_its_reference() {
    let (name, golden) = (folder("sentence_folder"), TensorFile::open("sentence_folder"));
    let texts = std::fs::read(name.join("texts.json")).unwrap();
    let texts: Vec<String> = serde_json::from_slice(&texts).unwrap();
    for (dtype, tolerance) in [("f32", 2e-5), ("bf16", 2e-2)] {
        let layers = ConfigLayers::new().set("cache.enabled", false).unwrap();
        let layers = layers.set("dtype", dtype).unwrap().set("max_num_tokens", 64).unwrap();
        let outputs = [TextOutput::Embedding];
        let mut encoder = TextEncoder::load(&name, layers, &outputs, |_| {}).unwrap();
        for (i, text) in texts.iter().enumerate() {
            let ids = encoder.model().tokenizer().unwrap().encode(text).unwrap();
            assert_eq!(ids, golden.ints(&format!("ids_{i}")), "{text}");
        }
        for alone in [true, false] {
            encoder.one_by_one(alone);
            for (i, embedding) in encoder.embed(&texts).into_iter().enumerate() {
                let found = Vec::from_iter(embedding.unwrap().into_iter().map(f64::from));
                let error = norm_error(&found, &golden.floats(&format!("embedding_{i}")));
                assert!(error < tolerance, "{dtype}, {}: off by {error}", texts[i]);
            }
        }
    }
}

#[test]
fn embeddings_are_pooled_as_the_folder_says() {
    let golden = TensorFile::open("bert");
    let (ids, types) = (golden.ints("ids_0"), golden.ints("token_types_0"));
    let rows = golden.floats("last_hidden_state_0");
    let width = rows.len() / ids.len();
    let row = |at: usize| rows[at * width..(at + 1) * width].to_vec();
    let last = ids.len() - 1;
    let mean: Vec<f64> = (0..width)
        .map(|column| (0..=last).map(|at| row(at)[column]).sum::<f64>() / ids.len() as f64)
        .collect();
    let network = module("Transformer", "");
    let pool = module("Pooling", "1_Pooling");
    for (pooling, due) in [
        (json!({"pooling_mode": "cls"}), row(0)),
        (json!({"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false}), row(0)),
        (json!({"pooling_mode": "lasttoken"}), row(last)),
        (json!({"pooling_mode_lasttoken": true}), row(last)),
        (json!({"pooling_mode": "mean"}), mean.clone()),
        (json!({"pooling_mode_mean_tokens": true}), mean),
    ] {
        let length = due.iter().map(|x| x * x).sum::<f64>().sqrt();
        let modules = [network.clone(), pool.clone(), module("Normalize", "2_Normalize")];
        for (modules, length) in [(&modules[..2], 1.0), (&modules[..], length)] {
            let found = embedding(&sentence_folder(modules, &pooling), &ids, &types);
            let apart: f64 =
                found.iter().zip(&due).map(|(x, due)| (x - due / length).powi(2)).sum();
            let whole = due.iter().map(|x| (x / length).powi(2)).sum::<f64>();
            let error = (apart / whole).sqrt();
            assert!(error < 2e-5, "{pooling}, {} modules: {error}", modules.len());
        }
    }
}

#[test]
fn what_a_folder_asks_for_and_is_not_computed_is_refused_by_name() {
    let (network, pool) = (module("Transformer", ""), module("Pooling", "1_Pooling"));
    let mean = json!({"pooling_mode": "mean"});
    for (modules, pooling, named) in [
        (vec![network.clone(), pool.clone()], json!({"pooling_mode": "max"}), "pooling_mode"),
        (
            vec![network.clone(), pool.clone()],
            json!({"pooling_mode_max_tokens": true}),
            "pooling_mode_max_tokens",
        ),
        (
            vec![network.clone(), pool.clone()],
            json!({"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": true}),
            "pooling_mode_mean_tokens",
        ),
        (vec![network.clone(), pool.clone()], json!({}), "pooling_mode"),
        (vec![network, pool.clone(), module("Dense", "2_Dense")], mean.clone(), "type"),
        (vec![module("Transformer", "0_Transformer"), pool], mean, "path"),
    ] {
        let made = sentence_folder(&modules, &pooling);
        let error = TextEncoderConfig::load(made.path()).unwrap_err().to_string();
        assert!(error.contains(named), "{pooling}: {error}");
    }
}

/// The network has more positions than the folder lets texts have.
#[test]
fn a_text_longer_than_the_folder_lets_it_be_is_named_and_others_are_served() {
    let modules = [module("Transformer", ""), module("Pooling", "1_Pooling")];
    let made = sentence_folder(&modules, &json!({"pooling_mode": "mean"}));
    let longest = || TextEncoderConfig::load(made.path()).map(|config| config.longest());
    let positions = longest().unwrap();
    let says = |file: &str, what: Value| write(made.path(), file, what.to_string().as_bytes());
    says("config_sentence_transformers.json", json!({"default_prompt_name": null}));
    says("sentence_xlm-roberta_config.json", json!({"max_seq_length": null}));
    assert_eq!(longest().unwrap(), positions);
    says("sentence_xlm-roberta_config.json", json!({"max_seq_length": positions + 1}));
    assert_eq!(longest().unwrap(), positions);
    says("sentence_bert_config.json", json!({"max_seq_length": 3, "do_lower_case": false}));
    assert_eq!(longest().unwrap(), 3);
    let layers = ConfigLayers::new().set("cache.enabled", false).unwrap();
    let layers = layers.set("dtype", "f32").unwrap().set("max_num_tokens", 64).unwrap();
    let outputs = [TextOutput::Embedding];
    let mut encoder = TextEncoder::load(made.path(), layers, &outputs, |_| {}).unwrap();
    let item = |length: u32| TextItem { ids: (1..=length).collect(), token_types: Vec::new() };
    let results = encoder.encode(&[item(4), item(3)]);
    let error = results[0].as_ref().unwrap_err().to_string();
    assert!(error.contains('4') && error.contains('3'), "{error}");
    assert!(results[1].is_ok());
    says("sentence_bert_config.json", json!({"do_lower_case": true}));
    assert!(longest().unwrap_err().to_string().contains("do_lower_case"));
    says("sentence_bert_config.json", json!({"max_seq_length": 0}));
    assert!(longest().unwrap_err().to_string().contains("max_seq_length"));
    says("config_sentence_transformers.json", json!({"default_prompt_name": "query"}));
    assert!(longest().unwrap_err().to_string().contains("default_prompt_name"));
}

/// Heads that score are not taken for encoders of embeddings.
#[test]
fn cross_encoders_without_a_known_head_are_refused() {
    for (name, class) in [
        ("modernbert", "ModernBertForSequenceClassification"),
        ("qwen3_embedding", "Qwen3ForSequenceClassification"),
    ] {
        let file = folder(name).join("config.json");
        let mut config: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        assert!(TextEncoderConfig::parse(config.to_string().as_bytes(), &file).is_ok());
        config["architectures"] = json!([class]);
        let error = TextEncoderConfig::parse(config.to_string().as_bytes(), &file).unwrap_err();
        assert!(error.to_string().contains("architectures"), "{error}");
    }
}
