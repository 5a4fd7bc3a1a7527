//! Random mixes of items through encoders: an item has the same bits alone and in any company, at
//! its own size and padded, replayed and launched, its segments beside pieces and inside of one, and
//! with NaN in every padding row and dead byte.
//!
//! On the device of PIECEWISE_TEST_DEVICE, the CPU without it.

use crate::encoder_reference::{Shape, VOCAB};
use crate::encoder_shapes::{KERNEL, bert_folder, vit_folder};
use piecewise::encoding::{
    Encoder, ImageItem, ItemEncoder, ItemOutputs, TextEncoder, TextItem, VisionEncoder,
};
use piecewise::models::encoder::TextOutput;
use piecewise_runtime::config::ConfigLayers;
use piecewise_runtime::words::GraphMode;
use piecewise_testing::{Rng, soak};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The repository, or the current directory where the test was carried to another machine.
fn fixture(name: &str) -> PathBuf {
    let root = match std::env::var_os("PIECEWISE_BIN") {
        Some(_) => Path::new("."),
        None => Path::new(env!("CARGO_MANIFEST_DIR")),
    };
    root.join("tests/fixtures/encoders").join(name)
}

pub(crate) fn device() -> String {
    std::env::var("PIECEWISE_TEST_DEVICE").unwrap_or_else(|_| "cpu".to_owned())
}

/// What compiled kernels are kept in, over all encoders of a run.
pub(crate) fn kernels() -> &'static Path {
    static KERNELS: OnceLock<tempfile::TempDir> = OnceLock::new();
    KERNELS.get_or_init(|| tempfile::tempdir().unwrap()).path()
}

const MOST: u64 = 96;

fn layers(dtype: &str, mode: GraphMode, sizes: &[u64], poison: bool) -> ConfigLayers {
    ConfigLayers::new()
        .set("device", device())
        .and_then(|layers| layers.set("dtype", dtype))
        .and_then(|layers| layers.set("graph_mode", mode))
        .and_then(|layers| layers.set("capture_num_tokens", sizes))
        .and_then(|layers| layers.set("max_num_tokens", MOST))
        .and_then(|layers| layers.set("max_num_seqs", 6))
        .and_then(|layers| layers.set("checks.poison", poison))
        .and_then(|layers| layers.set("cache.dir", kernels()))
        .unwrap()
}

fn encoded<M: ItemEncoder>(encoder: &mut Encoder<M>, items: &[M::Item]) -> Vec<ItemOutputs> {
    encoder.encode(items).into_iter().map(Result::unwrap).collect()
}

/// Mixes of `pool`, `mixes` times; `load` makes an encoder by its configuration.
fn mix<M: ItemEncoder>(
    name: &str,
    dtype: &str,
    mixes: u32,
    pool: &[M::Item],
    load: impl Fn(ConfigLayers) -> Encoder<M>,
) where
    M::Item: Clone,
{
    let budgets = [5, 16, 40, MOST];
    let mut replayed = load(layers(dtype, GraphMode::Piecewise, &budgets, false));
    let mut poisoned = load(layers(dtype, GraphMode::Piecewise, &budgets, true));
    let mut launched = load(layers(dtype, GraphMode::None, &budgets, false));
    // Its only graph is the largest: what is not as large is padded or launched.
    let mut padded = load(layers(dtype, GraphMode::Piecewise, &[MOST], true));
    // Segments within the one piece that there is, which is captured as it is.
    let inside = layers(dtype, GraphMode::Full, &budgets, true);
    let mut inside = load(inside.set("splitting_ops", Vec::<String>::new()).unwrap());
    let mut exact = load(layers(dtype, GraphMode::None, &[1], false));
    exact.one_by_one(true);
    let alone = encoded(&mut exact, pool);
    let mut items_seen = 0_u64;
    let mut rng = Rng::new(11);
    for _ in 0..mixes {
        let chosen = Vec::from_iter((0..1 + rng.below(9)).map(|_| rng.below(pool.len())));
        let items = Vec::from_iter(chosen.iter().map(|&i| pool[i].clone()));
        let expected = encoded(&mut replayed, &items);
        assert!(encoded(&mut launched, &items) == expected, "{name}, {chosen:?}: launched");
        assert!(encoded(&mut poisoned, &items) == expected, "{name}, {chosen:?}: poisoned");
        assert!(encoded(&mut inside, &items) == expected, "{name}, {chosen:?}: inside a piece");
        let wide = encoded(&mut padded, &items);
        for (found, what) in [(&expected, "packed"), (&wide, "padded")] {
            for (outputs, &i) in found.iter().zip(&chosen) {
                items_seen += 1;
                assert!(*outputs == alone[i], "{name} {dtype}, {chosen:?}: item {i} {what}");
            }
        }
    }
    let statistics = replayed.statistics();
    assert!(statistics.paths[0].hits > 0 && statistics.paths[0].misses.is_empty());
    assert_eq!(launched.statistics().replayed_steps(), 0);
    println!(
        "{name} {dtype} on {}: {mixes} mixes compared, {items_seen} items with the bits that they \
         have alone",
        device()
    );
}

fn texts(name: &str, dtype: &str, mixes: u32) {
    let outputs = match name {
        "cross_encoder" | "xlm_roberta_scores" => [TextOutput::Scores, TextOutput::Rows],
        _ => [TextOutput::Embedding, TextOutput::Rows],
    };
    let load = |layers| TextEncoder::load(&fixture(name), layers, &outputs, |_| {}).unwrap();
    let mut rng = Rng::new(4);
    let item = |rng: &mut Rng| TextItem {
        ids: (0..1 + rng.below(40)).map(|_| rng.below(300) as u32).collect(),
        token_types: Vec::new(),
    };
    let pool = Vec::from_iter((0..24).map(|_| item(&mut rng)));
    mix(name, dtype, mixes, &pool, load);
}

/// Random weights: heads of `dim`, which the fixtures do not have.
fn random_texts(dim: usize, dtype: &str, mixes: u32) {
    let (folder, _) = bert_folder(Shape { heads: 2, dim, inner: 96, layers: 2 });
    let outputs = [TextOutput::Embedding, TextOutput::Rows];
    let load = |layers| TextEncoder::load(folder.path(), layers, &outputs, |_| {}).unwrap();
    let mut rng = Rng::new(6);
    let item = |rng: &mut Rng| TextItem {
        ids: (0..1 + rng.below(40)).map(|_| rng.below(VOCAB) as u32).collect(),
        token_types: Vec::new(),
    };
    let pool = Vec::from_iter((0..24).map(|_| item(&mut rng)));
    mix(&format!("a BERT with heads of {dim}"), dtype, mixes, &pool, load);
}

fn random_images(dim: usize, dtype: &str, mixes: u32) {
    const SIDE: usize = 6;
    let shape = Shape { heads: 2, dim, inner: 80, layers: 2 };
    let (folder, _) = vit_folder("siglip", shape, SIDE);
    let load = |layers| VisionEncoder::load(folder.path(), layers, |_| {}).unwrap();
    let mut rng = Rng::new(7);
    let elements = SIDE * SIDE * KERNEL.iter().product::<usize>();
    let item = |rng: &mut Rng| ImageItem {
        grid: [1, SIDE, SIDE],
        patches: (0..elements).map(|_| rng.symmetric(1.0) as f32).collect(),
    };
    let pool = Vec::from_iter((0..12).map(|_| item(&mut rng)));
    mix(&format!("a SigLIP with heads of {dim}"), dtype, mixes, &pool, load);
}

fn images(name: &str, dtype: &str, mixes: u32, patch: usize) {
    let load = |layers| VisionEncoder::load(&fixture(name), layers, |_| {}).unwrap();
    let mut rng = Rng::new(5);
    let item = |rng: &mut Rng| {
        // Images and videos, with windows that are ragged.
        let side = |rng: &mut Rng| 2 * (1 + rng.below(5));
        let is_square = ["siglip", "clip", "vit"].contains(&name);
        let grid = match is_square {
            true => [1, 6, 6],
            false => [1 + rng.below(3), side(rng), side(rng)],
        };
        let frames = if is_square { 1 } else { 2 };
        let elements = grid.iter().product::<usize>() * 3 * frames * patch * patch;
        let patches = (0..elements).map(|_| rng.symmetric(1.0) as f32).collect();
        ImageItem { grid, patches }
    };
    let pool = Vec::from_iter((0..12).map(|_| item(&mut rng)));
    mix(name, dtype, mixes, &pool, load);
}

/// 250 in all on the CPU, and 500 on a GPU.
fn share(of_250: u32) -> u32 {
    soak(if device() == "cpu" { of_250 } else { of_250 * 2 })
}

#[test]
fn texts_share_steps_in_f32() {
    texts("bert", "f32", share(20));
    random_texts(64, "f32", share(5));
    random_texts(80, "f32", share(5));
    texts("modernbert", "f32", share(30));
    texts("qwen3_embedding", "f32", share(20));
    texts("xlm_roberta", "f32", share(5));
    texts("cross_encoder", "f32", share(5));
    texts("xlm_roberta_scores", "f32", share(5));
}

#[test]
fn texts_share_steps_in_bf16() {
    texts("bert", "bf16", share(10));
    random_texts(64, "bf16", share(5));
    random_texts(80, "bf16", share(5));
    texts("modernbert", "bf16", share(10));
    texts("qwen3_embedding", "bf16", share(10));
    texts("xlm_roberta", "bf16", share(5));
    texts("cross_encoder", "bf16", share(5));
    texts("xlm_roberta_scores", "bf16", share(5));
}

#[test]
fn images_share_steps_in_f32() {
    images("siglip", "f32", share(5), 8);
    random_images(72, "f32", share(5));
    images("clip", "f32", share(5), 8);
    images("vit", "f32", share(5), 8);
    images("qwen2_5_vl_vision", "f32", share(20), 6);
    images("qwen3_vl_vision", "f32", share(20), 8);
}

#[test]
fn images_share_steps_in_bf16() {
    images("siglip", "bf16", share(5), 8);
    random_images(72, "bf16", share(5));
    images("clip", "bf16", share(5), 8);
    images("vit", "bf16", share(5), 8);
    images("qwen2_5_vl_vision", "bf16", share(10), 6);
    images("qwen3_vl_vision", "bf16", share(10), 8);
}
