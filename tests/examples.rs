//! Every example runs and shows what its text promises.

use crate::bounded::Bound as _;
use piecewise::prelude::{DecoderConfig, TextTokenizer};
use safetensors::SafeTensors;
use std::path::Path;
use std::process::Command;

/// What an example prints; its failure fails the test.
fn output_of(example: &str) -> String {
    output_on("cpu", example)
}

fn output_on(device: &str, example: &str) -> String {
    output_with(&["--device", device], example)
}

fn output_with(flags: &[&str], example: &str) -> String {
    // target/PROFILE/deps/THIS
    let this = std::env::current_exe().unwrap();
    let program = this.ancestors().nth(2).unwrap().join("examples").join(example);
    assert!(program.exists(), "{} is not built; run all of `cargo test`", program.display());
    let output = Command::new(program).args(flags).bounded_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{example} failed:\n{errors}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn author_a_model_fuses_its_own_norm_and_gate_and_replays() {
    let shown = output_of("author_a_model");
    assert!(shown.contains("3 layers are 7 regions and 6 matmuls"), "{shown}");
    for (rows, size) in [(1, 1), (5, 8), (64, 64)] {
        let line = format!("{rows} rows ran piecewise at size {size}:");
        assert!(shown.contains(&line), "{shown}");
    }
}

/// What `examples/from_pytorch.py` prints, by torch 2.15, is what its port prints, and what the reference
/// of the model has.
#[test]
fn from_pytorch_writes_what_the_model_in_pytorch_writes() {
    let shown = output_of("from_pytorch");
    let reference = "def __init__(self, config):\n        super().__init__(config)\n        \
                     self.config = config\n        self.layer = nn.Module\n";
    assert_eq!(shown, reference);
}

#[test]
fn gated_convolution_goes_on_from_step_to_step() {
    let shown = output_of("gated_convolution");
    assert_eq!(shown.matches(" tokens, alone and in company: [").count(), 3, "{shown}");
}

#[test]
fn suspend_goes_on_without_a_capture() {
    let shown = output_of("suspend");
    assert!(shown.contains("request 0: 12 tokens in"), "{shown}");
}

const RUNNING_SUMS: &str = "split: 2 captured pieces, 1 split ops\n\
                            inside: 1 captured pieces, 0 split ops\n\
                            after 3 rows: [1.5, 1.5, 1.5, 1.5]\n\
                            after 1 rows: [3.5, 3.5, 3.5, 3.5]\n\
                            after 5 rows: [3.5, 3.5, 3.5, 3.5]\n";

#[test]
fn custom_op_runs_between_pieces_and_inside_one_and_keeps_its_state() {
    assert_eq!(output_of("custom_op"), RUNNING_SUMS);
}

/// On a GPU by its kernel, elsewhere on the CPU: the same numbers.
#[test]
fn custom_op_runs_on_whatever_there_is() {
    assert_eq!(output_on("auto", "custom_op"), RUNNING_SUMS);
}

#[test]
fn custom_pass_replaces_the_exact_division_and_says_why_it_left_the_other() {
    let shown = output_of("custom_pass");
    assert!(shown.contains("literal [0.5]"), "{shown}");
    assert!(shown.contains("mul %x,"), "{shown}");
    assert!(shown.contains("1 division replaced\nv5 = div at third: no division by"), "{shown}");
}

#[test]
fn two_path_encoder_replays_launches_and_skips_each_path_apart() {
    let shown = output_of("two_path_encoder");
    assert!(
        shown.contains("page: 2 steps, 2 replayed; items: 5 hits, 0 misses, 0 skipped"),
        "{shown}"
    );
    let tiles = "tiles: 2 steps, 1 replayed; items: 2 hits, 1 misses, 2 skipped";
    assert!(shown.contains(tiles), "{shown}");
    assert!(shown.contains("launched: 1 items, above_largest_size"), "{shown}");
    assert!(shown.contains("within 1e-5 of the reference"), "{shown}");
}

#[test]
fn encoders_embed_texts_and_go_on_after_an_image_as_the_reference_does() {
    let flags = ["--embedder", "encoders/sentence_folder", "--decoder", "qwen2_5_vl"];
    let flags = [&flags[..], &["--image", "encoders/images/b_wide.png"]].concat();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let path = |name: &str| fixtures.join(name).display().to_string();
    let flags = flags.chunks_exact(2).flat_map(|flag| [flag[0].to_owned(), path(flag[1])]);
    let flags = Vec::from_iter(flags);
    let shown = output_with(&Vec::from_iter(flags.iter().map(String::as_str)), "encoders");
    fn list<T: serde::de::DeserializeOwned>(line: &str) -> Vec<T> {
        serde_json::from_str(line.split_once(": ").unwrap().1).unwrap()
    }
    let lines = Vec::from_iter(shown.lines());
    let [first, second, tokens] = lines[..] else { panic!("{shown}") };
    for line in [first, second] {
        let embedding: Vec<f32> = list(line);
        assert_eq!(embedding.len(), 48);
        let square = embedding.iter().map(|x| x * x).sum::<f32>();
        assert!((square - 1.0).abs() < 1e-4, "{square}");
    }
    let golden = std::fs::read(fixtures.join("qwen2_5_vl/golden.safetensors")).unwrap();
    let golden = SafeTensors::deserialize(&golden).unwrap().tensor("greedy_3").unwrap();
    let golden = golden.data().as_chunks().0.iter().map(|&bytes| u32::from_le_bytes(bytes));
    assert_eq!(list::<u32>(tokens), Vec::from_iter(golden));
}

#[test]
fn generate_text_continues_the_prompts_as_the_reference_does() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/tiny-qwen3");
    let golden: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(folder.join("golden.json")).unwrap())
            .unwrap();
    let config = DecoderConfig::load(&folder).unwrap();
    let tokenizer = TextTokenizer::load(&folder, config.vocab_size).unwrap();
    let prompt = "def __init__(self";
    let case = golden.as_array().unwrap().iter().find(|case| case["prompt"] == prompt).unwrap();
    let ids = ["ids", "greedy_fp32"].map(|key| case[key].as_array().unwrap());
    let ids: Vec<u32> =
        ids[0].iter().chain(&ids[1][..32]).map(|id| id.as_u64().unwrap() as u32).collect();
    let reference = tokenizer.decode(&ids).unwrap();
    let shown = output_of("generate_text");
    assert!(shown.starts_with(&format!("{reference}\n")), "{shown} instead of {reference}");
    assert!(shown.contains("full replays"), "{shown}");
}
