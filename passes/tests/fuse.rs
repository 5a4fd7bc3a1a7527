//! Which regions fusion finds, and that they compute the same bits.

use crate::common::semantics::assert_keeps_bits;
use crate::common::{Builder, count, decoder, ops, run, text};
use piecewise_ir::dtype::DType::{BF16, F32, I32};
use piecewise_ir::entity::Value;
use piecewise_ir::op::{BinaryOp, Op, ReduceOp, UnaryOp};
use piecewise_ir::types::TensorType;

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
fn a_decoder_reads_like_this() {
    let mut module = decoder::bf16(2);
    run(&mut module, OPTIMIZE);
    insta::assert_snapshot!(text(&module));
}

#[test]
fn a_decoder_keeps_its_bits() {
    for dtype in [BF16, F32] {
        for sizes in [[1, 1], [5, 2], [7, 7]] {
            assert_keeps_bits(&decoder::decoder(2, dtype), OPTIMIZE, &sizes, 3);
        }
    }
}

/// A norm and a gate that no ready model uses.
#[test]
fn an_unheard_of_norm_and_gate_are_one_region_each() {
    let mut b = Builder::new();
    let t = b.symbol("T");
    let x = b.input("x", BF16, dims![t, 8u64]);
    let scale = b.weight("scale", BF16, &[8]);
    let wide = b.cast(x, F32);
    let square = b.mul(wide, wide);
    let cube = b.mul(square, wide);
    let mean = b.reduce(ReduceOp::Mean, cube, 1);
    let magnitude = b.unary(UnaryOp::Abs, mean);
    let floor = b.splat_like(1e-3, magnitude);
    let clamped = b.binary(BinaryOp::Max, magnitude, floor);
    let divisor = b.broadcast_like(clamped, wide);
    let normed = b.binary(BinaryOp::Div, wide, divisor);
    let normed = b.cast(normed, BF16);
    let scale = b.broadcast_like(scale, normed);
    let normed = b.mul(normed, scale);
    let up = b.weight("up", BF16, &[12, 8]);
    let h = b.linear(normed, up);
    let zero = b.splat_like(0.0, h);
    let relu = b.binary(BinaryOp::Max, h, zero);
    let squared = b.mul(relu, relu);
    let tanh = b.unary(UnaryOp::Tanh, h);
    let gated = b.mul(squared, tanh);
    let down = b.weight("down", BF16, &[8, 12]);
    let y = b.linear(gated, down);
    let module = b.finish(&[y]);
    let module = assert_keeps_bits(&module, OPTIMIZE, &[6], 1);
    assert_eq!(ops(&module), ["region", "matmul", "region", "matmul"]);
    insta::assert_snapshot!(text(&module));
}

#[test]
fn a_single_elementwise_op_is_a_region_and_a_view_is_not() {
    let mut b = Builder::new();
    let t = b.symbol("T");
    let x = b.input("x", F32, dims![t, 2u64, 4u64]);
    let w = b.weight("w", F32, &[8, 8]);
    let flat = b.reshape(x, dims![t, 8u64]);
    let y = b.linear(flat, w);
    let z = b.unary(UnaryOp::Neg, y);
    let module = assert_keeps_bits(&b.finish(&[z]), OPTIMIZE, &[3], 1);
    assert_eq!(ops(&module), ["reshape", "matmul", "region"]);
}

#[test]
fn unrelated_neighbours_stay_apart() {
    let mut b = Builder::new();
    let t = b.symbol("T");
    let x = b.input("x", F32, dims![t, 4u64]);
    let y = b.input("y", F32, dims![t, 4u64]);
    let (p, q) = (b.unary(UnaryOp::Exp, x), b.unary(UnaryOp::Exp, y));
    let module = assert_keeps_bits(&b.finish(&[p, q]), OPTIMIZE, &[3], 1);
    assert_eq!(count(&module, "region"), 2);
}

#[test]
fn readers_of_the_same_rows_join() {
    let mut b = Builder::new();
    let t = b.symbol("T");
    let x = b.input("x", F32, dims![t, 4u64]);
    let (p, q) = (b.unary(UnaryOp::Exp, x), b.unary(UnaryOp::Neg, x));
    let module = assert_keeps_bits(&b.finish(&[p, q]), OPTIMIZE, &[3], 1);
    assert_eq!(count(&module, "region"), 1);
}

#[test]
fn a_group_never_encloses_what_must_run_in_between() {
    let mut b = Builder::new();
    let t = b.symbol("T");
    let x = b.input("x", F32, dims![t, 4u64]);
    let w = b.weight("w", F32, &[4, 4]);
    let e = b.unary(UnaryOp::Exp, x);
    let m = b.linear(e, w);
    let y = b.add(e, m);
    let mut module = assert_keeps_bits(&b.finish(&[y]), OPTIMIZE, &[3], 1);
    assert_eq!(ops(&module), ["region", "matmul", "region"]);
    // Said in the remarks, too.
    let mut b = Builder::new();
    let t = b.symbol("T");
    let x = b.input("x", F32, dims![t, 4u64]);
    let w = b.weight("w", F32, &[4, 4]);
    b.scope("block");
    let e = b.unary(UnaryOp::Exp, x);
    let m = b.linear(e, w);
    let y = b.add(e, m);
    module = b.finish(&[y]);
    let report = run(&mut module, "fuse");
    let remarks: Vec<_> =
        report.of("fuse").unwrap().remarks.iter().map(ToString::to_string).collect();
    insta::assert_snapshot!(remarks.join("\n"));
}

/// Two writes of one state, or a write and a read, must keep their order over all rows.
#[test]
fn ops_on_one_state_stay_apart() {
    let build = |second: &dyn Fn(&mut Builder, Value, Value, Value) -> Vec<Value>| {
        let mut b = Builder::new();
        let t = b.symbol("T");
        let x = b.input("x", F32, dims![t, 4u64]);
        let slots = b.input("slots", I32, dims![t]);
        let state = b.state("s", F32, &[16, 4]);
        b.scatter(state, slots, x);
        let outputs = second(&mut b, state, slots, x);
        assert_keeps_bits(&b.finish(&outputs), OPTIMIZE, &[5], 2)
    };
    let written_twice = build(&|b, state, slots, x| {
        let y = b.unary(UnaryOp::Neg, x);
        b.scatter(state, slots, y);
        vec![]
    });
    assert_eq!(count(&written_twice, "region"), 2);
    let read_back = build(&|b, state, slots, _| vec![b.gather(state, slots)]);
    assert_eq!(count(&read_back, "region"), 2);
    let other_state = build(&|b, _, slots, x| {
        let other = b.state("o", F32, &[16, 4]);
        b.scatter(other, slots, x);
        vec![]
    });
    assert_eq!(count(&other_state, "region"), 1);
}

/// Nobody has held its slots apart, so that a row looks at those of the others.
#[test]
fn a_scatter_by_slots_that_are_computed_is_no_part_of_a_region() {
    let mut b = Builder::new();
    let t = b.symbol("T");
    let x = b.input("x", F32, dims![t, 4u64]);
    let slots = b.input("slots", I32, dims![t]);
    let computed = b.add(slots, slots);
    let state = b.state("s", F32, &[16, 4]);
    let y = b.unary(UnaryOp::Neg, x);
    b.scatter(state, computed, y);
    let mut module = b.finish(&[]);
    run(&mut module, OPTIMIZE);
    assert_eq!(ops(&module), ["region", "region", "scatter"]);
}

/// A custom op that reads the state between two writes keeps its place.
#[test]
fn effects_keep_their_order_around_custom_ops() {
    let mut b = Builder::new();
    let t = b.symbol("T");
    let x = b.input("x", F32, dims![t, 4u64]);
    let slots = b.input("slots", I32, dims![t]);
    let state = b.state("s", F32, &[16, 4]);
    b.scatter(state, slots, x);
    let ty = TensorType::new(F32, dims![t, 4u64]);
    let first = b.custom("test.attention", &[x, state], &[], ty.clone());
    let y = b.unary(UnaryOp::Neg, x);
    b.scatter(state, slots, y);
    let second = b.custom("test.attention", &[x, state], &[], ty);
    let sum = b.add(first, second);
    let module = assert_keeps_bits(&b.finish(&[sum]), OPTIMIZE, &[5], 2);
    assert_eq!(ops(&module), ["region", "custom", "region", "custom", "region"]);
}

#[test]
fn rows_of_another_symbol_start_a_region() {
    let mut b = Builder::new();
    let (t, r) = (b.symbol("T"), b.symbol("R"));
    let x = b.input("x", F32, dims![t, 4u64]);
    let rows = b.input("rows", I32, dims![r]);
    let y = b.unary(UnaryOp::Exp, x);
    let picked = b.gather(y, rows);
    let z = b.unary(UnaryOp::Neg, picked);
    let module = assert_keeps_bits(&b.finish(&[z]), OPTIMIZE, &[5, 2], 2);
    assert_eq!(ops(&module), ["region", "region"]);
    insta::assert_snapshot!(text(&module));
}

/// What works along the rows themselves has no row form.
#[test]
fn ops_along_the_rows_stay_as_they_are() {
    let mut b = Builder::new();
    let t = b.symbol("T");
    let x = b.input("x", F32, dims![t, 4u64]);
    let sum = b.reduce(ReduceOp::Sum, x, 0);
    let index = b.typed(Op::Iota { axis: 0 }, &[], TensorType::new(I32, dims![t]));
    let turned = b.permute(x, &[1, 0]);
    let back = b.permute(turned, &[1, 0]);
    let wide = b.broadcast_like(sum, x);
    let y = b.add(back, wide);
    let module = assert_keeps_bits(&b.finish(&[y, index, turned]), "fuse", &[5], 2);
    assert_eq!(ops(&module), ["reduce_sum", "iota", "permute", "permute", "region"]);
}

/// A constant over rows that a kernel reads is made once for it; regions still repeat it.
#[test]
fn constants_over_rows_are_kept_only_for_kernels() {
    let mut b = Builder::new();
    let t = b.symbol("T");
    let x = b.input("x", F32, dims![t, 4u64]);
    let w = b.weight("w", F32, &[4, 4]);
    let ones = b.splat_like(1.0, x);
    let m = b.linear(ones, w);
    let y = b.add(x, ones);
    let z = b.mul(y, m);
    let module = assert_keeps_bits(&b.finish(&[z]), OPTIMIZE, &[5], 2);
    assert_eq!(ops(&module), ["region", "matmul", "region"]);
}

/// A weight repeated for each row, for a matmul: the row program hands on the weight itself.
#[test]
fn a_repeated_weight_can_be_read_by_a_kernel() {
    let mut b = Builder::new();
    let t = b.symbol("T");
    let x = b.input("x", F32, dims![t, 4u64]);
    let w = b.weight("w", F32, &[4, 4]);
    let row = b.weight("row", F32, &[1, 4]);
    let rows = b.broadcast_like(row, x);
    let m = b.linear(rows, w);
    let y = b.add(x, rows);
    let module = b.finish(&[m, y]);
    let module = assert_keeps_bits(&module, OPTIMIZE, &[5], 2);
    assert_eq!(ops(&module), ["region", "matmul", "region"]);
}

/// Top-k and argmax over inner axes, sliced and joined, are part of a row program.
#[test]
fn searches_along_a_row_fuse() {
    let mut b = Builder::new();
    let t = b.symbol("T");
    let x = b.input("x", F32, dims![t, 8u64]);
    let scores = b.unary(UnaryOp::Neg, x);
    let ty = TensorType::new(F32, dims![t, 2u64]);
    let results = vec![ty.clone(), ty.with_dtype(I32)];
    let top = b.graph.push_node(Op::TopK { axis: 1 }, vec![scores], results, Default::default());
    let best = b.graph.node(top).results.clone();
    let first = b.infer(Op::ArgMax { axis: 1 }, &[scores]);
    let first = b.reshape(first, dims![t, 1u64]);
    let indices = b.concat(&[best[1], first], 1);
    let module = assert_keeps_bits(&b.finish(&[best[0], indices]), OPTIMIZE, &[5], 2);
    assert_eq!(ops(&module), ["region"]);
}
