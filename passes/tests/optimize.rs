//! What the passes before fusion rewrite, what they must leave alone, and that bits stay.

use crate::common::semantics::assert_keeps_bits;
use crate::common::{Builder, count, decoder, ops, run, text};
use piecewise_ir::dtype::DType::{self, BF16, Bool, F16, F32, I32, I64, U8};
use piecewise_ir::entity::Value;
use piecewise_ir::module::Module;
use piecewise_ir::op::{BinaryOp, Op, ReduceOp, UnaryOp};
use piecewise_ir::types::TensorType;

/// The ops left of what `build` makes of an input `x: dtype[T,4]` after `pipeline`, bits kept.
fn left(
    pipeline: &str,
    dtype: DType,
    build: impl FnOnce(&mut Builder, Value) -> Value,
) -> Vec<&'static str> {
    let mut b = Builder::new();
    let t = b.symbol("T");
    let x = b.input("x", dtype, dims![t, 4u64]);
    let y = build(&mut b, x);
    ops(&assert_keeps_bits(&b.finish(&[y]), pipeline, &[5], 1))
}

const CLEAN: &str = "canonicalize,dce";

#[test]
fn what_changes_nothing_goes() {
    let symbol = |b: &Builder| b.graph.symbols().keys().next().unwrap();
    let none: [&str; 0] = [];
    assert_eq!(left(CLEAN, F32, |b, x| b.cast(x, F32)), none);
    assert_eq!(left(CLEAN, F32, |b, x| b.broadcast_like(x, x)), none);
    assert_eq!(left(CLEAN, F32, |b, x| b.permute(x, &[0, 1])), none);
    assert_eq!(left(CLEAN, F32, |b, x| b.slice(x, 1, 0, 4)), none);
    assert_eq!(left(CLEAN, F32, |b, x| b.concat(&[x], 1)), none);
    let reshaped = |b: &mut Builder, x| {
        let t = symbol(b);
        let y = b.reshape(x, dims![t, 2u64, 2u64]);
        b.reshape(y, dims![t, 4u64])
    };
    assert_eq!(left(CLEAN, F32, reshaped), none);
    let turned = |b: &mut Builder, x| {
        let y = b.permute(x, &[1, 0]);
        b.permute(y, &[1, 0])
    };
    assert_eq!(left(CLEAN, F32, turned), none);
    let negated = |b: &mut Builder, x| {
        let y = b.unary(UnaryOp::Neg, x);
        b.unary(UnaryOp::Neg, y)
    };
    assert_eq!(left(CLEAN, F32, negated), none);
}

#[test]
fn chains_of_remaps_become_one() {
    let sliced = |b: &mut Builder, x| {
        let y = b.slice(x, 1, 1, 3);
        b.slice(y, 1, 1, 2)
    };
    assert_eq!(left(CLEAN, F32, sliced), ["slice"]);
    let halves = |b: &mut Builder, x| {
        let y = b.unary(UnaryOp::Exp, x);
        let both = b.concat(&[x, y], 1);
        b.slice(both, 1, 4, 4)
    };
    assert_eq!(left(CLEAN, F32, halves), ["exp"]);
    let across = |b: &mut Builder, x| {
        let y = b.unary(UnaryOp::Exp, x);
        let both = b.concat(&[x, y], 1);
        b.slice(both, 1, 2, 4)
    };
    assert_eq!(left(CLEAN, F32, across), ["exp", "concat", "slice"]);
}

#[test]
fn neutral_operands_go_only_where_no_bit_changes() {
    let with = |op: BinaryOp, value: f64, dtype: DType| {
        left(CLEAN, dtype, |b, x| {
            let c = b.splat_like(value, x);
            b.binary(op, x, c)
        })
        .len()
    };
    assert_eq!(with(BinaryOp::Add, -0.0, F32), 0);
    assert_eq!(with(BinaryOp::Add, 0.0, F32), 3, "-0 + 0 is 0");
    assert_eq!(with(BinaryOp::Sub, 0.0, F32), 0);
    assert_eq!(with(BinaryOp::Sub, -0.0, F32), 3, "-0 - -0 is 0");
    assert_eq!(with(BinaryOp::Mul, 1.0, BF16), 0);
    assert_eq!(with(BinaryOp::Div, 1.0, F16), 0);
    assert_eq!(with(BinaryOp::Mul, 0.0, F32), 3, "NaN * 0 is NaN");
    assert_eq!(with(BinaryOp::Max, -0.0, F32), 3);
    assert_eq!(with(BinaryOp::Add, 0.0, I32), 0);
    let swapped = left(CLEAN, F32, |b, x| {
        let one = b.splat_like(1.0, x);
        b.binary(BinaryOp::Div, one, x)
    });
    assert_eq!(swapped, ["literal", "broadcast", "div"]);
}

#[test]
fn casts_collapse_only_where_exact() {
    let chain = |dtypes: &[DType]| {
        left(CLEAN, dtypes[0], |b, x| {
            dtypes[1..].iter().fold(x, |value, &dtype| b.cast(value, dtype))
        })
        .len()
    };
    assert_eq!(chain(&[BF16, F32, BF16]), 0);
    assert_eq!(chain(&[F16, F32, BF16]), 1);
    assert_eq!(chain(&[U8, BF16, F32]), 1);
    assert_eq!(chain(&[Bool, I64, F32, Bool]), 0);
    assert_eq!(chain(&[F32, BF16, F32]), 2, "rounds");
    assert_eq!(chain(&[BF16, F16, BF16]), 2, "overflows");
    assert_eq!(chain(&[I32, F32, I32]), 2, "rounds beyond 2^24");
    assert_eq!(chain(&[F32, I32, F32]), 2, "truncates");
}

#[test]
fn matmuls_take_transposed_and_widened_operands_as_they_are() {
    let mut b = Builder::new();
    let t = b.symbol("T");
    let x = b.input("x", BF16, dims![t, 4u64]);
    let w = b.weight("w", BF16, &[6, 4]);
    let wide = b.cast(x, F32);
    let turned = b.permute(w, &[1, 0]);
    let turned = b.cast(turned, F32);
    let ty = TensorType::new(F32, dims![t, 6u64]);
    let op = Op::MatMul { transpose_lhs: false, transpose_rhs: false };
    let y = b.typed(op, &[wide, turned], ty);
    let module = assert_keeps_bits(&b.finish(&[y]), CLEAN, &[3], 1);
    assert_eq!(ops(&module), ["matmul"]);
    assert_eq!(module.graph().weights().len(), 1);
}

#[test]
fn rows_of_a_cast_table_are_cast_rows() {
    let mut b = Builder::new();
    let t = b.symbol("T");
    let ids = b.input("ids", I32, dims![t]);
    let table = b.weight("table", BF16, &[16, 4]);
    let wide = b.cast(table, F32);
    let y = b.gather(wide, ids);
    let module = assert_keeps_bits(&b.finish(&[y]), "canonicalize,fold,dce", &[3], 1);
    assert_eq!(ops(&module), ["gather", "cast"]);
}

#[test]
fn equal_computations_are_one_unless_a_state_changed_in_between() {
    let mut b = Builder::new();
    let t = b.symbol("T");
    let x = b.input("x", F32, dims![t, 4u64]);
    let slots = b.input("slots", I32, dims![t]);
    let state = b.state("s", F32, &[16, 4]);
    let other = b.state("o", F32, &[16, 4]);
    let ty = TensorType::new(F32, dims![t, 4u64]);
    let read = |b: &mut Builder, state| b.custom("test.attention", &[x, state], &[], ty.clone());
    let before = [read(&mut b, state), read(&mut b, state), b.gather(state, slots)];
    b.scatter(other, slots, x);
    let unaffected = read(&mut b, state);
    b.scatter(state, slots, x);
    let after = [read(&mut b, state), b.gather(state, slots)];
    let outputs = [before.as_slice(), &[unaffected], &after].concat();
    let module = assert_keeps_bits(&b.finish(&outputs), "cse,dce", &[5], 4);
    let expected = ["custom", "gather", "scatter", "scatter", "custom", "gather"];
    assert_eq!(ops(&module), expected);
}

#[test]
fn attributes_and_types_tell_nodes_apart() {
    let kept = left("cse,dce", F32, |b, x| {
        let parts = [b.slice(x, 1, 0, 2), b.slice(x, 1, 1, 2), b.slice(x, 1, 0, 2)];
        b.concat(&parts, 1)
    });
    assert_eq!(kept, ["slice", "slice", "concat"]);
    let zeros = left("cse,dce", F32, |b, x| {
        let (p, n) = (b.splat_like(0.0, x), b.splat_like(-0.0, x));
        b.concat(&[p, n], 1)
    });
    assert_eq!(zeros, ["literal", "broadcast", "literal", "broadcast", "concat"]);
}

#[test]
fn a_weight_declared_twice_is_one() {
    let mut b = Builder::new();
    let t = b.symbol("T");
    let x = b.input("x", F32, dims![t, 4u64]);
    let [v, w] = [0; 2].map(|_| b.weight("w", F32, &[4, 4]));
    let (p, q) = (b.linear(x, v), b.linear(x, w));
    let y = b.add(p, q);
    let module = assert_keeps_bits(&b.finish(&[y]), "cse,dce", &[3], 1);
    assert_eq!(ops(&module), ["matmul", "add"]);
    assert_eq!(module.graph().weights().len(), 1);
}

#[test]
fn effects_are_never_dead() {
    let mut b = Builder::new();
    let t = b.symbol("T");
    let x = b.input("x", F32, dims![t, 4u64]);
    let slots = b.input("slots", I32, dims![t]);
    let state = b.state("s", F32, &[16, 4]);
    let y = b.unary(UnaryOp::Neg, x);
    b.scatter(state, slots, y);
    b.unary(UnaryOp::Exp, y);
    let module = assert_keeps_bits(&b.finish(&[]), "dce", &[5], 1);
    assert_eq!(ops(&module), ["neg", "scatter"]);
}

/// `x` times weights of the given types; whether they share the left operand.
fn siblings(weights: &[(DType, bool)]) -> (Builder, Vec<Value>) {
    let mut b = Builder::new();
    let t = b.symbol("T");
    let x = b.input("x", BF16, dims![t, 4u64]);
    let products = weights.iter().enumerate().map(|(i, &(dtype, transposed))| {
        let n = 4 + i as u64;
        let shape = if transposed { [n, 4] } else { [4, n] };
        let w = b.weight(&format!("w{i}"), dtype, &shape);
        let op = Op::MatMul { transpose_lhs: false, transpose_rhs: transposed };
        b.typed(op, &[x, w], TensorType::new(BF16, dims![t, n]))
    });
    let products = products.collect();
    (b, products)
}

#[test]
fn siblings_become_one_matmul_and_slices() {
    for transposed in [true, false] {
        let (b, products) = siblings(&[(BF16, transposed); 3]);
        let module = assert_keeps_bits(&b.finish(&products), "merge_matmuls,dce", &[3], 1);
        assert_eq!(ops(&module), ["matmul", "slice", "slice", "slice"]);
        let axis = usize::from(!transposed);
        assert!(text(&module).contains(&format!("concat{{axis={axis}}}(\"w0\"")));
    }
    let (b, products) = siblings(&[(BF16, true), (F32, true), (BF16, false), (F32, true)]);
    let module = assert_keeps_bits(&b.finish(&products), "merge_matmuls,dce", &[3], 1);
    assert_eq!(count(&module, "matmul"), 3, "only equal types and transposition merge");
}

#[test]
fn a_weight_with_another_reader_is_not_copied() {
    let (mut b, products) = siblings(&[(BF16, true), (BF16, true)]);
    let w = b.graph.weights()[0].value;
    let t = b.symbol("U");
    let ids = b.input("ids", I32, dims![t]);
    let rows = b.gather(w, ids);
    let mut module = b.finish(&[products[0], products[1], rows]);
    let report = run(&mut module, "merge_matmuls");
    assert_eq!(count(&module, "matmul"), 2);
    let remarks = &report.of("merge_matmuls").unwrap().remarks;
    assert_eq!(remarks.len(), 1);
    assert!(remarks[0].why.contains("second copy"));
}

/// Siblings far apart merge at the place of the first; biases stay elementwise.
#[test]
fn merged_siblings_keep_the_order_legal() {
    let (mut b, products) = siblings(&[(BF16, true), (BF16, true)]);
    let early = b.unary(UnaryOp::Exp, products[0]);
    let bias = b.weight("bias", BF16, &[5]);
    let bias = b.broadcast_like(bias, products[1]);
    let late = b.add(products[1], bias);
    let module = assert_keeps_bits(&b.finish(&[early, late]), "merge_matmuls,dce,fuse", &[3], 1);
    assert_eq!(ops(&module), ["matmul", "region"]);
}

#[test]
fn constant_expressions_become_literals() {
    let folded = left("fold,canonicalize,dce", F32, |b, x| {
        let two = b.splat_like(2.0, x);
        let root = b.unary(UnaryOp::Sqrt, two);
        b.mul(x, root)
    });
    assert_eq!(folded, ["literal", "broadcast", "mul"], "of symbolic shape");
    let folded = left("fold,dce", F32, |b, x| {
        let numbers = b.literal(F32, &[1.0, 4.0, 9.0, 16.0]);
        let roots = b.unary(UnaryOp::Sqrt, numbers);
        let total = b.reduce(ReduceOp::Sum, roots, 0);
        let total = b.broadcast_like(total, roots);
        let share = b.binary(BinaryOp::Div, roots, total);
        let share = b.broadcast_like(share, x);
        b.mul(x, share)
    });
    assert_eq!(folded, ["literal", "broadcast", "mul"]);
    let wide = left("fold,dce", I64, |b, x| {
        let numbers = b.literal(I64, &[1.0, 2.0, 3.0, 4.0]);
        let sums = b.add(numbers, numbers);
        let sums = b.broadcast_like(sums, x);
        b.mul(x, sums)
    });
    assert_eq!(wide, ["literal", "add", "broadcast", "mul"]);
}

/// The angles of `positions` times `frequencies`, as cosines.
fn table(b: &mut Builder, positions: u64) -> Value {
    let ty = TensorType::new(F32, [positions, 8]);
    let positions = b.typed(Op::Iota { axis: 0 }, &[], ty);
    let frequencies = b.literal(F32, &[1.0, 0.5, 0.25, 0.125, 0.1, 0.05, 0.02, 0.01]);
    let frequencies = b.broadcast_like(frequencies, positions);
    let angles = b.mul(positions, frequencies);
    b.unary(UnaryOp::Cos, angles)
}

#[test]
fn tables_become_derived_weights() {
    for positions in [16, 4096] {
        let mut b = Builder::new();
        let t = b.symbol("T");
        let at = b.input("positions", I32, dims![t]);
        let [first, second] = [0; 2].map(|_| {
            let table = table(&mut b, positions);
            b.gather(table, at)
        });
        let y = b.add(first, second);
        let module = assert_keeps_bits(&b.finish(&[y]), "fold,cse,dce,fuse", &[5], 1);
        assert_eq!(ops(&module), ["region"]);
        assert_eq!(module.graph().weights().len(), 1, "equal tables are one");
    }
}

#[test]
fn a_large_table_reads_like_this() {
    let mut b = Builder::new();
    let t = b.symbol("T");
    let at = b.input("positions", I32, dims![t]);
    let table = table(&mut b, 4096);
    let y = b.gather(table, at);
    let mut module = b.finish(&[y]);
    run(&mut module, "fold,cse,dce,fuse");
    insta::assert_snapshot!(text(&module));
}

fn folded_weights(build: impl FnOnce(&mut Builder, Value, Value) -> Value) -> Module {
    let mut b = Builder::new();
    let t = b.symbol("T");
    let x = b.input("x", F32, dims![t, 4u64]);
    let w = b.weight("w", BF16, &[4, 4]);
    let y = build(&mut b, x, w);
    assert_keeps_bits(&b.finish(&[y]), "fold,dce", &[3], 1)
}

#[test]
fn what_a_kernel_reads_of_weights_alone_is_derived() {
    let module = folded_weights(|b, x, w| {
        let narrow = b.cast(w, F16);
        let top = b.slice(narrow, 0, 0, 2);
        let both = b.concat(&[top, top], 0);
        let plain = b.cast(w, F32);
        let sum = b.reduce(ReduceOp::Sum, plain, 0);
        let sum = b.broadcast_like(sum, x);
        let y = b.linear(x, both);
        b.add(y, sum)
    });
    // The cast that only elementwise readers see stays.
    assert_eq!(ops(&module), ["cast", "reduce_sum", "broadcast", "matmul", "add"]);
    assert!(text(&module).contains("concat{axis=0}(slice"), "{}", text(&module));
}

/// A weight doubled forty times has a short text; a recipe of it must not outgrow memory.
#[test]
fn recipes_stay_small() {
    let mut b = Builder::new();
    let t = b.symbol("T");
    let x = b.input("x", F32, dims![t, 1u64]);
    let mut w = b.weight("w", F32, &[1, 1]);
    for _ in 0..40 {
        w = b.concat(&[w, w], 1);
    }
    let n = 1u64 << 40;
    let op = Op::MatMul { transpose_lhs: false, transpose_rhs: false };
    let y = b.typed(op, &[x, w], TensorType::new(F32, dims![t, n]));
    let mut module = b.finish(&[y]);
    run(&mut module, "canonicalize,fold,merge_matmuls,cse,dce,fuse");
    assert_eq!(count(&module, "matmul"), 1);
    assert_eq!(count(&module, "concat"), 40);
}

#[test]
fn strides_fold_only_where_the_source_has_no_other_reader() {
    let row = |b: &mut Builder, x, w| {
        let row = b.slice(w, 0, 1, 1);
        let row = b.broadcast_like(row, x);
        let x = b.cast(x, BF16);
        b.add(x, row)
    };
    assert_eq!(ops(&folded_weights(row)), ["broadcast", "cast", "add"]);
    let shared = folded_weights(|b, x, w| {
        let y = row(b, x, w);
        let z = b.linear(y, w);
        b.add(y, z)
    });
    assert_eq!(ops(&shared), ["slice", "broadcast", "cast", "add", "matmul", "add"]);
}

#[test]
fn a_decoder_keeps_its_bits_pass_by_pass() {
    let pipeline = "canonicalize,fold,merge_matmuls,cse,dce";
    let module = assert_keeps_bits(&decoder::bf16(2), pipeline, &[6, 3], 9);
    assert_eq!(count(&module, "matmul"), 9);
    assert_eq!(count(&module, "gather"), 4, "embedding, cosines, sines, logit rows");
}
