use std::path::Path;
use std::sync::LazyLock;

use proptest::prelude::*;

use crate::models::{TextTokenizer, TokenizerError};

/// A byte-level BPE, as Qwen and Llama 3 have: every byte has a token.
fn byte_level() -> &'static TextTokenizer {
    static LOADED: LazyLock<TextTokenizer> = LazyLock::new(|| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/tiny-qwen3");
        TextTokenizer::load(&folder, 2048).unwrap()
    });
    &LOADED
}

/// The byte-level BPE with one more token, which texts show, and room for an id without one.
fn with_added(content: &str) -> TextTokenizer {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/tiny-qwen3/tokenizer.json");
    let mut tokenizer: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    tokenizer["added_tokens"].as_array_mut().unwrap().push(serde_json::json!({
        "id": 2048, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": false,
    }));
    TextTokenizer::parse(tokenizer.to_string().as_bytes(), 2050, &file).unwrap()
}

/// A BPE of characters that falls back to bytes and drops the first space, as Llama 2 and Mistral
/// have. Ids 0 to 255 are bytes.
fn byte_fallback() -> &'static TextTokenizer {
    static PARSED: LazyLock<TextTokenizer> = LazyLock::new(parse_byte_fallback);
    &PARSED
}

fn parse_byte_fallback() -> TextTokenizer {
    let mut vocab: serde_json::Map<_, _> =
        (0..256).map(|byte| (format!("<0x{byte:02X}>"), byte.into())).collect();
    for (place, token) in ["▁", "a", "b", "▁a", "ab"].into_iter().enumerate() {
        vocab.insert(token.to_owned(), (256 + place).into());
    }
    vocab.insert("<s>".to_owned(), SPECIAL.into());
    let tokenizer = serde_json::json!({
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0},
        "padding": null,
        "added_tokens": [{
            "id": SPECIAL, "content": "<s>", "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true
        }],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ]},
        "pre_tokenizer": null,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
            ],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [SPECIAL], "tokens": ["<s>"]}},
        },
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ]},
        "model": {
            "type": "BPE", "byte_fallback": true, "fuse_unk": false, "unk_token": null,
            "vocab": vocab, "merges": [["▁", "a"], ["a", "b"]],
        },
    });
    let text = tokenizer.to_string();
    TextTokenizer::parse(text.as_bytes(), 300, Path::new("tokenizer.json")).unwrap()
}

const SPECIAL: u32 = 261;

/// The pieces that a stream gives for `ids`, the rest last.
fn pieces(tokenizer: &TextTokenizer, prompt: &[u32], ids: &[u32]) -> Vec<String> {
    let mut stream = tokenizer.stream_after(prompt).unwrap();
    let mut pieces: Vec<_> = ids.iter().map(|id| stream.push(*id).unwrap()).collect();
    pieces.push(stream.finish().unwrap());
    pieces
}

#[test]
fn a_character_of_several_tokens_comes_whole() {
    let tokenizer = byte_level();
    let ids = tokenizer.encode("é🦀x").unwrap();
    assert!(ids.len() > 4, "the characters are no tokens of their own: {ids:?}");
    let pieces: Vec<_> =
        pieces(tokenizer, &[], &ids).into_iter().filter(|piece| !piece.is_empty()).collect();
    assert_eq!(pieces, ["é", "🦀", "x"]);
}

#[test]
fn what_never_becomes_a_character_comes_at_the_end() {
    let tokenizer = byte_level();
    let ids = tokenizer.encode("a🦀").unwrap();
    let cut = &ids[..ids.len() - 1];
    let pieces = pieces(tokenizer, &[], cut);
    let (rest, printed) = pieces.split_last().unwrap();
    assert_eq!(printed.concat(), "a");
    assert_eq!(format!("a{rest}"), tokenizer.decode(cut).unwrap());
}

#[test]
fn the_first_space_after_a_prompt_is_kept() {
    let tokenizer = byte_fallback();
    let (a, space_a) = (257, 259);
    assert_eq!(pieces(tokenizer, &[], &[space_a, space_a]), ["a", " a", ""]);
    assert_eq!(pieces(tokenizer, &[a], &[space_a, space_a]), [" a", " a", ""]);
    assert_eq!(pieces(tokenizer, &[a], &[SPECIAL, space_a]), ["", " a", ""]);
    assert_eq!(pieces(tokenizer, &[SPECIAL], &[space_a, SPECIAL, space_a]), ["a", "", " a", ""]);
}

#[test]
fn a_byte_that_spoils_its_neighbours_is_no_error() {
    let tokenizer = byte_fallback();
    // é, then half of one, then something else: the decoder turns all three bytes into U+FFFD.
    let ids = [0xC3, 0xA9, 0xC3, 257];
    assert_eq!(tokenizer.decode(&ids).unwrap(), "\u{FFFD}\u{FFFD}\u{FFFD}a");
    assert_eq!(pieces(tokenizer, &[], &ids), ["", "é", "", "\u{FFFD}a", ""]);
}

#[test]
fn a_long_run_of_bad_bytes_is_not_held_back_for_ever() {
    let tokenizer = byte_level();
    let bad = tokenizer.encode("é").unwrap()[0];
    let mut stream = tokenizer.stream_after(&[]).unwrap();
    let printed: String = (0..1000).map(|_| stream.push(bad).unwrap()).collect();
    assert!(printed.chars().count() > 900, "{} of 1000", printed.chars().count());
    assert_eq!(printed + &stream.finish().unwrap(), tokenizer.decode(&[bad; 1000]).unwrap());
}

#[test]
fn an_id_out_of_range_leaves_the_stream_as_it_was() {
    let tokenizer = byte_level();
    let mut stream = tokenizer.stream_after(&[]).unwrap();
    let ids = tokenizer.encode("ok").unwrap();
    let mut text = stream.push(ids[0]).unwrap();
    let error = stream.push(2048).unwrap_err();
    assert!(matches!(error, TokenizerError::IdOutOfRange { id: 2048, .. }), "{error}");
    for id in &ids[1..] {
        text += &stream.push(*id).unwrap();
    }
    assert_eq!(text + &stream.finish().unwrap(), "ok");
}

#[test]
fn the_post_processor_decides_on_special_tokens_and_truncation_is_off() {
    let ids = byte_fallback().encode("a ab ab").unwrap();
    assert_eq!(ids, [SPECIAL, 259, 259, 258, 259, 258]);
    let ids = byte_level().encode("for i in range(").unwrap();
    assert_eq!(ids, [1027, 275, 291, 1145, 8]);
}

proptest! {
    #[test]
    fn pieces_make_up_the_text(text in "\\PC{0,24}", context in "[a-z é🦀]{0,12}") {
        for tokenizer in [byte_level(), byte_fallback()] {
            let prompt = tokenizer.encode(&context).unwrap_or_default();
            let Ok(ids) = tokenizer.encode(&format!(" {text}")) else { continue };
            let pieces = pieces(tokenizer, &prompt, &ids);
            let whole = tokenizer.decode(&[prompt.as_slice(), &ids].concat()).unwrap();
            let before = tokenizer.decode(&prompt).unwrap();
            prop_assert_eq!(format!("{before}{}", pieces.concat()), whole);
            if !text.contains('\u{FFFD}') {
                prop_assert!(!pieces.concat().contains('\u{FFFD}'), "{:?}", pieces);
            }
        }
    }

    #[test]
    fn pieces_of_any_byte_level_ids_make_up_their_text(
        ids in prop::collection::vec(prop_oneof![0_u32..2048, 95_u32..260], 0..60),
    ) {
        let tokenizer = byte_level();
        prop_assert_eq!(pieces(tokenizer, &[], &ids).concat(), tokenizer.decode(&ids).unwrap());
    }

    /// Texts are taken from the bytes of ids where that is the same as what the library says.
    #[test]
    fn texts_are_those_of_the_library(
        ids in prop::collection::vec(prop_oneof![0_u32..2050, 95_u32..260, 2047_u32..2049], 0..30),
        special: bool,
    ) {
        static ADDED: LazyLock<[TextTokenizer; 2]> =
            LazyLock::new(|| ["a \u{e9}", "\u{e9}"].map(with_added));
        for (tokenizer, is_of_bytes) in [(byte_level(), true), (&ADDED[0], true), (&ADDED[1], false)] {
            let ids: Vec<u32> = ids.iter().map(|id| id % tokenizer.vocab_size as u32).collect();
            let text = tokenizer.inner.decode(&ids, !special).unwrap();
            prop_assert_eq!(tokenizer.decode_with(&ids, special).unwrap(), text);
            prop_assert_eq!(*tokenizer.makes_texts.get().unwrap(), is_of_bytes);
        }
    }

    #[test]
    fn no_ids_fail(ids in prop::collection::vec(0_u32..300, 0..60)) {
        pieces(byte_fallback(), &[], &ids);
    }
}

/// The bytes of ids one by one make up the text of all, but for a first space.
fn bytes_make_up_the_text(tokenizer: &TextTokenizer, text: &str) {
    let vocabulary = tokenizer.vocabulary();
    let ids = tokenizer.encode_more(text).unwrap();
    let bytes: Vec<u8> = ids.iter().flat_map(|id| vocabulary.bytes(*id)).copied().collect();
    let bytes = String::from_utf8(bytes).unwrap();
    assert_eq!(bytes.strip_prefix(' ').unwrap_or(&bytes), text);
}

#[test]
fn a_vocabulary_has_the_bytes_of_each_id() {
    for text in ["a ab  a", "def f(x):\n\treturn 'é🦀'", "\u{7f}\u{a0}\u{ad}ÿĀ"] {
        bytes_make_up_the_text(byte_level(), text);
        bytes_make_up_the_text(byte_fallback(), text);
    }
    let vocabulary = byte_fallback().vocabulary();
    assert_eq!(vocabulary.bytes(0xC3), [0xC3]);
    assert_eq!(vocabulary.bytes(259), b" a");
    assert_eq!((vocabulary.bytes(SPECIAL), vocabulary.is_special(SPECIAL)), (&b"<s>"[..], true));
    assert_eq!((vocabulary.len(), vocabulary.bytes(299)), (300, &b""[..]));
    assert!(vocabulary.bytes(u32::MAX).is_empty() && !vocabulary.is_special(0));
}

#[test]
fn special_tokens_have_text_where_that_is_asked_for() {
    let tokenizer = byte_fallback();
    let mut stream = crate::models::TextStream::after(tokenizer, &[], true).unwrap();
    assert_eq!(stream.push(SPECIAL).unwrap() + &stream.push(259).unwrap(), "<s> a");
    assert_eq!(tokenizer.decode_with(&[SPECIAL, 259], true).unwrap(), "<s> a");
}
