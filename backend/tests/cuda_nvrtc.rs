//! Kernels compile without a GPU. Skipped where NVRTC is not installed: see `.ci/install-nvrtc`.

use crate::harness::random::{Kind, program};
use crate::skip::skipped;
use piecewise_backend::cuda::{Arch, Nvrtc, NvrtcError, Source, library_dirs};
use piecewise_ir::graph::ValueDef;
use piecewise_ir::op::Op;
use piecewise_kernels::cuda::{LaunchRecipe, OperandRole, PRELUDE, region_kernel};
use piecewise_testing::cuda::compiling_fast;

const ARCHS: [u32; 6] = [80, 87, 89, 90, 100, 120];

const DOUBLE: &str = r#"
#include "scale.cuh"
extern "C" __global__ void scale(float *x, const int *counts) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < counts[0]) x[i] *= SCALE;
}
"#;

fn nvrtc() -> Option<Nvrtc> {
    match Nvrtc::open(&library_dirs(&[]), None) {
        Ok(nvrtc) => Some(nvrtc),
        Err(error) => {
            skipped("PIECEWISE_REQUIRE_NVRTC", error);
            None
        }
    }
}

fn source<'a>(text: &'a str, headers: &'a [(&'a str, &'a str)]) -> Source<'a> {
    Source { name: "scale.cu", text, headers, options: &["--std=c++17"] }
}

#[test]
fn a_kernel_compiles_for_every_architecture_to_the_same_bytes() {
    let Some(nvrtc) = nvrtc() else { return };
    assert!(nvrtc.identity().starts_with("nvrtc "));
    for number in ARCHS {
        let arch = Arch { number };
        if !nvrtc.archs().contains(&arch) {
            let reason = format!("{} does not know {arch}", nvrtc.identity());
            skipped("PIECEWISE_REQUIRE_NVRTC", reason);
            continue;
        }
        let headers = [("scale.cuh", "#define SCALE 2.0f\n")];
        let cubin = nvrtc.compile(&source(DOUBLE, &headers), arch).unwrap();
        assert_eq!(&cubin[..4], b"\x7fELF", "{arch}");
        assert_eq!(cubin, nvrtc.compile(&source(DOUBLE, &headers), arch).unwrap());
        let other = [("scale.cuh", "#define SCALE 3.0f\n")];
        assert_ne!(cubin, nvrtc.compile(&source(DOUBLE, &other), arch).unwrap());
    }
}

#[test]
fn mistakes_come_back_with_the_compilers_log() {
    let Some(nvrtc) = nvrtc() else { return };
    let arch = Arch { number: 90 };
    let error = nvrtc.compile(&source(DOUBLE, &[]), arch).unwrap_err();
    assert!(matches!(error, NvrtcError::Compile { call: "nvrtcCompileProgram", .. }));
    let text = error.to_string();
    assert!(text.contains("`scale.cu` does not compile for sm_90a"), "{text}");
    assert!(text.contains("scale.cuh"), "{text}");

    let unknown = Arch { number: 60 };
    assert!(nvrtc.compile(&source("", &[]), unknown).is_err());

    let error = nvrtc.compile(&source("a\0b", &[]), arch).unwrap_err();
    assert_eq!(error.to_string(), "the text of kernel source `scale.cu` holds a NUL byte");
}

#[test]
fn several_threads_compile_at_once() {
    let Some(nvrtc) = nvrtc() else { return };
    let headers = [("scale.cuh", "#define SCALE 2.0f\n")];
    let compile = || nvrtc.compile(&source(DOUBLE, &headers), Arch { number: 90 }).unwrap();
    let first = compile();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(compile)).collect();
        for thread in threads {
            assert_eq!(thread.join().unwrap(), first);
        }
    });
}

/// The kernels that make weights and measure bandwidth, for every architecture that models are
/// compiled for.
#[test]
fn the_kernels_of_the_device_itself_compile() {
    let Some(nvrtc) = nvrtc() else { return };
    let texts = [
        ("weights.cu", piecewise_backend::cuda::WEIGHT_KERNELS),
        ("bandwidth.cu", piecewise_backend::cuda::BANDWIDTH_KERNEL),
    ];
    for (name, text) in texts {
        let source = Source { name, text, headers: &[], options: &[] };
        for number in ARCHS {
            nvrtc.compile(&source, Arch { number }).unwrap();
        }
    }
}

fn random_region(seed: u64, kind: Kind) -> LaunchRecipe {
    let graph = program(seed, kind).fused;
    let node = graph.nodes().next().unwrap();
    let Op::Region(region) = &graph.node(node).op else { panic!("{graph:#?}") };
    let role = |&value| OperandRole {
        state: matches!(graph.def(value), ValueDef::State(_)),
        weight: matches!(graph.def(value), ValueDef::Weight(_)),
        staged: false,
    };
    let roles: Vec<_> = graph.node(node).operands.iter().map(role).collect();
    region_kernel(region, &roles).unwrap()
}

/// The regions that a GPU is held to the evaluator with: all of exact ops, a tenth of the others.
/// Several are compiled at once, in namespaces, each batch for one of the architectures in turn.
#[test]
fn random_regions_compile() {
    let Some(nvrtc) = nvrtc().map(compiling_fast) else { return };
    let kinds = [(Kind::Exact, 1), (Kind::Smooth, 10), (Kind::SmoothF32, 10)];
    let mut recipes: Vec<_> = kinds
        .into_iter()
        .flat_map(|(kind, nth)| (0..300).step_by(nth).map(move |seed| random_region(seed, kind)))
        .collect();
    recipes.sort_by(|a, b| a.source.cmp(&b.source));
    recipes.dedup_by(|a, b| a.source == b.source);
    assert!(recipes.len() > 300, "{} different regions", recipes.len());
    for (batch, recipes) in recipes.chunks(40).enumerate() {
        let mut text = String::from("#include \"prelude.cuh\"\n");
        for (i, LaunchRecipe { source, entry, .. }) in recipes.iter().enumerate() {
            let source = source.replace("#include \"prelude.cuh\"", "");
            let source = source.replace(&format!(") {entry}("), &format!(") {entry}_{i}("));
            text.push_str(&format!("namespace n{i} {{\n{source}\n}}\n"));
        }
        let headers = [("prelude.cuh", PRELUDE)];
        let options: Vec<&str> =
            recipes[0].options.iter().map(String::as_str).chain(["--std=c++17"]).collect();
        let arch = Arch { number: ARCHS[batch % ARCHS.len()] };
        let compile = |name, text| {
            let source = Source { name, text, headers: &headers, options: &options };
            nvrtc.compile(&source, arch)
        };
        let Err(together) = compile("regions.cu", &text) else { continue };
        for recipe in recipes {
            if let Err(error) = compile("region.cu", &recipe.source) {
                panic!("{error}\n{}", recipe.source);
            }
        }
        panic!("only together: {together}");
    }
}
