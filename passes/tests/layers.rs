//! Region counts of decoders whose layers differ in form, and that equal layers stay equal.

use crate::common::decoder::{Layers, build};
use crate::common::semantics::assert_keeps_bits;
use crate::common::{count, text};
use piecewise_ir::dtype::DType::BF16;
use piecewise_ir::graph::{Graph, Loc};
use piecewise_ir::module::Module;
use piecewise_ir::op::Op;

const OPTIMIZE: &str = "canonicalize,fold,merge_matmuls,cse,dce,fuse";

/// Bodies of the regions, without places in the source.
fn bodies(module: &Module) -> Vec<Graph> {
    let graph = module.graph();
    let regions = graph.nodes().filter_map(|node| match &graph.node(node).op {
        Op::Region(region) => Some(region.body.clone()),
        _ => None,
    });
    regions
        .map(|mut body| {
            for node in body.order().to_vec() {
                body.node_mut(node).loc = Loc::default();
            }
            body
        })
        .collect()
}

/// Asserts `first` regions up to the end of the first layer, the same `per_layer` regions for
/// each layer after it but for the last residual, and `last` from there.
fn check(layers: Layers, first: usize, per_layer: usize, last: usize) {
    for n in [1, 2, 4] {
        let module = build(Layers { count: n, ..layers }, BF16);
        let module = assert_keeps_bits(&module, OPTIMIZE, &[5, 2], 7);
        let expected = first + per_layer * (n - 1) + last;
        assert_eq!(count(&module, "region"), expected, "{layers:?}\n{}", text(&module));
        assert_eq!(count(&module, "matmul"), 4 * n + 1);
        let bodies = bodies(&module);
        let middle = &bodies[first..bodies.len() - last];
        for layer in middle.chunks(per_layer) {
            assert_eq!(layer, &middle[..per_layer], "{layers:?}");
        }
    }
}

#[test]
fn grouped_queries_with_norms() {
    check(Layers::of(0), 4, 4, 3);
}

#[test]
fn one_key_head() {
    check(Layers { kv_heads: 1, ..Layers::of(0) }, 4, 4, 3);
}

#[test]
fn biases_without_norms() {
    check(Layers { bias: true, qk_norm: false, ..Layers::of(0) }, 4, 4, 3);
}

#[test]
fn norms_after_each_block() {
    check(Layers { sandwich: true, ..Layers::of(0) }, 4, 4, 3);
}

#[test]
fn parallel_blocks() {
    check(Layers { parallel: true, ..Layers::of(0) }, 3, 3, 3);
}
