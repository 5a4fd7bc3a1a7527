//! Products with the regions beside them in one kernel, on the host: against the reference
//! evaluator, for real rows among padding that holds NaNs.

use crate::absorbing::{Absorbing, check, check_kernel};
use crate::common;
use crate::common::Builder;
use crate::emulate::{Case, Rng, available, emulate, fill};
use crate::nvrtc::Nvrtc;
use piecewise_ir::dtype::DType::{self, BF16, E4M3, F16, F32, I4, I32};
use piecewise_ir::entity::{Entity, Node};
use piecewise_ir::graph::{Graph, ValueDef};
use piecewise_ir::module::Module;
use piecewise_ir::op::{Op, UnaryOp};
use piecewise_ir::region::Region;
use piecewise_ir::types::TensorType;
use piecewise_kernels::cuda::{PRELUDE, PartParam, RegionPart, RingForm};
use piecewise_testing::RandomGraph;

/// Random graphs that are looked at.
const SEEDS: u64 = 60;

const PASSES: &str = "canonicalize,fold,merge_matmuls,cse,dce,fuse";

/// `x + y`, its norm, a product, and what is added to it: a region before that is cut at the sum,
/// and one after.
fn norm_and_residual(dtype: DType, k: u64, n: u64) -> Module {
    let mut b = Builder::new();
    let t = b.symbol("T");
    let (x, y) = (b.input("x", dtype, dims![t, k]), b.input("y", dtype, dims![t, k]));
    let residual = b.input("residual", dtype, dims![t, n]);
    let (norm, w) = (b.weight("norm", dtype, &[k]), b.weight("w", dtype, &[n, k]));
    let sum = b.add(x, y);
    let normed = b.rms_norm(sum, norm);
    let product = b.linear(normed, w);
    let out = b.add(residual, product);
    let mut module = b.finish(&[sum, out]);
    common::run(&mut module, PASSES);
    module
}

/// Halves of a row, gated, a product, a bias and a residual whose norm is computed too: the
/// region after is cut at the sum.
fn gate_and_residual(dtype: DType, k: u64, n: u64) -> Module {
    let mut b = Builder::new();
    let t = b.symbol("T");
    let both = b.input("both", dtype, dims![t, 2 * k]);
    let residual = b.input("residual", dtype, dims![t, n]);
    let (norm, w) = (b.weight("norm", dtype, &[n]), b.weight("w", dtype, &[n, k]));
    let bias = b.weight("bias", dtype, &[n]);
    let (gate, up) = (b.slice(both, 1, 0, k), b.slice(both, 1, k, k));
    let gate = b.silu(gate);
    let gated = b.mul(gate, up);
    let product = b.linear(gated, w);
    let bias = b.broadcast_like(bias, product);
    let biased = b.add(product, bias);
    let sum = b.add(residual, biased);
    let normed = b.rms_norm(sum, norm);
    let mut module = b.finish(&[sum, normed]);
    common::run(&mut module, PASSES);
    module
}

/// A norm, a product whose columns are a gate and what it gates, and both gated.
fn paired(dtype: DType, k: u64, n: u64) -> Module {
    let mut b = Builder::new();
    let t = b.symbol("T");
    let x = b.input("x", dtype, dims![t, k]);
    let (norm, w) = (b.weight("norm", dtype, &[k]), b.weight("w", dtype, &[2 * n, k]));
    let normed = b.rms_norm(x, norm);
    let both = b.linear(normed, w);
    let (gate, up) = (b.slice(both, 1, 0, n), b.slice(both, 1, n, n));
    let gate = b.silu(gate);
    let gated = b.mul(gate, up);
    let mut module = b.finish(&[gated]);
    common::run(&mut module, PASSES);
    module
}

fn product(graph: &Graph) -> Node {
    graph.nodes().find(|&n| matches!(graph.node(n).op, Op::MatMul { .. })).unwrap()
}

/// The position among the reader's results of the one that is `value` of the module's outputs.
fn position(graph: &Graph, output: usize) -> usize {
    let value = graph.outputs()[output];
    let node = graph.defining_node(value).unwrap();
    graph.node(node).results.iter().position(|&v| v == value).unwrap()
}

#[test]
fn a_norm_before_and_a_residual_after() {
    if !available() {
        return;
    }
    for (dtype, k) in [(BF16, 1024), (F16, 264), (F32, 264)] {
        let module = norm_and_residual(dtype, k, 70);
        let graph = module.graph();
        let after = [position(graph, 1)];
        for (rows, real) in [(1, 1), (2, 1), (3, 3), (5, 4), (8, 8), (8, 3), (4, 0)] {
            let whole = Absorbing::of(graph, product(graph), true, &after).unwrap();
            check(&format!("norm_{dtype}_{rows}_{real}"), &whole, rows, real, rows);
        }
        for (before, after) in [(true, &[][..]), (false, &after)] {
            let part = Absorbing::of(graph, product(graph), before, after).unwrap();
            check(&format!("norm_part_{dtype}_{before}"), &part, 2, 2, 5);
        }
    }
}

/// A product through a ring whose blocks make their rows themselves, alone and with what follows.
#[test]
fn a_norm_before_a_product_through_a_ring() {
    if !available() {
        return;
    }
    let cases = [
        (BF16, 1024, 72, 8, 5),
        (F16, 1024, 1064, 2, 2),
        (BF16, 2048, 136, 8, 8),
        (BF16, 512, 200, 16, 13),
        (F16, 1024, 64, 24, 24),
        (BF16, 1280, 264, 32, 30),
        (BF16, 4096, 64, 3, 1),
        (BF16, 512, 64, 4, 0),
    ];
    for (dtype, k, n, rows, real) in cases {
        let module = norm_and_residual(dtype, k, n);
        let graph = module.graph();
        for (i, after) in [&[position(graph, 1)][..], &[]].into_iter().enumerate() {
            let part = Absorbing::of(graph, product(graph), true, after).unwrap();
            let kernel = part.ring(rows, RingForm::Whole).unwrap();
            assert!(kernel.ahead.len() == 2, "{:?}", kernel.ahead);
            check_kernel(&format!("ring_norm_{k}_{rows}_{i}"), &part, kernel, [rows, real], k);
        }
        let module = paired(dtype, k, n);
        let graph = module.graph();
        let whole = Absorbing::of(graph, product(graph), true, &[0]).unwrap();
        let kernel = whole.ring(rows, RingForm::Whole).unwrap();
        check_kernel(&format!("ring_paired_{k}_{rows}"), &whole, kernel, [rows, real], k);
    }
}

/// The same over codes, whose blocks have more threads where codes are of 4 bits; one row, which is all
/// rows of a fragment.
#[test]
fn a_norm_before_codes_through_a_ring() {
    if !available() {
        return;
    }
    let cases = [
        (E4M3, 1 << 20, false, 1024, 72, 1, 1),
        (E4M3, 128, false, 1024, 264, 8, 5),
        (I4, 128, false, 2048, 136, 1, 1),
        (I4, 64, true, 1024, 72, 8, 7),
        (I4, 128, true, 1024, 64, 24, 24),
        (E4M3, 1 << 20, false, 1024, 64, 4, 0),
    ];
    for (codes, group, zeros, k, n, rows, real) in cases {
        let mut b = Builder::new();
        let t = b.symbol("T");
        let (x, y) = (b.input("x", BF16, dims![t, k]), b.input("y", BF16, dims![t, k]));
        let residual = b.input("residual", BF16, dims![t, n]);
        let (norm, w) = (b.weight("norm", BF16, &[k]), b.weight("w", codes, &[n, k]));
        let blocks = [n, k.div_ceil(group)];
        let scales = b.weight("scales", F32, &blocks);
        let sum = b.add(x, y);
        let normed = b.rms_norm(sum, norm);
        let mut operands = vec![normed, w, scales];
        if zeros {
            operands.push(b.weight("zeros", codes, &blocks));
        }
        let op = Op::ScaledMatMul { block: [1, group] };
        let made = b.typed(op, &operands, TensorType::new(BF16, dims![t, n]));
        let out = b.add(residual, made);
        let mut module = b.finish(&[sum, out]);
        common::run(&mut module, PASSES);
        let graph = module.graph();
        let node = graph.nodes().find(|&n| matches!(graph.node(n).op, Op::ScaledMatMul { .. }));
        for (i, after) in [&[position(graph, 1)][..], &[]].into_iter().enumerate() {
            let part = Absorbing::of(graph, node.unwrap(), true, after).unwrap();
            let half = if rows > 16 { RingForm::Whole } else { RingForm::Half { longer: false } };
            let form = [RingForm::Whole, half][i];
            let kernel = part.ring(rows, form).unwrap();
            assert_eq!(kernel.ahead.len(), operands.len());
            let name = format!("codes_norm_{codes}_{group}_{rows}_{i}");
            check_kernel(&name, &part, kernel, [rows, real], k);
        }
    }
}

#[test]
fn rows_that_leave_a_ring_too_little_room_are_not_made_by_blocks() {
    let refused = |k: u64, rows: u64, form: RingForm| {
        let module = norm_and_residual(BF16, k, 4096);
        let graph = module.graph();
        let part = Absorbing::of(graph, product(graph), true, &[]).unwrap();
        part.ring(rows, form).map(|_| ()).unwrap_err().to_string()
    };
    insta::assert_snapshot!(refused(4096, 32, RingForm::Whole));
    insta::assert_snapshot!(refused(4096, 16, RingForm::Half { longer: true }));
    insta::assert_snapshot!(refused(1024, 8, RingForm::Panel));
    insta::assert_snapshot!(refused(1088, 8, RingForm::Whole));
}

/// A warp takes several rows of w where there are many.
#[test]
fn many_columns() {
    if !available() {
        return;
    }
    let module = norm_and_residual(BF16, 264, 3461);
    let graph = module.graph();
    let whole = Absorbing::of(graph, product(graph), true, &[position(graph, 1)]).unwrap();
    for (rows, real, of_warp) in [(1, 1, 8), (2, 2, 4), (8, 7, 2)] {
        assert!(whole.kernel(rows).unwrap().source.contains(&format!("#define R {of_warp}")));
        check(&format!("many_{rows}"), &whole, rows, real, rows);
    }
}

#[test]
fn a_gate_before_and_a_residual_that_is_normed_after() {
    if !available() {
        return;
    }
    for (dtype, k) in [(BF16, 3072), (F16, 136), (F32, 520)] {
        let module = gate_and_residual(dtype, k, 33);
        let graph = module.graph();
        let after = [position(graph, 0)];
        for (rows, real) in [(1, 1), (3, 2), (8, 7)] {
            let whole = Absorbing::of(graph, product(graph), true, &after).unwrap();
            check(&format!("gate_{dtype}_{rows}_{real}"), &whole, rows, real, rows);
        }
    }
}

/// A unit takes the columns of a gate with those that it gates: neighbours where it has several
/// rows of w, fewer than a unit's at the end, and more rows of w than the loads on the way allow.
#[test]
fn halves_of_a_product_end_as_one() {
    if !available() {
        return;
    }
    for (dtype, k, n, rows_of_unit) in
        [(BF16, 1024, 2310, 2), (BF16, 264, 301, 8), (F16, 2112, 19, 8), (F32, 8704, 9, 2)]
    {
        let module = paired(dtype, k, n);
        let graph = module.graph();
        let few = [(true, 1, 1), (false, 3, 2)];
        for (before, rows, real) in few.into_iter().take(if n < 1000 { 2 } else { 1 }) {
            let whole = Absorbing::of(graph, product(graph), before, &[0]).unwrap();
            let source = whole.kernel(rows).unwrap().source;
            assert!(source.contains("#define PARTS 2"), "{source}");
            let unit = format!("#define R {rows_of_unit}\n");
            assert!(rows > 1 || source.contains(&unit), "{source}");
            check(&format!("paired_{dtype}_{k}_{before}_{rows}"), &whole, rows, real, k);
        }
    }
}

/// Rows gathered from a table before, a cast after: what ends a decoder.
#[test]
fn gathered_rows_before_and_a_cast_after() {
    if !available() {
        return;
    }
    let mut b = Builder::new();
    let t = b.symbol("T");
    let table = b.input("table", BF16, dims![40u64, 256u64]);
    let rows = b.input("rows", I32, dims![t]);
    let (norm, w) = (b.weight("norm", BF16, &[256]), b.weight("w", BF16, &[100, 256]));
    let x = b.gather(table, rows);
    let normed = b.rms_norm(x, norm);
    let logits = b.linear(normed, w);
    let logits = b.cast(logits, F32);
    let mut module = b.finish(&[logits]);
    common::run(&mut module, PASSES);
    let graph = module.graph();
    for (before, after) in [(true, &[0][..]), (true, &[]), (false, &[0])] {
        let part = Absorbing::of(graph, product(graph), before, after).unwrap();
        check(&format!("head_{before}_{}", after.len()), &part, 4, 3, 1);
    }
}

/// Rows of two tables side by side, added to a product: they are asked for ahead, an element at a time.
#[test]
fn rows_of_tables_side_by_side_after() {
    if !available() {
        return;
    }
    let mut b = Builder::new();
    let t = b.symbol("T");
    let x = b.input("x", BF16, dims![t, 264u64]);
    let rows = b.input("rows", I32, dims![t]);
    let w = b.weight("w", BF16, &[70, 264]);
    let tables = ["left", "right"].map(|name| b.weight(name, BF16, &[40, 35]));
    let gathered = tables.map(|table| b.gather(table, rows));
    let beside = b.concat(&gathered, 1);
    let y = b.linear(x, w);
    let sum = b.add(y, beside);
    let mut module = b.finish(&[sum]);
    common::run(&mut module, PASSES);
    let graph = module.graph();
    let part = Absorbing::of(graph, product(graph), false, &[0]).unwrap();
    assert!(part.kernel(4).unwrap().source.contains("c1[k][0] ="));
    for (rows, real) in [(1, 1), (4, 3)] {
        check(&format!("tables_{rows}"), &part, rows, real, rows);
    }
}

/// Products of random graphs with whatever a kernel takes of the regions beside them.
#[test]
fn random_regions_beside_products() {
    if !available() {
        return;
    }
    let mut checked = [0; 2];
    for seed in 0..SEEDS {
        let mut module = Module::new(RandomGraph::default().generate(seed));
        common::run(&mut module, PASSES);
        let graph = module.graph();
        for matmul in graph.nodes().filter(|&n| matches!(graph.node(n).op, Op::MatMul { .. })) {
            let rows = 1 + seed % 8;
            let runs = |part: &Absorbing<'_>| part.kernel(rows).is_ok();
            let before = Absorbing::of(graph, matmul, true, &[]);
            let before = before.filter(|part| part.before.is_some() && runs(part)).is_some();
            let after = (0..4).find(|&i| {
                let part = Absorbing::of(graph, matmul, false, &[i]);
                part.is_some_and(|part| runs(&part))
            });
            let after = Vec::from_iter(after);
            checked[0] += usize::from(before);
            checked[1] += after.len();
            if before || !after.is_empty() {
                let part = Absorbing::of(graph, matmul, before, &after).unwrap();
                let real = rows - seed % 2;
                check(&format!("random_{seed}_{}", matmul.index()), &part, rows, real, seed);
            }
        }
    }
    assert!(checked.iter().all(|&n| n > 3), "{checked:?} regions before and after");
}

#[test]
fn what_is_read_ahead_is_the_weights_of_the_product_and_of_the_region_before_it() {
    // The bias and the norm after a product are read after the wait.
    for (module, read) in
        [(norm_and_residual(BF16, 264, 70), 2), (gate_and_residual(BF16, 136, 64), 1)]
    {
        let graph = module.graph();
        let sum = position(graph, usize::from(read == 2));
        let absorbing = Absorbing::of(graph, product(graph), true, &[sum]).unwrap();
        let before = absorbing.before.as_ref().unwrap().operands.len();
        let of_weight =
            |i: &usize| matches!(graph.def(absorbing.values().0[*i]), ValueDef::Weight(_));
        let weights: Vec<u32> = (0..=before).filter(of_weight).map(|i| i as u32).collect();
        assert_eq!(weights.len(), read);
        assert_eq!(absorbing.kernel(1).unwrap().ahead, weights);
    }
}

/// A row alone has the bits that it has beside others of its size class's rows.
#[test]
fn padding_changes_no_bit() {
    if !available() {
        return;
    }
    let module = norm_and_residual(BF16, 264, 70);
    let graph = module.graph();
    let absorbing = Absorbing::of(graph, product(graph), true, &[position(graph, 1)]).unwrap();
    let (arguments, _) = absorbing.values();
    let mut rng = Rng(9);
    let args: Vec<Vec<u8>> = arguments
        .iter()
        .map(|&v| fill(BF16, graph.ty(v).bytes(&[8]) as usize / 2, &mut rng))
        .collect();
    let kernel = absorbing.kernel(8).unwrap();
    let run = |real: i32| {
        let case = Case {
            launches: vec![kernel.clone()],
            args: args.clone(),
            sizes: vec![8],
            counts: vec![real],
            scratch: 256,
        };
        emulate(&format!("padding_{real}"), &case).pop().unwrap()
    };
    let (few, all) = (run(3), run(8));
    assert_eq!(few[..3 * 140], all[..3 * 140]);
    assert_ne!(few, all);
}

#[test]
fn what_is_no_map_of_the_product_stays_a_launch_of_its_own() {
    let module = gate_and_residual(BF16, 136, 64);
    let graph = module.graph();
    let normed = Absorbing::of(graph, product(graph), true, &[position(graph, 1)]).unwrap();
    insta::assert_snapshot!(normed.kernel(1).unwrap_err());
    let mut b = Builder::new();
    let t = b.symbol("T");
    let x = b.input("x", BF16, dims![t, 64u64]);
    let w = b.weight("w", BF16, &[64, 64]);
    let y = b.linear(x, w);
    let (low, high) = (b.slice(y, 1, 0, 32), b.slice(y, 1, 32, 32));
    let turned = b.concat(&[high, low], 1);
    let turned = b.unary(UnaryOp::Exp, turned);
    let mut module = b.finish(&[turned]);
    common::run(&mut module, PASSES);
    let graph = module.graph();
    let turned = Absorbing::of(graph, product(graph), false, &[0]).unwrap();
    insta::assert_snapshot!(turned.kernel(1).unwrap_err());
    let wide = norm_and_residual(BF16, 12288, 64);
    let graph = wide.graph();
    let wide = Absorbing::of(graph, product(graph), true, &[]).unwrap();
    assert!(wide.kernel(1).is_ok());
    insta::assert_snapshot!(wide.kernel(8).unwrap_err());
}

#[test]
fn a_part_of_a_region_reads_what_was_cut() {
    let module = gate_and_residual(BF16, 136, 64);
    let graph = module.graph();
    let node = graph.defining_node(graph.outputs()[0]).unwrap();
    let Op::Region(region) = &graph.node(node).op else { panic!("no region") };
    let (sum, normed) = (position(graph, 0), position(graph, 1));
    let show = |region: &Region| piecewise_ir::text::print_graph(&region.body);
    let before = RegionPart::of(region, &[normed], &[sum]).unwrap();
    assert_eq!(before.params[0], PartParam::Result(sum));
    insta::assert_snapshot!("cut_before", show(&before.region));
    insta::assert_snapshot!(
        "cut_after",
        show(&RegionPart::of(region, &[sum], &[]).unwrap().region)
    );
    assert!(RegionPart::of(region, &[2], &[]).is_err());
}

#[test]
fn sources_and_every_architecture() {
    let module = norm_and_residual(BF16, 1024, 4096);
    let graph = module.graph();
    let whole = Absorbing::of(graph, product(graph), true, &[position(graph, 1)]).unwrap();
    insta::assert_snapshot!("absorbing", whole.kernel(1).unwrap().source);
    let Some(nvrtc) = Nvrtc::find() else { return };
    for arch in ["sm_80", "sm_90a", "sm_120"] {
        for (rows, dtype) in [(1, BF16), (2, F16), (4, F32), (8, BF16)] {
            for module in [
                norm_and_residual(dtype, 1024, 4096),
                gate_and_residual(dtype, 3072, 1024),
                paired(dtype, 1024, 3072),
            ] {
                let graph = module.graph();
                let last = graph.nodes().last().unwrap();
                let sum = (0..graph.node(last).results.len()).find(|&i| {
                    let part = Absorbing::of(graph, product(graph), true, &[i]);
                    part.is_some_and(|p| p.kernel(rows).is_ok())
                });
                let Some(sum) = sum else { panic!("{dtype} at {rows} rows is not absorbed") };
                let whole = Absorbing::of(graph, product(graph), true, &[sum]).unwrap();
                let kernel = whole.kernel(rows).unwrap();
                let made = nvrtc.compile(&kernel.source, PRELUDE, arch, &kernel.options);
                made.unwrap_or_else(|log| panic!("{arch}:\n{log}\n{}", kernel.source));
                let Ok(ring) = whole.ring(rows, RingForm::Whole) else { continue };
                if arch == "sm_90a" {
                    let made = nvrtc.compile(&ring.source, PRELUDE, arch, &ring.options);
                    made.unwrap_or_else(|log| panic!("{arch}:\n{log}\n{}", ring.source));
                }
            }
        }
    }
}
