//! Dumps are programs: what is printed after any pass can be read back, finished and run.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/cli.rs"]
mod cli;

use cli::{error_of, root, stdout_of};
use piecewise::models::{Checkpoint, DecoderConfig, DecoderLimits, decoder};
use piecewise_ir::dtype::DType;
use piecewise_ir::entity::Slot;
use piecewise_ir::graph::Graph;
use piecewise_ir::module::{Module, SlotKind};
use piecewise_ir::text::{parse_module, print_module};
use piecewise_passes::{PassContext, PassManager, Pipeline, Registry};
use piecewise_runtime::mode::Level;
use piecewise_runtime::pipeline::pipeline_text;
use std::collections::BTreeMap;

const MODELS: [&str; 7] = [
    "examples/tiny-qwen3",
    "tests/fixtures/llama3",
    "tests/fixtures/llama3-older-form",
    "tests/fixtures/mistral",
    "tests/fixtures/qwen2",
    "tests/fixtures/qwen3",
    "tests/fixtures/qwen3-sharded",
];

fn graph(model: &str, activations: DType) -> Graph {
    let folder = root().join(model);
    let checkpoint = Checkpoint::open(&folder).unwrap();
    let dtypes: BTreeMap<String, DType> = checkpoint
        .names()
        .filter_map(|name| Some((name.to_owned(), checkpoint.dtype_of(name)?)))
        .collect();
    let limits = DecoderLimits {
        activations,
        max_tokens: 64,
        max_rows: 4,
        max_sequences: 4,
        max_length: 128,
        kv_rows: 512,
    };
    let config = DecoderConfig::load(&folder).unwrap();
    decoder(&config, &limits, move |name| dtypes.get(name).copied()).unwrap()
}

fn run(module: &mut Module, passes: &[&str]) {
    let pipeline = Pipeline::parse(&passes.join(",")).unwrap();
    let mut manager = PassManager::new(&pipeline, &Registry::standard()).unwrap();
    manager.run(module, &mut PassContext::default()).unwrap();
}

#[test]
fn stopping_after_any_pass_and_going_on_from_its_text_gives_the_same_bytes() {
    let pipeline = pipeline_text(Level::Piecewise, None);
    let passes: Vec<&str> = pipeline.split(',').collect();
    for model in MODELS {
        for activations in [DType::F32, DType::BF16] {
            let mut whole = Module::new(graph(model, activations));
            let mut dumps = vec![print_module(&whole)];
            for pass in &passes {
                run(&mut whole, &[pass]);
                dumps.push(print_module(&whole));
            }
            let expected = dumps.last().unwrap();
            for (done, dump) in dumps.iter().enumerate() {
                let mut module = parse_module(dump).unwrap();
                assert_eq!(print_module(&module), *dump, "{model} after {done} passes");
                if done < passes.len() {
                    run(&mut module, &passes[done..]);
                }
                assert_eq!(print_module(&module), *expected, "{model} after {done} passes");
            }
        }
    }
}

#[test]
fn a_dumped_graph_gives_the_bits_of_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (dump, plan, expected, found) =
        (path("dump.pw"), path("plan.pw"), path("model.st"), path("run.st"));
    let ids = "1,5,9,200,33,7,8,2,100,41";
    for model in MODELS {
        let flags = ["--dtype", "f32", "--max-num-tokens", "64"];
        let logits = ["logits", "--model", model, "--ids", ids, "--out", &expected];
        stdout_of(&[&logits[..], &flags].concat());
        let expected = std::fs::read(&expected).unwrap();
        let dumped = |stop_after: &str, file: &str| {
            let inspect = ["inspect", "--model", model, "--stop-after", stop_after];
            std::fs::write(file, stdout_of(&[&inspect[..], &flags].concat())).unwrap();
        };
        dumped("fuse", &dump);
        dumped("check", &plan);
        let run = ["run", &dump, "--weights", model, "--ids", ids, "--out", &found];
        for extra in [&[][..], &["--plan", &plan]] {
            stdout_of(&[&run[..], extra].concat());
            assert_eq!(std::fs::read(&found).unwrap(), expected, "{model} {extra:?}");
        }
    }
}

#[test]
fn a_plan_with_an_edited_offset_is_refused_with_its_code() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (sound, edited) = (path("sound.pw"), path("edited.pw"));
    let model = "tests/fixtures/qwen3";
    let mut module = Module::new(graph(model, DType::F32));
    let pipeline = pipeline_text(Level::Piecewise, None);
    run(&mut module, &pipeline.split(',').collect::<Vec<_>>());
    std::fs::write(&sound, print_module(&module)).unwrap();
    let slots: Vec<_> = module.slots().unwrap().slots.iter().collect();
    let together = |(a, b): &(usize, usize)| {
        let ((_, a), (_, b)) = (slots[*a], slots[*b]);
        a.kind != SlotKind::Input && b.kind != SlotKind::Input && a.live.overlaps(b.live)
    };
    let pairs = (0..slots.len()).flat_map(|a| (0..a).map(move |b| (a, b)));
    let (a, b) = pairs.into_iter().find(together).unwrap();
    let mut layout = module.layout().unwrap().clone();
    let at = |slot: Slot| piecewise_ir::entity::Entity::index(slot);
    layout.offsets[at(slots[a].0)] = layout.offsets[at(slots[b].0)];
    module.set_layout(layout);
    std::fs::write(&edited, print_module(&module)).unwrap();
    let run = ["run", &sound, "--weights", model, "--ids", "1,2,3"];
    stdout_of(&[&run[..], &["--plan", &sound]].concat());
    let error = error_of(&[&run[..], &["--plan", &edited]].concat());
    assert!(error.contains("B0301"), "{error}");
}
