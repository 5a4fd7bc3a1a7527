//! Which regions fusion finds.

mod common;

use common::{Builder, count, decoder, ops, run, text};
use piecewise_ir::dtype::DType::{BF16, F32, I32};
use piecewise_ir::op::{BinaryOp, Op, ReduceOp, UnaryOp};

const OPTIMIZE: &str = "canonicalize,fold,merge_matmuls,cse,dce,fuse";

#[test]
fn a_decoder_has_four_regions_a_layer() {
    for layers in 1..=4 {
        let mut module = decoder::bf16(layers);
        run(&mut module, OPTIMIZE);
        // Layer: q/k norm with rope and writes, residual with norm, activation, residual with
        // norm; the last layer's second residual stands alone. Before: embedding with norm. After:
        // the rows that want logits with norm, and the cast of the logits.
        assert_eq!(count(&module, "region"), 4 * layers + 3, "{}", text(&module));
        assert_eq!(count(&module, "matmul"), 4 * layers + 1);
        assert_eq!(count(&module, "custom"), layers);
        assert_eq!(module.graph().order().len(), 9 * layers + 4, "{}", text(&module));
    }
}

#[test]
fn a_decoder_layer_reads_like_this() {
    let mut module = decoder::bf16(2);
    run(&mut module, OPTIMIZE);
    insta::assert_snapshot!(text(&module));
}
