//! A decoder that reads images: rows of its tower in the place of tokens, against a reference.

use piecewise::assembly::{Assembly, Purpose};
use piecewise::device::{DeviceSpec, OpenDevice};
use piecewise::encoding::{ImageItem, JoinedTower};
use piecewise::models::encoder::VisionConfig;
use piecewise::models::{ImagePrompts, PlaceError};
use piecewise_runtime::config::ConfigLayers;
use piecewise_runtime::engine::{Engine, EngineError, GivenRows, Request, RequestEvent, RowSource};
use piecewise_runtime::memory::RowsError;
use piecewise_runtime::words::{GraphMode, SuspendedWeights};
use piecewise_testing::norm_error;
use safetensors::SafeTensors;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/qwen2_5_vl")
}

/// A prompt of the fixture and what the reference makes of it.
struct Golden {
    ids: Vec<u32>,
    images: Vec<ImageItem>,
    positions: Vec<i32>,
    logits: Vec<f64>,
    greedy: Vec<u32>,
}

fn goldens() -> Vec<Golden> {
    let bytes = std::fs::read(folder().join("golden.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let words = |name: String| -> Vec<[u8; 4]> {
        let tensor = tensors.tensor(&name);
        tensor.map_or_else(|_| Vec::new(), |tensor| tensor.data().as_chunks().0.to_vec())
    };
    let ints = |name: String| Vec::from_iter(words(name).into_iter().map(u32::from_le_bytes));
    let floats = |name: String| words(name).into_iter().map(f32::from_le_bytes);
    let golden = |i: usize| {
        let grids = ints(format!("grid_{i}"));
        let image = |(j, grid): (usize, &[u32])| ImageItem {
            grid: [0, 1, 2].map(|axis| grid[axis] as usize),
            patches: floats(format!("pixels_{i}_{j}")).collect(),
        };
        Golden {
            ids: ints(format!("ids_{i}")),
            images: grids.chunks_exact(3).enumerate().map(image).collect(),
            positions: ints(format!("positions_{i}")).into_iter().map(|x| x as i32).collect(),
            logits: floats(format!("logits_{i}")).map(f64::from).collect(),
            greedy: ints(format!("greedy_{i}")),
        }
    };
    (0..4).map(golden).collect()
}

/// The prompt with one placeholder for each image, as people write it.
fn unplaced(golden: &Golden) -> Vec<u32> {
    let mut ids = golden.ids.clone();
    ids.dedup_by(|a, b| a == b && *a == 93);
    ids
}

fn layers(dtype: &str) -> ConfigLayers {
    ConfigLayers::new()
        .set("dtype", dtype)
        .and_then(|layers| layers.set("cache.enabled", false))
        .and_then(|layers| layers.set("checks.poison", true))
        .unwrap()
}

fn tower(device: &OpenDevice) -> JoinedTower {
    JoinedTower::load(&folder(), layers("f32"), 64, device, |_| {}).unwrap()
}

fn assembly(device: &OpenDevice, mode: GraphMode, chunk: u64) -> Assembly {
    Assembly::folder(folder())
        .unwrap()
        .configure(layers("f32"))
        .set("graph_mode", mode)
        .max_num_tokens(chunk)
        .max_num_seqs(4)
        .max_seq_len(96)
        .on(device)
}

/// The request of a prompt, its images encoded and added.
fn request(golden: &Golden, tower: &mut JoinedTower, engine: &mut Engine) -> Request {
    let prompts = ImagePrompts::load(&folder()).unwrap().unwrap();
    let grids = Vec::from_iter(golden.images.iter().map(|image| image.grid));
    let placed = prompts.place(&unplaced(golden), &grids).unwrap();
    assert_eq!(placed.ids, golden.ids);
    assert_eq!(placed.coordinates.values, golden.positions);
    let images = golden.images.iter().zip(&placed.positions);
    let rows = images.map(|(image, &position)| {
        let rows = tower.add(image, engine).unwrap();
        GivenRows { position, rows }
    });
    Request {
        rows: rows.collect(),
        values: vec![placed.coordinates],
        ..Request::new(placed.ids, golden.greedy.len() as u64)
    }
}

fn run(engine: &mut Engine, requests: Vec<Request>) -> Vec<Vec<u32>> {
    let ids = Vec::from_iter(requests.into_iter().map(|request| engine.add(request).unwrap()));
    let (mut events, mut found) = (Vec::new(), BTreeMap::new());
    engine.run(&mut events).unwrap();
    for event in events {
        if let RequestEvent::Token { request, id, .. } = event {
            found.entry(request).or_insert_with(Vec::new).push(id);
        }
    }
    ids.iter().map(|id| found.remove(id).unwrap()).collect()
}

fn open() -> OpenDevice {
    DeviceSpec::Cpu.open(2).unwrap()
}

#[test]
fn logits_equal_the_reference() {
    let device = open();
    let mut tower = tower(&device);
    // A prompt in one step, and in steps that cut its images.
    for chunk in [64, 7] {
        let assembly = assembly(&device, GraphMode::Piecewise, chunk).purpose(Purpose::Logits);
        let mut engine = assembly.engine().unwrap();
        for (i, golden) in goldens().iter().enumerate() {
            let request = request(golden, &mut tower, &mut engine);
            let mut found = Vec::new();
            let mut take = |_: u64, bytes: &[u8]| {
                let rows = bytes.as_chunks().0.iter();
                found.extend(rows.map(|&bytes| f64::from(f32::from_le_bytes(bytes))));
            };
            engine.logits(&request, &mut take).unwrap();
            let error = norm_error(&found, &golden.logits);
            assert!(error < 2e-5, "prompt {i} in chunks of {chunk} is off by {error}");
        }
    }
}

#[test]
fn greedy_tokens_equal_the_reference_alone_and_in_company() {
    let device = open();
    let mut tower = tower(&device);
    let goldens = goldens();
    for mode in [GraphMode::None, GraphMode::Piecewise, GraphMode::Full] {
        for chunk in [64, 9] {
            let mut engine = assembly(&device, mode, chunk).engine().unwrap();
            let expected = Vec::from_iter(goldens.iter().map(|golden| golden.greedy.clone()));
            let mut all = Vec::new();
            for golden in &goldens {
                let request = request(golden, &mut tower, &mut engine);
                let alone = run(&mut engine, vec![request.clone()]);
                assert_eq!(alone[0], golden.greedy, "{mode:?} in chunks of {chunk}");
                all.push(request);
            }
            let rows = Vec::from_iter(all.iter().flat_map(|request| request.rows.clone()));
            assert_eq!(run(&mut engine, all), expected, "{mode:?} in chunks of {chunk}");
            // All rows come back once nobody needs them.
            assert!(engine.free_rows() < 96);
            rows.iter().for_each(|given| engine.remove_rows(given.rows).unwrap());
            assert_eq!(engine.free_rows(), 96);
        }
    }
}

/// A pool too small for both: one is computed again, its images among the rest.
#[test]
fn a_preempted_request_still_has_its_images() {
    let device = open();
    let mut tower = tower(&device);
    let goldens = goldens();
    let mut engine = assembly(&device, GraphMode::Piecewise, 64).kv_rows(96).engine().unwrap();
    let requests = goldens[1..3].iter().map(|golden| request(golden, &mut tower, &mut engine));
    let requests = Vec::from_iter(requests);
    let expected = [goldens[1].greedy.clone(), goldens[2].greedy.clone()];
    assert_eq!(run(&mut engine, requests), expected);
    assert!(engine.load().preemptions > 0);
}

#[test]
fn a_suspended_engine_still_has_its_images() {
    let device = open();
    let mut tower = tower(&device);
    let golden = &goldens()[1];
    let mut engine = assembly(&device, GraphMode::Full, 64).engine().unwrap();
    let request = request(golden, &mut tower, &mut engine);
    engine.suspend(SuspendedWeights::Keep, &mut Vec::new()).unwrap();
    engine.resume(None).unwrap();
    assert_eq!(run(&mut engine, vec![request])[0], golden.greedy);
}

#[test]
fn rows_from_the_host_are_the_same_rows() {
    let device = open();
    let mut tower = tower(&device);
    let golden = &goldens()[1];
    let mut engine = assembly(&device, GraphMode::Full, 64).engine().unwrap();
    let request = request(golden, &mut tower, &mut engine);
    let mut encoder =
        piecewise::encoding::VisionEncoder::load(&folder(), layers("f32"), |_| {}).unwrap();
    let values = encoder.encode(&golden.images).remove(0).unwrap().remove(0);
    let rows = engine.add_rows(RowSource::Values(&values)).unwrap();
    let rows = vec![GivenRows { rows, ..request.rows[0] }];
    let found = run(&mut engine, vec![Request { rows, ..request }]);
    assert_eq!(found[0], golden.greedy);
}

/// As many images as a step of the tower holds share it, and their rows are those that each has alone.
#[test]
fn images_share_steps_of_the_tower() {
    let device = open();
    let images: Vec<ImageItem> = goldens().into_iter().flat_map(|golden| golden.images).collect();
    let config = VisionConfig::load(&folder()).unwrap();
    let tokens = Vec::from_iter(images.iter().map(|image| config.tokens_of(image).unwrap()));
    let all: u64 = tokens.iter().sum();
    let largest = *tokens.iter().max().unwrap();
    assert!(images.len() > 2 && largest < all);
    let mut alone = tower(&device);
    for (most, steps) in [(all, 1..=1), (largest, 2..=images.len() as u64)] {
        let mut tower = JoinedTower::load(&folder(), layers("f32"), most, &device, |_| {}).unwrap();
        for golden in goldens().iter().filter(|golden| !golden.images.is_empty()) {
            let assembly = assembly(&device, GraphMode::None, 64).embedding_rows(128);
            let mut engine = assembly.engine().unwrap();
            let mut one = request(golden, &mut alone, &mut engine);
            let rows = tower.add_all(&golden.images, &mut engine).unwrap();
            let own = run(&mut engine, vec![one.clone()]);
            one.rows.iter_mut().zip(rows).for_each(|(given, rows)| given.rows = rows);
            assert_eq!(run(&mut engine, vec![one]), own);
            assert_eq!(own[0], golden.greedy);
        }
        let before = tower.statistics().steps;
        let mut engine =
            assembly(&device, GraphMode::None, 64).embedding_rows(all + 1).engine().unwrap();
        let rows = tower.add_all(&images, &mut engine).unwrap();
        assert_eq!((rows.len(), engine.free_rows()), (images.len(), 1));
        assert!(steps.contains(&(tower.statistics().steps - before)));
        // Without room for the last, none of them stays.
        rows[..2].iter().for_each(|rows| engine.remove_rows(*rows).unwrap());
        let free = engine.free_rows();
        tower.add_all(&images, &mut engine).unwrap_err();
        assert_eq!(engine.free_rows(), free);
    }
}

#[test]
fn what_does_not_fit_is_named_and_nothing_is_lost() {
    let device = open();
    let mut tower = tower(&device);
    let golden = &goldens()[1];
    let mut engine = assembly(&device, GraphMode::None, 64).embedding_rows(10).engine().unwrap();
    let good = request(golden, &mut tower, &mut engine);
    let mut said = Vec::new();
    let mut refused = |engine: &mut Engine, request: Request| {
        said.push(engine.add(request).unwrap_err().to_string());
    };
    let [given] = good.rows[..] else { panic!() };
    let at = |position| vec![GivenRows { position, ..given }];
    refused(&mut engine, Request { rows: at(17), ..good.clone() });
    refused(&mut engine, Request { rows: at(u64::MAX), ..good.clone() });
    refused(&mut engine, Request { rows: [at(3), at(8)].concat(), ..good.clone() });
    let mut values = good.values.clone();
    values[0].values[5] = 96;
    refused(&mut engine, Request { values: values.clone(), ..good.clone() });
    values[0].values.pop();
    refused(&mut engine, Request { values: values.clone(), ..good.clone() });
    values[0].name = "tokens.embeddings".into();
    refused(&mut engine, Request { values, ..good.clone() });
    let full = engine.add_rows(RowSource::Values(&[0.0; 5 * 64])).unwrap_err();
    assert!(matches!(full, EngineError::Rows(RowsError::Full { wanted: 5, free: 4, rows: 10 })));
    said.push(full.to_string());
    said.push(engine.add_rows(RowSource::Values(&[0.0; 65])).unwrap_err().to_string());
    let tiny = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/tiny-qwen3");
    let mut text = Assembly::folder(tiny).unwrap().max_num_tokens(8).engine().unwrap();
    said.push(text.add_rows(RowSource::Values(&[0.0; 64])).unwrap_err().to_string());
    let values = good.values.clone();
    said.push(text.add(Request { values, ..Request::new([5; 22], 1) }).unwrap_err().to_string());
    said.push(
        tower
            .add(&ImageItem { grid: [1, 3, 4], patches: vec![] }, &mut engine)
            .unwrap_err()
            .to_string(),
    );
    insta::assert_snapshot!(said.join("\n"));
    // Removed while a request needs them: they stay until it is done.
    let id = engine.add(good.clone()).unwrap();
    engine.remove_rows(given.rows).unwrap();
    assert!(matches!(engine.add(good).unwrap_err(), EngineError::Rows(RowsError::Unknown { .. })));
    assert_eq!(engine.free_rows(), 4);
    engine.run(&mut Vec::new()).unwrap();
    assert!(engine.ids(id).is_none());
    assert_eq!(engine.free_rows(), 10);
}

#[test]
fn images_stand_at_placeholders_or_before_the_prompt() {
    let prompts = ImagePrompts::load(&folder()).unwrap().unwrap();
    let grids = [[1, 2, 4], [1, 2, 2]];
    let placed = prompts.place(&[7, 8], &grids).unwrap();
    assert_eq!(placed.ids, [91, 93, 93, 92, 91, 93, 92, 7, 8]);
    assert_eq!(placed.positions, [1, 5]);
    let placed = prompts.place(&[7, 93, 8, 93], &grids).unwrap();
    assert_eq!(placed.ids, [7, 93, 93, 8, 93]);
    let rows = placed.coordinates.values.as_chunks().0;
    assert_eq!(rows, [[0, 0, 0], [1, 1, 1], [1, 1, 2], [3, 3, 3], [4, 4, 4]]);
    assert_eq!(placed.coordinates.rest, 0);
    let error = PlaceError::Count { places: 1, images: 2 };
    assert_eq!(prompts.place(&[93], &grids), Err(error));
    assert_eq!(prompts.place(&[93], &[]), Err(PlaceError::Count { places: 1, images: 0 }));
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/tiny-qwen3");
    assert_eq!(ImagePrompts::load(&tiny).unwrap(), None);
}

/// The fixture with another configuration and, where `names` says so, other names of tensors.
fn rewritten(to: &Path, names: &[(&str, &str)], config: &dyn Fn(&mut Value)) -> PathBuf {
    let bytes = std::fs::read(folder().join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let renamed = tensors.tensors().into_iter().map(|(name, tensor)| {
        let other = names.iter().find_map(|(old, new)| Some((*new, name.strip_prefix(old)?)));
        (other.map_or_else(|| name.clone(), |(new, rest)| format!("{new}{rest}")), tensor)
    });
    safetensors::serialize_to_file(renamed, None, &to.join("model.safetensors")).unwrap();
    let own = std::fs::read(folder().join("config.json")).unwrap();
    let mut value: Value = serde_json::from_slice(&own).unwrap();
    config(&mut value);
    std::fs::write(to.join("config.json"), value.to_string()).unwrap();
    to.to_owned()
}

/// The configuration as newer versions of transformers nest it.
fn nested(config: &mut Value) {
    let root = config.as_object_mut().unwrap();
    let of_root = [
        "architectures",
        "model_type",
        "vision_config",
        "image_token_id",
        "video_token_id",
        "vision_start_token_id",
        "vision_end_token_id",
        "tie_word_embeddings",
    ];
    let mut text = serde_json::Map::new();
    for key in Vec::from_iter(root.keys().cloned()) {
        if !of_root.contains(&key.as_str()) {
            text.insert(key.clone(), root.remove(&key).unwrap());
        }
    }
    text.remove("rope_scaling");
    let theta = text.remove("rope_theta").unwrap();
    let rope = json!({"rope_type": "default", "rope_theta": theta, "mrope_section": [2, 3, 3]});
    text.insert("rope_parameters".to_owned(), rope);
    text.insert("model_type".to_owned(), json!("qwen2_5_vl_text"));
    root.insert("text_config".to_owned(), Value::Object(text));
}

#[test]
fn newer_names_and_nested_configurations_are_the_same_model() {
    let device = open();
    let golden = &goldens()[1];
    let to = tempfile::tempdir().unwrap();
    let newer = [("visual.", "model.visual."), ("model.", "model.language_model.")];
    let folder = rewritten(to.path(), &newer, &nested);
    let mut tower = JoinedTower::load(&folder, layers("f32"), 64, &device, |_| {}).unwrap();
    let assembly = Assembly::folder(&folder).unwrap().configure(layers("f32"));
    let mut engine = assembly.max_seq_len(96).max_num_seqs(1).on(&device).engine().unwrap();
    let request = request(golden, &mut tower, &mut engine);
    assert_eq!(run(&mut engine, vec![request])[0], golden.greedy);
}

#[test]
fn ropes_that_are_not_supported_are_refused_by_name() {
    let to = tempfile::tempdir().unwrap();
    let said = |config: &dyn Fn(&mut Value)| {
        let folder = rewritten(to.path(), &[], config);
        let error = Assembly::folder(folder).unwrap_err();
        std::error::Error::source(&error).unwrap().to_string()
    };
    let rope = |rope: Value| said(&move |config| config["rope_scaling"] = rope.clone());
    let all = [
        rope(Value::Null),
        rope(json!({"type": "mrope", "mrope_section": [2, 3, 4]})),
        rope(json!({"type": "mrope", "mrope_section": [4, 4]})),
        rope(json!({"type": "mrope", "mrope_section": "2, 3, 3"})),
        rope(json!({"type": "dynamic", "mrope_section": [2, 3, 3], "factor": 4.0})),
        said(&|config| config["model_type"] = json!("qwen3_vl")),
        said(&|config| {
            config["layer_types"] =
                json!(["sliding_attention", "full_attention", "full_attention"]);
        }),
    ];
    insta::assert_snapshot!(all.join("\n").replace(to.path().to_str().unwrap(), "DIR"));
}
