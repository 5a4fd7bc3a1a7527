//! Encoders of other shapes than the fixtures have, against a reference in f64 that shares nothing
//! with the library: odd heads, head dims such as 64, 72, 80 and 128, other windows, ragged ones.
//!
//! On the device of PIECEWISE_TEST_DEVICE, the CPU without it.

use crate::encoder_mixes::{device, kernels};
use crate::encoder_reference::{
    POSITIONS, Parameters, QwenKind, QwenTower, Rows, Shape, VOCAB, bert, modernbert, qwen3, vit,
};
use piecewise::encoding::{Encoder, ImageItem, ItemEncoder, TextEncoder, TextItem, VisionEncoder};
use piecewise::models::encoder::TextOutput;
use piecewise_ir::dtype::DType;
use piecewise_runtime::config::ConfigLayers;
use piecewise_testing::{Rng, norm_error};
use serde_json::{Value, json};
use std::path::Path;

fn layers(dtype: DType, sizes: &[u64]) -> ConfigLayers {
    ConfigLayers::new()
        .set("device", device())
        .and_then(|layers| layers.set("dtype", dtype.name()))
        .and_then(|layers| layers.set("capture_num_tokens", sizes))
        .and_then(|layers| layers.set("max_num_tokens", 192))
        .and_then(|layers| layers.set("max_num_seqs", 8))
        .and_then(|layers| layers.set("checks.poison", true))
        .and_then(|layers| layers.set("cache.dir", kernels()))
        .unwrap()
}

/// Alone and together, in f32 and bf16, and each time the same bits.
fn equals<M: ItemEncoder>(
    what: &str,
    load: impl Fn(ConfigLayers) -> Encoder<M>,
    items: &[M::Item],
    expected: &[Vec<Rows>],
) {
    for (dtype, tolerance) in [(DType::F32, 2e-5), (DType::BF16, 2e-2)] {
        let mut encoder = load(layers(dtype, &[5, 24, 192]));
        let mut bits = None;
        for alone in [true, false] {
            encoder.one_by_one(alone);
            let outputs = encoder.encode(items).into_iter();
            let outputs = Vec::from_iter(outputs.map(Result::unwrap));
            for (i, (outputs, expected)) in outputs.iter().zip(expected).enumerate() {
                assert_eq!(outputs.len(), expected.len(), "{what}");
                for (j, (found, expected)) in outputs.iter().zip(expected).enumerate() {
                    let found = Vec::from_iter(found.iter().map(|&x| f64::from(x)));
                    let error = norm_error(&found, &expected.concat());
                    let at = format!("{what} in {dtype}, item {i}, output {j}, alone: {alone}");
                    assert!(error < tolerance, "{at}: off by {error}");
                }
            }
            let same = *bits.get_or_insert_with(|| outputs.clone()) == outputs;
            assert!(same, "{what} in {dtype}: other bits in company");
        }
        assert!(encoder.statistics().paths[0].hits > 0);
    }
}

/// A checkpoint of the parameters that a reference has asked for.
fn folder(config: &Value, parameters: &Parameters) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).unwrap();
    write("model.safetensors", &parameters.file());
    write("config.json", config.to_string().as_bytes());
    folder
}

/// A BERT of random weights.
pub(crate) fn bert_folder(shape: Shape) -> (tempfile::TempDir, Parameters) {
    let parameters = Parameters::new(1);
    let config = json!({
        "model_type": "bert", "hidden_size": shape.hidden(), "num_attention_heads": shape.heads,
        "intermediate_size": shape.inner, "num_hidden_layers": shape.layers, "vocab_size": VOCAB,
        "max_position_embeddings": POSITIONS, "type_vocab_size": 2, "torch_dtype": "bfloat16",
    });
    bert(&parameters, shape, &[0]);
    (folder(&config, &parameters), parameters)
}

/// Channels, and the sides of a patch.
pub(crate) const KERNEL: [usize; 3] = [2, 3, 3];

/// A tower of random weights, of images of `side` by `side` patches.
pub(crate) fn vit_folder(
    family: &str,
    shape: Shape,
    side: usize,
) -> (tempfile::TempDir, Parameters) {
    let model_type =
        if family == "vit" { "vit".to_owned() } else { format!("{family}_vision_model") };
    let parameters = Parameters::new(3);
    let [channels, patch, _] = KERNEL;
    let config = json!({
        "model_type": model_type, "hidden_size": shape.hidden(),
        "num_attention_heads": shape.heads, "intermediate_size": shape.inner,
        "num_hidden_layers": shape.layers, "num_channels": channels, "patch_size": patch,
        // What is left of the pixels is not read.
        "image_size": side * patch + 1, "torch_dtype": "bfloat16",
    });
    let zeros = vec![vec![0.0; KERNEL.iter().product()]; side * side];
    vit(&parameters, shape, family, KERNEL, &zeros);
    (folder(&config, &parameters), parameters)
}

fn texts(what: &str, folder: &Path, reference: impl Fn(&[u32]) -> Vec<Rows>) {
    let mut rng = Rng::new(17);
    let lengths = [1, 23, 7, 40, 2];
    let ids = |n| Vec::from_iter((0..n).map(|_| rng.below(VOCAB) as u32));
    let items =
        Vec::from_iter(lengths.map(ids).map(|ids| TextItem { ids, token_types: Vec::new() }));
    let expected = Vec::from_iter(items.iter().map(|item| reference(&item.ids)));
    let outputs = [TextOutput::Embedding, TextOutput::Rows];
    let load = |layers| TextEncoder::load(folder, layers, &outputs, |_| {}).unwrap();
    equals(what, load, &items, &expected);
}

#[test]
fn berts_of_other_shapes_equal_the_reference() {
    for (heads, dim, inner, layers) in [
        (5, 24, 56, 2),
        (1, 72, 33, 1),
        (3, 80, 64, 2),
        (7, 6, 10, 3),
        (2, 64, 96, 2),
        (1, 128, 40, 1),
    ] {
        let shape = Shape { heads, dim, inner, layers };
        let (folder, parameters) = bert_folder(shape);
        let reference = |ids: &[u32]| bert(&parameters, shape, ids);
        texts(&format!("bert, {shape:?}"), folder.path(), reference);
    }
}

#[test]
fn modernberts_of_other_shapes_and_windows_equal_the_reference() {
    for (heads, dim, window) in
        [(5, 12, 2), (1, 72, 6), (2, 80, 14), (3, 20, 128), (3, 64, 10), (1, 128, 20)]
    {
        let shape = Shape { heads, dim, inner: 44, layers: 4 };
        let parameters = Parameters::new(2);
        let config = json!({
            "model_type": "modernbert", "hidden_size": shape.hidden(), "num_attention_heads": heads,
            "intermediate_size": shape.inner, "num_hidden_layers": shape.layers,
            "vocab_size": VOCAB, "max_position_embeddings": 64, "torch_dtype": "bfloat16",
            "local_attention": window, "global_attn_every_n_layers": 3,
            "global_rope_theta": 9000.0, "local_rope_theta": 500.0,
        });
        let reference = |ids: &[u32]| modernbert(&parameters, shape, window, ids);
        reference(&[0]);
        let what = format!("modernbert, {shape:?}, window {window}");
        texts(&what, folder(&config, &parameters).path(), reference);
    }
}

#[test]
fn qwen3_embeddings_of_other_shapes_equal_the_reference() {
    for (heads, kv_heads, dim, hidden) in
        [(4, 2, 64, 96), (3, 1, 72, 100), (2, 2, 80, 144), (4, 1, 128, 72), (6, 3, 10, 36)]
    {
        let shape = Shape { heads, dim, inner: 52, layers: 2 };
        let parameters = Parameters::new(5);
        let config = json!({
            "model_type": "qwen3", "architectures": ["Qwen3Model"], "hidden_size": hidden,
            "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": dim,
            "intermediate_size": shape.inner, "num_hidden_layers": shape.layers,
            "vocab_size": VOCAB, "max_position_embeddings": 64, "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
        });
        let reference = |ids: &[u32]| qwen3(&parameters, shape, kv_heads, hidden, ids);
        reference(&[0]);
        let what = format!("qwen3, {shape:?}, {kv_heads} heads of keys, {hidden} wide");
        texts(&what, folder(&config, &parameters).path(), reference);
    }
}

fn patches(rng: &mut Rng, count: usize, width: usize) -> Rows {
    let row = |rng: &mut Rng| (0..width).map(|_| f64::from(rng.symmetric(1.0) as f32)).collect();
    (0..count).map(|_| row(rng)).collect()
}

fn images(
    what: &str,
    folder: &Path,
    images: &[([usize; 3], Rows)],
    reference: impl Fn([usize; 3], &Rows) -> Vec<Rows>,
) {
    let item = |(grid, patches): &([usize; 3], Rows)| ImageItem {
        grid: *grid,
        patches: patches.concat().into_iter().map(|x| x as f32).collect(),
    };
    let items = Vec::from_iter(images.iter().map(item));
    let expected = Vec::from_iter(images.iter().map(|(grid, patches)| reference(*grid, patches)));
    let load = |layers| VisionEncoder::load(folder, layers, |_| {}).unwrap();
    equals(what, load, &items, &expected);
}

#[test]
fn vision_transformers_of_other_shapes_equal_the_reference() {
    let shapes = [(5, 12, 3), (1, 72, 4), (2, 80, 5), (2, 64, 6), (1, 128, 3)];
    for family in ["siglip", "clip", "vit"] {
        for (heads, dim, side) in shapes {
            let shape = Shape { heads, dim, inner: 37, layers: 2 };
            let (folder, parameters) = vit_folder(family, shape, side);
            let mut rng = Rng::new(5);
            let all = Vec::from_iter(
                (0..4).map(|_| ([1, side, side], patches(&mut rng, side * side, 18))),
            );
            let reference = |_, patches: &Rows| vit(&parameters, shape, family, KERNEL, patches);
            images(&format!("{family}, {shape:?}"), folder.path(), &all, reference);
        }
    }
}

#[test]
fn qwen_towers_of_other_shapes_and_ragged_windows_equal_the_reference() {
    let qwen25 = |window, full: &[usize]| QwenKind::Qwen25 { window, full: full.to_vec() };
    let qwen3 = |side, deepstack: &[usize]| QwenKind::Qwen3 { side, deepstack: deepstack.to_vec() };
    for (heads, dim, merge, kind) in [
        (5, 12, 2, qwen25(2, &[1])),
        (1, 72, 2, qwen25(3, &[])),
        (2, 80, 1, qwen25(4, &[0, 2])),
        (2, 64, 2, qwen25(3, &[1])),
        (5, 12, 2, qwen3(5, &[1])),
        (1, 72, 1, qwen3(3, &[])),
        (2, 80, 2, qwen3(4, &[0, 2])),
        (1, 128, 2, qwen3(5, &[1])),
    ] {
        let shape = Shape { heads, dim, inner: 36, layers: 3 };
        let tower = QwenTower { shape, merge, kernel: [2, 2, 3, 3], out: 20, kind };
        let parameters = Parameters::new(4);
        let mut rng = Rng::new(6);
        let all = [[1, 4, 6], [3, 2, 2], [1, 10, 14], [2, 6, 2]]
            .map(|grid: [usize; 3]| (grid, patches(&mut rng, grid.iter().product(), 36)));
        let reference = |grid, patches: &Rows| tower.run(&parameters, grid, patches);
        reference(all[0].0, &all[0].1);
        let mut config = json!({
            "hidden_size": shape.hidden(), "num_heads": heads, "intermediate_size": shape.inner,
            "depth": shape.layers, "in_channels": 2, "patch_size": 3, "temporal_patch_size": 2,
            "spatial_merge_size": merge, "out_hidden_size": tower.out, "torch_dtype": "bfloat16",
        });
        match &tower.kind {
            QwenKind::Qwen25 { window, full } => {
                config["model_type"] = "qwen2_5_vl_vision".into();
                config["window_size"] = (window * merge * 3).into();
                config["fullatt_block_indexes"] = json!(full);
            }
            QwenKind::Qwen3 { side, deepstack } => {
                config["model_type"] = "qwen3_vl_vision".into();
                config["num_position_embeddings"] = (side * side).into();
                config["deepstack_visual_indexes"] = json!(deepstack);
            }
        }
        let folder = folder(&config, &parameters);
        images(&format!("{tower:?}"), folder.path(), &all, reference);
    }
}
