//! Sampling by a model's own `generation_config.json`.

use piecewise_server::chat::GenerationDefaults;
use std::path::Path;

fn parse(text: &str) -> Result<GenerationDefaults, String> {
    GenerationDefaults::parse(text, Path::new("generation_config.json")).map_err(|e| e.to_string())
}

#[test]
fn a_model_s_defaults_are_read() {
    let text = r#"{"do_sample": true, "temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.1,
        "repetition_penalty": 1.05, "max_new_tokens": 512, "eos_token_id": [3, 4], "pad_token_id": 1}"#;
    let defaults = parse(text).unwrap();
    assert_eq!(
        defaults,
        GenerationDefaults {
            temperature: Some(0.6),
            top_p: Some(0.95),
            top_k: Some(20),
            min_p: Some(0.1),
            repetition_penalty: Some(1.05),
            max_new_tokens: Some(512),
        }
    );
    assert_eq!(parse("{}").unwrap(), GenerationDefaults::default());
    assert_eq!(
        parse(r#"{"do_sample": false, "temperature": 0.6}"#).unwrap().temperature,
        Some(0.0)
    );
    // What takes the likeliest token, whoever says so.
    assert_eq!(parse(r#"{"top_p": 0}"#).unwrap().top_p, Some(0.0));
    let nothing = r#"{"temperature": null, "eos_token_id": 7, "top_k": null}"#;
    assert_eq!(parse(nothing).unwrap(), GenerationDefaults::default());
}

#[test]
fn what_can_t_be_used_is_named() {
    for (text, names) in [
        ("[]", "generation_config.json: not a JSON object"),
        (r#"{"temperature": "hot"}"#, "`temperature` is \"hot\", but it must be 0 or above"),
        (r#"{"temperature": -1}"#, "`temperature` is -1"),
        (r#"{"top_p": -0.1}"#, "`top_p` is -0.1, but it must be from 0 to 1"),
        (r#"{"top_k": -1}"#, "`top_k` is -1"),
        (r#"{"min_p": 2}"#, "`min_p` is 2"),
        (r#"{"repetition_penalty": 0}"#, "`repetition_penalty` is 0"),
    ] {
        let error = parse(text).unwrap_err();
        assert!(error.contains(names), "{error}");
    }
}

#[test]
fn a_folder_without_the_file_has_no_defaults() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(GenerationDefaults::load(folder.path()).unwrap(), GenerationDefaults::default());
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/tiny-qwen3");
    assert_eq!(GenerationDefaults::load(&tiny).unwrap(), GenerationDefaults::default());
}
