//! A tokenizer as SentencePiece's of Llama are written: a BPE of characters that falls back to bytes.

use piecewise::models::TextTokenizer;
use serde_json::{Map, Value, json};
use std::path::Path;

/// Ids of a model that has it.
pub(crate) const IDS: usize = 512;
/// The id that ends a text.
pub(crate) const END: u32 = 2;

/// Its `tokenizer.json`.
pub(crate) fn json() -> String {
    let specials = ["<unk>", "<s>", "</s>", "<|im_start|>"];
    let bytes = (0..256).map(|byte| format!("<0x{byte:02X}>"));
    let mut pieces: Vec<String> = specials.map(str::to_owned).into_iter().chain(bytes).collect();
    pieces.extend((' '..='~').skip(1).chain(['▁', 'é', 'П', 'р']).map(String::from));
    let words =
        "▁▁ ▁▁▁▁ ▁a ▁b re ret return ▁return def __ self ▁self true ▁1 12 \": {\" \", think";
    let mut merges = Vec::new();
    for word in words.split(' ') {
        let mut whole = String::new();
        for character in word.chars() {
            let before = std::mem::take(&mut whole);
            whole = format!("{before}{character}");
            if !pieces.contains(&whole) {
                merges.push(json!([before, character.to_string()]));
                pieces.push(whole.clone());
            }
        }
    }
    assert!(pieces.len() <= IDS);
    let vocab: Map<String, Value> =
        pieces.into_iter().enumerate().map(|(id, piece)| (piece, id.into())).collect();
    let added = specials.iter().enumerate().map(|(id, content)| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true})
    });
    let start = json!({"SpecialToken": {"id": "<s>", "type_id": 0}});
    let of = |id: &str| json!({"Sequence": {"id": id, "type_id": 0}});
    let text = json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": added.collect::<Vec<_>>(),
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "pre_tokenizer": null,
        "post_processor": {
            "type": "TemplateProcessing", "single": [start, of("A")],
            "pair": [start, of("A"), start, of("B")],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "byte_fallback": true,
            "fuse_unk": true, "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "ignore_merges": false, "vocab": vocab, "merges": merges},
    });
    text.to_string()
}

pub(crate) fn tokenizer() -> TextTokenizer {
    TextTokenizer::parse(json().as_bytes(), IDS, Path::new("tokenizer.json")).unwrap()
}
