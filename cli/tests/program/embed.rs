//! `embed`: the formats, the same numbers however texts share steps, and what is refused.

use crate::bounded::Bound;
use crate::support::cache::checked;
use crate::support::cli::{command, error_of, piecewise, root, stdout_of};
use serde_json::{Value, json};
use std::path::Path;

const BERT: &str = "tests/fixtures/encoders/bert";
const TEXTS: [&str; 3] = ["one two three", "two", "three three two one one"];

/// The BERT of the fixtures with a tokenizer of a few words.
pub(crate) fn with_tokenizer(folder: &Path) -> &str {
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(root().join(BERT).join(file), folder.join(file)).unwrap();
    }
    let vocab = json!({"one": 7, "two": 8, "three": 9, "?": 10});
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null,
        "decoder": null, "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "?"},
    });
    std::fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    folder.to_str().unwrap()
}

fn vectors(lines: &str) -> Vec<Vec<f32>> {
    let vector = |line: &str| {
        let object: Value = serde_json::from_str(line).unwrap();
        serde_json::from_value(object["embedding"].clone()).unwrap()
    };
    lines.lines().map(vector).collect()
}

#[test]
fn every_format_and_every_way_to_share_steps_has_the_same_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let model = with_tokenizer(folder.path());
    let lines = folder.path().join("lines.txt");
    std::fs::write(&lines, format!("{}\n\n{}\n", TEXTS[1], TEXTS[2])).unwrap();
    let embed = |more: &[&str]| {
        let args = ["embed", "--model", model, "--dtype", "f32", "--text", TEXTS[0]];
        stdout_of(&[&args[..], &["--file", lines.to_str().unwrap()], more].concat())
    };
    let expected = vectors(&embed(&[]));
    assert_eq!((expected.len(), expected[0].len()), (3, 96));
    for vector in &expected {
        let norm: f32 = vector.iter().map(|x| x * x).sum();
        assert!((norm - 1.0).abs() < 1e-5, "{norm}");
    }
    assert_eq!(vectors(&embed(&["--one-by-one"])), expected);
    assert_eq!(vectors(&embed(&["--graph-mode", "none"])), expected);
    assert_eq!(vectors(&embed(&["--capture-num-tokens", "9,16,64"])), expected);

    let texts = stdout_of(
        &[
            &["embed", "--model", model, "--dtype", "f32"][..],
            &TEXTS.map(|text| ["--text", text]).concat(),
        ]
        .concat(),
    );
    assert_eq!(vectors(&texts), expected);

    let bytes: Vec<u8> = expected.iter().flatten().flat_map(|x| x.to_le_bytes()).collect();
    let list = folder.path().join("out.json");
    assert_eq!(embed(&["--out", list.to_str().unwrap()]), "");
    let list: Vec<Value> = serde_json::from_slice(&std::fs::read(list).unwrap()).unwrap();
    let texts = Vec::from_iter(list.iter().map(|object| object["text"].as_str().unwrap()));
    assert_eq!(texts, TEXTS);
    let lines = Vec::from_iter(list.iter().map(|object| format!("{object}\n"))).concat();
    assert_eq!(vectors(&lines), expected);
    for name in ["out.npy", "out.safetensors"] {
        let out = folder.path().join(name);
        assert_eq!(embed(&["--out", out.to_str().unwrap()]), "");
        let written = std::fs::read(&out).unwrap();
        assert!(written.ends_with(&bytes), "{name}");
        let header = &written[..written.len() - bytes.len()];
        let header = String::from_utf8_lossy(header);
        match name {
            "out.npy" => {
                assert!(
                    header.contains("'descr': '<f4'") && header.contains("(3, 96)"),
                    "{header}"
                );
                assert_eq!(header.len() % 64, header.matches('\u{fffd}').count() * 2);
            }
            _ => assert!(header.contains("embeddings") && header.contains("[3,96]"), "{header}"),
        }
    }
}

/// What the flags of packing do, by the statistics and the log that they write.
#[test]
fn texts_share_steps_as_the_flags_say() {
    let folder = tempfile::tempdir().unwrap();
    let (model, cache) = (with_tokenizer(folder.path()), folder.path().join("cache"));
    let log = folder.path().join("items.jsonl");
    let log = log.to_str().unwrap();
    let said = |more: &[&str]| {
        let args = [&["embed", "--model", model][..], &TEXTS.map(|text| ["--text", text]).concat()];
        let output = command(&cache).args(args.concat()).args(more).bounded_output().unwrap();
        String::from_utf8(checked(output).stderr).unwrap()
    };
    assert!(!said(&["--item-log", log]).contains("steps"));
    let written = std::fs::read_to_string(log).unwrap();
    assert_eq!(written, "{\"path\":\"items\",\"tokens\":[3,1,5]}\n");
    let packed = said(&["--stats"]);
    assert!(packed.contains("items: 1 steps, 1 replayed; items: 3 hits, 0 misses"), "{packed}");
    assert!(packed.contains("85.9% of tokens padding"), "{packed}");
    assert!(packed.contains("budget 64: 1 replays"), "{packed}");
    let alone = said(&["--stats", "--one-by-one"]);
    assert!(alone.contains("items: 3 steps, 3 replayed; items: 3 hits"), "{alone}");
    assert!(alone.contains("budget 64: 3 replays"), "{alone}");
    let planned = said(&["--stats", "--capture-item-log", log]);
    assert!(planned.contains("budget 9: 1 replays"), "{planned}");
    assert!(planned.contains("0.0% of tokens padding"), "{planned}");
    // A list wins over what a log would plan.
    let listed = said(&["--stats", "--capture-item-log", log, "--capture-num-tokens", "16,64"]);
    assert!(listed.contains("budget 16: 1 replays"), "{listed}");
    let launched = said(&["--stats", "--capture-num-tokens", "4", "--one-by-one"]);
    assert!(launched.contains("launched: 1 items, above_largest_size"), "{launched}");
    let refused = |more: &[&str]| {
        let args = [&["embed", "--model", model, "--text", "one"][..], more];
        error_of(&args.concat())
    };
    let missing = refused(&["--capture-item-log", "/dev/null/items.jsonl"]);
    assert!(missing.contains("/dev/null/items.jsonl"), "{missing}");
    let unwritten = refused(&["--item-log", "/dev/null/items.jsonl"]);
    assert!(unwritten.contains("can't write /dev/null/items.jsonl"), "{unwritten}");
}

/// A line that is no text is told by its number, and its row says why it is empty.
#[test]
fn lines_beside_one_that_is_no_text_are_embedded() {
    let folder = tempfile::tempdir().unwrap();
    let model = with_tokenizer(folder.path());
    let lines = folder.path().join("lines.txt");
    std::fs::write(&lines, b"one two three\n\ntw\xff\ntwo\n").unwrap();
    let args = ["embed", "--model", model, "--dtype", "f32", "--file", lines.to_str().unwrap()];
    let output = piecewise(&args);
    let errors = String::from_utf8(output.stderr).unwrap();
    let why = format!("line 3 of {} is no text: invalid utf-8", lines.display());
    assert!(errors.contains(&format!("error: text 2: {why}")), "{errors}");
    assert_eq!(output.status.code(), Some(1));
    let rows = String::from_utf8(output.stdout).unwrap();
    let rows: Vec<Value> = rows.lines().map(|row| serde_json::from_str(row).unwrap()).collect();
    assert_eq!(rows.len(), 3);
    assert!(rows[1]["error"].as_str().unwrap().starts_with(&why), "{}", rows[1]);
    let alone =
        vectors(&stdout_of(&["embed", "--model", model, "--dtype", "f32", "--text", "two"]));
    let beside: Vec<f32> = serde_json::from_value(rows[2]["embedding"].clone()).unwrap();
    assert_eq!(alone[0], beside);
}

/// More texts than one call takes: every one is there, in its place.
#[test]
fn more_texts_than_a_call_takes_keep_their_order() {
    let folder = tempfile::tempdir().unwrap();
    let model = with_tokenizer(folder.path());
    let (lines, log) = (folder.path().join("lines.txt"), folder.path().join("items.jsonl"));
    let text = |i: usize| ["one", "two", "three"].repeat(4)[i % 3..][..1 + i % 7].join(" ");
    let texts = Vec::from_iter((0..1100).map(text));
    std::fs::write(&lines, texts.join("\n")).unwrap();
    let [lines, log] = [&lines, &log].map(|file| file.to_str().unwrap());
    let found = stdout_of(&[
        "embed",
        "--model",
        model,
        "--dtype",
        "f32",
        "--file",
        lines,
        "--item-log",
        log,
    ]);
    let objects = Vec::from_iter(found.lines().map(|line| serde_json::from_str(line).unwrap()));
    let said = objects.iter().map(|object: &Value| object["text"].as_str().unwrap());
    assert!(said.eq(texts.iter().map(String::as_str)));
    let vectors = vectors(&found);
    // 21 texts that differ, again and again.
    for (i, vector) in vectors.iter().enumerate().skip(21) {
        assert!(*vector == vectors[i % 21], "text {i}");
    }
    assert!(vectors[..21].iter().enumerate().all(|(i, x)| !vectors[..i].contains(x)));
    let calls = std::fs::read_to_string(log).unwrap();
    let items = calls.lines().map(|line| {
        let call: Value = serde_json::from_str(line).unwrap();
        call["tokens"].as_array().unwrap().len()
    });
    assert_eq!(Vec::from_iter(items), [1024, 76]);
}

#[test]
fn what_cannot_be_embedded_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let model = with_tokenizer(folder.path());
    let said = |more: &[&str]| error_of(&[&["embed", "--model", model][..], more].concat());
    assert!(said(&[]).contains("nothing to embed"));
    assert!(said(&["--text", "one", "--out", "a.csv"]).contains("end it in .npy"));
    assert!(said(&["--file", "/dev/null/lines.txt"]).contains("can't read /dev/null/lines.txt"));
    let partly = |model: &str, texts: &[&str]| {
        let mut args = vec!["embed", "--model", model];
        texts.iter().for_each(|text| args.extend(["--text", text]));
        let output = piecewise(&args);
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap() + &String::from_utf8(output.stdout).unwrap()
    };
    assert!(partly(BERT, &["a text"]).contains("no tokenizer.json"));
    let long = "one ".repeat(65);
    let found = partly(model, &["one two", &long, "", "two"]);
    assert!(found.contains("text 2: 65 tokens, but the model reads at most 64"), "{found}");
    assert!(found.contains("text 3: the prompt \"\" has no tokens"), "{found}");
    assert_eq!(found.matches("\"embedding\":[").count(), 2, "{found}");
    let decoder = error_of(&["embed", "--model", "tests/fixtures/llama3", "--text", "one"]);
    assert!(decoder.contains("llama3 writes text and has no embeddings"), "{decoder}");
    let unknown = folder.path().join("config.json");
    std::fs::write(&unknown, "{\"model_type\": \"gpt2\"}").unwrap();
    let unknown = said(&["--text", "one"]);
    assert!(unknown.contains("`model_type`") && unknown.contains("modernbert"), "{unknown}");
}
