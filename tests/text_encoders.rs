//! Encoders of text against reference outputs: alone, packed, and at every size.

use crate::skip::skipped;
use piecewise::encoding::{TextEncoder, TextItem, encode_on};
use piecewise::models::encoder::TextOutput;
use piecewise_ir::dtype::DType;
use piecewise_runtime::config::ConfigLayers;
use piecewise_runtime::words::GraphMode;
use piecewise_testing::{Rng, norm_error, soak};
use std::path::{Path, PathBuf};

/// One text of a fixture and what the reference makes of it.
struct Golden {
    ids: Vec<u32>,
    token_types: Vec<u32>,
    rows: Vec<f64>,
    embedding: Vec<f64>,
    pooler: Option<Vec<f64>>,
}

pub(crate) fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/encoders").join(name)
}

/// The inputs and reference outputs of a fixture.
pub(crate) struct TensorFile(Vec<u8>);

impl TensorFile {
    pub(crate) fn open(name: &str) -> Self {
        Self(std::fs::read(folder(name).join("golden.safetensors")).unwrap())
    }

    fn words(&self, name: &str) -> Option<Vec<[u8; 4]>> {
        let tensors = safetensors::SafeTensors::deserialize(&self.0).unwrap();
        let data = tensors.tensor(name).ok()?.data();
        Some(data.chunks_exact(4).map(|word| word.try_into().unwrap()).collect())
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.words(name).is_some()
    }

    pub(crate) fn floats(&self, name: &str) -> Vec<f64> {
        let words = self.words(name).unwrap();
        words.into_iter().map(|word| f64::from(f32::from_le_bytes(word))).collect()
    }

    pub(crate) fn ints(&self, name: &str) -> Vec<u32> {
        self.words(name).unwrap().into_iter().map(u32::from_le_bytes).collect()
    }
}

fn goldens(name: &str) -> Vec<Golden> {
    let file = TensorFile::open(name);
    let golden = |i: usize| {
        let maybe = |name: String| file.has(&name).then_some(name);
        let types = maybe(format!("token_types_{i}")).map(|name| file.ints(&name));
        Golden {
            ids: file.ints(&format!("ids_{i}")),
            token_types: types.unwrap_or_default(),
            rows: file.floats(&format!("last_hidden_state_{i}")),
            embedding: file.floats(&format!("embedding_{i}")),
            pooler: maybe(format!("pooler_output_{i}")).map(|name| file.floats(&name)),
        }
    };
    (0..).take_while(|i| file.has(&format!("ids_{i}"))).map(golden).collect()
}

fn layers(dtype: DType, mode: GraphMode, sizes: &[u64]) -> ConfigLayers {
    ConfigLayers::new()
        .set("dtype", dtype.name())
        .and_then(|layers| layers.set("graph_mode", mode))
        .and_then(|layers| layers.set("capture_num_tokens", sizes))
        .and_then(|layers| layers.set("max_num_tokens", 128))
        .and_then(|layers| layers.set("max_num_seqs", 6))
        .and_then(|layers| layers.set("cache.enabled", false))
        .unwrap()
}

fn load(name: &str, layers: ConfigLayers) -> TextEncoder {
    let outputs = [TextOutput::Embedding, TextOutput::Rows, TextOutput::Pooler];
    let has_pooler = ["bert", "xlm_roberta"].contains(&name);
    let outputs = &outputs[..if has_pooler { 3 } else { 2 }];
    TextEncoder::load(&folder(name), layers, outputs, |_| {}).unwrap()
}

fn items_of(goldens: &[&Golden]) -> Vec<TextItem> {
    let item = |golden: &&Golden| TextItem {
        ids: golden.ids.clone(),
        token_types: golden.token_types.clone(),
    };
    goldens.iter().map(item).collect()
}

/// Holds each item against its reference.
fn check(encoder: &mut TextEncoder, goldens: &[&Golden], tolerance: f64, what: &str) {
    let outputs = encoder.encode(&items_of(goldens));
    for (i, (outputs, golden)) in outputs.into_iter().zip(goldens).enumerate() {
        let expected = [Some(&golden.embedding), Some(&golden.rows), golden.pooler.as_ref()];
        let outputs = outputs.unwrap();
        assert_eq!(outputs.len(), expected.iter().flatten().count());
        for (found, expected) in outputs.iter().zip(expected.into_iter().flatten()) {
            let found = Vec::from_iter(found.iter().map(|&x| f64::from(x)));
            let error = norm_error(&found, expected);
            assert!(error < tolerance, "{what}, item {i}: off by {error}");
        }
    }
}

/// Every item alone, all of them in one step, and all at every budget that holds them.
fn equals_its_reference(name: &str) {
    let goldens = goldens(name);
    assert!(goldens.len() >= 3);
    let all = Vec::from_iter(&goldens);
    let turned = Vec::from_iter(goldens.iter().rev());
    let rows: u64 = all.iter().map(|golden| golden.ids.len() as u64).sum();
    for (dtype, tolerance) in [(DType::F32, 2e-5), (DType::BF16, 2e-2)] {
        for mode in [GraphMode::None, GraphMode::Piecewise] {
            for sizes in [vec![1, 8, rows, 128], vec![rows + 1, 128], vec![100, 128], vec![128]] {
                let mut encoder = load(name, layers(dtype, mode, &sizes));
                let what = format!("{name} in {dtype}, {mode:?}, {sizes:?}");
                for golden in &all {
                    check(&mut encoder, &[golden], tolerance, &format!("{what}, alone"));
                }
                check(&mut encoder, &all, tolerance, &format!("{what}, packed"));
                check(&mut encoder, &turned, tolerance, &format!("{what}, turned"));
                encoder.one_by_one(true);
                check(&mut encoder, &all, tolerance, &format!("{what}, one by one"));
                let steps = encoder.statistics();
                let replays = steps.replayed_steps();
                let captured = mode == GraphMode::Piecewise;
                assert_eq!(replays > 0, captured, "{what}: {replays} steps replayed");
            }
        }
    }
}

#[test]
fn bert_equals_its_reference() {
    equals_its_reference("bert");
}

#[test]
fn xlm_roberta_equals_its_reference() {
    equals_its_reference("xlm_roberta");
}

#[test]
fn modernbert_equals_its_reference() {
    equals_its_reference("modernbert");
}

#[test]
fn qwen3_embedding_equals_its_reference() {
    equals_its_reference("qwen3_embedding");
}

/// Packed with any others, padded to any budget, replayed or launched: the same bits.
#[test]
fn an_item_has_the_same_bits_in_any_company() {
    for name in ["bert", "modernbert", "qwen3_embedding"] {
        let modes = [(GraphMode::Piecewise, vec![16, 48, 128]), (GraphMode::None, vec![128])];
        let mut encoders = modes.map(|(mode, sizes)| load(name, layers(DType::F32, mode, &sizes)));
        let vocab = encoders[0].model().config().vocab_size();
        let mut rng = Rng::new(4);
        let item = |rng: &mut Rng| TextItem {
            ids: (0..1 + rng.below(40)).map(|_| rng.below(vocab) as u32).collect(),
            token_types: Vec::new(),
        };
        let pool = Vec::from_iter((0..40).map(|_| item(&mut rng)));
        encoders[1].one_by_one(true);
        let alone = Vec::from_iter(encoders[1].encode(&pool).into_iter().map(Result::unwrap));
        for _ in 0..soak(60) {
            let chosen = Vec::from_iter((0..1 + rng.below(9)).map(|_| rng.below(pool.len())));
            let items = Vec::from_iter(chosen.iter().map(|&i| pool[i].clone()));
            encoders[1].one_by_one(false);
            for encoder in &mut encoders {
                let outputs = encoder.encode(&items);
                for (&i, outputs) in chosen.iter().zip(outputs) {
                    assert!(outputs.unwrap() == alone[i], "{name}, {chosen:?}: item {i}");
                }
            }
        }
    }
}

/// A BERT's one label over its pooler, and an XLM-RoBERTa's three over a head of two layers.
#[test]
fn cross_encoders_score_pairs_as_their_references_do() {
    for (name, labels) in [("cross_encoder", 1), ("xlm_roberta_scores", 3)] {
        let file = TensorFile::open(name);
        let items = (0..).map_while(|i| {
            let types = format!("token_types_{i}");
            file.has(&format!("ids_{i}")).then(|| TextItem {
                ids: file.ints(&format!("ids_{i}")),
                token_types: if file.has(&types) { file.ints(&types) } else { Vec::new() },
            })
        });
        let items = Vec::from_iter(items);
        assert!(items.len() >= 3);
        let expected = (0..items.len()).map(|i| file.floats(&format!("logits_{i}")));
        let expected = Vec::from_iter(expected);
        for (dtype, tolerance) in [(DType::F32, 2e-5), (DType::BF16, 2e-2)] {
            for sizes in [vec![1, 8, 64, 128], vec![128]] {
                let layers = layers(dtype, GraphMode::Piecewise, &sizes);
                let outputs = [TextOutput::Scores];
                let mut encoder =
                    TextEncoder::load(&folder(name), layers, &outputs, |_| {}).unwrap();
                for alone in [true, false] {
                    encoder.one_by_one(alone);
                    let scores = encoder.encode(&items).into_iter().flat_map(|one| one.unwrap());
                    let scores = Vec::from_iter(scores);
                    assert!(scores.iter().all(|one| one.len() == labels), "{name}");
                    let found = scores.concat().into_iter().map(f64::from);
                    let error = norm_error(&Vec::from_iter(found), &expected.concat());
                    assert!(error < tolerance, "{name} in {dtype}, {sizes:?}: off by {error}");
                }
            }
        }
    }
    let layers = layers(DType::F32, GraphMode::None, &[128]);
    let error = TextEncoder::load(&folder("bert"), layers, &[TextOutput::Scores], |_| {});
    let error = error.unwrap_err().to_string();
    assert!(error.contains("scores") && error.contains("classifier.weight"), "{error}");
}

/// Attention and means within the one piece that there is, all of it captured.
#[test]
fn segments_are_captured_inside_a_piece() {
    for name in ["bert", "modernbert", "qwen3_embedding"] {
        let goldens = goldens(name);
        let all = Vec::from_iter(&goldens);
        for dtype in [DType::F32, DType::BF16] {
            let split = layers(dtype, GraphMode::Piecewise, &[16, 128]);
            let whole = layers(dtype, GraphMode::Full, &[16, 128]);
            let whole = whole.set("splitting_ops", Vec::<String>::new()).unwrap();
            let whole = whole.set("checks.poison", true).unwrap();
            let [mut split, mut whole] = [split, whole].map(|layers| load(name, layers));
            for items in [&all[..1], &all[..], &all[1..]] {
                let items = items_of(items);
                let outputs = |encoder: &mut TextEncoder| {
                    Vec::from_iter(encoder.encode(&items).into_iter().map(Result::unwrap))
                };
                assert!(outputs(&mut whole) == outputs(&mut split), "{name} in {dtype}");
            }
            let steps = whole.statistics();
            assert_eq!(steps.replayed_steps(), steps.steps(), "{name} in {dtype}");
            // What no graph holds is launched, in the same piece.
            let tokens = steps.paths[0].replays.keys().copied();
            assert!(Vec::from_iter(tokens).iter().all(|budget| [16, 128].contains(budget)));
        }
    }
}

/// Three devices give what one does, in the order of the items.
#[test]
fn items_over_several_devices_come_back_in_order() {
    let layers = || layers(DType::F32, GraphMode::Piecewise, &[16, 128]);
    let mut encoders = [(); 3].map(|()| load("modernbert", layers()));
    let mut rng = Rng::new(8);
    let mut item = |i: usize| TextItem {
        // One in the middle is refused.
        ids: (0..if i == 7 { 0 } else { 1 + rng.below(30) }).map(|id| id as u32).collect(),
        token_types: Vec::new(),
    };
    let items = Vec::from_iter((0..20).map(&mut item));
    let expected = encoders[0].encode(&items);
    for (i, (found, expected)) in
        encode_on(&mut encoders, &items).into_iter().zip(expected).enumerate()
    {
        match (found, expected) {
            (Ok(found), Ok(expected)) => assert!(found == expected, "item {i}"),
            (Err(found), Err(expected)) => assert_eq!(found.to_string(), expected.to_string()),
            other => panic!("item {i}: {other:?}"),
        }
    }
    assert!(encoders.iter().all(|encoder| encoder.statistics().steps() > 0));
}

#[test]
fn a_wrong_item_is_named_and_the_others_are_served() {
    let mut encoder = load("bert", layers(DType::F32, GraphMode::Piecewise, &[128]));
    let item = |ids: &[u32], types: &[u32]| TextItem { ids: ids.into(), token_types: types.into() };
    let outputs = encoder.encode(&[
        item(&[7, 8], &[]),
        item(&[], &[]),
        item(&[320], &[]),
        item(&[5; 65], &[]),
        item(&[5, 6], &[0]),
        item(&[5, 6], &[0, 2]),
        item(&[9], &[1]),
    ]);
    let said = outputs.iter().map(|output| match output {
        Ok(_) => "served".to_owned(),
        Err(error) => error.to_string(),
    });
    insta::assert_snapshot!(Vec::from_iter(said).join("\n"), @r"
    served
    the list of token ids is empty; at least one is needed
    token id 320 at place 0 is out of range: `vocab_size` is 320
    65 tokens, but the model reads at most 64; cut the text
    1 token types for 2 tokens
    token type 2, but the model has 2
    served
    ");
    let mut small = load("qwen3_embedding", {
        let layers = layers(DType::F32, GraphMode::Piecewise, &[8]);
        layers.set("max_num_tokens", 8).unwrap()
    });
    let outputs = small.encode(&[item(&[5; 9], &[]), item(&[5; 8], &[])]);
    assert!(outputs[0].as_ref().unwrap_err().to_string().contains("a step has at most 8"));
    assert!(outputs[1].is_ok());
    let error = small.embed(&["a text"]).pop().unwrap().unwrap_err();
    assert!(error.to_string().contains("no tokenizer.json"), "{error}");
}

/// Where `PIECEWISE_MINILM` names the folder of all-MiniLM-L6-v2; `.ci/install-minilm` fetches it.
#[test]
fn minilm_gives_the_embeddings_of_its_reference() {
    let Some(minilm) = std::env::var_os("PIECEWISE_MINILM") else {
        let reason = "PIECEWISE_MINILM names no folder; .ci/install-minilm fetches one";
        return skipped("PIECEWISE_REQUIRE_MINILM", reason);
    };
    let text = std::fs::read(folder("minilm").join("sentences.json")).unwrap();
    let sentences: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let ids: Vec<Vec<u32>> = serde_json::from_value(sentences["ids"].clone()).unwrap();
    let texts: Vec<String> = serde_json::from_value(sentences["sentences"].clone()).unwrap();
    let golden = TensorFile::open("minilm");
    for (dtype, least) in [("f32", 0.99999), ("bf16", 0.999)] {
        let layers = ConfigLayers::new().set("dtype", dtype).unwrap();
        let layers = layers.set("cache.enabled", false).unwrap();
        let outputs = [TextOutput::Embedding];
        let mut encoder = TextEncoder::load(Path::new(&minilm), layers, &outputs, |_| {}).unwrap();
        for (text, ids) in texts.iter().zip(&ids) {
            assert_eq!(encoder.model().tokenizer().unwrap().encode(text).unwrap(), *ids, "{text}");
        }
        for (i, embedding) in encoder.embed(&texts).into_iter().enumerate() {
            let expected = golden.floats(&format!("embedding_{i}"));
            let found = embedding.unwrap().into_iter().map(f64::from);
            let cosine: f64 = found.zip(expected).map(|(a, b)| a * b).sum();
            assert!(cosine > least, "{dtype}, {}: cosine {cosine}", texts[i]);
        }
    }
}
