//! `generate --image`: the tokens of the reference, and what is refused.

use crate::support::cli::{device_flags, error_of, root, stdout_of};
use safetensors::SafeTensors;
use serde_json::Value;

const MODEL: &str = "tests/fixtures/qwen2_5_vl";
const IMAGE: &str = "tests/fixtures/encoders/images/b_wide.png";
const TALL: &str = "tests/fixtures/encoders/images/c_tall_alpha.png";

fn golden(name: &str) -> Vec<u32> {
    let bytes = std::fs::read(root().join(MODEL).join("golden.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let words = tensors.tensor(name).unwrap().data().as_chunks().0.to_vec();
    words.into_iter().map(u32::from_le_bytes).collect()
}

fn generate(more: &[&str]) -> Vec<Value> {
    let device = device_flags();
    let mut args = vec!["generate", "--model", MODEL, "--dtype", "f32", "--json", "--ignore-eos"];
    args.extend(device.iter().map(String::as_str));
    args.extend(["--max-tokens", "16", "--max-seq-len", "128"].iter().chain(more));
    let objects = stdout_of(&args);
    objects.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn ids(object: &Value, key: &str) -> Vec<u32> {
    serde_json::from_value(object[key].clone()).unwrap()
}

#[test]
fn tokens_after_an_image_equal_the_reference() {
    let prompt = ["--image", IMAGE, "--prompt", "one two three"];
    let chunks = ["--max-num-tokens", "9"];
    let replays = ["--capture-num-tokens", "8,32", "--check", "compare,poison"];
    for more in [&[][..], &["--graph-mode", "none"], &["--graph-mode", "full"], &chunks, &replays] {
        let found = generate(&[&prompt[..], more].concat());
        assert_eq!(ids(&found[0], "prompt_ids"), golden("ids_3"), "{more:?}");
        assert_eq!(ids(&found[0], "ids"), golden("greedy_3"), "{more:?}");
    }
}

#[test]
fn every_prompt_has_the_images_where_it_says() {
    let alone = generate(&["--image", IMAGE, "--prompt", "one two three"]);
    let placed = "<|vision_start|><|image_pad|><|vision_end|>one two three";
    let found = generate(&["--image", IMAGE, "--prompt", placed, "--prompt", "four"]);
    assert_eq!(ids(&found[0], "ids"), ids(&alone[0], "ids"));
    assert_eq!(ids(&found[0], "prompt_ids"), ids(&alone[0], "prompt_ids"));
    assert_eq!(ids(&found[1], "prompt_ids").len(), golden("ids_3").len() - 2);
    // Two images, and a second turn that goes on after them.
    let turn = ["--prompt", "one", "--then", "two"];
    let found = generate(&[&["--image", IMAGE, TALL][..], &turn].concat());
    assert_eq!(found.len(), 2);
    let places = ids(&found[0], "prompt_ids").iter().filter(|&&id| id == 91).count();
    assert_eq!((places, ids(&found[1], "prompt_ids")), (2, vec![6]));
    assert_eq!(ids(&found[1], "ids").len(), 16);
}

#[test]
fn the_plan_for_images_is_dumped_beside_the_decoders() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_str().unwrap();
    let flags = ["--dump-dir", dir, "--dump-pieces", "u0"];
    generate(&[&["--image", IMAGE, "--prompt", "one"][..], &flags].concat());
    let plan = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    assert_ne!(plan("plan.pw"), plan("images/plan.pw"));
    assert!(folder.path().join("images/kernels/u0").is_dir());
}

#[test]
fn images_that_a_model_does_not_take_are_named() {
    let said = |model: &str, image: &str, prompt: &str| {
        error_of(&["generate", "--model", model, "--image", image, "--prompt", prompt])
    };
    let text = said("examples/tiny-qwen3", IMAGE, "def");
    assert!(text.contains("reads text alone"), "{text}");
    let none = said(MODEL, "Cargo.toml", "one");
    assert!(none.contains("Cargo.toml") && none.contains("it is no image"), "{none}");
    let missing = said(MODEL, "/dev/null/cat.png", "one");
    assert!(missing.contains("can't read /dev/null/cat.png"), "{missing}");
    let places = said(MODEL, IMAGE, "<|image_pad|> one <|image_pad|>");
    assert!(places.contains("2 places for images, but 1 images are given"), "{places}");
    let tower = said("tests/fixtures/encoders/siglip", IMAGE, "one");
    assert!(tower.contains("`model_type`") && tower.contains("siglip"), "{tower}");
}
