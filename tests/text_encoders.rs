//! Encoders of text against reference outputs: alone, packed, and at every size.

use piecewise::models::Checkpoint;
use piecewise::models::encoder::{EncoderBounds, TextEncoderConfig, TextOutput};
use piecewise::prelude::*;
use piecewise_ir::testing::norm_error;
use std::path::{Path, PathBuf};

/// One text of a fixture and what the reference makes of it.
struct Golden {
    ids: Vec<i32>,
    types: Vec<i32>,
    rows: Vec<f64>,
    embedding: Vec<f64>,
    pooler: Option<Vec<f64>>,
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/encoders").join(name)
}

fn goldens(name: &str) -> Vec<Golden> {
    let bytes = std::fs::read(folder(name).join("golden.safetensors")).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let words = |name: &str| {
        let tensor = tensors.tensor(name).ok()?;
        let words = tensor.data().chunks_exact(4).map(|b| <[u8; 4]>::try_from(b).unwrap());
        Some(Vec::from_iter(words))
    };
    let floats = |name: &str| -> Option<Vec<f64>> {
        Some(words(name)?.into_iter().map(|b| f64::from(f32::from_le_bytes(b))).collect())
    };
    let ints = |name: &str| -> Option<Vec<i32>> {
        Some(words(name)?.into_iter().map(i32::from_le_bytes).collect())
    };
    (0..)
        .map_while(|i| {
            let ids = ints(&format!("ids_{i}"))?;
            Some(Golden {
                types: ints(&format!("token_types_{i}")).unwrap_or(vec![0; ids.len()]),
                rows: floats(&format!("last_hidden_state_{i}"))?,
                embedding: floats(&format!("embedding_{i}"))?,
                pooler: floats(&format!("pooler_output_{i}")),
                ids,
            })
        })
        .collect()
}

struct Encoder {
    session: Session,
    config: TextEncoderConfig,
    has_types: bool,
    has_pooler: bool,
}

const MAX_ITEMS: u64 = 6;

impl Encoder {
    fn new(name: &str, dtype: DType, mode: GraphMode, sizes: &[u64]) -> Self {
        let config = TextEncoderConfig::load(&folder(name)).unwrap();
        let checkpoint = Checkpoint::open(&folder(name)).unwrap();
        let has_pooler = name == "bert";
        let outputs = [TextOutput::Embedding, TextOutput::Rows, TextOutput::Pooler];
        let bounds = EncoderBounds { max_rows: 128, max_items: MAX_ITEMS };
        let outputs = &outputs[..if has_pooler { 3 } else { 2 }];
        let graph = config.graph(&checkpoint, dtype, &bounds, outputs).unwrap();
        let has_types = graph.inputs().iter().any(|input| input.name == "token_types");
        let session = Assembly::graph(graph)
            .checkpoint(checkpoint)
            .graph_mode(mode)
            .capture_sizes(sizes.iter().copied())
            .set("cache.enabled", false)
            .threads(1)
            .session()
            .unwrap();
        Self { session, config, has_types, has_pooler }
    }

    /// The outputs of a step of these items.
    fn run(&mut self, items: &[&Golden]) -> Vec<Vec<f32>> {
        let (mut ids, mut types, mut positions) =
            (Vec::<i32>::new(), Vec::<i32>::new(), Vec::<i32>::new());
        let (mut starts, mut lengths) = (Vec::<i32>::new(), Vec::<i32>::new());
        for item in items {
            starts.push(ids.len() as i32);
            lengths.push(item.ids.len() as i32);
            ids.extend(&item.ids);
            types.extend(&item.types);
            let first = self.config.first_position() as i32;
            positions.extend(first..first + item.ids.len() as i32);
        }
        let mut step = self.session.step();
        if self.has_types {
            step = step.input("token_types", &types);
        }
        let step = step.input("ids", &ids).input("positions", &positions);
        let outputs = step.input("starts", &starts).input("lengths", &lengths).run().unwrap();
        (0..outputs.len()).map(|i| outputs.get(i).unwrap()).collect()
    }

    /// Runs these items in one step and holds each against its reference.
    fn check(&mut self, items: &[&Golden], tolerance: f64, what: &str) {
        let outputs = self.run(items);
        let width = self.config.hidden_size();
        let mut row = 0;
        for (i, item) in items.iter().enumerate() {
            let rows = &outputs[1][row * width..][..item.ids.len() * width];
            row += item.ids.len();
            let one = |output: &[f32]| output[i * width..][..width].to_vec();
            let mut found = vec![
                ("embedding", one(&outputs[0]), &item.embedding),
                ("rows", rows.to_vec(), &item.rows),
            ];
            if self.has_pooler {
                found.push(("pooler", one(&outputs[2]), item.pooler.as_ref().unwrap()));
            }
            for (output, found, expected) in found {
                let found: Vec<f64> = found.into_iter().map(f64::from).collect();
                let error = norm_error(&found, expected);
                assert!(error < tolerance, "{what}, item {i}: {output} is off by {error}");
            }
        }
    }
}

/// Every item alone, all of them in one step, and all at every size that holds them.
fn check(name: &str, dtype: DType, tolerance: f64) {
    let goldens = goldens(name);
    assert!(goldens.len() >= 3);
    let all = Vec::from_iter(&goldens);
    let rows: u64 = all.iter().map(|item| item.ids.len() as u64).sum();
    for mode in [GraphMode::None, GraphMode::Piecewise, GraphMode::Full] {
        for sizes in [vec![1, 8, rows, 128], vec![rows + 1, 128], vec![100, 128], vec![128]] {
            let mut encoder = Encoder::new(name, dtype, mode, &sizes);
            for item in &all {
                encoder.check(&[item], tolerance, &format!("{name} alone, {mode:?}, {sizes:?}"));
            }
            encoder.check(&all, tolerance, &format!("{name} packed, {mode:?}, {sizes:?}"));
            let turned: Vec<&Golden> = all.iter().rev().copied().collect();
            encoder.check(&turned, tolerance, &format!("{name} turned, {mode:?}, {sizes:?}"));
        }
    }
}

#[test]
fn bert_equals_its_reference() {
    check("bert", DType::F32, 2e-5);
    check("bert", DType::BF16, 2e-2);
}

#[test]
fn modernbert_equals_its_reference() {
    check("modernbert", DType::F32, 2e-5);
    check("modernbert", DType::BF16, 2e-2);
}

#[test]
fn qwen3_embedding_equals_its_reference() {
    check("qwen3_embedding", DType::F32, 2e-5);
    check("qwen3_embedding", DType::BF16, 2e-2);
}
