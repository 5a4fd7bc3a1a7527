//! `encode`: every fixture against its reference, alone and packed, and what is refused.

use crate::bounded::Bound;
use crate::embed::with_tokenizer;
use crate::support::cache::{checked, json};
use crate::support::cli::{
    command, device_flags, error_of, norm_error, piecewise, root, stdout_of,
};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use std::path::Path;

const FIXTURES: &str = "tests/fixtures/encoders";
/// What the names of outputs begin with.
const OUTPUTS: [&str; 6] =
    ["last_hidden_state", "pooler_output", "embedding", "embeds", "deepstack", "logits"];

fn floats(tensors: &SafeTensors<'_>, name: &str) -> Vec<f32> {
    let data = tensors.tensor(name).unwrap_or_else(|_| panic!("no {name}")).data();
    data.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
}

/// Encodes the inputs beside the reference outputs of a fixture and compares what comes out.
fn equals_its_reference(name: &str, outputs: usize) {
    let model = format!("{FIXTURES}/{name}");
    let golden = root().join(&model).join("golden.safetensors");
    let bytes = std::fs::read(&golden).unwrap();
    let expected = SafeTensors::deserialize(&bytes).unwrap();
    let is_output = |name: &&String| {
        OUTPUTS.iter().any(|output| name.starts_with(output)) && !name.contains("_all")
    };
    let names = Vec::from_iter(expected.names().into_iter().map(str::to_owned));
    let names = Vec::from_iter(names.iter().filter(is_output));
    assert_eq!(names.len(), outputs, "{name}: {names:?}");
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.safetensors");
    for (dtype, tolerance) in [("f32", 2e-5), ("bf16", 2e-2)] {
        for more in [
            &[][..],
            &["--one-by-one"],
            &["--capture-num-tokens", "16,512"],
            // Attention is in the graph of the whole step, though steps are split at it.
            &["--graph-mode", "full"],
            // Of sizes that no item has, and the largest alone.
            &["--capture-num-tokens", "9,40,75,150,300"],
            &["--capture-num-tokens", "512"],
        ] {
            let flags = device_flags();
            let files = ["--inputs", golden.to_str().unwrap(), "--out", out.to_str().unwrap()];
            let mut args = vec!["encode", "--model", &model, "--dtype", dtype];
            args.extend(files.iter().chain(more).copied());
            args.extend(flags.iter().map(String::as_str));
            // One cache for all of them: on CUDA kernels are what takes time.
            let output = checked(
                command(&folder.path().join("cache")).args(&args).bounded_output().unwrap(),
            );
            assert!(output.stdout.is_empty());
            let bytes = std::fs::read(&out).unwrap();
            let found = SafeTensors::deserialize(&bytes).unwrap();
            for name in &names {
                let shape =
                    |tensors: &SafeTensors<'_>| tensors.tensor(name).unwrap().shape().to_vec();
                assert_eq!(shape(&found), shape(&expected), "{args:?}: {name}");
                let error = norm_error(&floats(&found, name), &floats(&expected, name));
                assert!(error < tolerance, "{args:?}: {name} is off by {error}");
            }
        }
    }
}

/// A graph is captured for each budget, whole, though attention is a step of its own in it; pieces are
/// what is asked for.
#[test]
fn steps_that_are_split_at_attention_are_one_graph_a_budget() {
    let folder = tempfile::tempdir().unwrap();
    for (name, budgets) in [("bert", 4), ("siglip", 5), ("qwen2_5_vl_vision", 4)] {
        let model = format!("{FIXTURES}/{name}");
        let captured = |flags: &[&str]| {
            let dir = folder.path().join(format!("{name}{}", flags.len()));
            let inspect = ["inspect", "--model", &model, "--dump-dir", dir.to_str().unwrap()];
            let said = stdout_of(&[&inspect[..], flags].concat());
            let names = std::fs::read_dir(dir.join("captured")).unwrap();
            let names = names.map(|file| file.unwrap().file_name().into_string().unwrap());
            (said, Vec::from_iter(names))
        };
        let (said, graphs) = captured(&[]);
        let line = |title: &str| {
            let line = said.lines().find_map(|line| line.strip_prefix(title));
            line.unwrap_or_else(|| panic!("{name}: no {title} in {said}")).trim().to_owned()
        };
        assert_eq!(line("graph mode"), "full", "{name}");
        assert_eq!(line("split ops"), "4", "{name}");
        assert_eq!(graphs.len(), budgets, "{name}: {graphs:?}");
        assert!(graphs.iter().all(|graph| graph.starts_with("full-at-")), "{name}: {graphs:?}");
        let (said, graphs) = captured(&["--graph-mode", "piecewise"]);
        assert!(said.lines().any(|line| line == "graph mode   piecewise"), "{said}");
        assert!(graphs.iter().all(|graph| !graph.starts_with("full-at-")), "{name}: {graphs:?}");
    }
}

#[test]
fn bert_equals_its_reference() {
    equals_its_reference("bert", 12);
}

#[test]
fn xlm_roberta_equals_its_reference() {
    equals_its_reference("xlm_roberta", 12);
}

#[test]
fn a_cross_encoder_equals_its_reference() {
    equals_its_reference("cross_encoder", 3);
}

#[test]
fn a_cross_encoder_of_several_labels_equals_its_reference() {
    equals_its_reference("xlm_roberta_scores", 4);
}

#[test]
fn modernbert_equals_its_reference() {
    equals_its_reference("modernbert", 8);
}

#[test]
fn qwen3_embedding_equals_its_reference() {
    equals_its_reference("qwen3_embedding", 6);
}

#[test]
fn siglip_equals_its_reference() {
    equals_its_reference("siglip", 2);
}

#[test]
fn clip_equals_its_reference() {
    equals_its_reference("clip", 2);
}

#[test]
fn vit_equals_its_reference() {
    equals_its_reference("vit", 2);
}

#[test]
fn qwen2_5_vl_equals_its_reference() {
    equals_its_reference("qwen2_5_vl_vision", 4);
}

#[test]
fn qwen3_vl_equals_its_reference() {
    equals_its_reference("qwen3_vl_vision", 12);
}

#[test]
fn a_tower_without_a_pooler_writes_its_rows_alone() {
    for (name, pooler) in [("siglip", "head."), ("vit", "pooler.")] {
        let fixture = root().join(FIXTURES).join(name);
        let folder = tempfile::tempdir().unwrap();
        let bytes = std::fs::read(fixture.join("model.safetensors")).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap().tensors();
        let kept = tensors.into_iter().filter(|(name, _)| !name.starts_with(pooler));
        let file = folder.path().join("model.safetensors");
        safetensors::serialize_to_file(kept, None, &file).unwrap();
        let config = std::fs::read_to_string(fixture.join("config.json")).unwrap();
        let mut config: serde_json::Value = serde_json::from_str(&config).unwrap();
        if name == "siglip" {
            config["vision_use_head"] = false.into();
        }
        std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        let (golden, out) = (fixture.join("golden.safetensors"), folder.path().join("out"));
        let [model, inputs, to] = [folder.path(), &golden, &out].map(|path| path.to_str().unwrap());
        let args = ["encode", "--model", model, "--inputs", inputs, "--out", to, "--dtype", "f32"];
        checked(piecewise(&args));
        let (found, expected) = (std::fs::read(&out).unwrap(), std::fs::read(&golden).unwrap());
        let found = SafeTensors::deserialize(&found).unwrap();
        let expected = SafeTensors::deserialize(&expected).unwrap();
        let rows = "last_hidden_state";
        assert_eq!(found.names(), [rows], "{name}");
        assert!(norm_error(&floats(&found, rows), &floats(&expected, rows)) < 2e-5, "{name}");
    }
}

/// Writes tensors by name, type, shape and little-endian elements.
fn file(folder: &Path, tensors: &[(&str, Dtype, &[usize], Vec<u8>)]) -> String {
    let views = tensors.iter().map(|(name, dtype, shape, data)| {
        (*name, TensorView::new(*dtype, shape.to_vec(), data).unwrap())
    });
    let path = folder.join("inputs.safetensors");
    safetensors::serialize_to_file(views, None, &path).unwrap();
    path.to_str().unwrap().to_owned()
}

fn ints(values: &[i32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

#[test]
fn inputs_that_are_none_are_named_and_nothing_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.safetensors");
    let said = |model: &str, inputs: &str| {
        let model = format!("{FIXTURES}/{model}");
        let out = out.to_str().unwrap();
        let args = ["encode", "--model", &model, "--inputs", inputs, "--out", out];
        let said = error_of(&args);
        assert!(!Path::new(out).exists(), "{said}");
        said
    };
    let of = |model: &str, tensors: &[(&str, Dtype, &[usize], Vec<u8>)]| {
        said(model, &file(folder.path(), tensors))
    };
    let all = [
        said("bert", "/dev/null/items.safetensors"),
        said("bert", "Cargo.toml"),
        said("../llama3", "Cargo.toml"),
        of("bert", &[]),
        of("bert", &[("ids_01", Dtype::I32, &[1], ints(&[7])), ("ids", Dtype::I32, &[0], vec![])]),
        of("bert", &[("ids_0", Dtype::F32, &[1], ints(&[7]))]),
        of("bert", &[("ids_0", Dtype::I32, &[0], vec![])]),
        of("bert", &[("ids_0", Dtype::I32, &[1, 1], ints(&[7]))]),
        of("bert", &[("ids_0", Dtype::I32, &[2], ints(&[7, -1]))]),
        of("siglip", &[("ids_0", Dtype::I32, &[1], ints(&[7]))]),
        of("siglip", &[("pixel_values", Dtype::I32, &[1, 3, 1, 1], ints(&[7; 3]))]),
        of("siglip", &[("pixel_values", Dtype::F32, &[0, 3, 48, 48], vec![])]),
        of("siglip", &[("pixel_values", Dtype::F32, &[1, 3, 2, 4], ints(&[0; 24]))]),
        of("siglip", &[("pixel_values", Dtype::F32, &[2, 4], ints(&[0; 8]))]),
        of("qwen2_5_vl_vision", &[("pixel_values", Dtype::F32, &[2, 4], ints(&[0; 8]))]),
        of("qwen2_5_vl_vision", &[("pixel_values_0", Dtype::F32, &[2, 4], ints(&[0; 8]))]),
        of(
            "qwen2_5_vl_vision",
            &[
                ("pixel_values_0", Dtype::F32, &[2, 4], ints(&[0; 8])),
                ("grid_thw", Dtype::I32, &[3], ints(&[1, 2, 2])),
            ],
        ),
    ];
    let folder = folder.path().to_str().unwrap();
    insta::assert_snapshot!(
        all.join("").replace(folder, "DIR").replace(root().to_str().unwrap(), "ROOT")
    );
}

#[test]
fn a_bad_item_leaves_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.safetensors");
    let encode = |model: &str, tensors: &[(&str, Dtype, &[usize], Vec<u8>)]| {
        let inputs = file(folder.path(), tensors);
        let model = format!("{FIXTURES}/{model}");
        let out = out.to_str().unwrap();
        let output = piecewise(&["encode", "--model", &model, "--inputs", &inputs, "--out", out]);
        assert!(!output.status.success());
        let bytes = std::fs::read(out).unwrap();
        let mut names = Vec::new();
        for name in SafeTensors::deserialize(&bytes).unwrap().names() {
            names.push(name.to_owned());
        }
        names.sort_unstable();
        format!("{}wrote {}\n", String::from_utf8(output.stderr).unwrap(), names.join(", "))
    };
    let good = ints(&[7, 8, 9]);
    let texts = encode(
        "bert",
        &[
            ("ids_0", Dtype::I32, &[3], good.clone()),
            ("ids_2", Dtype::I32, &[65], ints(&[7; 65])),
            ("ids_3", Dtype::I64, &[1], 9999i64.to_le_bytes().to_vec()),
            ("ids_10", Dtype::I64, &[1], 7i64.to_le_bytes().to_vec()),
            ("ids_11", Dtype::I32, &[3], good.clone()),
            ("token_types_11", Dtype::I32, &[1], ints(&[1])),
            ("ids_12", Dtype::I32, &[3], good.clone()),
            ("token_types_12", Dtype::I32, &[3], ints(&[0, 1, 2])),
            ("ids_13", Dtype::F32, &[3], good),
        ],
    );
    let zeros = |patches: usize| ints(&vec![0; patches * 216]);
    let grids = [[1, 4, 4], [1, 4, 6], [-1, 4, 4], [1, 3, 4], [1 << 30, 1 << 30, 1 << 30]];
    let images = encode(
        "qwen2_5_vl_vision",
        &[
            ("grid_thw", Dtype::I32, &[5, 3], ints(grids.as_flattened())),
            ("pixel_values_0", Dtype::F32, &[16, 216], zeros(16)),
            ("pixel_values_1", Dtype::F32, &[16, 216], zeros(16)),
            ("pixel_values_2", Dtype::F32, &[16, 216], zeros(16)),
            ("pixel_values_3", Dtype::F32, &[12, 216], zeros(12)),
            ("pixel_values_4", Dtype::F32, &[4, 216], zeros(4)),
            ("pixel_values_5", Dtype::F32, &[4, 216], zeros(4)),
        ],
    );
    insta::assert_snapshot!(texts + &images);
}

/// Which steps take a video, by the statistics.
#[test]
fn videos_are_launched_where_no_frames_are_captured() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.safetensors");
    // No two frames are alike.
    let pixels = |patches: usize| -> Vec<u8> {
        let value = |i: usize| ((i * 37 + i / 216) % 101) as f32 / 50.0 - 1.0;
        (0..patches * 216).flat_map(|i| value(i).to_le_bytes()).collect()
    };
    let grids = [[1, 4, 4], [2, 4, 4]];
    let inputs = file(
        folder.path(),
        &[
            ("grid_thw", Dtype::I32, &[2, 3], ints(grids.as_flattened())),
            ("pixel_values_0", Dtype::F32, &[16, 216], pixels(16)),
            ("pixel_values_1", Dtype::F32, &[32, 216], pixels(32)),
        ],
    );
    let model = format!("{FIXTURES}/qwen2_5_vl_vision");
    let cache = folder.path().join("cache");
    let said = |more: &[&str]| {
        let args = ["encode", "--model", &model, "--inputs", &inputs, "--stats"];
        let files = ["--out", out.to_str().unwrap()];
        let output = command(&cache).args(args).args(files).args(more).bounded_output().unwrap();
        let said = String::from_utf8(checked(output).stderr).unwrap();
        (said, std::fs::read(&out).unwrap())
    };
    let (all, packed) = said(&["--dtype", "f32"]);
    assert!(all.contains("1 steps, 1 replayed; items: 2 hits, 0 misses"), "{all}");
    let (apart, replayed) = said(&["--dtype", "f32", "--max-num-frames", "2"]);
    assert!(apart.contains("2 steps, 2 replayed; items: 2 hits, 0 misses"), "{apart}");
    let (none, launched) = said(&["--dtype", "f32", "--max-num-frames", "0"]);
    assert!(none.contains("2 steps, 1 replayed; items: 1 hits, 1 misses"), "{none}");
    assert!(none.contains("launched: 1 items, too_many_frames"), "{none}");
    let [packed, replayed, launched] =
        [&packed, &replayed, &launched].map(|bytes| SafeTensors::deserialize(bytes).unwrap());
    let names = packed.names();
    assert!(names.len() >= 2, "{names:?}");
    for name in names {
        let expected = floats(&packed, name);
        assert!(expected.iter().all(|value| value.is_finite()), "{name}");
        assert!(expected.iter().any(|value| *value != expected[0]), "{name} is one value");
        for (how, found) in [("replayed", &replayed), ("launched", &launched)] {
            let error = norm_error(&floats(found, name), &expected);
            assert!(error < 2e-5, "{name}, {how}, is off by {error}");
        }
    }
}

/// Files alone, packed, and beside some that are no images.
#[test]
fn images_are_encoded_as_the_tensors_that_they_become() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.safetensors");
    let out = out.to_str().unwrap();
    let image = |name: &str| root().join(FIXTURES).join("images").join(name);
    let (wide, tall) = (image("b_wide.png"), image("c_tall_alpha.png"));
    let cut = folder.path().join("cut.png");
    std::fs::write(&cut, &std::fs::read(&wide).unwrap()[..3000]).unwrap();
    let files =
        [wide.to_str().unwrap(), "Cargo.toml", tall.to_str().unwrap(), cut.to_str().unwrap()];
    let mut said = String::new();
    for model in ["clip", "qwen2_5_vl_vision"] {
        let model = format!("{FIXTURES}/{model}");
        let encode = |args: &[&str]| {
            let args = [&["encode", "--model", &model, "--dtype", "f32", "--out", out], args];
            let output = piecewise(&args.concat());
            let bytes = std::fs::read(out).unwrap();
            std::fs::remove_file(out).unwrap();
            (String::from_utf8(output.stderr).unwrap(), output.status.success(), bytes)
        };
        // The reference's pixels of the same files, which are numbers 1 and 2 there.
        let golden = std::fs::read(root().join(&model).join("images.safetensors")).unwrap();
        let golden = SafeTensors::deserialize(&golden).unwrap();
        let tensor = |name: &str| golden.tensor(name).unwrap();
        let pixels = ["pixel_values_1", "pixel_values_2"];
        let inputs = match golden.tensor("grid_thw") {
            Ok(grids) => {
                let own = pixels.map(|name| (name, tensor(name)));
                let tensors = [own[0].clone(), own[1].clone(), ("grid_thw", grids)];
                safetensors::serialize(tensors, None).unwrap()
            }
            Err(_) => {
                let data = pixels.map(|name| tensor(name).data().to_vec()).concat();
                let view = TensorView::new(Dtype::F32, vec![2, 3, 48, 48], &data).unwrap();
                safetensors::serialize([("pixel_values", view)], None).unwrap()
            }
        };
        let file = folder.path().join("pixels.safetensors");
        std::fs::write(&file, inputs).unwrap();
        let (errors, is_good, expected) = encode(&["--inputs", file.to_str().unwrap()]);
        assert!(is_good, "{errors}");
        let expected = SafeTensors::deserialize(&expected).unwrap();
        let (errors, is_good, found) = encode(&[&["--image"][..], &files].concat());
        assert!(!is_good);
        said.push_str(&errors);
        let found = SafeTensors::deserialize(&found).unwrap();
        let equal = |found: &[f32], expected: &[f32]| {
            assert!(norm_error(found, expected) < 1e-6, "{model}");
        };
        if model.ends_with("clip") {
            for (name, item) in [("pooler_output", 96), ("last_hidden_state", 37 * 96)] {
                let (found, expected) = (floats(&found, name), floats(&expected, name));
                assert_eq!(found.len(), 4 * item);
                equal(&found[..item], &expected[..item]);
                equal(&found[2 * item..3 * item], &expected[item..]);
                let missing = found[item..2 * item].iter().chain(&found[3 * item..]);
                assert!(missing.copied().all(f32::is_nan));
            }
        } else {
            assert_eq!(found.len(), 2);
            equal(&floats(&found, "embeds_0"), &floats(&expected, "embeds_1"));
            equal(&floats(&found, "embeds_2"), &floats(&expected, "embeds_2"));
        }
    }
    let text = error_of(&[
        "encode",
        "--model",
        "tests/fixtures/encoders/bert",
        "--image",
        files[0],
        "--out",
        out,
    ]);
    said.push_str(&text);
    insta::assert_snapshot!(said.replace(folder.path().to_str().unwrap(), "DIR"));
}

/// What `compile` fills a cache with, a run finds there; `inspect` shows the same pieces.
#[test]
fn encoders_are_compiled_ahead_of_time_and_inspected() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache");
    let run = |args: &[&str]| checked(command(&cache).args(args).bounded_output().unwrap());
    for model in ["bert", "modernbert", "qwen3_embedding", "cross_encoder"] {
        let model = format!("{FIXTURES}/{model}");
        let counts = json(&run(&["compile", "--model", &model, "--json"]));
        assert!(counts["compiled"]["piece"].as_u64().unwrap() > 0, "{counts}");
        let again = json(&run(&["compile", "--model", &model, "--json"]));
        assert_eq!(again["compiled"], serde_json::json!({}), "{again}");
        let shown = json(&run(&["inspect", "--model", &model, "--json"]));
        assert!(shown["unique_pieces"].as_u64().unwrap() > 0, "{shown}");
        assert!(shown["graph"].as_str().unwrap().contains("text_encoder"), "{shown}");
    }
    for model in ["siglip", "qwen2_5_vl_vision"] {
        let model = format!("{FIXTURES}/{model}");
        let shown = json(&run(&["inspect", "--model", &model, "--json"]));
        assert!(shown["graph"].as_str().unwrap().contains("vision_encoder"), "{shown}");
    }
    let entries = || {
        let entries = walk(&cache).into_iter().filter(|file| file.is_file());
        entries.count()
    };
    let before = entries();
    let model = with_tokenizer(folder.path());
    run(&["embed", "--model", model, "--text", "one two"]);
    assert_eq!(entries(), before, "the run compiled what was there");
}

/// Everything below a folder.
fn walk(folder: &Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path] }).collect()
}
