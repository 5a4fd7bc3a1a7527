//! Random graphs: each pass keeps every bit of outputs and states, verifies, and is idempotent.

mod common;

use common::semantics::{assert_keeps_bits, evaluate};
use common::{run, text};
use piecewise_ir::module::Module;
use piecewise_ir::op::Op;
use piecewise_ir::region::ParamMode;
use piecewise_ir::testing::RandomGraph;
use piecewise_ir::text::parse_graph;
use proptest::prelude::*;

const PASSES: &str = "canonicalize,fold,merge_matmuls,cse,dce,fuse";

fn random(seed: u64, second_symbol: bool) -> Module {
    Module::new(RandomGraph { second_symbol, ..RandomGraph::default() }.generate(seed))
}

fn sizes(module: &Module, t: u64, r: u64) -> Vec<u64> {
    [t, r][..module.graph().symbols().len()].to_vec()
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 96, failure_persistence: None, ..ProptestConfig::default()
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
