//! What the kernels compute, on the host: regions against the CPU's row programs, matmul against
//! sums in f64, sampling against the CPU's to the bit.
#![allow(unsafe_code, reason = "row programs run on raw addresses")]

use crate::common;
use crate::emulate::{Case, Rng, available, emulate, fill, floats, worst};
use crate::layer::{PASSES, layer};
use crate::random;
use piecewise_ir::dim::{Dim, SymbolDecl};
use piecewise_ir::dtype::DType::{BF16, F16, F32, I32, I64};
use piecewise_ir::entity::{Entity, Node, Symbol, Value};
use piecewise_ir::graph::{Graph, Loc, ValueDef};
use piecewise_ir::module::Module;
use piecewise_ir::op::{Op, ReduceOp};
use piecewise_ir::region::{ParamMode, Region};
use piecewise_ir::types::TensorType;
use piecewise_kernels::cpu::Isa;
use piecewise_kernels::cpu::rows::{RowArg, RowCall, run_rows};
use piecewise_kernels::cpu::sampling::{ControlArgs, SampleArgs, sample, sample_scratch_bytes};
use piecewise_kernels::cuda::{
    MatMulSpec, OperandRole, controlled_sample_kernels, narrow_region_kernel, node_kernel,
    region_kernel, sample_kernels,
};
use piecewise_kernels::lower::{ArgKind, RowProgram, lower_node, lower_region};
use piecewise_kernels::sampling::{
    DETAIL_WORDS, NO_ID, SampleControls, fill_token_row, mask_words, token_words,
};
use piecewise_testing::RandomGraph;

/// Random programs that are run.
const PROGRAMS: u64 = 6;

/// A node as a kernel against its row program, where the last of five rows is padding.
fn check(name: &str, graph: &Graph, node: Node, seed: u64) {
    let data = graph.node(node);
    let states: Vec<bool> =
        data.operands.iter().map(|&v| matches!(graph.def(v), ValueDef::State(_))).collect();
    let roles: Vec<OperandRole> = data
        .operands
        .iter()
        .map(|&v| OperandRole {
            state: matches!(graph.def(v), ValueDef::State(_)),
            weight: matches!(graph.def(v), ValueDef::Weight(_)),
            staged: false,
        })
        .collect();
    let (program, recipes) = match &data.op {
        Op::MatMul { .. } | Op::Custom(_) => return,
        Op::Region(r) => {
            let usual = region_kernel(r, &roles).unwrap();
            let narrow = narrow_region_kernel(r, &roles, &usual).unwrap();
            (lower_region(r, &states).unwrap(), [usual].into_iter().chain(narrow).collect())
        }
        op => (
            lower_node(op, &graph.operand_types(node), &states, &graph.result_types(node)).unwrap(),
            vec![
                node_kernel(op, &graph.operand_types(node), &roles, &graph.result_types(node))
                    .unwrap(),
            ],
        ),
    };
    let n = graph.symbols().len();
    let sizes = vec![5u64; n];
    let counts = vec![4u64; n];
    let mut r = Rng(seed);
    let args: Vec<Vec<u8>> = program
        .args
        .iter()
        .map(|d| fill(d.dtype, (d.bytes(5, &sizes) / d.dtype.size() as u64) as usize, &mut r))
        .collect();
    let mut exp: Vec<Vec<u64>> = args
        .iter()
        .map(|a| {
            let mut v = vec![0u64; a.len() / 8 + 16];
            bytemuck::cast_slice_mut::<u64, u8>(&mut v)[..a.len()].copy_from_slice(a);
            v
        })
        .collect();
    let row_args: Vec<RowArg> = program
        .args
        .iter()
        .zip(&mut exp)
        .map(|(d, v)| RowArg {
            address: v.as_mut_ptr() as usize,
            extent: match d.kind {
                ArgKind::Table if d.state => d.table_rows(&sizes),
                ArgKind::Table => d.table_rows(&counts),
                _ => 0,
            },
        })
        .collect();
    let rows = program.rows(&counts);
    let bytes = program.scratch_bytes(8, 1);
    let mut scratch = vec![0u64; bytes as usize / 8 + 64];
    let at = (scratch.as_mut_ptr() as usize).next_multiple_of(64);
    // SAFETY: the program is checked; every argument has its bytes, the scratch its size.
    unsafe {
        run_rows(&RowCall {
            program: &program,
            args: &row_args,
            rows,
            scratch: at,
            scratch_bytes: bytes,
        })
    };
    for (way, recipe) in recipes.into_iter().enumerate() {
        let case = Case {
            launches: vec![recipe],
            args: args.clone(),
            sizes: sizes.clone(),
            counts: counts.iter().map(|c| *c as i32).collect(),
            scratch: 256,
        };
        let name = format!("{name}_{way}");
        hold(&name, &program, &emulate(&name, &case), &exp);
    }
}

fn hold(name: &str, program: &RowProgram, got: &[Vec<u8>], exp: &[Vec<u64>]) {
    for (i, d) in program.args.iter().enumerate() {
        let e: &[u8] = &bytemuck::cast_slice(&exp[i])[..got[i].len()];
        let w = worst(d.dtype, &got[i], e);
        let limit = match d.dtype {
            F32 => 2e-4,
            BF16 => 4e-2,
            F16 => 6e-3,
            _ => 0.0,
        };
        let differ = got[i].iter().zip(e).filter(|(a, b)| a != b).count();
        assert!(
            w <= limit,
            "{name} argument {i} {:?}: {differ} of {} bytes differ, worst {w:e}",
            d.dtype,
            e.len()
        );
    }
}
#[test]
fn random_regions_and_single_ops() {
    if !available() {
        return;
    }
    for seed in 0..6 {
        let mut module = Module::new(RandomGraph::default().generate(seed));
        if seed != 0 {
            common::run(&mut module, PASSES);
        }
        let graph = module.graph();
        for node in graph.nodes().take(20) {
            check(&format!("random_{seed}_{}", node.index()), graph, node, seed);
        }
    }
}
/// Programs of every dtype, with tables, searches and scatters.
#[test]
fn random_programs() {
    if !available() {
        return;
    }
    for seed in 0..PROGRAMS {
        let p = random::program(seed, random::Kind::Exact);
        let node = p.fused.nodes().next().unwrap();
        check(&format!("program_{seed}"), &p.fused, node, seed);
    }
}
/// A row gathered from a table is a table itself, and so are reductions of several and of one
/// element.
#[test]
fn gathers_from_what_the_region_has_made() {
    if !available() {
        return;
    }
    let mut graph = Graph::new("gathers");
    let over = graph.add_symbol(SymbolDecl { name: "T".into(), min: 1, max: 8, role: None });
    let params = [
        (ParamMode::Whole, TensorType::new(BF16, [9u64, 4, 6])),
        (ParamMode::Row, TensorType::scalar(I32)),
        (ParamMode::Row, TensorType::scalar(I32)),
    ];
    let mut body = Graph::with_symbols_of("body", &graph);
    let mut operands = Vec::new();
    let [table, first, second] = [0, 1, 2].map(|i| {
        let (mode, ty) = &params[i];
        let outer = TensorType {
            dtype: ty.dtype,
            shape: [Dim::from(over)].into_iter().chain(ty.shape.iter().cloned()).collect(),
        };
        let outer = if *mode == ParamMode::Row { outer } else { ty.clone() };
        operands.push(graph.add_input(format!("p{i}"), outer, None, None));
        body.add_input(format!("p{i}"), ty.clone(), None, None)
    });
    let mut push = |op, operands: &[Value], shape: &[u64]| {
        let ty = TensorType::new(BF16, shape);
        body.push(op, operands.to_vec(), ty, Loc::default())
    };
    let row = push(Op::Gather, &[table, first], &[4, 6]);
    let part = push(Op::Gather, &[row, second], &[6]);
    let max = |axes: &[usize]| Op::Reduce { op: ReduceOp::Max, axes: axes.to_vec() };
    let widest = push(max(&[1]), &[row], &[4, 1]);
    let one_of_them = push(Op::Gather, &[widest, second], &[1]);
    let largest = push(max(&[0, 1]), &[row], &[1, 1]);
    let itself = push(Op::Gather, &[largest, second], &[1]);
    let outputs = [part, one_of_them, itself];
    body.set_outputs(outputs.to_vec());
    let results = [6u64, 1, 1].map(|n| TensorType::new(BF16, [Dim::from(over), n.into()]));
    let params = params.iter().map(|(mode, _)| *mode).collect();
    let region = Op::Region(Box::new(Region { over, params, body }));
    let node = graph.push_node(region, operands, results.to_vec(), Loc::default());
    graph.set_outputs(graph.node(node).results.clone());
    check("gathers", &graph, node, 1);
}
/// Of rows with one slot the last stays, where no host has held them apart; padding rows are none of
/// them.
#[test]
fn of_rows_with_one_slot_the_last_stays_unless_the_host_holds_them_apart() {
    if !available() {
        return;
    }
    let over = Symbol::new(0);
    let types = [
        TensorType::new(F32, [9u64, 6]),
        TensorType::new(I32, [Dim::from(over)]),
        TensorType::new(F32, [Dim::from(over), 6u64.into()]),
    ];
    let recipe = |staged| {
        let role = |i| OperandRole { state: i == 0, weight: false, staged: staged && i == 1 };
        node_kernel(&Op::Scatter, &types, &[0, 1, 2].map(role), &[]).unwrap()
    };
    assert!(!recipe(true).source.contains("stays"), "{}", recipe(true).source);
    let recipe = recipe(false);
    assert!(recipe.source.contains(" && stays0(row * 1u + 0u)) "), "{}", recipe.source);
    let slots = [3i32, 5, 3, -1, 3];
    let rows: Vec<f32> = (0..30).map(|i| i as f32 + 1.0).collect();
    let bytes = |values: &[f32]| bytemuck::cast_slice(values).to_vec();
    let case = Case {
        launches: vec![recipe],
        args: vec![vec![0; 9 * 6 * 4], bytemuck::cast_slice(&slots).to_vec(), bytes(&rows)],
        sizes: vec![5],
        counts: vec![4],
        scratch: 256,
    };
    let mut expected = [0f32; 54];
    expected[18..24].copy_from_slice(&rows[12..18]);
    expected[30..36].copy_from_slice(&rows[6..12]);
    assert_eq!(emulate("one_slot", &case)[0], bytes(&expected));
}
#[test]
fn parts_of_a_layer() {
    if !available() {
        return;
    }
    for d in [BF16, F32, F16] {
        let module = layer(d, 40, 16);
        let g = module.graph();
        for n in g.nodes() {
            check(&format!("layer{d}_{}", n.index()), g, n, 7);
        }
    }
}
#[test]
fn products_of_two_to_eight_rows_have_the_same_bits() {
    if !available() {
        return;
    }
    let rows = Dim::from(Symbol::new(0));
    let mut r = Rng(3);
    for (xt, wt, yt, tr) in [
        (BF16, BF16, BF16, true),
        (F32, BF16, F32, true),
        (BF16, F32, F32, true),
        (F16, F16, F32, true),
        (F32, F32, F32, false),
    ] {
        // Many columns for the first: a warp takes several rows of w.
        let (k, n) = (264u64, if yt == BF16 { 3461u64 } else { 70 });
        let columns = n as usize;
        let x = TensorType::new(xt, [rows.clone(), k.into()]);
        let w = TensorType::new(wt, if tr { [n, k] } else { [k, n] });
        let y = TensorType::new(yt, [rows.clone(), n.into()]);
        let spec = MatMulSpec::new(false, tr, &x, &w, &y).unwrap().of_weight();
        let args = vec![
            fill(xt, 8 * 264, &mut r),
            fill(wt, 264 * columns, &mut r),
            vec![0u8; 8 * columns * yt.size()],
        ];
        let (xf, wf) = (floats(xt, &args[0]), floats(wt, &args[1]));
        let mut exp = vec![0f64; 8 * columns];
        for i in 0..7 {
            for j in 0..columns {
                exp[i * columns + j] = yt.round(
                    (0..264)
                        .map(|p| {
                            xf[i * 264 + p] * if tr { wf[j * 264 + p] } else { wf[p * columns + j] }
                        })
                        .sum(),
                );
            }
        }
        let mut kernels = vec![("general", spec.general_kernel().unwrap())];
        if tr {
            kernels.push(("stream", spec.stream_kernel(8).unwrap()));
        }
        let mut first = Vec::new();
        for (name, l) in kernels {
            let case = Case {
                launches: vec![l],
                args: args.clone(),
                sizes: vec![8],
                counts: vec![7],
                scratch: 256,
            };
            let got = emulate(&format!("mm_{name}_{xt}_{wt}_{tr}"), &case);
            let g = floats(yt, &got[2]);
            let w = g
                .iter()
                .zip(&exp)
                .map(|(a, b)| (a - b).abs() / b.abs().max(1.0))
                .fold(0.0, f64::max);
            assert!(w < 2e-2);
            if name == "stream" {
                first = got[2].clone();
            }
        }
        let of = |name: &str, rows: u64| {
            let case = Case {
                launches: vec![spec.stream_kernel(rows).unwrap()],
                args: args.clone(),
                sizes: vec![rows],
                counts: vec![rows as i32],
                scratch: 256,
            };
            let got = emulate(&format!("mm_{name}_{xt}_{wt}"), &case).remove(2);
            got[..rows as usize * columns * yt.size()].to_vec()
        };
        if tr {
            let two = of("two", 2);
            assert_eq!(two, first[..two.len()]);
            // Warps share the sums of one row alone, in an order of their own.
            for (a, b) in floats(yt, &of("one", 1)).iter().zip(&exp) {
                assert!((a - b).abs() / b.abs().max(1.0) < 2e-2, "{a}, not {b}");
            }
        }
    }
}
#[test]
fn samples_are_those_of_the_cpu() {
    samples_alike("sample", 40, 3000, false);
}
/// Biases, penalties, masks, min_p and log-probabilities, all of them, some and none; the states are
/// those of the CPU afterwards too.
#[test]
fn controlled_samples_are_those_of_the_cpu() {
    samples_alike("controlled_sample", 24, 1501, true);
}
fn samples_alike(name: &str, rows: usize, v: usize, controlled: bool) {
    if !available() {
        return;
    }
    let mut r = Rng(11);
    let mut logits: Vec<f32> = (0..rows * v)
        .map(|_| {
            let x = r.f() * 8.0;
            if r.next().is_multiple_of(50) { (x * 2.0).round() / 2.0 } else { x }
        })
        .collect();
    for i in 0..v {
        logits[i] = f32::NAN;
        logits[v + i] = f32::NEG_INFINITY;
        if i % 3 == 0 {
            logits[2 * v + i] = f32::NAN
        }
        logits[3 * v + i] = 1.5;
    }
    logits[4 * v + 77] = f32::INFINITY;
    logits[5 * v..][..v / 2].fill(f32::NEG_INFINITY);
    logits[7 * v - 1] = f32::NAN;
    let temperature: Vec<f32> =
        (0..rows).map(|i| [0.0, 1.0, 0.7, 0.3, f32::NAN, 2.5][i % 6]).collect();
    let top_k: Vec<i32> = (0..rows).map(|i| [0, 1, 5, 40, 5000, -3, v as i32 - 1][i % 7]).collect();
    let top_p: Vec<f32> =
        (0..rows).map(|i| [1.0, 0.9, 0.5, 0.0, 0.999, f32::NAN, -1.0, 0.1][i % 8]).collect();
    let seed: Vec<i64> = (0..rows).map(|i| i as i64 * 0x1234567890 - 5).collect();
    let position: Vec<i32> = (0..rows as i32).collect();
    let mut out = vec![-7i32; rows];
    let [of_mask, of_tokens] = [mask_words, token_words].map(|words| words(v as u64) as usize);
    let masks: Vec<i32> = (0..rows * of_mask).map(|_| (r.next() & r.next()) as i32).collect();
    let is_hidden = |id: &usize| masks[7 * of_mask + id / 32] >> (id % 32) & 1 == 0;
    let hidden = (0..v).find(is_hidden).unwrap();
    logits[7 * v + hidden] = f32::NAN;
    let mut tokens = vec![0; rows * of_tokens];
    let (mut controls, mut penalties) = (Vec::new(), Vec::new());
    for i in 0..rows {
        let ids =
            |r: &mut Rng| (0..200).map(|_| (r.next() as usize % v) as u32).collect::<Vec<_>>();
        let mut biased = ids(&mut r);
        biased.sort_unstable();
        biased.dedup();
        let biases: Vec<_> = biased.iter().map(|&id| (id, r.f() * 5.0)).collect();
        let (prompt, generated) = (ids(&mut r), [ids(&mut r), vec![7; 20_000]].concat());
        let entry = rows - 1 - i;
        let state = &mut tokens[entry * of_tokens..][..of_tokens];
        fill_token_row(state, v as u64, &prompt, &generated, &biases);
        let asked = SampleControls {
            given: (i % 8 == 6).then_some((i * 61 % v) as u32),
            mask: (i % 3 == 1).then_some(i as u32),
            tokens: (i % 5 > 1).then_some(entry as u32),
            counts: i % 5 > 2,
            logprobs: [None, Some(0), Some(1), Some(20)][i / 2 % 4],
        };
        controls.extend(asked.words());
        let p = |list: [f32; 3]| list[i / 4 % 3];
        penalties.extend([
            p([0.0, 0.05, f32::NAN]),
            p([0.5, 0.0, -1.0]),
            p([0.1, -0.2, 0.0]),
            p([1.0, 1.3, 0.7]),
        ]);
    }
    let before = tokens.clone();
    let mut details = vec![0i32; rows * DETAIL_WORDS];
    let mut scratch = vec![0u64; sample_scratch_bytes(v, true, 1) / 8 + 64];
    let s = bytemuck::cast_slice_mut::<u64, u8>(&mut scratch);
    let off = s.as_ptr().align_offset(64);
    sample(
        Isa::detected(),
        SampleArgs {
            logits: &logits,
            vocabulary: v,
            temperature: &temperature,
            top_k: &top_k,
            top_p: &top_p,
            seed: &seed,
            position: &position,
            controls: controlled.then_some(ControlArgs {
                controls: &controls,
                penalties: &penalties,
                masks: &masks,
                tokens: &mut tokens,
                details: &mut details,
            }),
            out: &mut out,
            scratch: &mut s[off..],
        },
    )
    .unwrap();
    // All or some NaN, all -inf, one +inf; one NaN beside a given id, and one behind a mask.
    let without: Vec<_> = (0..rows).filter(|&i| out[i] == NO_ID).collect();
    assert_eq!(without, [0, 1, 2, 4, 6, 7]);
    let d = Dim::from(Symbol::new(0));
    let p = |t| TensorType::new(t, [d.clone()]);
    let wide = |t, words: usize| TensorType::new(t, [d.clone(), (words as u64).into()]);
    let mut types = vec![wide(F32, v), p(F32), p(I32), p(F32), p(I64), p(I32)];
    if controlled {
        types.extend([wide(I32, 4), wide(F32, 4), wide(I32, of_mask), wide(I32, of_tokens)]);
    }
    let k = match controlled {
        true => controlled_sample_kernels(&types).unwrap(),
        false => sample_kernels(&types).unwrap(),
    };
    let b = |x: &[u8]| x.to_vec();
    let mut args = vec![
        b(bytemuck::cast_slice(&logits)),
        b(bytemuck::cast_slice(&temperature)),
        b(bytemuck::cast_slice(&top_k)),
        b(bytemuck::cast_slice(&top_p)),
        b(bytemuck::cast_slice(&seed)),
        b(bytemuck::cast_slice(&position)),
    ];
    if controlled {
        args.push(b(bytemuck::cast_slice(&controls)));
        args.push(b(bytemuck::cast_slice(&penalties)));
        args.push(b(bytemuck::cast_slice(&masks)));
        args.push(b(bytemuck::cast_slice(&before)));
    }
    let at = args.len();
    args.push(vec![0x7f; rows * 4]);
    if controlled {
        args.push(vec![0xff; rows * DETAIL_WORDS * 4]);
    }
    let case = Case {
        launches: k.launches,
        args,
        sizes: vec![rows as u64],
        counts: vec![rows as i32],
        scratch: k.scratch.eval(&[rows as u64]),
    };
    let got = emulate(name, &case);
    let words = |bytes: &[u8]| -> Vec<i32> {
        bytes.chunks(4).map(|c| i32::from_ne_bytes(c.try_into().unwrap())).collect()
    };
    assert_eq!(words(&got[at]), out);
    if controlled {
        assert_eq!(words(&got[at + 1]), details);
        assert!(words(&got[at - 1]) == tokens, "the counts are others");
    }
}
