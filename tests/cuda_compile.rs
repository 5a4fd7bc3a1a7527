//! Every kernel that the shipped models need compiles for every architecture, without a GPU.
//! Skipped where NVRTC is not installed (see `.ci/install-nvrtc`), unless PIECEWISE_REQUIRE_NVRTC=1.

use crate::support::nvrtc::nvrtc;
use crate::{gated, outside};
use piecewise::assembly::Registries;
use piecewise::models::encoder::{EncoderBounds, VisionConfig};
use piecewise::models::{Checkpoint, DecoderBounds, DecoderConfig, Preset, decoder};
use piecewise_backend::artifact::PieceSize;
use piecewise_backend::compiler::{Compiler, CompilerOptions, NoStore, PieceAt};
use piecewise_backend::cuda::{Arch, CudaCompiler, CudaImage, Nvrtc, library_dirs};
use piecewise_backend::store::MemoryStore;
use piecewise_ir::dtype::DType;
use piecewise_ir::entity::Entity;
use piecewise_ir::module::Module;
use piecewise_kernels::op::OpRegistry;
use piecewise_kernels::op::cuda::{LaunchRecipe, Param};
use piecewise_runtime::pipeline::plan;
use piecewise_runtime::words::{CompileLevel, SymbolClass, SymbolTable};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

/// Tests have many kernels in common, and each takes a while.
pub(crate) static KERNELS: MemoryStore = MemoryStore::new();
const ARCHS: [u32; 6] = [80, 87, 89, 90, 100, 120];
const FIRST_WAYS: CompilerOptions =
    CompilerOptions { batch_invariant: false, first_ways: true, line_info: false };
pub(crate) const MODELS: [&str; 7] = [
    "examples/tiny-qwen3",
    "tests/fixtures/llama3",
    "tests/fixtures/llama3-older-form",
    "tests/fixtures/mistral",
    "tests/fixtures/qwen2",
    "tests/fixtures/qwen3",
    "tests/fixtures/qwen3-moe",
];

/// Models of codes: their products have kernels of their own, and scales among their arguments.
pub(crate) const PACKED: [&str; 3] = [
    "tests/fixtures/qwen3-fp8-block",
    "tests/fixtures/qwen3-int4-g128",
    "tests/fixtures/qwen3-awq",
];

pub(crate) fn module(model: &str, dtype: DType, level: CompileLevel) -> Module {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(model);
    let sampling_controls = model.ends_with("mistral");
    let mut config = DecoderConfig::load(&folder).unwrap();
    config.dtype = Some(dtype);
    // What is stored in narrow forms is as it is, and its scales.
    let checkpoint = PACKED.contains(&model).then(|| Checkpoint::open(&folder).unwrap());
    let stored = move |name: &str| checkpoint.as_ref()?.dtype_of(name);
    planned_of(&config, sampling_controls, dtype, stored, level)
}

fn planned(
    config: &DecoderConfig,
    sampling_controls: bool,
    dtype: DType,
    level: CompileLevel,
) -> Module {
    let mut config = config.clone();
    config.dtype = Some(dtype);
    planned_of(&config, sampling_controls, dtype, |_| None, level)
}

fn planned_of(
    config: &DecoderConfig,
    sampling_controls: bool,
    dtype: DType,
    stored: impl Fn(&str) -> Option<DType> + 'static,
    level: CompileLevel,
) -> Module {
    let bounds = DecoderBounds {
        activations: dtype,
        max_tokens: 64,
        max_rows: 4,
        max_sequences: 4,
        max_length: 64,
        kv_rows: 256,
        state_slots: 0,
        embedding_rows: 0,
        // One of them samples with all that may be asked for.
        sampling_controls,
    };
    let graph = decoder(config, &bounds, stored).unwrap();
    plan(graph, level, None, Vec::new()).unwrap().0
}

/// Compiles every unique piece at sizes that take each kernel, and returns the names of launches.
fn compile(compiler: &CudaCompiler, module: &Module, kernels: &MemoryStore) -> BTreeSet<String> {
    let stitch = module.stitch().unwrap();
    let symbols = SymbolTable::new(module.graph().symbols()).unwrap();
    let mut names = BTreeSet::new();
    for (_, piece) in stitch.unique.iter() {
        let bound = piece.over.map_or(1, |s| symbols.bounds()[s.index()]);
        let tokens = piece.over.is_some_and(|s| symbols.class(s) == SymbolClass::Tokens);
        let exact: &[u64] = if tokens { &[1, 8] } else { &[1] };
        let sizes = exact.iter().map(|&n| PieceSize::Exact(n)).chain([PieceSize::General(bound)]);
        for size in sizes {
            let at = PieceAt { piece, size, bounds: symbols.bounds() };
            let made = compiler.compile(at, &[], kernels);
            let made = made.unwrap_or_else(|e| panic!("{}: {e}", compiler.identity()));
            let launches = made.ways().flat_map(|way| &way.launches);
            for launch in launches {
                assert!(made.image(launch.image).is_some(), "{}", launch.name);
                let kind = launch.name.split(' ').next().unwrap_or_default();
                names.insert(kind.to_owned());
            }
        }
    }
    names
}

/// The first model in bf16 for every architecture; its form in f32 and the fixtures, which share most
/// kernels with it, for Hopper, as they are run there, and one other each.
#[test]
fn every_kernel_of_the_shipped_models_compiles_for_every_architecture() {
    let Some(nvrtc) = nvrtc() else { return };
    let mut modules = Vec::new();
    for model in MODELS {
        for dtype in [DType::F32, DType::BF16] {
            modules.push(module(model, dtype, CompileLevel::Piecewise));
        }
    }
    modules.push(module(MODELS[0], DType::BF16, CompileLevel::Eager));
    let optimizing = Nvrtc::open(&library_dirs(&[]), None).unwrap();
    let optimized = MemoryStore::new();
    std::thread::scope(|scope| {
        for (a, number) in ARCHS.into_iter().enumerate() {
            let all = number == 90;
            let (nvrtc, kernels) = if all { (&optimizing, &optimized) } else { (&nvrtc, &KERNELS) };
            let modules = &modules;
            scope.spawn(move || {
                let registry = Arc::new(OpRegistry::builtin());
                let compiler = CudaCompiler::new(registry, Arch { number }, nvrtc.clone());
                let share = |i: usize| all || i == 1 || i % ARCHS.len() == a;
                for (_, module) in modules.iter().enumerate().filter(|(i, _)| share(*i)) {
                    let names = compile(&compiler, module, kernels);
                    for name in ["matmul", "piecewise.paged_attention"] {
                        assert!(names.contains(name), "sm_{number}: no {name} among {names:?}");
                    }
                    let samples = ["piecewise.sample", "piecewise.controlled_sample"];
                    let found = samples.iter().filter(|&&name| names.contains(name)).count();
                    assert_eq!(found, 1, "sm_{number}: {names:?}");
                }
            });
        }
    });
}

#[test]
fn every_kernel_compiles_so_that_its_blocks_note_their_times() {
    let Some(nvrtc) = nvrtc() else { return };
    let module = module(MODELS[0], DType::BF16, CompileLevel::Piecewise);
    let symbols = SymbolTable::new(module.graph().symbols()).unwrap();
    let mut expected = vec!["attention_decode", "matmul", "region", "sample"];
    // Panels and attention to prompts come with 64 rows, and tiles with these and more.
    for (number, sizes) in [(80, &[1][..]), (90, &[1, 8, 64, 512])] {
        let registry = || Arc::new(OpRegistry::builtin());
        let normal = CudaCompiler::new(registry(), Arch { number }, nvrtc.clone());
        let noting = CudaCompiler::new(registry(), Arch { number }, nvrtc.clone()).with_stamps();
        assert_ne!(normal.identity(), noting.identity());
        let mut seen = BTreeSet::new();
        for (_, piece) in module.stitch().unwrap().unique.iter() {
            for size in sizes.iter().copied().map(PieceSize::Exact) {
                let compile = |compiler: &CudaCompiler| {
                    compiler
                        .compile(PieceAt { piece, size, bounds: symbols.bounds() }, &[], &KERNELS)
                        .unwrap()
                };
                let (normal, noting) = (compile(&normal), compile(&noting));
                assert_eq!(normal.images.len(), noting.images.len());
                for (_, image) in &noting.images {
                    let CudaImage::Kernel(kernel) = CudaImage::from_bytes(image).unwrap() else {
                        continue;
                    };
                    let notes = kernel.recipe.params.last() == Some(&Param::Stamps);
                    assert!(notes, "sm_{number}: {} notes nothing", kernel.recipe.entry);
                    seen.insert(kernel.recipe.entry);
                }
                for (_, image) in &normal.images {
                    if let CudaImage::Kernel(kernel) = CudaImage::from_bytes(image).unwrap() {
                        assert!(!kernel.recipe.params.contains(&Param::Stamps));
                    }
                }
            }
        }
        assert!(expected.iter().all(|entry| seen.contains(*entry)), "{seen:?}");
        expected.push("attention_prefill");
    }
}

#[test]
fn the_op_of_a_package_outside_compiles_for_older_and_newer_architectures() {
    let Some(nvrtc) = nvrtc() else { return };
    let registry = Arc::new(gated::GatedLinearAttention::registry());
    let own = Registries::standard().model("outside", outside::Outside::read);
    let own = own.ops((*registry).clone()).folder("examples/outside/model").unwrap();
    let planned = own.max_num_tokens(32).max_num_seqs(8).no_cache().plan().unwrap();
    let module = planned.module();
    for number in [80, 90, 120] {
        let compiler = CudaCompiler::new(Arc::clone(&registry), Arch { number }, nvrtc.clone());
        let names = compile(&compiler, module, &KERNELS);
        assert!(names.contains("outside.gated_linear_attention"), "sm_{number}: {names:?}");
    }
}

#[test]
fn the_same_piece_gives_the_same_artifact_from_any_compiler() {
    let Some(nvrtc) = nvrtc() else { return };
    let module = module(MODELS[0], DType::BF16, CompileLevel::Piecewise);
    let symbols = SymbolTable::new(module.graph().symbols()).unwrap();
    let (_, piece) = module.stitch().unwrap().unique.iter().next().unwrap();
    let make = || {
        let registry = Arc::new(OpRegistry::builtin());
        let compiler = CudaCompiler::new(registry, Arch { number: 90 }, nvrtc.clone());
        compiler
            .compile(
                PieceAt { piece, size: PieceSize::Exact(4), bounds: symbols.bounds() },
                &[],
                &NoStore,
            )
            .unwrap()
    };
    assert_eq!(make(), make());
}

/// What runs unmeasured is the same, and nothing else is compiled for it.
#[test]
fn without_measuring_the_first_ways_alone_are_compiled() {
    let Some(nvrtc) = nvrtc() else { return };
    let module = module(MODELS[0], DType::BF16, CompileLevel::Piecewise);
    let symbols = SymbolTable::new(module.graph().symbols()).unwrap();
    let make = || {
        let registry = Arc::new(OpRegistry::builtin());
        CudaCompiler::new(registry, Arch { number: 90 }, nvrtc.clone())
    };
    let (all, first) = (make(), make().with_options(FIRST_WAYS));
    assert_ne!(all.identity(), first.identity());
    let (of_all, of_first) = (MemoryStore::new(), MemoryStore::new());
    for piece in module.stitch().unwrap().unique.values() {
        for rows in [1, 4] {
            let size = PieceSize::Exact(rows);
            let compile = |compiler: &CudaCompiler, store: &MemoryStore| {
                compiler
                    .compile(PieceAt { piece, size, bounds: symbols.bounds() }, &[], store)
                    .unwrap()
            };
            let (all, first) = (compile(&all, &of_all), compile(&first, &of_first));
            assert!(all.first_launches().eq(first.first_launches()));
            assert!(!first.has_choices());
            assert_eq!(first.ways().count(), first.alternatives[0].parts.len());
        }
    }
    let kernels =
        |store: &MemoryStore| store.entries().keys().filter(|(kind, _)| *kind == "cubin").count();
    assert!(kernels(&of_first) < kernels(&of_all), "{}", kernels(&of_first));
}

#[test]
fn few_rows_stream_their_weights_and_more_go_to_the_library() {
    let Some(nvrtc) = nvrtc() else { return };
    let module = module(MODELS[0], DType::BF16, CompileLevel::Piecewise);
    let symbols = SymbolTable::new(module.graph().symbols()).unwrap();
    let stitch = module.stitch().unwrap();
    let piece = &stitch.unique[stitch.unique_pieces()[0]];
    let ways = |number, rows| {
        let registry = Arc::new(OpRegistry::builtin());
        let compiler = CudaCompiler::new(registry, Arch { number }, nvrtc.clone());
        let size = PieceSize::Exact(rows);
        let made = compiler
            .compile(PieceAt { piece, size, bounds: symbols.bounds() }, &[], &KERNELS)
            .unwrap();
        let apart = made.alternatives.iter().max_by_key(|one| one.parts.len()).unwrap();
        let own = apart.parts.iter();
        let product = own.max_by_key(|part| part.ways.len()).unwrap();
        for way in &product.ways {
            let is_library = way.name == "library";
            assert_eq!((way.scratch > 0, way.uses_library), (is_library, is_library));
        }
        product.ways.iter().map(|way| way.name.clone()).collect::<Vec<_>>().join(" ")
    };
    // One of ours, the library's, the general one: on Hopper one is enough for few rows.
    assert_eq!(ways(90, 1), "stream library general");
    assert_eq!(ways(90, 8), "half ring ring panel library general");
    assert_eq!(ways(90, 9), "ring half ring panel library general");
    // Each block would read more of x than of its columns.
    assert_eq!(ways(90, 32), "panel ring half ring library general");
    // Too many for the first, and enough for tiles.
    assert_eq!(ways(90, 33), "panel library tile general");
    assert_eq!(ways(90, 128), "panel library tile general");
    assert_eq!(ways(90, 129), "library tile general");
    assert_eq!(ways(80, 8), "tensor library stream general");
    assert_eq!(ways(80, 9), "tensor library general");
}

/// A thread of a long row takes several runs of it where there are rows enough.
#[test]
fn regions_of_many_long_rows_have_a_way_with_fewer_threads() {
    let Some(nvrtc) = nvrtc() else { return };
    let config = Preset::Qwen3_0_6B.config();
    let module = planned(&config, false, DType::BF16, CompileLevel::Piecewise);
    let symbols = SymbolTable::new(module.graph().symbols()).unwrap();
    let stitch = module.stitch().unwrap();
    let layer = &stitch.unique[stitch.unique_pieces()[1]];
    let compiler = CudaCompiler::new(Arc::new(OpRegistry::builtin()), Arch { number: 90 }, nvrtc);
    let narrow = |rows| {
        let at = PieceAt { piece: layer, size: PieceSize::Exact(rows), bounds: symbols.bounds() };
        let made = compiler.compile(at, &[], &KERNELS).unwrap();
        let apart = made.alternatives.iter().max_by_key(|one| one.parts.len()).unwrap();
        let parts = apart.parts.iter();
        let regions = parts.filter(|part| part.ways[0].name == "general");
        let ways = regions.map(|part| part.ways.iter().map(|way| way.name.clone()).collect());
        ways.collect::<Vec<Vec<String>>>()
    };
    let has_narrow = |ways: &Vec<String>| ways.contains(&"narrow".to_owned());
    assert!(!narrow(32).iter().any(has_narrow));
    let many = narrow(64);
    assert!(many.iter().any(has_narrow), "{many:?}");
    // What comes first is what there was.
    assert!(many.iter().all(|ways| ways[0] == "general"), "{many:?}");
}

/// The gate of a product that fills too few tiles to be expected to gain by them.
#[test]
fn tiles_with_what_follows_are_measured_where_they_are_not_expected_to_pay() {
    let Some(nvrtc) = nvrtc() else { return };
    let module = planned(&Preset::Qwen3_0_6B.config(), false, DType::BF16, CompileLevel::Piecewise);
    let symbols = SymbolTable::new(module.graph().symbols()).unwrap();
    let stitch = module.stitch().unwrap();
    let layer = &stitch.unique[stitch.unique_pieces()[1]];
    let compiler = CudaCompiler::new(Arc::new(OpRegistry::builtin()), Arch::HOPPER, nvrtc);
    let takes_in = |compiler: &CudaCompiler, rows| {
        let at = PieceAt { piece: layer, size: PieceSize::Exact(rows), bounds: symbols.bounds() };
        let made = compiler.compile(at, &[], &KERNELS).unwrap();
        let most = made.alternatives.iter().map(|one| one.parts.len()).max();
        let takes_in = made.alternatives.iter().map(|one| Some(one.parts.len()) < most);
        takes_in.collect::<Vec<_>>()
    };
    assert_eq!(takes_in(&compiler, 320), [false, true], "what is taken unmeasured comes first");
    assert_eq!(takes_in(&compiler, 704), [true, false]);
    assert_eq!(takes_in(&compiler.with_options(FIRST_WAYS), 320), [false]);
}

/// Patches of 588 numbers, no multiple of 16 bytes, and a kernel that the checkpoint has under
/// another shape: the product still takes Hopper's tiles.
#[test]
fn every_product_of_a_tower_s_rows_multiplies_in_tiles() {
    let Some(nvrtc) = nvrtc() else { return };
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/encoders/siglip");
    let config = serde_json::json!({
        "model_type": "siglip_vision_model", "hidden_size": 144, "num_attention_heads": 2,
        "intermediate_size": 256, "num_hidden_layers": 1, "image_size": 56, "patch_size": 14,
    });
    let config = VisionConfig::parse(config.to_string().as_bytes(), Path::new("config.json"));
    let bounds = EncoderBounds { max_rows: 256, max_items: 16, max_frames: 16 };
    let (config, checkpoint) = (config.unwrap(), Checkpoint::open(&file).unwrap());
    let dtype = DType::BF16;
    let graph = config.graph(&checkpoint, dtype, dtype, &bounds).unwrap();
    let module = plan(graph, CompileLevel::Piecewise, None, Vec::new()).unwrap().0;
    let symbols = SymbolTable::new(module.graph().symbols()).unwrap();
    let compiler = CudaCompiler::new(Arc::new(OpRegistry::builtin()), Arch { number: 90 }, nvrtc)
        .with_options(CompilerOptions { batch_invariant: true, ..CompilerOptions::default() });
    let mut products = 0;
    for (_, piece) in module.stitch().unwrap().unique.iter() {
        if piece.over.is_none_or(|s| symbols.class(s) != SymbolClass::Tokens) {
            continue;
        }
        let size = PieceSize::Exact(256);
        let made = compiler
            .compile(PieceAt { piece, size, bounds: symbols.bounds() }, &[], &KERNELS)
            .unwrap();
        for launch in made.first_launches() {
            let CudaImage::Kernel(kernel) =
                CudaImage::from_bytes(made.image(launch.image).unwrap()).unwrap()
            else {
                panic!("{} is no kernel of ours", launch.name)
            };
            if kernel.recipe.entry == "matmul" {
                let copies = |param: &Param| matches!(param, Param::TensorMap(_));
                assert!(kernel.recipe.params.iter().any(copies), "{}", launch.name);
                products += 1;
            }
        }
    }
    // Patches; q, k and v as one; what leaves attention; the feed-forward's two.
    assert!(products >= 5, "{products}");
}

/// A layer is what lies between two attentions, and attention itself, which has one launch.
#[test]
fn a_decoder_layer_is_five_launches_of_one_row_and_seven_of_more() {
    let Some(nvrtc) = nvrtc() else { return };
    let module = module(MODELS[0], DType::BF16, CompileLevel::Piecewise);
    let symbols = SymbolTable::new(module.graph().symbols()).unwrap();
    let compiler = CudaCompiler::new(Arc::new(OpRegistry::builtin()), Arch { number: 90 }, nvrtc);
    let stitch = module.stitch().unwrap();
    let layer = &stitch.unique[stitch.unique_pieces()[1]];
    for rows in [1, 8, 9] {
        let size = PieceSize::Exact(rows);
        let made = compiler
            .compile(PieceAt { piece: layer, size, bounds: symbols.bounds() }, &[], &KERNELS)
            .unwrap();
        let mut listed = String::new();
        for (i, alternative) in made.alternatives.iter().enumerate() {
            listed.push_str(&format!("alternative {i}\n"));
            for part in &alternative.parts {
                let (launch, ways) = (&part.ways[0].launches[0], part.ways.iter());
                let ways = ways.map(|way| way.name.as_str()).collect::<Vec<_>>().join(", ");
                listed.push_str(&format!("  {} {:?}: {ways}\n", launch.name, launch.nodes));
            }
        }
        let counts = made.alternatives.iter().map(|one| one.first_launches().count());
        let counts = Vec::from_iter(counts);
        let expected: &[usize] = match rows {
            1 => &[5, 8],
            // The gate ends the product before it.
            _ => &[7, 8],
        };
        assert_eq!(counts, expected, "{listed}");
        if rows == 1 {
            insta::assert_snapshot!("launches_of_a_layer", listed);
        }
    }
}

#[test]
fn blocks_of_a_step_of_one_row_take_half_of_a_multiprocessor() {
    for number in [80, 86, 87, 89, 90, 100, 120] {
        let arch = Arch { number };
        // A multiprocessor has a KiB more than one block may have, and each block takes one.
        let (each, all) = (arch.shared_bytes_of_half() + 1024, arch.shared_bytes_of_block() + 1024);
        assert!(2 * each <= all && 3 * each > all, "{arch}");
    }
    let Some(nvrtc) = nvrtc() else { return };
    let arch = Arch { number: 90 };
    let compiler = CudaCompiler::new(Arc::new(OpRegistry::builtin()), arch, nvrtc);
    let module = module(MODELS[0], DType::BF16, CompileLevel::Piecewise);
    let symbols = SymbolTable::new(module.graph().symbols()).unwrap();
    for piece in module.stitch().unwrap().unique.values() {
        let compile = |rows| -> Vec<LaunchRecipe> {
            let mut bounds = symbols.bounds().to_vec();
            let Some(over) = piece.over else { return Vec::new() };
            bounds[over.index()] = rows;
            let size = PieceSize::Exact(rows);
            let made =
                compiler.compile(PieceAt { piece, size, bounds: &bounds }, &[], &KERNELS).unwrap();
            let kernel = |(_, bytes): &(_, Vec<u8>)| match CudaImage::from_bytes(bytes).unwrap() {
                CudaImage::Kernel(kernel) => Some(kernel.recipe),
                _ => None,
            };
            made.images.iter().filter_map(kernel).collect()
        };
        let half = arch.shared_bytes_of_half() as u32;
        let shared = |r: &LaunchRecipe| r.static_shared + r.dynamic_shared;
        assert!(compile(1).iter().all(|recipe| shared(recipe) >= half));
        let small = |r: &LaunchRecipe| r.entry == "region" && shared(r) >= half;
        // Few rows may be measured so, more are not.
        assert!(!compile(128).iter().any(small));
    }
}
