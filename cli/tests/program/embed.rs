//! `embed`: the formats, the same numbers however texts share steps, and what is refused.

use crate::support::cli::{device_flags, error_of, norm_error, piecewise, root, stdout_of};
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

/// On the device of PIECEWISE_TEST_DEVICE: packed, and each alone.
#[test]
fn families_have_the_embeddings_of_their_references_on_the_device() {
    for name in ["bert", "modernbert", "qwen3_embedding"] {
        let model = format!("tests/fixtures/encoders/{name}");
        let bytes = std::fs::read(root().join(&model).join("golden.safetensors")).unwrap();
        let golden = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let words = |name: &str| -> Option<Vec<[u8; 4]>> {
            let data = golden.tensor(name).ok()?.data();
            Some(data.chunks_exact(4).map(|word| word.try_into().unwrap()).collect())
        };
        let ids: Vec<String> = (0..)
            .map_while(|i| words(&format!("ids_{i}")))
            .map(|ids| ids.into_iter().map(|id| i32::from_le_bytes(id).to_string()))
            .map(|ids| Vec::from_iter(ids).join(","))
            .collect();
        // A BERT's types of these items are not all 0.
        let items = Vec::from_iter((0..ids.len()).filter(|i| {
            let types = words(&format!("token_types_{i}")).unwrap_or_default();
            types.iter().all(|ty| *ty == [0; 4])
        }));
        assert!(items.len() >= 2);
        for (dtype, tolerance) in [("f32", 2e-5), ("bf16", 2e-2)] {
            for more in [&[][..], &["--one-by-one"], &["--graph-mode", "none"]] {
                let flags = device_flags();
                let mut args = vec!["embed", "--model", &model, "--dtype", dtype];
                args.extend(flags.iter().map(String::as_str));
                args.extend(["--max-num-tokens", "128"].iter().chain(more));
                items.iter().for_each(|&i| args.extend(["--ids", &ids[i]]));
                for (&i, found) in items.iter().zip(vectors(&stdout_of(&args))) {
                    let expected = words(&format!("embedding_{i}")).unwrap();
                    let expected = Vec::from_iter(expected.into_iter().map(f32::from_le_bytes));
                    let error = norm_error(&found, &expected);
                    assert!(error < tolerance, "{args:?}: item {i} is off by {error}");
                }
            }
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
