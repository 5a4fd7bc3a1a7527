//! Servers of small encoders.

use crate::client::{PATIENCE, ask, bind};
use piecewise::encoding::{EncoderThread, TextEncoder};
use piecewise::models::TextTokenizer;
use piecewise::models::encoder::{ScoreActivation, TextOutput};
use piecewise_runtime::config::ConfigLayers;
use piecewise_server::{EncoderKind, Matryoshka, ServedEncoder};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/encoders").join(name)
}

/// A few words, whose pairs have two types.
fn tokenizer() -> TextTokenizer {
    let side = |id: &str, kind: u64| json!({"Sequence": {"id": id, "type_id": kind}});
    let file = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "decoder": null,
        "post_processor": {
            "type": "TemplateProcessing", "special_tokens": {}, "single": [side("A", 0)],
            "pair": [side("A", 0), side("B", 1)],
        },
        "model": {
            "type": "WordLevel", "vocab": {"one": 7, "two": 8, "three": 9, "?": 10},
            "unk_token": "?",
        },
    });
    TextTokenizer::parse(file.to_string().as_bytes(), 320, Path::new("tokenizer.json")).unwrap()
}

fn serve(name: &str, output: TextOutput, kind: EncoderKind) -> SocketAddr {
    let layers = ConfigLayers::new()
        .set("dtype", "f32")
        .and_then(|layers| layers.set("max_num_tokens", 128))
        .and_then(|layers| layers.set("capture_num_tokens", [16_u64, 128]))
        .and_then(|layers| layers.set("cache.enabled", false));
    let encoder = TextEncoder::load(&folder(name), layers.unwrap(), &[output], |_| {}).unwrap();
    let thread = EncoderThread::start(encoder, 64, "tiny").unwrap();
    let served = ServedEncoder { tokenizer: Some(Arc::new(tokenizer())), longest: 64, kind };
    let server = bind();
    let address = server.address();
    let (ready, is_ready) = mpsc::channel();
    std::thread::spawn(move || server.serve_encoder(thread, served, || ready.send(()).unwrap()));
    is_ready.recv_timeout(PATIENCE).unwrap();
    address
}

/// One that embeds, until the process ends.
pub(crate) fn embeds() -> SocketAddr {
    let shortened = Matryoshka::Any;
    let kind = EncoderKind::Embeddings { width: 96, normalized: true, shortened };
    serve("bert", TextOutput::Embedding, kind)
}

/// One that scores pairs, until the process ends.
pub(crate) fn scores() -> SocketAddr {
    let activation = ScoreActivation::load(&folder("cross_encoder")).unwrap();
    serve("cross_encoder", TextOutput::Scores, EncoderKind::Scores(activation))
}

#[test]
fn what_an_encoder_does_not_do_is_refused_with_a_reason() {
    let address = scores();
    let rank = |more: Value| {
        let mut body = json!({"query": "one", "documents": ["two", "three"]});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = ask(address, "POST /v1/rerank", &body.to_string());
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head[9..12].to_owned(), serde_json::from_str::<Value>(body).unwrap())
    };
    let (status, answer) = rank(json!({"max_tokens_per_doc": null}));
    assert_eq!((status.as_str(), answer["results"].as_array().unwrap().len()), ("200", 2));
    for (field, value) in [
        ("max_tokens_per_doc", json!(5)),
        ("max_chunks_per_doc", json!(5)),
        ("rank_fields", json!(["text"])),
        ("truncate_prompt_tokens", json!(5)),
    ] {
        let (status, answer) = rank(json!({field: value}));
        let error = &answer["error"];
        assert_eq!((status.as_str(), &error["param"]), ("400", &json!(field)), "{answer}");
        assert_eq!(error["code"], "unsupported_parameter", "{answer}");
    }
    let (status, answer) = rank(json!({"documents": vec!["two"; 2049]}));
    assert!(status == "400" && answer.to_string().contains("--max-texts"), "{answer}");
}
