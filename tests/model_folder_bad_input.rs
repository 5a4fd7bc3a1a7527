//! Bad configurations and tokenizers are errors that name the file and the field, never a panic.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use piecewise::models::tokenizer::check_token_ids;
use piecewise::models::{ConfigError, DecoderConfig, TextTokenizer, TokenizerError};
use piecewise_testing::soak;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::{Value, json};

fn repository(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn config_text(fixture: &str) -> Vec<u8> {
    std::fs::read(repository("tests/fixtures").join(fixture).join("config.json")).unwrap()
}

const FIXTURES: [&str; 16] = [
    "gemma2",
    "gemma3",
    "granite",
    "llama3",
    "llama3-older-form",
    "mistral",
    "mistral-window",
    "mixtral",
    "olmo2",
    "phi3",
    "qwen2",
    "qwen3",
    "qwen3-moe",
    "qwen3-sharded",
    "qwen3-yarn",
    "smollm3",
];

fn parse(text: &[u8]) -> Result<DecoderConfig, ConfigError> {
    DecoderConfig::parse(text, Path::new("config.json"))
}

#[test]
fn a_missing_configuration_names_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let error = DecoderConfig::load(folder.path()).unwrap_err();
    assert!(matches!(&error, ConfigError::Io { file, .. } if file.ends_with("config.json")));
    let error = DecoderConfig::load(&folder.path().join("no such folder")).unwrap_err();
    assert!(error.to_string().contains("no such folder"), "{error}");
    std::fs::create_dir(folder.path().join("config.json")).unwrap();
    let error = DecoderConfig::load(folder.path()).unwrap_err();
    assert!(error.to_string().contains("not a regular file"), "{error}");
}

#[test]
fn a_broken_generation_config_names_the_file() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), config_text("qwen3")).unwrap();
    DecoderConfig::load(folder.path()).unwrap();
    for text in ["", "{", r#"{"eos_token_id": 320}"#, r#"{"eos_token_id": "x"}"#] {
        std::fs::write(folder.path().join("generation_config.json"), text).unwrap();
        let error = DecoderConfig::load(folder.path()).unwrap_err().to_string();
        assert!(error.contains("generation_config.json"), "{text}: {error}");
    }
}

#[test]
fn a_configuration_cut_anywhere_is_refused() {
    for fixture in FIXTURES {
        let text = config_text(fixture);
        let end = text.trim_ascii_end().len();
        for length in 0..end {
            let error = parse(&text[..length]).unwrap_err();
            assert!(matches!(error, ConfigError::Json { .. }), "{fixture} at {length}: {error}");
        }
        parse(&text[..end]).unwrap();
    }
}

#[test]
fn what_is_no_object_or_too_deep_or_too_large_is_refused() {
    for text in ["1", "null", "[]", "\"x\"", "true"] {
        let error = parse(text.as_bytes()).unwrap_err();
        assert!(matches!(error, ConfigError::Type { .. }), "{text}: {error}");
    }
    let error = parse("[".repeat(1 << 20).as_bytes()).unwrap_err();
    assert!(matches!(error, ConfigError::Json { .. }), "{error}");
    let folder = tempfile::tempdir().unwrap();
    let file = std::fs::File::create(folder.path().join("config.json")).unwrap();
    file.set_len(1 << 40).unwrap();
    let error = DecoderConfig::load(folder.path()).unwrap_err();
    assert!(matches!(error, ConfigError::TooLarge { .. }), "{error}");
}

/// What must hold of any configuration that is accepted.
fn check_accepted(config: &DecoderConfig) -> Result<(), TestCaseError> {
    for size in [
        config.hidden_size,
        config.intermediate_size,
        config.num_layers,
        config.num_heads,
        config.num_kv_heads,
        config.head_dim,
        config.vocab_size,
        config.max_position_embeddings,
    ] {
        prop_assert!((1..=1 << 27).contains(&size), "{:?}", config);
    }
    prop_assert!(config.num_heads.is_multiple_of(config.num_kv_heads));
    prop_assert!(config.head_dim.is_multiple_of(2));
    prop_assert!(config.num_weights() <= 1 << 42);
    prop_assert!(config.rms_norm_eps > 0.0 && config.rms_norm_eps <= 1.0);
    let ids = config.eos_token_ids.iter().chain(&config.bos_token_id);
    prop_assert!(ids.into_iter().all(|id| (*id as usize) < config.vocab_size));
    for length in [1, 1 << 27] {
        let table = config.rope.table(config.head_dim, length);
        prop_assert_eq!(2 * table.frequencies.len(), config.rope.rotated_dims(config.head_dim));
        prop_assert!(table.frequencies.iter().all(|f| f.is_finite() && *f > 0.0 && *f <= 1e3));
        prop_assert!(table.factor.is_finite() && table.factor > 0.0);
    }
    prop_assert!(config.score_scale().is_finite() && config.score_scale() > 0.0);
    let windows = config.attention.iter().filter_map(|of_layer| of_layer.window);
    prop_assert!(windows.into_iter().all(|window| window > 0));
    Ok(())
}

/// Any JSON value, odd numbers and near misses preferred.
fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        select(vec![0_i64, 1, 2, 3, 7, 8, 16, 32, 64, 128, 320, 512, 4096, -1, i64::MAX, i64::MIN])
            .prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        select(vec![0.0, -0.0, 0.5, 1.0, 1e-6, 8.0, 1e4, 1e300, -1.0]).prop_map(Value::from),
        select(vec![
            "silu",
            "gelu",
            "llama3",
            "linear",
            "yarn",
            "default",
            "bfloat16",
            "full_attention",
            ""
        ])
        .prop_map(Value::from),
        "\\PC{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 8, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-z_]{1,6}", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(soak(2000)))]

    #[test]
    fn any_bytes_as_a_configuration(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(parse(&bytes).is_err());
    }

    #[test]
    fn bytes_of_a_configuration_changed(
        fixture in select(FIXTURES.to_vec()),
        changes in prop::collection::vec((any::<Index>(), any::<u8>()), 1..4),
    ) {
        let mut text = config_text(fixture);
        for (at, byte) in changes {
            *at.get_mut(&mut text) = byte;
        }
        match parse(&text) {
            Ok(config) => check_accepted(&config)?,
            Err(error) => prop_assert!(error.to_string().starts_with("config.json: ")),
        }
    }

    /// Fields of a configuration get any values: an error names a field that is in the file or
    /// that the error says is missing.
    #[test]
    fn values_of_a_configuration_changed(
        fixture in select(FIXTURES.to_vec()),
        changes in prop::collection::vec((any::<Index>(), value()), 1..3),
        rope in prop::option::of((any::<Index>(), value())),
        scaling in prop::option::of(value()),
    ) {
        let mut config: Value = serde_json::from_slice(&config_text(fixture)).unwrap();
        let fields = config.as_object_mut().unwrap();
        for key in ["rope_parameters", "rope_scaling"] {
            if let (Some(Value::Object(inner)), Some((at, value))) = (fields.get_mut(key), &rope) {
                let names: Vec<_> = inner.keys().cloned().collect();
                inner.insert(at.get(&names).clone(), value.clone());
            }
        }
        for (at, value) in changes {
            let name = at.get(&fields.keys().cloned().collect::<Vec<_>>()).clone();
            fields.insert(name, value);
        }
        if let Some(scaling) = scaling {
            fields.insert("rope_scaling".to_owned(), scaling);
        }
        match parse(config.to_string().as_bytes()) {
            Ok(accepted) => check_accepted(&accepted)?,
            Err(error) => {
                let text = error.to_string();
                let field = error.field().unwrap();
                prop_assert!(text.contains(&format!("`{field}`")), "{}", text);
                prop_assert!(text.len() < 800, "{}", text);
                let root = field.split('.').next().unwrap();
                prop_assert!(
                    config.get(root).is_some() || text.contains("missing") || text.contains("default"),
                    "{}", text
                );
            }
        }
    }
}

fn tokenizer_text() -> Vec<u8> {
    std::fs::read(repository("examples/tiny-qwen3/tokenizer.json")).unwrap()
}

fn parse_tokenizer(text: &[u8]) -> Result<TextTokenizer, TokenizerError> {
    TextTokenizer::parse(text, 2048, Path::new("tokenizer.json"))
}

#[test]
fn a_tokenizer_that_does_not_fit_is_refused() {
    let text = tokenizer_text();
    for vocab_size in [0, 1, 320, 2047] {
        let error = TextTokenizer::parse(&text, vocab_size, Path::new("t.json")).unwrap_err();
        assert!(
            matches!(&error, TokenizerError::DoesNotFit { id: 2047, vocab_size: found, .. }
                if *found == vocab_size),
            "{error}"
        );
        assert!(error.to_string().starts_with("t.json: token "), "{error}");
    }
    for vocab_size in [2048, 2049, 1 << 24] {
        TextTokenizer::parse(&text, vocab_size, Path::new("t.json")).unwrap();
    }
}

#[test]
fn a_token_that_the_model_lacks_is_found_by_its_id_not_by_the_number_of_tokens() {
    let mut tokenizer: Value = serde_json::from_slice(&tokenizer_text()).unwrap();
    let words = tokenizer["model"]["vocab"].as_object_mut().unwrap();
    let (word, _) = words.iter().find(|(_, id)| **id == 2047).unwrap();
    let word = word.clone();
    words[&word] = json!(2048);
    let error = parse_tokenizer(tokenizer.to_string().as_bytes()).unwrap_err();
    assert!(matches!(error, TokenizerError::DoesNotFit { id: 2048, .. }), "{error}");
}

/// What a log has said.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// As fine-tunes have one to pad by, beside the embedding of the model that they come from.
#[test]
fn an_added_token_that_the_model_lacks_is_refused_in_prompts_alone() {
    let mut tokenizer: Value = serde_json::from_slice(&tokenizer_text()).unwrap();
    let pad = json!({
        "id": 2048, "content": "[PAD]", "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true,
    });
    tokenizer["added_tokens"].as_array_mut().unwrap().push(pad);
    let written = Written::default();
    let writer = written.clone();
    let log = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone());
    let log = log.finish();
    let parsed = tracing::subscriber::with_default(log, || {
        parse_tokenizer(tokenizer.to_string().as_bytes())
    });
    let parsed = parsed.unwrap();
    let warned = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
    assert!(warned.contains("WARN") && warned.contains("\"[PAD]\" has id 2048"), "{warned}");
    let plain = parse_tokenizer(&tokenizer_text()).unwrap();
    assert_eq!(parsed.encode("import os").unwrap(), plain.encode("import os").unwrap());
    assert_eq!(parsed.vocabulary().len(), 2048);
    let error = parsed.encode("import [PAD]").unwrap_err();
    assert!(matches!(error, TokenizerError::IdOutOfRange { id: 2048, .. }), "{error}");
    let error = parsed.decode(&[2048]).unwrap_err();
    assert!(matches!(error, TokenizerError::IdOutOfRange { id: 2048, .. }), "{error}");
}

#[test]
fn what_is_no_tokenizer_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let error = TextTokenizer::load(folder.path(), 2048).unwrap_err();
    assert!(matches!(&error, TokenizerError::Io { file, .. } if file.ends_with("tokenizer.json")));
    for text in ["", "{}", "[]", "null", r#"{"version": "1.0"}"#, r#"{"model": {"type": "None"}}"#]
    {
        std::fs::write(folder.path().join("tokenizer.json"), text).unwrap();
        let error = TextTokenizer::load(folder.path(), 2048).unwrap_err();
        assert!(matches!(&error, TokenizerError::Invalid { .. }), "{text}: {error}");
        assert!(error.to_string().contains("tokenizer.json: not a tokenizer"), "{error}");
    }
    let nested = format!(r#"{{"decoder": {}1{}}}"#, "[".repeat(200), "]".repeat(200));
    let error = parse_tokenizer(nested.as_bytes()).unwrap_err();
    assert!(matches!(error, TokenizerError::Invalid { .. }), "{error}");
    let text = tokenizer_text();
    let end = text.trim_ascii_end().len();
    for length in (0..end).step_by(997).chain(end - 8..end) {
        let error = parse_tokenizer(&text[..length]).unwrap_err();
        assert!(matches!(error, TokenizerError::Invalid { .. }), "cut at {length}: {error}");
    }
}

#[test]
fn prompts_and_ids_are_checked() {
    let tokenizer = parse_tokenizer(&tokenizer_text()).unwrap();
    let error = tokenizer.encode("").unwrap_err();
    assert!(matches!(error, TokenizerError::EmptyPrompt { .. }), "{error}");
    assert!(matches!(check_token_ids(&[], 2048), Err(TokenizerError::NoIds)));
    check_token_ids(&[0, 2047], 2048).unwrap();
    let error = check_token_ids(&[0, 2047, 2048, 9999], 2048).unwrap_err();
    assert!(matches!(error, TokenizerError::IdOutOfRange { id: 2048, place: 2, .. }), "{error}");
    let error = tokenizer.decode(&[1, u32::MAX]).unwrap_err();
    assert!(matches!(error, TokenizerError::IdOutOfRange { place: 1, .. }), "{error}");
    assert_eq!(tokenizer.decode(&[]).unwrap(), "");
    assert_eq!(tokenizer.decode(&[0]).unwrap(), "", "a special token has no text");
}

proptest! {
    #[test]
    fn a_tokenizer_with_bytes_changed_never_panics(
        changes in prop::collection::vec((any::<Index>(), any::<u8>()), 1..4),
    ) {
        let mut text = tokenizer_text();
        let head = text.len().min(3000);
        for (at, byte) in changes {
            text[at.index(head)] = byte;
        }
        if let Ok(tokenizer) = parse_tokenizer(&text) {
            let ids = tokenizer.encode("for i in range(10): é").unwrap_or_default();
            prop_assert!(ids.iter().all(|id| *id < 2048));
            tokenizer.decode(&ids).unwrap();
        }
    }

    /// Parts of a small tokenizer get any values: whatever reads well also encodes and decodes, or
    /// fails with an error.
    #[test]
    fn a_tokenizer_with_values_changed_never_panics(
        part in select(vec!["", "/model", "/added_tokens/0", "/decoder", "/pre_tokenizer"]),
        at in any::<Index>(),
        new in value(),
    ) {
        let mut tokenizer: Value = serde_json::from_slice(&tokenizer_text()).unwrap();
        let vocab: serde_json::Map<_, _> =
            (0..8_u8).map(|id| (char::from(b'a' + id).to_string(), id.into())).collect();
        tokenizer["model"]["vocab"] = vocab.into();
        tokenizer["model"]["merges"] = json!([]);
        let fields = tokenizer.pointer_mut(part).unwrap().as_object_mut().unwrap();
        let name = at.get(&fields.keys().cloned().collect::<Vec<_>>()).clone();
        fields.insert(name, new);
        let parsed = parse_tokenizer(tokenizer.to_string().as_bytes());
        match parsed {
            Ok(tokenizer) => {
                if let Ok(ids) = tokenizer.encode("abc <|endoftext|> é") {
                    prop_assert!(tokenizer.decode(&ids).is_ok());
                }
            }
            Err(error) => prop_assert!(error.to_string().starts_with("tokenizer.json: ")),
        }
    }

    #[test]
    fn any_prompt_decodes_to_itself(prompt in "\\PC{1,40}") {
        let tokenizer = parse_tokenizer(&tokenizer_text()).unwrap();
        let ids = tokenizer.encode(&prompt).unwrap();
        prop_assert_eq!(tokenizer.decode(&ids).unwrap(), prompt);
    }
}
