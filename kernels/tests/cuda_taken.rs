//! Attention of one row with the region before it in its kernel, on the host: against the region's
//! kernel and attention's own after it, bit for bit.

use crate::common::{self, Builder};
use crate::emulate::{Case, Rng, available, emulate, fill};
use crate::layer::PASSES;
use crate::nvrtc::Nvrtc;
use piecewise_ir::dim::Dim;
use piecewise_ir::dtype::DType::{self, BF16, F16, F32, I32};
use piecewise_ir::entity::{Entity, Node, Symbol, Value};
use piecewise_ir::graph::{Graph, ValueDef};
use piecewise_ir::module::Module;
use piecewise_ir::op::Op;
use piecewise_ir::region::Region;
use piecewise_ir::types::TensorType;
use piecewise_kernels::attention::PagedAttention;
use piecewise_kernels::cuda::{
    LaunchRecipe, OpKernels, OperandRole, PRELUDE, attention_kernels, attention_with_region,
    region_kernel,
};
use piecewise_kernels::op::cuda::{CudaOpCall, CudaRegionBefore, CudaTarget};

const PAGES: u64 = 40;
const POOL: u64 = 64 * 16;
const POSITIONS: u64 = 700;

#[derive(Clone, Copy)]
struct Heads {
    dtype: DType,
    heads: u64,
    kv_heads: u64,
    dim: u64,
    /// Whether queries and keys are normed.
    normed: bool,
}

/// What lies between the product of queries, keys and values and attention.
fn between(of: Heads, extra: bool) -> Module {
    let Heads { dtype, heads, kv_heads, dim, normed } = of;
    let mut b = Builder::new();
    let t = b.symbol("T");
    let qkv = b.input("qkv", dtype, dims![t, (heads + 2 * kv_heads) * dim]);
    let positions = b.input("positions", I32, dims![t]);
    let slots = b.input("slots", I32, dims![t]);
    let (cos, sin) =
        (b.weight("cos", F32, &[POSITIONS, dim / 2]), b.weight("sin", F32, &[POSITIONS, dim / 2]));
    let part = |b: &mut Builder, first: u64, heads: u64| {
        let x = b.slice(qkv, 1, first * dim, heads * dim);
        b.reshape(x, dims![t, heads, dim])
    };
    let (q, k) = (part(&mut b, 0, heads), part(&mut b, heads, kv_heads));
    let v = part(&mut b, heads + kv_heads, kv_heads);
    let mut turn = |name: &str, mut x| {
        if normed {
            let weight = b.weight(name, dtype, &[dim]);
            x = b.rms_norm(x, weight);
        }
        let (c, s) = (b.gather(cos, positions), b.gather(sin, positions));
        b.rope(x, c, s)
    };
    let (q, k) = (turn("q_norm", q), turn("k_norm", k));
    let keys = b.state("k", dtype, &[POOL, kv_heads, dim]);
    let values = b.state("v", dtype, &[POOL, kv_heads, dim]);
    b.scatter(keys, slots, k);
    b.scatter(values, slots, v);
    let outputs = if extra { vec![q, k] } else { vec![q] };
    let mut module = b.finish(&outputs);
    common::run(&mut module, PASSES);
    module
}

fn region(graph: &Graph) -> (Node, &Region) {
    let mut nodes = graph.nodes();
    let (Some(node), None) = (nodes.next(), nodes.next()) else { panic!("more than a region") };
    match &graph.node(node).op {
        Op::Region(region) => (node, region),
        op => panic!("{op:?}"),
    }
}

fn role(graph: &Graph, value: Value) -> OperandRole {
    let def = graph.def(value);
    OperandRole {
        state: matches!(def, ValueDef::State(_)),
        weight: matches!(def, ValueDef::Weight(_)),
        staged: matches!(def, ValueDef::Input(i) if graph.inputs()[i].name != "qkv"),
    }
}

/// The kernels of a decode: of attention alone, and with the region in it.
fn kernels(of: Heads, graph: &Graph, capability: (u32, u32), rows: u64) -> [Option<OpKernels>; 2] {
    let (node, region) = region(graph);
    let n = Dim::constant;
    let s = Dim::from(Symbol::new(1));
    let state = TensorType::new(of.dtype, [n(POOL), n(of.kv_heads), n(of.dim)]);
    let metadata = TensorType::new(I32, [s.clone()]);
    let operands = [
        TensorType::new(of.dtype, [Dim::from(Symbol::new(0)), n(of.heads), n(of.dim)]),
        state.clone(),
        state,
        TensorType::new(I32, [s, n(PAGES)]),
        metadata.clone(),
        metadata.clone(),
        metadata,
    ];
    let own = |i| OperandRole { state: i == 1 || i == 2, weight: false, staged: i > 2 };
    let roles: Vec<OperandRole> = (0..7).map(own).collect();
    let call = CudaOpCall {
        operands: &operands,
        roles: &roles,
        results: &[],
        attrs: &PagedAttention::attrs(0.2, true),
        target: CudaTarget { capability },
        sizes: &[rows, 3],
    };
    let data = graph.node(node);
    let states: Vec<Value> = graph.states().iter().map(|state| state.value).collect();
    let shared = |v: &Value| states.iter().position(|state| state == v).map(|i| i + 1);
    let before = CudaRegionBefore {
        region,
        roles: &data.operands.iter().map(|&v| role(graph, v)).collect::<Vec<_>>(),
        results: &[0, 1][..data.results.len()],
        shared: &data.operands.iter().map(shared).collect::<Vec<_>>(),
    };
    [attention_kernels(&call).ok(), attention_with_region(&call, &before)]
}

/// Keys and values of `length` positions, the last of them the row's, in pages that lie in no
/// order; NaNs elsewhere.
fn check(name: &str, of: Heads, length: u64) {
    let module = between(of, false);
    let graph = module.graph();
    let (node, region) = region(graph);
    let data = graph.node(node);
    let [alone, taken] = kernels(of, graph, (8, 0), 1).map(Option::unwrap);
    let mut rng = Rng(length);
    let table: Vec<i32> = (0..3 * PAGES).map(|i| ((i * 13 + 5) % (POOL / 16)) as i32).collect();
    let slot = |at: u64| u64::from(table[(at / 16) as usize] as u32) * 16 + at % 16;
    let row = (of.kv_heads * of.dim) as usize * 2;
    let mut state = || {
        let mut rows = fill(of.dtype, POOL as usize * row / 2, &mut rng);
        let known: Vec<u64> = (0..length - 1).map(slot).collect();
        for (at, row) in rows.chunks_mut(row).enumerate() {
            if !known.contains(&(at as u64)) {
                row.fill(0xff);
            }
        }
        rows
    };
    let states = [state(), state()];
    let ints = |x: &[i32]| bytemuck::cast_slice::<i32, u8>(x).to_vec();
    let newest = slot(length - 1) as i32;
    let region_args: Vec<Vec<u8>> = data
        .operands
        .iter()
        .map(|&value| match graph.def(value) {
            ValueDef::Input(i) => match graph.inputs()[i].name.as_str() {
                "positions" => ints(&[length as i32 - 1]),
                "slots" => ints(&[newest]),
                _ => fill(of.dtype, graph.ty(value).bytes(&[1]) as usize / 2, &mut rng),
            },
            ValueDef::State(i) => states[i].clone(),
            _ => {
                let ty = graph.ty(value);
                fill(ty.dtype, ty.bytes(&[1]) as usize / ty.dtype.size(), &mut rng)
            }
        })
        .collect();
    let metadata = [ints(&table), ints(&[length as i32, 7, 7]), ints(&[0, 7, 7]), ints(&[1, 7, 7])];
    let case = |launches: Vec<LaunchRecipe>, args, scratch: u64| Case {
        launches,
        args,
        sizes: vec![1, 3],
        counts: vec![1, 1],
        scratch: scratch.max(256),
    };
    let out = || vec![0xff; (of.heads * of.dim) as usize * 2];
    let roles: Vec<OperandRole> = data.operands.iter().map(|&v| role(graph, v)).collect();
    let first = region_kernel(region, &roles).unwrap();
    let mut args = region_args.clone();
    args.push(out());
    let made = emulate(&format!("{name}_region"), &case(vec![first], args, 0));
    let state = |i: usize| {
        let value = graph.states()[i].value;
        made[data.operands.iter().position(|&v| v == value).unwrap()].clone()
    };
    let mut args = vec![made[data.operands.len()].clone(), state(0), state(1)];
    args.extend(metadata.clone());
    args.push(out());
    let scratch = alone.scratch.eval(&[1, 3]);
    let expected = emulate(&format!("{name}_alone"), &case(alone.launches, args, scratch));
    let mut args = states.to_vec();
    args.extend(metadata);
    args.push(out());
    args.extend(region_args);
    let scratch = taken.scratch.eval(&[1, 3]);
    let count = args.len();
    taken.launches.iter().for_each(|launch| launch.check(count, scratch.max(1)).unwrap());
    let got = emulate(&format!("{name}_taken"), &case(taken.launches, args, scratch));
    assert_eq!(got[0], expected[1], "{name}: keys");
    assert_eq!(got[1], expected[2], "{name}: values");
    assert!(got[6] == expected[7], "{name}: the result");
    assert!(got[6].chunks(2).all(|x| x != [0xff, 0xff]), "{name}: NaNs");
}

const SMALL: Heads = Heads { dtype: BF16, heads: 4, kv_heads: 2, dim: 64, normed: true };

#[test]
fn a_region_in_attention_has_the_bits_that_it_has_before_it() {
    if !available() {
        return;
    }
    let wide = Heads { heads: 16, kv_heads: 2, dim: 128, ..SMALL };
    let plain = Heads { dtype: F16, heads: 8, kv_heads: 8, normed: false, ..SMALL };
    for (name, of, lengths) in
        [("small", SMALL, &[1, 16, 17, 500][..]), ("wide", wide, &[600]), ("plain", plain, &[70])]
    {
        for &length in lengths {
            check(&format!("{name}_{length}"), of, length);
        }
    }
}

#[test]
fn what_is_no_decode_of_one_row_takes_nothing() {
    let module = between(SMALL, false);
    assert!(kernels(SMALL, module.graph(), (9, 0), 2)[1].is_none());
    assert!(kernels(SMALL, between(SMALL, true).graph(), (9, 0), 1)[1].is_none());
    let wide = Heads { dim: 192, ..SMALL };
    assert!(kernels(wide, between(wide, false).graph(), (9, 0), 1)[1].is_none());
    let of = Heads { dtype: F32, ..SMALL };
    assert!(kernels(of, between(of, false).graph(), (9, 0), 1)[1].is_none());
}

#[test]
fn taken_regions_on_every_architecture() {
    let of = Heads { heads: 16, kv_heads: 8, dim: 128, ..SMALL };
    let module = between(of, false);
    let [_, taken] = kernels(of, module.graph(), (9, 0), 1);
    let kernel = &taken.unwrap().launches[0];
    insta::assert_snapshot!("taken", kernel.source);
    let Some(nvrtc) = Nvrtc::find() else { return };
    for arch in ["sm_80", "sm_90a", "sm_120"] {
        let made = nvrtc.compile(&kernel.source, PRELUDE, arch, &kernel.options);
        made.unwrap_or_else(|log| panic!("{arch}:\n{log}\n{}", kernel.source));
    }
}
