//! Custom ops whose kernels have arguments element by element or row by row, on the host: with regions
//! in them they leave the bits that they leave beside launches of the regions.

use crate::common;
use crate::common::Builder;
use crate::emulate::{Case, Rng, available, emulate, fill, floats};
use crate::nvrtc::Nvrtc;
use piecewise_ir::dim::Dim;
use piecewise_ir::dtype::DType::{self, BF16, F16, F32, I32};
use piecewise_ir::entity::{Node, Value};
use piecewise_ir::graph::{Graph, ValueDef};
use piecewise_ir::module::Module;
use piecewise_ir::op::{Op, ReduceOp, UnaryOp};
use piecewise_ir::region::Region;
use piecewise_ir::types::TensorType;
use piecewise_kernels::cuda::{
    BesideOp, GridAxis, LaunchRecipe, OpKernels, OperandRole, PRELUDE, Param, Scalar, region_kernel,
};

const WIDTH: u64 = 70;

/// Each element with its neighbour in the row.
const SOURCE: &str = include_str!("../../tests/device_suite/turned_kernel.cu");

/// The same of rows that a block has whole.
const ROWS_SOURCE: &str = include_str!("../../tests/device_suite/turned_rows_kernel.cu");

/// The same of two neighbours at a time.
fn of_pairs(source: &str) -> String {
    let (head, _) = source.split_once("  for (").unwrap();
    let pairs = r"  for (u32 c = 2 * threadIdx.x; c < width; c += 2 * blockDim.x) {
    float own[2], next[2] = {0.0f, x.load(row, (c + 2) % width)};
    x.load(row, c, own);
    next[0] = own[1];
    for (int v = 0; v < 2; ++v) own[v] += w[c + v] * next[v];
    y.store(row, c, own);
  }
}
";
    format!("{head}{pairs}")
}

fn turned(rows: Dim) -> OpKernels {
    let number = |n| Param::Scalar(Scalar::U32(Dim::constant(n)));
    let mut params = vec![Param::Elements(0), Param::Arg(1), Param::Elements(2), Param::Counts];
    params.extend([number(0), number(WIDTH)]);
    let grid = GridAxis::of(rows, 1);
    let launch = LaunchRecipe::new(SOURCE, "turned", grid, 32, params);
    OpKernels::new([launch])
}

/// Less what the elements of its row sum up to.
fn centred(b: &mut Builder, x: Value) -> Value {
    let ty = b.ty(x);
    let sum = b.reduce(ReduceOp::Sum, x, 1);
    let column = TensorType::new(ty.dtype, vec![ty.shape[0].clone(), 1u64.into()]);
    let column = b.typed(Op::Reshape, &[sum], column);
    let spread = b.typed(Op::Broadcast, &[column], ty);
    let minus = b.unary(UnaryOp::Neg, spread);
    b.add(x, minus)
}

/// As many threads as a region has for a row of so many elements.
fn in_rows(launch: &mut LaunchRecipe) {
    launch.source = ROWS_SOURCE.to_owned();
    launch.params[0] = Param::Rows(0);
    launch.block = [64, 1, 1];
    launch.dynamic_shared = 8;
}

/// A region of several operands, a table and constants of several elements among them, which `reduces` its
/// rows or maps them; the op; a region of two results.
fn between_regions(dtype: DType, reduces: bool) -> Module {
    let mut b = Builder::new();
    let t = b.symbol("T");
    let (x, beside) = (b.input("x", dtype, dims![t, WIDTH]), b.input("b", dtype, dims![t, WIDTH]));
    let (table, rows) = (b.weight("table", dtype, &[40, WIDTH]), b.input("rows", I32, dims![t]));
    let factors: Vec<f64> = (0..WIDTH).map(|i| 0.25 + i as f64 / 64.0).collect();
    let mut factor = || {
        let row = b.literal(dtype, &factors);
        b.broadcast_like(row, x)
    };
    let (first, second) = (factor(), factor());
    let gathered = b.gather(table, rows);
    let sum = b.add(x, gathered);
    let scaled = b.mul(sum, first);
    let made = b.silu(scaled);
    let before = if reduces { centred(&mut b, made) } else { made };
    let w = b.weight("w", F32, &[WIDTH]);
    let ty = b.ty(x);
    let y = b.custom("test.turned", &[before, w], &[], ty);
    let scaled = b.mul(y, second);
    let residual = b.add(beside, scaled);
    let last = b.unary(UnaryOp::Exp, residual);
    let mut module = b.finish(&[residual, last]);
    common::run(&mut module, "canonicalize,fold,cse,dce,fuse");
    module
}

fn roles(graph: &Graph, node: Node) -> Vec<OperandRole> {
    let role = |&value: &Value| OperandRole {
        weight: matches!(graph.def(value), ValueDef::Weight(_)),
        ..OperandRole::default()
    };
    graph.node(node).operands.iter().map(role).collect()
}

fn region(graph: &Graph, node: Node) -> &Region {
    let Op::Region(region) = &graph.node(node).op else { panic!("no region") };
    region
}

/// What the op's kernels take in, and whether they have two elements at a time, or rows.
#[derive(Clone, Copy, Default)]
struct Taken {
    before: bool,
    after: bool,
    pairs: bool,
    rows: bool,
}

const BOTH: Taken = Taken { before: true, after: true, pairs: false, rows: false };

/// The op's kernels with none, one or both of the regions beside it, and what the arguments are.
fn with(
    graph: &Graph,
    Taken { before, after, pairs, rows: by_rows }: Taken,
) -> (OpKernels, Vec<Value>) {
    let [first, op, last] = graph.nodes().collect::<Vec<_>>()[..] else { panic!("three nodes") };
    let role = [first, last].map(|node| roles(graph, node));
    let (made, data, read) = (graph.node(first), graph.node(op), graph.node(last));
    let (x, y) = (made.results[0], data.results[0]);
    let result = read.operands.iter().position(|&v| v == y);
    let both = [
        BesideOp { position: 0, region: region(graph, first), roles: &role[0], result: None },
        BesideOp { position: 2, region: region(graph, last), roles: &role[1], result },
    ];
    let regions: Vec<BesideOp<'_>> = both
        .into_iter()
        .zip([before, after])
        .filter(|(_, taken)| *taken)
        .map(|(one, _)| one)
        .collect();
    let rows = graph.ty(x).shape[0].clone();
    let (operands, results) = (graph.operand_types(op), graph.result_types(op));
    let mut kernels = turned(rows);
    if pairs {
        kernels.launches[0].source = of_pairs(SOURCE);
    }
    if by_rows {
        in_rows(&mut kernels.launches[0]);
    }
    let kernels = kernels.beside(&operands, &results, &regions).unwrap();
    let mut values = vec![x, data.operands[1], y];
    values.retain(|&v| !(before && v == x || after && v == y));
    if before {
        values.extend(&made.operands);
    }
    if after {
        values.extend(read.operands.iter().filter(|&&v| v != y));
        values.extend(&read.results);
    }
    (kernels, values)
}

/// A launch whose arguments are these of all.
fn at(mut launch: LaunchRecipe, values: &[Value], all: &[Value]) -> LaunchRecipe {
    let place = |i: u32| all.iter().position(|v| *v == values[i as usize]).unwrap() as u32;
    for param in &mut launch.params {
        if let Param::Arg(i) = param {
            *i = place(*i);
        }
    }
    launch.ahead = launch.ahead.into_iter().map(place).collect();
    launch
}

/// What the graph returns, with the regions in the op's kernels or in their own.
fn run(name: &str, graph: &Graph, taken: Taken, [rows, real]: [u64; 2]) -> Vec<Vec<u8>> {
    let nodes: Vec<Node> = graph.nodes().collect();
    let mut all: Vec<Value> = graph.inputs().iter().map(|input| input.value).collect();
    all.extend(graph.weights().iter().map(|weight| weight.value));
    all.extend(nodes.iter().flat_map(|&n| graph.node(n).results.clone()));
    // One program has them all, so that each has a name of its own.
    let alone = |node: Node, entry: &str| {
        let data = graph.node(node);
        let values: Vec<Value> = data.operands.iter().chain(&data.results).copied().collect();
        let mut launch = region_kernel(region(graph, node), &roles(graph, node)).unwrap();
        launch.source = launch.source.replace(" region(", &format!(" {entry}("));
        launch.entry = entry.to_owned();
        at(launch, &values, &all)
    };
    let (kernels, values) = with(graph, taken);
    let op = kernels.launches.into_iter().map(|launch| at(launch, &values, &all));
    let launches = (!taken.before).then(|| alone(nodes[0], "first")).into_iter();
    let launches = launches.chain(op).chain((!taken.after).then(|| alone(nodes[2], "last")));
    let mut rng = Rng(7);
    let sizes = vec![rows; graph.symbols().len()];
    let memory = |&value: &Value| {
        let ty = graph.ty(value);
        match graph.def(value) {
            ValueDef::Result { .. } => vec![0xff; ty.bytes(&sizes) as usize],
            _ => fill(ty.dtype, ty.bytes(&sizes) as usize / ty.dtype.size(), &mut rng),
        }
    };
    let case = Case {
        launches: launches.collect(),
        args: all.iter().map(memory).collect(),
        sizes: sizes.clone(),
        counts: vec![real as i32; sizes.len()],
        scratch: 256,
    };
    let left = emulate(name, &case);
    let output = |v: &Value| left[all.iter().position(|one| one == v).unwrap()].clone();
    graph.outputs().iter().map(output).collect()
}

#[test]
fn regions_in_the_kernel_leave_the_bits_of_their_own() {
    if !available() {
        return;
    }
    for dtype in [F32, BF16, F16] {
        let module = between_regions(dtype, false);
        let graph = module.graph();
        let rows = [5, 4];
        let apart = run(&format!("apart_{dtype}"), graph, Taken::default(), rows);
        for output in &apart {
            let (real, padding) = output.split_at(4 * WIDTH as usize * dtype.size());
            assert!(floats(dtype, real).iter().all(|x| x.is_finite()));
            assert!(padding.iter().all(|&byte| byte == 0xff));
        }
        for (before, after, pairs) in [
            (true, false, false),
            (false, true, false),
            (true, true, false),
            (false, false, true),
            (true, true, true),
        ] {
            let name = format!("taken_{dtype}_{before}_{after}_{pairs}");
            let taken = Taken { before, after, pairs, rows: false };
            assert!(run(&name, graph, taken, rows) == apart, "{name}");
        }
    }
}

#[test]
fn regions_that_reduce_leave_their_bits_in_rows_of_the_kernel() {
    if !available() {
        return;
    }
    for dtype in [F32, BF16, F16] {
        let module = between_regions(dtype, true);
        let apart = run(&format!("reduced_{dtype}"), module.graph(), Taken::default(), [5, 4]);
        for (before, after) in [(false, false), (true, false), (true, true)] {
            let name = format!("rows_{dtype}_{before}_{after}");
            let taken = Taken { before, after, pairs: false, rows: true };
            assert!(run(&name, module.graph(), taken, [5, 4]) == apart, "{name}");
        }
    }
}

#[test]
fn sources_with_regions_in_them_and_every_architecture() {
    let module = between_regions(BF16, false);
    let (kernels, values) = with(module.graph(), BOTH);
    assert_eq!(values.len(), 7, "{values:?}");
    insta::assert_snapshot!("elements", kernels.launches[0].source);
    let (kernels, _) = with(module.graph(), Taken::default());
    insta::assert_snapshot!("elements_in_memory", kernels.launches[0].source);
    let reduced = between_regions(BF16, true);
    let rows = Taken { rows: true, ..BOTH };
    let in_rows = &with(reduced.graph(), rows).0.launches[0];
    assert!(in_rows.dynamic_shared > 16 + 2 * WIDTH as u32, "{}", in_rows.dynamic_shared);
    insta::assert_snapshot!("rows", in_rows.source);
    let Some(nvrtc) = Nvrtc::find() else { return };
    for arch in ["sm_80", "sm_90a", "sm_120"] {
        let pairs = Taken { pairs: true, ..BOTH };
        let alone = Taken { pairs: true, ..Taken::default() };
        let after = Taken { before: false, ..BOTH };
        for (dtype, taken) in [(BF16, BOTH), (F32, pairs), (F16, alone), (F32, after)] {
            let module = between_regions(dtype, false);
            let kernel = &with(module.graph(), taken).0.launches[0];
            let made = nvrtc.compile(&kernel.source, PRELUDE, arch, &kernel.options);
            made.unwrap_or_else(|log| panic!("{arch}:\n{log}\n{}", kernel.source));
        }
        let made = nvrtc.compile(&in_rows.source, PRELUDE, arch, &in_rows.options);
        made.unwrap_or_else(|log| panic!("{arch}:\n{log}\n{}", in_rows.source));
    }
}

/// Where an implementation says what its source does not do, or a region is more than elements.
#[test]
fn what_can_not_take_the_place_of_an_argument_is_refused() {
    let module = between_regions(BF16, false);
    let graph = module.graph();
    let [first, op, last] = graph.nodes().collect::<Vec<_>>()[..] else { panic!("three nodes") };
    let types = (graph.operand_types(op), graph.result_types(op));
    let beside = |change: &dyn Fn(&mut LaunchRecipe), regions: &[BesideOp<'_>]| {
        let mut kernels = turned(1u64.into());
        change(&mut kernels.launches[0]);
        kernels.beside(&types.0, &types.1, regions).map(|_| ()).unwrap_err().to_string()
    };
    let of_first = roles(graph, first);
    let before =
        BesideOp { position: 0, region: region(graph, first), roles: &of_first, result: None };
    let unnamed = |launch: &mut LaunchRecipe| {
        launch.source = launch.source.replace("PW_ELEMENTS_0", "WholeX{x}");
    };
    insta::assert_snapshot!(beside(&unnamed, &[]));
    let whole = |launch: &mut LaunchRecipe| launch.params.push(Param::Arg(0));
    insta::assert_snapshot!(beside(&whole, &[before]));
    let never = |launch: &mut LaunchRecipe| launch.params[0] = Param::Arg(0);
    insta::assert_snapshot!(beside(&never, &[before]));
    let early = |launch: &mut LaunchRecipe| launch.ahead.push(0);
    insta::assert_snapshot!(beside(&early, &[before]));
    let fast = |launch: &mut LaunchRecipe| launch.options.push("--use_fast_math".to_owned());
    insta::assert_snapshot!(beside(&fast, &[before]));
    let of_last = roles(graph, last);
    let both = BesideOp { region: region(graph, last), roles: &of_last, ..before };
    insta::assert_snapshot!(beside(&|_| (), &[both]));
    let nowhere = BesideOp { position: 3, ..before };
    insta::assert_snapshot!(beside(&|_| (), &[nowhere]));

    let mut b = Builder::new();
    let t = b.symbol("T");
    let x = b.input("x", BF16, dims![t, WIDTH]);
    let centred = centred(&mut b, x);
    let mut module = b.finish(&[centred]);
    common::run(&mut module, "fuse");
    let reduced = module.graph().nodes().next().unwrap();
    let of_reduced = roles(module.graph(), reduced);
    let region = region(module.graph(), reduced);
    let sums = BesideOp { region, roles: &of_reduced, ..before };
    insta::assert_snapshot!(beside(&|_| (), &[sums]));
    let twice = |launch: &mut LaunchRecipe| {
        in_rows(launch);
        launch.params.push(Param::Elements(0));
    };
    insta::assert_snapshot!(beside(&twice, &[]));
    let a_result = |launch: &mut LaunchRecipe| {
        launch.source = ROWS_SOURCE.replace("PW_ELEMENTS_2", "PW_ROWS_2");
        launch.params[2] = Param::Rows(2);
    };
    insta::assert_snapshot!(beside(&a_result, &[]));
    let unnamed_rows = |launch: &mut LaunchRecipe| launch.params[0] = Param::Rows(0);
    insta::assert_snapshot!(beside(&unnamed_rows, &[sums]));
    let flat = |launch: &mut LaunchRecipe| {
        in_rows(launch);
        launch.block = [32, 2, 1];
    };
    insta::assert_snapshot!(beside(&flat, &[sums]));
    let odd = |launch: &mut LaunchRecipe| {
        in_rows(launch);
        launch.block = [40, 1, 1];
    };
    insta::assert_snapshot!(beside(&odd, &[sums]));
    let full = |launch: &mut LaunchRecipe| {
        in_rows(launch);
        launch.dynamic_shared = 96 << 10;
    };
    insta::assert_snapshot!(beside(&full, &[sums]));
}
