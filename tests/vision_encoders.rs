//! Vision towers against reference outputs: alone, packed, and at every size.

use crate::text_encoders::{TensorFile, folder};
use piecewise::encoding::{ImageItem, VisionEncoder};
use piecewise_ir::dtype::DType;
use piecewise_runtime::config::ConfigLayers;
use piecewise_runtime::words::GraphMode;
use piecewise_testing::norm_error;

/// An item and its reference outputs.
struct Golden {
    item: ImageItem,
    outputs: Vec<Vec<f64>>,
}

/// The patches of these images are cut here, as the kernel of the convolution is laid out;
/// `class` rows stand before them in the outputs.
fn vit(name: &str, class: usize) -> Vec<Golden> {
    let file = TensorFile::open(name);
    let (pixels, rows) = (file.floats("pixel_values"), file.floats("last_hidden_state"));
    let pooled = file.floats("pooler_output");
    let (side, patch) = (6, 8);
    let image = |i: usize| {
        let pixel = |channel: usize, y: usize, x: usize| {
            pixels[((i * 3 + channel) * side * patch + y) * side * patch + x] as f32
        };
        let mut patches = Vec::new();
        for place in 0..side * side {
            let (top, left) = (place / side * patch, place % side * patch);
            for channel in 0..3 {
                for at in 0..patch * patch {
                    patches.push(pixel(channel, top + at / patch, left + at % patch));
                }
            }
        }
        Golden {
            item: ImageItem { grid: [1, side, side], patches },
            outputs: vec![
                rows[i * (side * side + class) * 96..][..(side * side + class) * 96].to_vec(),
                pooled[i * 96..][..96].to_vec(),
            ],
        }
    };
    (0..3).map(image).collect()
}

fn qwen(name: &str, deepstack: usize) -> Vec<Golden> {
    let file = TensorFile::open(name);
    let grids = file.ints("grid_thw");
    let item = |i: usize| {
        let grid = [0, 1, 2].map(|axis| grids[i * 3 + axis] as usize);
        let pixels = file.floats(&format!("pixel_values_{i}"));
        let patches = pixels.into_iter().map(|x| x as f32).collect();
        let deepstack = (0..deepstack).map(|j| file.floats(&format!("deepstack_{i}_{j}")));
        let outputs = std::iter::once(file.floats(&format!("embeds_{i}"))).chain(deepstack);
        Golden { item: ImageItem { grid, patches }, outputs: outputs.collect() }
    };
    (0..4).map(item).collect()
}

fn load(name: &str, dtype: DType, mode: GraphMode, sizes: &[u64]) -> VisionEncoder {
    let layers = ConfigLayers::new()
        .set("dtype", dtype.name())
        .and_then(|layers| layers.set("graph_mode", mode))
        .and_then(|layers| layers.set("capture_num_tokens", sizes))
        .and_then(|layers| layers.set("max_num_tokens", 128))
        .and_then(|layers| layers.set("max_num_seqs", 8))
        .and_then(|layers| layers.set("cache.enabled", false));
    VisionEncoder::load(&folder(name), layers.unwrap(), |_| {}).unwrap()
}

/// Every item alone, all of them in one step, and all at every budget that holds them; the same
/// bits each time in f32.
fn equals_its_reference(name: &str, goldens: &[Golden], rows: u64) {
    let items = Vec::from_iter(goldens.iter().map(|golden| golden.item.clone()));
    for (dtype, tolerance) in [(DType::F32, 2e-5), (DType::BF16, 2e-2)] {
        let mut first: Option<Vec<Vec<Vec<f32>>>> = None;
        for mode in [GraphMode::None, GraphMode::Piecewise] {
            for sizes in [vec![4, 36, rows, 128], vec![rows + 1, 128], vec![128]] {
                let mut encoder = load(name, dtype, mode, &sizes);
                for alone in [true, false] {
                    encoder.one_by_one(alone);
                    let outputs = encoder.encode(&items);
                    let outputs = Vec::from_iter(outputs.into_iter().map(Result::unwrap));
                    for (i, (outputs, golden)) in outputs.iter().zip(goldens).enumerate() {
                        assert_eq!(outputs.len(), golden.outputs.len());
                        for (found, expected) in outputs.iter().zip(&golden.outputs) {
                            let found = Vec::from_iter(found.iter().map(|&x| f64::from(x)));
                            let error = norm_error(&found, expected);
                            let what = format!("{name} in {dtype}, {mode:?}, {sizes:?}, {alone}");
                            assert!(error < tolerance, "{what}: item {i} is off by {error}");
                        }
                    }
                    if dtype == DType::F32 {
                        let first = first.get_or_insert_with(|| outputs.clone());
                        assert!(*first == outputs, "{name}, {mode:?}, {sizes:?}: other bits");
                    }
                }
                let replays = encoder.statistics().replayed_steps();
                assert_eq!(replays > 0, mode == GraphMode::Piecewise, "{replays} replayed");
            }
        }
    }
}

#[test]
fn siglip_equals_its_reference() {
    equals_its_reference("siglip", &vit("siglip", 0), 108);
}

#[test]
fn clip_equals_its_reference() {
    equals_its_reference("clip", &vit("clip", 1), 111);
}

#[test]
fn vit_equals_its_reference() {
    equals_its_reference("vit", &vit("vit", 1), 111);
}

#[test]
fn qwen2_5_vl_equals_its_reference() {
    equals_its_reference("qwen2_5_vl_vision", &qwen("qwen2_5_vl_vision", 0), 39);
}

#[test]
fn qwen3_vl_equals_its_reference() {
    equals_its_reference("qwen3_vl_vision", &qwen("qwen3_vl_vision", 2), 39);
}

#[test]
fn a_wrong_grid_is_named_and_the_others_are_served() {
    let mut goldens = qwen("qwen2_5_vl_vision", 0);
    let good = goldens.remove(0).item;
    let with = |grid: [usize; 3], patches: usize| ImageItem { grid, patches: vec![0.0; patches] };
    let mut encoder = load("qwen2_5_vl_vision", DType::F32, GraphMode::Piecewise, &[16, 128]);
    let outputs = encoder.encode(&[
        with([1, 3, 4], 12 * 216),
        with([0, 4, 4], 0),
        good,
        with([1, 4, 4], 16 * 216 - 1),
        with([usize::MAX, 4096, 4096], 216),
        with([33, 4, 4], 33 * 16 * 216),
    ]);
    let said = outputs.iter().map(|output| match output {
        Ok(outputs) => format!("{} elements", outputs[0].len()),
        Err(error) => error.to_string(),
    });
    insta::assert_snapshot!(Vec::from_iter(said).join("\n"), @r"
    a grid of 1 x 3 x 4 patches, but there must be frames, and sides must be multiples of 2 up to 4096
    a grid of 0 x 4 x 4 patches, but there must be frames, and sides must be multiples of 2 up to 4096
    288 elements
    a grid of 1 x 4 x 4 patches of 216 elements each, but there are 3455 elements
    a grid of 18446744073709551615 x 4096 x 4096 patches of 216 elements each, but there are 216 elements
    132 rows, but a step has at most 128 (max_num_tokens); raise it or give a smaller item
    ");
    let mut siglip = load("siglip", DType::F32, GraphMode::None, &[128]);
    let error = siglip.encode(&[with([1, 4, 4], 16 * 192)]).pop().unwrap().unwrap_err();
    assert!(error.to_string().contains("the model takes 1 x 6 x 6"), "{error}");
}
