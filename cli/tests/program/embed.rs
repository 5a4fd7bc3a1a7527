//! `embed`: the formats, the same numbers however texts share steps, and what is refused.

use crate::support::cli::{error_of, piecewise, stdout_of};
use serde_json::Value;

const BERT: &str = "tests/fixtures/encoders/bert";
const IDS: [&str; 6] = ["--ids", "7,8,9", "--ids", "10", "--ids", "11,12,13,14,15"];

fn embed(more: &[&str]) -> String {
    stdout_of(
        &[&["embed", "--model", BERT, "--dtype", "f32", "--max-num-tokens", "64"], &IDS[..], more]
            .concat(),
    )
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
    let expected = vectors(&embed(&[]));
    assert_eq!((expected.len(), expected[0].len()), (3, 96));
    for vector in &expected {
        let norm: f32 = vector.iter().map(|x| x * x).sum();
        assert!((norm - 1.0).abs() < 1e-5, "{norm}");
    }
    assert_eq!(vectors(&embed(&["--one-by-one"])), expected);
    assert_eq!(vectors(&embed(&["--graph-mode", "none"])), expected);
    assert_eq!(vectors(&embed(&["--capture-num-tokens", "9,16,64"])), expected);

    let folder = tempfile::tempdir().unwrap();
    let bytes: Vec<u8> = expected.iter().flatten().flat_map(|x| x.to_le_bytes()).collect();
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

#[test]
fn what_cannot_be_embedded_is_named() {
    let model = ["embed", "--model", BERT];
    let said = |more: &[&str]| error_of(&[&model[..], more].concat());
    assert!(said(&[]).contains("nothing to embed"));
    assert!(said(&["--ids", "7,x"]).contains("a list of numbers"));
    assert!(said(&["--ids", "7", "--out", "a.csv"]).contains("end it in .npy"));
    let partly = |more: &[&str]| {
        let output = piecewise(&[&model[..], more].concat());
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap() + &String::from_utf8(output.stdout).unwrap()
    };
    assert!(partly(&["a text"]).contains("no tokenizer.json"));
    let said = partly(&["--ids", "7", "--ids", "9999"]);
    assert!(said.contains("text 2: token id 9999") && said.contains("\"embedding\":["), "{said}");
    let decoder = error_of(&["embed", "--model", "tests/fixtures/llama3", "--ids", "7"]);
    assert!(decoder.contains("`model_type`") && decoder.contains("modernbert"), "{decoder}");
}
