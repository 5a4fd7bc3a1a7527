//! Dumps are programs: what is printed after any pass can be read back, finished and run.

use crate::bounded::Bound;
use crate::support::cli::{command, error_of, piecewise, root, stdout_of};
use crate::support::models::MODELS;
use crate::support::nvrtc::nvrtc;
use piecewise::models::{Checkpoint, DecoderBounds, DecoderConfig, decoder};
use piecewise_ir::dtype::DType;
use piecewise_ir::entity::Slot;
use piecewise_ir::graph::Graph;
use piecewise_ir::module::{Module, SlotKind};
use piecewise_ir::text::{parse_module, print_module};
use piecewise_passes::pipeline::DEFAULT_PIPELINE;
use piecewise_passes::{PassContext, PassManager, Pipeline, Registry};
use std::collections::BTreeMap;
use std::path::Path;

fn graph(model: &str, activations: DType) -> Graph {
    let folder = root().join(model);
    let checkpoint = Checkpoint::open(&folder).unwrap();
    let dtypes: BTreeMap<String, DType> = checkpoint
        .names()
        .filter_map(|name| Some((name.to_owned(), checkpoint.dtype_of(name)?)))
        .collect();
    let bounds = DecoderBounds {
        activations,
        max_tokens: 64,
        max_rows: 4,
        max_sequences: 4,
        max_length: 128,
        kv_rows: 512,
        state_slots: 0,
        embedding_rows: 0,
        sampling_controls: false,
    };
    let config = DecoderConfig::load(&folder).unwrap();
    decoder(&config, &bounds, move |name| dtypes.get(name).copied()).unwrap()
}

fn run(module: &mut Module, passes: &[&str]) {
    let pipeline = Pipeline::parse(&passes.join(",")).unwrap();
    let mut manager = PassManager::new(&pipeline, &Registry::standard()).unwrap();
    manager.run(module, &mut PassContext::default()).unwrap();
}

#[test]
fn stopping_after_any_pass_and_going_on_from_its_text_gives_the_same_bytes() {
    let passes: Vec<&str> = DEFAULT_PIPELINE.split(',').collect();
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
        dumped("plan", &plan);
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
    run(&mut module, &DEFAULT_PIPELINE.split(',').collect::<Vec<_>>());
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

/// The files of a folder by relative path.
fn files(folder: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned();
            found.insert(name, std::fs::read_to_string(&path).unwrap());
        }
    }
    found
}

/// What `inspect --dump-dir` writes for a small model.
fn dump(flags: &[&str]) -> BTreeMap<String, String> {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("dump");
    let inspect = ["inspect", "--model", "tests/fixtures/qwen3", "--max-num-tokens", "64"];
    let sizes = ["--capture-num-tokens", "2,8", "--decode-batch-sizes", "1,4"];
    let to = ["--dump-dir", dir.to_str().unwrap()];
    stdout_of(&[&inspect[..], &sizes, &to, flags].concat());
    files(&dir)
}

#[test]
fn a_dump_holds_what_every_stage_made_and_is_the_same_twice() {
    let found = dump(&[]);
    assert_eq!(found, dump(&[]));
    let names: Vec<&str> = found.keys().map(String::as_str).collect();
    for name in [
        "graph.dot",
        "plan.dot",
        "plan.pw",
        "pieces/u0.pw",
        "passes/01-canonicalize.remarks.json",
        "passes/06-fuse.before.pw",
        "passes/06-fuse.after.pw",
        "passes/06-fuse.diff",
        "passes/07-split.remarks.json",
        "kernels/u0/at-8.json",
        "kernels/u0/at-any.json",
        "captured/p0-to-p4-at-8.dot",
        "captured/p5-at-4.dot",
        "captured/full-at-4x1-tokens-4-rows.dot",
    ] {
        assert!(names.contains(&name), "no {name} in {names:?}");
    }
    assert!(!names.contains(&"passes/05-dce.diff"), "a pass that changed nothing has no diff");
    for (name, text) in found.iter().filter(|(name, _)| name.ends_with(".pw")) {
        let module = parse_module(text).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(print_module(&module), *text, "{name}");
    }
    let changed: Vec<&str> =
        names.iter().filter_map(|name| name.strip_suffix(".before.pw")).collect();
    for pair in changed.windows(2) {
        let (after, before) = (format!("{}.after.pw", pair[0]), format!("{}.before.pw", pair[1]));
        assert_eq!(found[&after], found[&before], "what one pass leaves the next one finds");
    }
    let remarks = |pass: &str| &found[&format!("passes/{pass}.remarks.json")];
    assert!(remarks("06-fuse").contains("fused 10 nodes"), "{}", remarks("06-fuse"));
    assert!(remarks("06-fuse").contains("must run in between"), "{}", remarks("06-fuse"));
    assert!(remarks("07-split").contains("its definition says"), "{}", remarks("07-split"));
    assert!(remarks("07-split").contains("a new piece begins"), "{}", remarks("07-split"));
}

/// Values in remarks are those of the text before the pass.
#[test]
fn remarks_name_values_as_the_text_does() {
    let found = dump(&[]);
    for pass in ["06-fuse", "07-split"] {
        let text = &found[&format!("passes/{pass}.before.pw")];
        let report: serde_json::Value =
            serde_json::from_str(&found[&format!("passes/{pass}.remarks.json")]).unwrap();
        let remarks = report["remarks"].as_array().unwrap();
        let mut named = 0;
        for place in remarks.iter().filter_map(|remark| remark["where"].as_str()) {
            let Some((value, rest)) = place.split_once(" = ") else { continue };
            let op = rest.split(' ').next().unwrap();
            let start = format!("{value}: ");
            let defines = |line: &str| line.trim_start().starts_with(&start) && line.contains(op);
            assert!(text.lines().any(defines), "no line for {place}");
            named += 1;
        }
        assert!(named >= 3, "{pass}: {remarks:?}");
    }
}

#[test]
fn captured_graphs_list_the_launches_of_the_pieces() {
    let found = dump(&[]);
    let launches = |file: &str| found[file].matches("label=").count();
    let edges = |file: &str| found[file].matches(" -> ").count();
    let of_piece = |file: &str| {
        let json: serde_json::Value = serde_json::from_str(&found[file]).unwrap();
        json["launches"].as_array().unwrap().len()
    };
    let nodes = |file: &str| launches(file) - edges(file);
    assert_eq!(nodes("captured/p5-at-4.dot"), of_piece("kernels/u4/at-4.json"));
    // Two layers: three pieces, and attention between them twice.
    let joined = [0, 1, 2, 1, 3].map(|unique| of_piece(&format!("kernels/u{unique}/at-8.json")));
    assert_eq!(nodes("captured/p0-to-p4-at-8.dot"), joined.iter().sum::<usize>());
    let module = parse_module(&found["plan.pw"]).unwrap();
    let full = "captured/full-at-4x1-tokens-4-rows.dot";
    assert_eq!(launches(full) - edges(full), module.graph().nodes().len());
    assert_eq!(edges(full), module.graph().nodes().len() - 1);
}

#[test]
fn filters_choose_passes_and_pieces() {
    let found = dump(&["--dump-passes", "fuse", "--dump-pieces", "u0,u1"]);
    let in_folder = |folder: &str| -> Vec<&str> {
        found.keys().filter_map(|name| name.strip_prefix(folder)).collect()
    };
    let fuse = ["06-fuse.after.pw", "06-fuse.before.pw", "06-fuse.diff", "06-fuse.remarks.json"];
    assert_eq!(in_folder("passes/"), fuse);
    assert_eq!(in_folder("pieces/"), ["u0.pw", "u1.pw"]);
    assert_eq!(in_folder("captured/"), ["p0-to-p4-at-2.dot", "p0-to-p4-at-8.dot"]);
    let dir = tempfile::tempdir().unwrap();
    let dir = ["--dump-dir", dir.path().to_str().unwrap()];
    let inspect = ["inspect", "--model", "tests/fixtures/qwen3"];
    let error = error_of(&[&inspect[..], &dir, &["--dump-passes", "fues"]].concat());
    assert!(error.contains("did you mean `fuse`?"), "{error}");
    let error = error_of(&[&inspect[..], &dir, &["--dump-pieces", "u9"]].concat());
    assert!(error.contains("no unique piece \"u9\""), "{error}");
}

/// Every command that plans, with nothing but a file that asks for a dump.
#[test]
fn a_file_that_asks_for_a_dump_gets_one_from_every_command() {
    let encoder = "tests/fixtures/encoders/bert";
    let model = ["--model", "examples/tiny-qwen3", "--max-num-tokens", "16"];
    let bench = ["--model", "examples/tiny-qwen3", "--batch", "1", "--context", "16"];
    // `compile` is the first, and makes the cache that is explained.
    let (run, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let out = run.path().join("logits.safetensors");
    let out = out.to_str().unwrap();
    for args in [
        [&["compile"][..], &model].concat(),
        [&["cache", "explain"][..], &model].concat(),
        [&["inspect"][..], &model].concat(),
        [&["generate", "--prompt", "a", "--max-tokens", "1"][..], &model].concat(),
        [&["logits", "--ids", "1,2", "--out", out][..], &model].concat(),
        [&["bench", "--steps", "1", "--graph-mode", "none"][..], &bench].concat(),
        vec!["embed", "--model", "tests/fixtures/encoders/sentence_folder", "--text", "a"],
        vec!["inspect", "--model", encoder],
    ] {
        let folder = tempfile::tempdir().unwrap();
        let (dir, file) = (folder.path().join("dump"), folder.path().join("my.toml"));
        let with = |text: String| {
            std::fs::write(&file, text).unwrap();
            let config = ["--config", file.to_str().unwrap()];
            let output = command(cache.path()).args(&args).args(config).bounded_output().unwrap();
            (output.status.success(), String::from_utf8(output.stderr).unwrap())
        };
        let (is_well, said) = with(format!("dump.dir = {dir:?}\ndump.passes = [\"fuse\"]"));
        assert!(is_well, "{args:?}: {said}");
        let found = files(&dir);
        for name in ["plan.pw", "pieces/u0.pw", "kernels/u0/at-any.json"] {
            assert!(found.contains_key(name), "{args:?}: no {name} in {:?}", found.keys());
        }
        assert!(found.keys().any(|name| name.ends_with("fuse.remarks.json")), "{args:?}");
        let (is_well, said) = with(format!("dump.dir = {dir:?}\ndump.pieces = [\"u99\"]"));
        assert!(!is_well && said.contains("no unique piece \"u99\""), "{args:?}: {said}");
    }
}

/// What is explained stays as it is, whatever it takes to dump it.
#[test]
fn explaining_a_cache_with_a_dump_or_a_budget_changes_nothing_in_it() {
    let (cache, dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let model = ["--model", "examples/tiny-qwen3", "--max-num-tokens", "16"];
    let run = |args: &[&str]| {
        let output = command(cache.path()).args(args).bounded_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    run(&["compile", "--model", "examples/tiny-qwen3", "--max-num-tokens", "8"]);
    let explain = [&["cache", "explain"][..], &model].concat();
    let before = run(&explain);
    let file = dir.path().join("my.toml");
    std::fs::write(&file, format!("dump.dir = {:?}", dir.path())).unwrap();
    let more = ["--memory-budget", "64MiB", "--config", file.to_str().unwrap()];
    run(&[&explain[..], &more].concat());
    assert!(dir.path().join("kernels").is_dir());
    assert_eq!(run(&explain), before);
}

#[test]
fn cuda_dumps_have_sources_recipes_and_programmatic_edges() {
    let flags = ["--device", "cuda:sm_90a", "--dump-pieces", "u0"];
    if nvrtc().is_none() {
        return;
    }
    let found = dump(&flags);
    assert_eq!(found, dump(&flags));
    let sources: Vec<_> = found.iter().filter(|(name, _)| name.ends_with(".cu")).collect();
    assert!(sources.len() >= 3, "{}", sources.len());
    for (name, text) in sources {
        assert!(text.contains("__global__"), "{name}");
        let recipe = &found[&name.replace(".cu", ".recipe.json")];
        let recipe: serde_json::Value = serde_json::from_str(recipe).unwrap();
        assert_eq!(recipe["arch"], "sm_90a");
        assert!(recipe["grid"].is_array() && recipe["block"].is_array(), "{recipe}");
    }
    assert!(found["kernels/images/prelude.cuh"].contains("griddepcontrol"));
    let graphs = found.iter().filter(|(name, _)| name.starts_with("captured/p"));
    let is_programmatic = |text: &str| text.contains("label=\"programmatic\" style=dashed");
    assert!(graphs.clone().count() > 1 && graphs.clone().any(|(_, text)| is_programmatic(text)));
}

#[test]
fn opt_shows_changes_and_bisects() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("graph.pw");
    std::fs::write(&file, print_module(&Module::new(graph("tests/fixtures/qwen3", DType::F32))))
        .unwrap();
    let opt = ["opt", file.to_str().unwrap()];
    let changed = stdout_of(&[&opt[..], &["--print-changed"]].concat());
    assert!(changed.contains("--- before fuse\n+++ after fuse: "), "{changed}");
    assert!(!changed.contains("before dce"), "a pass that changed nothing is left out");

    let bisect = |n: &str| {
        let output = piecewise(&[&opt[..], &["--bisect", n]].concat());
        assert!(output.status.success());
        let log = String::from_utf8(output.stderr).unwrap();
        (String::from_utf8(output.stdout).unwrap(), log)
    };
    let (module, log) = bisect("3");
    let lines: Vec<&str> = log.lines().collect();
    assert_eq!(lines.len(), 9, "{log}");
    assert!(lines[2].starts_with("bisect: running pass (3) merge_matmuls"), "{log}");
    assert_eq!(lines[3], "bisect: not running pass (4) cse");
    assert_eq!(lines[6], "bisect: running pass (7) split: changed");
    let module = parse_module(&module).unwrap();
    assert!(module.layout().is_some(), "what is left can be run");
    let (all, log) = bisect("9");
    assert!(!log.contains("not running"), "{log}");
    assert_eq!(all, stdout_of(&opt));
}

/// PTX, machine code and resources of each kernel; the lines of a source have a file of their own name.
#[test]
fn what_is_below_the_source_of_kernels_is_dumped() {
    if nvrtc().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let dump = folder.path().to_str().unwrap();
    let args = ["opt", "examples/block.pw", "--dump-code"];
    assert!(error_of(&args).contains("dump.dir is not set"));
    let args = ["inspect", "examples/block.pw", "--device", "cuda:sm_90a", "--tune", "off"];
    let flags = ["--dump-dir", dump, "--dump-code", "--cuda-line-info"];
    let output = piecewise(&[&args[..], &flags].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let images = folder.path().join("kernels/images");
    let files = Vec::from_iter(std::fs::read_dir(images).unwrap().map(|file| file.unwrap().path()));
    let of = |ending: &str| {
        let ends = |file: &&std::path::PathBuf| file.to_str().unwrap().ends_with(ending);
        Vec::from_iter(files.iter().filter(ends))
    };
    let code = of(".cubin");
    assert!(!code.is_empty() && of(".ptx").len() == code.len(), "{files:?}");
    for file in code {
        let kernels =
            piecewise_backend::cuda::cubin_kernels(&std::fs::read(file).unwrap()).unwrap();
        let resources = std::fs::read(file.with_extension("resources.json")).unwrap();
        let resources: serde_json::Value = serde_json::from_slice(&resources).unwrap();
        assert!(
            kernels.iter().any(|kernel| resources["registers"] == kernel.registers),
            "{resources}"
        );
        let ptx = std::fs::read_to_string(file.with_extension("ptx")).unwrap();
        assert!(ptx.contains(".target sm_90a") && ptx.contains(".visible .entry"), "{ptx}");
        // The lines are those of a source that lies here, too.
        let names = ptx.lines().filter(|line| line.trim_start().starts_with(".file"));
        let names = names.filter_map(|line| Path::new(line.split('"').nth(1)?).file_name());
        for name in names {
            let is_there = files.iter().any(|file| file.file_name() == Some(name));
            assert!(is_there, "{name:?} of {files:?}");
        }
    }
    let told = String::from_utf8_lossy(&output.stderr).contains("no .sass is dumped");
    assert_eq!(of(".sass").is_empty(), told, "what is missing is told");
}

/// A module that does not verify is shown with what is wrong, by every command that reads one.
#[test]
fn what_the_verifier_finds_is_shown_inside_the_text() {
    let file = "tests/fixtures/wrong_type.pw";
    for args in [&["opt", file][..], &["run", file], &["inspect", file], &["compile", file]] {
        let error = error_of(args);
        assert!(error.contains("  v0: f32[T,9] = exp %x\n"), "{args:?}: {error}");
        assert!(error.contains("^^^ error[V0301]"), "{args:?}: {error}");
        assert!(error.contains("note: f32[T,8] would fit"), "{args:?}: {error}");
    }
}
