//! Random graphs: each pass keeps every bit of outputs and states, verifies, and is idempotent.

use crate::common::semantics::{assert_keeps_bits, evaluate};
use crate::common::{run, text};
use piecewise_ir::module::Module;
use piecewise_ir::op::Op;
use piecewise_ir::region::ParamMode;
use piecewise_ir::text::parse_graph;
use piecewise_testing::{RandomGraph, random_arrays, soak};
use proptest::prelude::*;

const PASSES: &str = "canonicalize,fold,merge_matmuls,cse,dce,fuse";

fn random(seed: u64, second_symbol: bool) -> Module {
    Module::new(RandomGraph { second_symbol, ..RandomGraph::default() }.generate(seed))
}

fn sizes(module: &Module, t: u64, r: u64) -> Vec<u64> {
    [t, r][..module.graph().symbols().len()].to_vec()
}

/// What is given to a graph is given to what passes make of it, though they drop tables that an
/// input indexes.
#[test]
fn arrays_do_not_depend_on_what_passes_leave() {
    let options = RandomGraph { second_symbol: false, nodes: 40, ..RandomGraph::f32() };
    let both = RandomGraph { second_symbol: true, ..options.clone() };
    let seeds = (0..400).chain([14_815_264_125_527_177_952]);
    for (seed, options) in seeds.flat_map(|seed| [(seed, &options), (seed, &both)]) {
        let module = Module::new(options.generate(seed));
        let mut optimized = module.clone();
        run(&mut optimized, PASSES);
        for sizes in [[1, 1], [5, 3], [32, 8]] {
            let sizes = &sizes[..module.graph().symbols().len()];
            let given = |module: &Module| random_arrays(module.graph(), sizes, seed).unwrap();
            let (before, after) = (given(&module), given(&optimized));
            assert_eq!(before.states, after.states, "seed {seed} at {sizes:?}");
            for (i, input) in optimized.graph().inputs().iter().enumerate() {
                let at = module.graph().inputs().iter().position(|old| old.name == input.name);
                let expected = &before.inputs[at.unwrap()];
                assert_eq!(after.inputs[i], *expected, "seed {seed} at {sizes:?}: {}", input.name);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: soak(96), failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn the_pipeline_keeps_every_bit(seed: u64, second: bool, t in 1u64..20, r in 0u64..8) {
        let module = random(seed, second);
        assert_keeps_bits(&module, PASSES, &sizes(&module, t, r), seed);
    }

    #[test]
    fn each_pass_alone_keeps_every_bit(seed: u64, t in 1u64..9) {
        let module = random(seed, true);
        let sizes = sizes(&module, t, 2);
        let expected = evaluate(&module, &sizes, seed);
        for pass in PASSES.split(',') {
            let mut module = module.clone();
            run(&mut module, pass);
            prop_assert_eq!(evaluate(&module, &sizes, seed), expected.clone(), "{}", pass);
        }
    }

    /// After fusion nothing but kernels, views and work along the rows is left, and every region
    /// is as the IR defines it.
    #[test]
    fn fusion_leaves_kernels_and_views(seed: u64) {
        let mut module = random(seed, true);
        run(&mut module, PASSES);
        let graph = module.graph();
        for node in graph.nodes() {
            let data = graph.node(node);
            match &data.op {
                Op::Region(region) => {
                    prop_assert!(!data.results.is_empty() || data.op.has_effect());
                    for (mode, &value) in region.params.iter().zip(&data.operands) {
                        let rows = graph.ty(value).outer_symbol() == Some(region.over);
                        prop_assert_eq!(*mode == ParamMode::Row, rows);
                    }
                }
                Op::MatMul { .. } | Op::Custom(_) | Op::Reshape => {}
                op => prop_assert!(false, "{} is left:\n{}", op.mnemonic(), text(&module)),
            }
        }
    }

    /// A dump after any pass can be fed back.
    #[test]
    fn what_passes_make_prints_and_parses(seed: u64) {
        let mut module = random(seed, true);
        for pass in PASSES.split(',') {
            run(&mut module, pass);
            let parsed = parse_graph(&text(&module));
            prop_assert_eq!(parsed.map(|graph| text(&Module::new(graph))), Ok(text(&module)));
        }
    }

    /// What is rewritten leaves nothing that would be rewritten again.
    #[test]
    fn the_pipeline_run_twice_changes_nothing(seed: u64, second: bool) {
        let mut module = random(seed, second);
        let before_fusion = PASSES.strip_suffix(",fuse").unwrap();
        run(&mut module, before_fusion);
        let once = text(&module);
        run(&mut module, before_fusion);
        prop_assert_eq!(text(&module), once);
    }

    #[test]
    fn passes_are_deterministic(seed: u64) {
        let [a, b] = [0; 2].map(|_| {
            let mut module = random(seed, true);
            run(&mut module, PASSES);
            text(&module)
        });
        prop_assert_eq!(a, b);
    }
}
