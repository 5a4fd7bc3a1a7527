//! Structures behind thoughts: replies of random ids that the masks let through, as parsers read them.

use piecewise::models::{TextTokenizer, Vocabulary};
use piecewise_runtime::engine::TokenConstraint;
use piecewise_server::chat::{ReplyFormat, Tools};
use piecewise_server::structured::{Structure, Structures, Thoughts};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::{Map, Value, json};
use std::path::Path;

const END: u32 = 0;
/// Bytes, what marks may be spelt with, and, from [`MARKS`] on, ids for marks.
const PIECES: [&str; 9] =
    ["</", "think", ">", ">{\"", "k>", "x</think>y", "{\"a\":", "true", "<|tool_call>"];
const MARKS: u32 = 1 + 256 + PIECES.len() as u32;

fn format(parser: &str) -> ReplyFormat {
    ReplyFormat::new(Some(parser), Some("none"), "").unwrap()
}

/// A tokenizer that has ids for these texts.
fn tokenizer(marks: &[&str]) -> TextTokenizer {
    let mut vocab: Map<String, Value> =
        (0..256).map(|byte| (format!("<0x{byte:02X}>"), (byte + 1).into())).collect();
    vocab.insert("</s>".to_owned(), END.into());
    let mut added = vec![(END, "</s>", true)];
    for (id, piece) in (257..).zip(PIECES.iter().chain(marks)) {
        vocab.insert((*piece).to_owned(), id.into());
        added.extend((id >= MARKS).then_some((id, *piece, false)));
    }
    let added = added.into_iter().map(|(id, content, special)| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": special})
    });
    let text = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null,
        "added_tokens": added.collect::<Vec<_>>(), "pre_tokenizer": null, "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {"type": "BPE", "byte_fallback": true, "fuse_unk": false, "unk_token": null,
            "vocab": vocab, "merges": []},
    });
    let ids = MARKS as usize + marks.len();
    TextTokenizer::parse(text.to_string().as_bytes(), ids, Path::new("tokenizer.json")).unwrap()
}

fn allowed(constraint: &mut Box<dyn TokenConstraint>, ids: usize) -> Vec<u32> {
    let mut mask = vec![0_u32; ids.div_ceil(32)];
    constraint.allowed(&mut mask).unwrap();
    (0..ids as u32).filter(|id| mask[*id as usize / 32] >> (id % 32) & 1 == 1).collect()
}

fn structure() -> Structure {
    let fields = json!({"a": {"type": "boolean"}});
    Structure::JsonSchema(json!({
        "type": "object", "properties": fields, "required": ["a"], "additionalProperties": false,
    }))
}

fn constraint(vocabulary: &Vocabulary, thoughts: Option<Thoughts>) -> Box<dyn TokenConstraint> {
    let structures = Structures::new(vocabulary, &[END]).unwrap();
    structures.constraint(&structure(), "response_format", thoughts, &|| true).unwrap()
}

/// A reply of random ids, up to its end.
fn reply(mut constraint: Box<dyn TokenConstraint>, ids: usize, seed: u64) -> Vec<u32> {
    let mut state = seed;
    let mut said = Vec::new();
    loop {
        let allowed = allowed(&mut constraint, ids);
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // What marks are made of comes more often than all the bytes.
        let pieces = allowed.iter().copied().filter(|id| *id > 256 && state >> 40 & 3 > 0);
        let likely = Vec::from_iter(pieces);
        let from = if likely.is_empty() { &allowed } else { &likely };
        let id = from[(state >> 33) as usize % from.len()];
        if id == END {
            return said;
        }
        said.push(id);
        if constraint.accept(id).unwrap() {
            return said;
        }
    }
}

/// The names of all parsers of thoughts.
pub(crate) fn parsers() -> Vec<String> {
    let unknown = ReplyFormat::new(Some("?"), None, "").unwrap_err().to_string();
    let names = unknown.split("there are ").nth(1).unwrap().split(", ");
    names.filter(|name| *name != "none").map(str::to_owned).collect()
}

/// Thoughts and content.
fn read(
    format: &ReplyFormat,
    prompt: &str,
    pieces: impl Iterator<Item = String>,
) -> (String, String) {
    let mut parser = format.parser(&Tools::default(), prompt).unwrap();
    let mut deltas = Vec::from_iter(pieces.map(|piece| parser.push(&piece).unwrap()));
    deltas.push(parser.finish().unwrap());
    let reasoning = deltas.iter().map(|delta| delta.reasoning.as_str()).collect();
    (reasoning, deltas.iter().map(|delta| delta.content.as_str()).collect())
}

fn is_kept(content: &str) -> bool {
    serde_json::from_str::<Value>(content).is_ok_and(|value| value["a"].is_boolean())
}

#[test]
fn a_structure_begins_where_thoughts_end() {
    for (parser, marks) in [
        ("qwen3", &["<think>", "</think>"][..]),
        // No id stands for a mark: it is spelt.
        ("qwen3", &[]),
        ("deepseek_r1", &["</think>"]),
        ("gemma4", &["<|channel>", "<channel|>"]),
        ("kimi", &["◁think▷", "◁/think▷"]),
    ] {
        let format = format(parser);
        let tokenizer = tokenizer(marks);
        let vocabulary = tokenizer.vocabulary();
        let prompt = format!("<user>hm<assistant>{}\n", format.marks().unwrap().begin);
        let thoughts = format.thoughts(&prompt).unwrap();
        assert!(thoughts.begun);
        let (mut thought, mut spelt) = (0, 0);
        for seed in 0..60 {
            let ids = reply(constraint(&vocabulary, Some(thoughts)), vocabulary.len(), seed);
            let bytes: Vec<u8> = ids.iter().flat_map(|id| vocabulary.bytes(*id)).copied().collect();
            let text = String::from_utf8_lossy(&bytes).into_owned();
            let (reasoning, content) = read(&format, &prompt, [text.clone()].into_iter());
            assert!(is_kept(&content), "{parser}, seed {seed}: {text:?}: {content:?}");
            let pieces = text.chars().map(String::from);
            assert_eq!(read(&format, &prompt, pieces), (reasoning.clone(), content));
            thought += usize::from(!reasoning.is_empty());
            spelt += usize::from(!ids.iter().any(|id| *id >= MARKS));
        }
        assert!(thought > 10, "{parser}: {thought}");
        assert!(marks.is_empty() == (spelt > 40), "{parser}: {spelt}");
    }
}

#[test]
fn thoughts_don_t_end_the_reply_and_nothing_is_said_with_their_end() {
    let vocabulary = tokenizer(&["<think>", "</think>"]).vocabulary();
    let (ids, thoughts) = (vocabulary.len(), format("qwen3").thoughts("<think>").unwrap());
    let mut constraint = constraint(&vocabulary, Some(thoughts));
    let id_of = |text: &str| (0..ids as u32).find(|id| vocabulary.bytes(*id) == text.as_bytes());
    let id_of = |text: &str| id_of(text).unwrap();
    let missing = |constraint: &mut Box<dyn TokenConstraint>| {
        let allowed = allowed(constraint, ids);
        Vec::from_iter((0..ids as u32).filter(|id| !allowed.contains(id)))
    };
    assert_eq!(missing(&mut constraint), [END, id_of("x</think>y")]);
    for piece in ["</", "think"] {
        assert!(!constraint.accept(id_of(piece)).unwrap());
    }
    let mut other = constraint.duplicate();
    assert_eq!(missing(&mut other), [END, id_of(">{\""), id_of("x</think>y")]);
    assert!(!other.accept(id_of(">")).unwrap());
    assert!(allowed(&mut other, ids).contains(&id_of("{\"a\":")));
    assert!(!allowed(&mut other, ids).contains(&id_of("true")));
    // What was begun is none.
    assert!(!constraint.accept(id_of("true")).unwrap());
    assert_eq!(missing(&mut constraint), [END, id_of("x</think>y")]);
    constraint.accept(id_of("x</think>y")).unwrap_err();
}

#[test]
fn a_model_may_begin_thoughts_itself_where_one_id_does() {
    let format = format("qwen3");
    let with = tokenizer(&["<think>", "</think>"]).vocabulary();
    let without = tokenizer(&[]).vocabulary();
    let open = format.thoughts("<assistant>\n").unwrap();
    assert!(!open.begun);
    let firsts = |vocabulary, thoughts| {
        allowed(&mut constraint(vocabulary, thoughts), Vocabulary::len(vocabulary))
    };
    let alone = firsts(&with, None);
    assert_eq!(firsts(&without, Some(open)), firsts(&without, None));
    assert_eq!(firsts(&with, Some(open)), [&alone[..], &[MARKS]].concat());
    let mut constraint = constraint(&with, Some(open));
    let mut thinks = constraint.duplicate();
    thinks.accept(MARKS).unwrap();
    assert!(allowed(&mut thinks, with.len()).len() == with.len() - 2);
    thinks.accept(MARKS + 1).unwrap();
    assert_eq!(allowed(&mut thinks, with.len()), alone);
    // Who begins with the reply has no thoughts.
    constraint.accept(alone[0]).unwrap();
    assert!(!allowed(&mut constraint, with.len()).contains(&MARKS));
}

#[test]
fn the_marks_of_one_request_are_not_those_of_another() {
    let tokenizer = tokenizer(&["<think>", "</think>", "◁think▷", "◁/think▷"]);
    let (vocabulary, ids) = (tokenizer.vocabulary(), tokenizer.vocabulary().len());
    let structures = Structures::new(&vocabulary, &[END]).unwrap();
    for (parser, begin, broken) in
        [("qwen3", MARKS, true), ("kimi", MARKS + 2, false), ("qwen3", MARKS, true)]
    {
        let thoughts = format(parser).thoughts("<assistant>\n");
        let mut made =
            structures.constraint(&structure(), "response_format", thoughts, &|| true).unwrap();
        let begins = allowed(&mut made, ids);
        let begins = Vec::from_iter(begins.into_iter().filter(|id| *id >= MARKS));
        assert_eq!(begins, [begin], "{parser}");
        made.accept(begin).unwrap();
        let thought = allowed(&mut made, ids);
        let says_more = (0..ids as u32).find(|id| vocabulary.bytes(*id) == b"x</think>y").unwrap();
        assert_eq!(thought.contains(&says_more), !broken, "{parser}");
        assert!(thought.contains(&(begin + 1)), "{parser}");
    }
}

#[test]
fn a_prompt_says_whether_thoughts_have_begun_or_ended() {
    let begun = |parser: &str, prompt: &str| format(parser).thoughts(prompt).map(|t| t.begun);
    assert_eq!(begun("qwen3", "<assistant><think>\n"), Some(true));
    assert_eq!(begun("qwen3", "<assistant>\n"), Some(false));
    assert_eq!(begun("qwen3", "<assistant><think>\n\n</think>\n\n"), None);
    assert_eq!(begun("deepseek_r1", "<assistant>"), Some(true));
    assert_eq!(begun("deepseek_r1", "<assistant></think>"), None);
    assert_eq!(begun("none", "<assistant><think>\n"), None);
    // Nor does the parser then take the reply for thoughts.
    let said = [String::from("Yes.")].into_iter();
    let (reasoning, content) = read(&format("deepseek_r1"), "<assistant></think>", said);
    assert_eq!((reasoning.as_str(), content.as_str()), ("", "Yes."));
}

/// Marks of every parser and texts that are nearly ones.
const NEAR_MARKS: &str = "\
    <think>¦</think>¦<mm:think>¦</mm:think>¦◁think▷¦◁/think▷¦<|START_THINKING|>¦\
    <|END_THINKING|>¦<|channel>thought\n¦<|channel>¦thought\n¦<channel|>¦<|tool_call>¦<tool_call|>¦\
    <｜DSML｜ calls>¦<think:a>¦</think:a>¦<|content_thinking|>¦<|content_text|>¦<|end_message|>¦\
    <|message_model|>¦<|open|>think<|sep|>¦<|close|>think<|sep|>¦<|open|>response<|sep|>¦\
    <|close|>response<|sep|>¦<|close|>message<|sep|>¦</t¦</¦<¦<thi¦<think¦</think¦think>¦>¦◁¦◁/th¦\
    <|¦|>¦<|END¦<|close|>¦<|sep|>¦<c¦ ¦\n¦a < b¦hm¦é🦀¦x</¦<｜DS¦<|\"|>";

fn near_marks() -> impl Strategy<Value = String> {
    let piece = select(NEAR_MARKS.split('¦').collect::<Vec<_>>());
    prop::collection::vec(piece, 0..9).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn thoughts_are_the_same_however_a_reply_is_cut(
        text in near_marks(),
        cuts in prop::collection::vec(any::<Index>(), 0..6),
        begun in any::<bool>(),
    ) {
        let places = Vec::from_iter(text.char_indices().map(|(at, _)| at).chain([text.len()]));
        let mut borders = Vec::from_iter(cuts.iter().map(|cut| *cut.get(&places)));
        borders.extend([0, text.len()]);
        borders.sort_unstable();
        let pieces = borders.windows(2).map(|range| text[range[0]..range[1]].to_owned());
        let pieces = Vec::from_iter(pieces);
        for name in parsers() {
            let format = format(&name);
            let prompt = format.marks().filter(|_| begun).map_or("", |marks| marks.begin);
            let whole = read(&format, prompt, [text.clone()].into_iter());
            let by_characters = read(&format, prompt, text.chars().map(String::from));
            prop_assert_eq!(&by_characters, &whole, "{}", name);
            let cut = read(&format, prompt, pieces.iter().cloned());
            prop_assert_eq!(cut, whole, "{} {:?}", name, pieces);
        }
    }
}

/// What is nearly a mark is what it stands in, and no reply is too long.
#[test]
fn what_is_no_mark_stays_where_it_stands() {
    for pieces in [&["</t", "<think>hm</think>yes"][..], &["</t<think>hm</think>yes"]] {
        let (reasoning, content) =
            read(&format("qwen3"), "", pieces.iter().map(|piece| (*piece).to_owned()));
        assert_eq!((reasoning.as_str(), content.as_str()), ("hm", "</tyes"), "{pieces:?}");
    }
    let long = "x".repeat(5 << 20);
    for name in parsers() {
        let format = format(&name);
        let begin = format.marks().map_or("", |marks| marks.begin);
        let reply = [long.clone()].into_iter();
        let (reasoning, content) = read(&format, begin, reply);
        assert_eq!(reasoning.len() + content.len(), long.len(), "{name}");
    }
}

/// Thoughts of Kimi K3 end by whatever channel follows, and a mark that is cut off at the end is none
/// of the reply's words.
#[test]
fn channels_are_read_to_their_ends() {
    let (open, close) =
        (|name| format!("<|open|>{name}<|sep|>"), |name| format!("<|close|>{name}<|sep|>"));
    let read = |prompt: &str, text: String| read(&format("kimi_k3"), prompt, [text].into_iter());
    let told = |thoughts: &str, said: &str| (thoughts.to_owned(), said.to_owned());
    let thought = format!("{}hm{}", open("think"), close("think"));
    let said = format!("{}yes{}{}", open("response"), close("response"), close("message"));
    assert_eq!(read("", format!("{}{thought}{said}", open("message"))), told("hm", "yes"));
    let prompt = open("think");
    assert_eq!(read(&prompt, format!("hm{said}")), told("hm", "yes"));
    let tools = format!("{}x", open("tools"));
    assert_eq!(read(&prompt, format!("hm{tools}")), told("hm", &tools));
    assert_eq!(read(&prompt, format!("hm{}yes<|close|>messa", close("think"))), told("hm", "yes"));
    assert_eq!(read(&prompt, format!("hm{}yes<|clo", close("think"))), told("hm", "yes<|clo"));
    let (thoughts, _) =
        self::read(&format("inkling"), "<|content_thinking|>", ["hm".to_owned()].into_iter());
    assert_eq!(thoughts, "hm");
}

/// Of each parser, by what it makes of them.
#[test]
fn the_marks_are_those_of_the_parsers() {
    let mut with = 0;
    for name in parsers() {
        let format = format(&name);
        let Some(Thoughts { begin, end, breaks, .. }) = format.marks() else { continue };
        with += 1;
        // One of them names its thoughts in the line that begins them.
        let begin = if begin == "<|channel>thought" { "<|channel>thought\n" } else { begin };
        let said = |prompt: &str, text: String| read(&format, prompt, [text].into_iter());
        let expected = ("hm < 2".to_owned(), "{}".to_owned());
        assert_eq!(said(begin, format!("hm < 2{end}{{}}")), expected, "{name}");
        assert_eq!(said("", format!("{begin}hm < 2{end}{{}}")), expected, "{name}");
        for other in breaks {
            let (reasoning, content) = said(begin, format!("hm{other}{{}}"));
            assert_eq!(reasoning, "hm", "{name}: {other}");
            assert!(content.starts_with(other), "{name}: {content}");
        }
    }
    assert!(with > 15, "{with}");
}
