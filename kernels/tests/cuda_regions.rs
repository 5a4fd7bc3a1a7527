//! Kernels of regions: their text, and that NVRTC takes all of them on every architecture.

use crate::common;
use crate::layer::{PASSES, layer};
use crate::nvrtc::Nvrtc;
use piecewise_ir::dtype::DType::{BF16, F16, F32};
use piecewise_ir::entity::{Node, Value};
use piecewise_ir::graph::{Graph, ValueDef};
use piecewise_ir::module::Module;
use piecewise_ir::op::Op;
use piecewise_kernels::cuda::{
    LaunchRecipe, OperandRole, PRELUDE, narrow_region_kernel, node_kernel, region_kernel,
};
use piecewise_kernels::lower::LowerError;
use piecewise_testing::RandomGraph;
use std::collections::BTreeSet;

const ARCHS: [&str; 6] = ["sm_80", "sm_87", "sm_89", "sm_90a", "sm_100", "sm_120"];

fn roles(graph: &Graph, node: Node) -> Vec<OperandRole> {
    let role = |&v: &Value| OperandRole {
        state: matches!(graph.def(v), ValueDef::State(_)),
        weight: matches!(graph.def(v), ValueDef::Weight(_)),
        staged: matches!(graph.def(v), ValueDef::Input(_)) && !graph.ty(v).dtype.is_float(),
    };
    graph.node(node).operands.iter().map(role).collect()
}

fn kernel(graph: &Graph, node: Node) -> Option<Result<LaunchRecipe, LowerError>> {
    let (data, roles) = (graph.node(node), roles(graph, node));
    match &data.op {
        Op::MatMul { .. } | Op::Custom(_) => None,
        Op::Region(region) => Some(region_kernel(region, &roles)),
        op => Some(node_kernel(op, &graph.operand_types(node), &roles, &graph.result_types(node))),
    }
}

fn kernels(module: &Module) -> Vec<LaunchRecipe> {
    let graph = module.graph();
    graph.nodes().filter_map(|n| kernel(graph, n)).map(Result::unwrap).collect()
}

/// Those of regions whose rows are long enough for fewer threads.
fn narrow_kernels(module: &Module) -> Vec<LaunchRecipe> {
    let graph = module.graph();
    let narrow = |node| match &graph.node(node).op {
        Op::Region(region) => {
            let roles = roles(graph, node);
            let usual = region_kernel(region, &roles).unwrap();
            narrow_region_kernel(region, &roles, &usual).unwrap()
        }
        _ => None,
    };
    graph.nodes().filter_map(narrow).collect()
}

#[test]
fn long_rows_have_a_kernel_with_a_quarter_of_the_threads() {
    let long = layer(BF16, 4096, 4096);
    let narrow = narrow_kernels(&long);
    assert!(!narrow.is_empty());
    for recipe in &narrow {
        assert_eq!(recipe.block, [128, 1, 1], "{}", recipe.source);
        assert!(!kernels(&long).contains(recipe));
    }
    let mut short = common::decoder::decoder(2, BF16);
    common::run(&mut short, PASSES);
    assert_eq!(narrow_kernels(&short), []);
}

#[test]
fn sources_of_a_layer() {
    for (i, recipe) in kernels(&layer(BF16, 4096, 4096)).iter().enumerate() {
        insta::assert_snapshot!(format!("layer_{i}"), recipe.source);
    }
}

/// The arguments of which a source loads something before a wait, by its text.
fn loaded_early(source: &str) -> Vec<u32> {
    let waits: Vec<&str> = source.split("PW_WAIT();").collect();
    let before =
        waits[..waits.len() - 1].iter().filter_map(|text| text.split("// weights: ").nth(1));
    let loads = before.flat_map(|text| text.split("load<").skip(1));
    let args: BTreeSet<u32> =
        loads.map(|load| number_after(load, "], a").expect("an argument")).collect();
    args.into_iter().collect()
}

fn number_after(text: &str, prefix: &str) -> Option<u32> {
    let rest = &text[text.find(prefix)? + prefix.len()..];
    rest[..rest.find(|c: char| !c.is_ascii_digit())?].parse().ok()
}

#[test]
fn what_is_loaded_before_the_wait_is_named_ahead() {
    let all = all_kernels();
    for recipe in &all {
        assert_eq!(recipe.ahead, loaded_early(&recipe.source), "{}", recipe.source);
    }
    assert!(all.iter().filter(|recipe| !recipe.ahead.is_empty()).count() > 10);
}

#[test]
fn equal_regions_give_equal_bytes() {
    let (a, b) = (kernels(&layer(F16, 4096, 4096)), kernels(&layer(F16, 4096, 4096)));
    assert_eq!(a, b);
    assert_ne!(a, kernels(&layer(F32, 4096, 4096)));
}

fn all_kernels() -> Vec<LaunchRecipe> {
    let mut all: Vec<LaunchRecipe> =
        [BF16, F16, F32].map(|d| kernels(&layer(d, 4096, 4096))).concat();
    for dtype in [BF16, F16, F32] {
        all.extend(narrow_kernels(&layer(dtype, 4096, 4096)));
    }
    for dtype in [BF16, F32] {
        let mut module = common::decoder::decoder(2, dtype);
        all.extend(kernels(&module));
        common::run(&mut module, PASSES);
        all.extend(kernels(&module));
    }
    let (mut seed, mut regions) = (0, 0);
    while regions < 300 {
        let mut module = Module::new(RandomGraph::default().generate(seed));
        common::run(&mut module, PASSES);
        let graph = module.graph();
        for node in graph.nodes() {
            if matches!(graph.node(node).op, Op::Region(_)) {
                regions += 1;
                all.push(kernel(graph, node).unwrap().unwrap());
            }
        }
        seed += 1;
    }
    all
}

#[test]
fn every_region_has_a_kernel_within_the_limits_of_a_block() {
    let all = all_kernels();
    assert!(all.len() > 300);
    for recipe in &all {
        assert!(recipe.static_shared + recipe.dynamic_shared <= 48 << 10, "{}", recipe.source);
        assert!(recipe.block[0] <= 1024 && recipe.block[0] % 32 == 0);
        assert!(recipe.programmatic && recipe.source.contains("PW_WAIT();"));
        assert!(recipe.grid_at(&[7, 3, 2, 64, 8], 132).unwrap()[0] > 0);
    }
}

/// Sources are packed several to a compilation, in namespaces: compiling is most of the time.
#[test]
fn nvrtc_takes_every_kernel_for_every_architecture() {
    let Some(nvrtc) = Nvrtc::find() else { return };
    let mut sources: Vec<(String, Vec<String>, String)> =
        all_kernels().into_iter().map(|r| (r.source, r.options, r.entry)).collect();
    sources.sort();
    sources.dedup();
    for (batch, sources) in sources.chunks(40).enumerate() {
        let mut text = String::from("#include \"prelude.cuh\"\n");
        for (i, (source, _, entry)) in sources.iter().enumerate() {
            let source = source.replace("#include \"prelude.cuh\"", "");
            let source = source.replace(&format!(") {entry}("), &format!(") {entry}_{i}("));
            text.push_str(&format!("namespace n{i} {{\n{source}\n}}\n"));
        }
        // Hopper compiles all batches, each other architecture a share.
        for (a, arch) in ARCHS.iter().enumerate() {
            if (batch + a) % ARCHS.len() == 0 || *arch == "sm_90a" {
                let code = nvrtc.compile(&text, PRELUDE, arch, &sources[0].1);
                if let Err(log) = code {
                    for (source, options, _) in sources {
                        if let Err(log) = nvrtc.compile(source, PRELUDE, arch, options) {
                            panic!("{arch}:\n{log}\n{source}");
                        }
                    }
                    panic!("{arch}: only together: {log}");
                }
            }
        }
    }
}
