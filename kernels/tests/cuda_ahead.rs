//! That the emulator finds what a kernel does before it waits for the kernels ahead of it, beyond what
//! its recipe names.

use crate::common;
use crate::common::Builder;
use crate::emulate::{Case, Rng, available, fill, floats, try_emulate};
use piecewise_ir::dtype::DType::F32;
use piecewise_ir::graph::ValueDef;
use piecewise_ir::op::Op;
use piecewise_kernels::cuda::{GridAxis, LaunchRecipe, OperandRole, Param, region_kernel};

const THREADS: usize = 64;

/// `w + x` of which w is read ahead, with statements before the wait and after it.
fn sum(early: &str, late: &str) -> LaunchRecipe {
    let source = format!(
        "#include \"prelude.cuh\"\n\
         extern \"C\" __global__ void __launch_bounds__({THREADS}) sum(const float* w, const float* x, float* y) {{\n  \
         __shared__ Bytes16 staged[{THREADS}];\n  const float ahead = w[threadIdx.x];\n  \
         {early}\n  PW_WAIT();\n  {late}\n  y[threadIdx.x] = ahead + x[threadIdx.x];\n}}\n"
    );
    let params = (0..3).map(Param::Arg).collect();
    let launch = LaunchRecipe::new(source, "sum", GridAxis::one(), THREADS as u32, params);
    LaunchRecipe { programmatic: true, ahead: vec![0], ..launch }
}

fn run(name: &str, launch: LaunchRecipe, elements: [usize; 3]) -> Result<Vec<Vec<u8>>, String> {
    let mut rng = Rng(3);
    let args = elements.map(|n| fill(F32, n, &mut rng)).to_vec();
    let launches = vec![launch];
    try_emulate(name, &Case { launches, args, sizes: vec![5], counts: vec![5], scratch: 256 })
}

#[test]
fn what_is_touched_before_the_wait_and_not_named_ahead_is_found() {
    if !available() {
        return;
    }
    let run = |name: &str, launch| run(&format!("planted_{name}"), launch, [THREADS; 3]);
    let args = run("nothing", sum("", "")).unwrap();
    let [w, x, y] = [0, 1, 2].map(|i| floats(F32, &args[i]));
    assert!((0..THREADS).all(|i| y[i] == f64::from(w[i] as f32 + x[i] as f32)));

    let load = "if (x[threadIdx.x] == 2.0f) return;";
    let copy = "copy_async_if(true, staged + threadIdx.x, x + threadIdx.x / 4 * 4);";
    let behind_others = format!(
        "if (threadIdx.x < 32) {{ PW_WAIT(); return; }}\n  __syncwarp();\n  __syncwarp();\n  {load}"
    );
    let unnamed = LaunchRecipe { ahead: vec![], ..sum("", "") };
    let mut without = sum("", "");
    without.source = without.source.replace("PW_WAIT();", "");
    without.ahead = vec![0, 1, 2];
    for (name, launch, found) in [
        ("load", sum(load, ""), "argument 1 is touched before the wait"),
        ("late_load", sum(&behind_others, ""), "argument 1 is touched before the wait"),
        ("copy", sum(copy, "copies_done();"), "argument 1 is touched before the wait"),
        ("store", sum("y[threadIdx.x] = 0.0f;", ""), "argument 2 is touched before the wait"),
        ("unnamed", unnamed, "argument 0 is touched before the wait"),
        ("without", without, "block 0 ends without a wait"),
    ] {
        let refused = run(name, launch).unwrap_err();
        assert!(refused.contains(found), "{name}: {refused}");
    }
}

#[test]
fn a_region_that_loads_its_rows_before_the_wait_is_found() {
    if !available() {
        return;
    }
    let mut b = Builder::new();
    let t = b.symbol("T");
    let (x, norm) = (b.input("x", F32, dims![t, 64u64]), b.weight("norm", F32, &[64]));
    let normed = b.rms_norm(x, norm);
    let mut module = b.finish(&[normed]);
    common::run(&mut module, "canonicalize,fold,cse,dce,fuse");
    let graph = module.graph();
    let data = graph.node(graph.nodes().next().unwrap());
    let Op::Region(region) = &data.op else { panic!("no region") };
    let role = |&v| OperandRole {
        weight: matches!(graph.def(v), ValueDef::Weight(_)),
        ..OperandRole::default()
    };
    let roles: Vec<OperandRole> = data.operands.iter().map(role).collect();
    let kernel = region_kernel(region, &roles).unwrap();
    let weight = roles.iter().position(|role| role.weight).unwrap();
    assert_eq!(kernel.ahead, [weight as u32]);
    let elements = [0, 1, 2].map(|i| if i == weight { 64 } else { 5 * 64 });
    let run = |name: &str, launch| run(&format!("planted_region_{name}"), launch, elements);
    run("nothing", kernel.clone()).unwrap();

    let unnamed = LaunchRecipe { ahead: vec![], ..kernel.clone() };
    let found = format!("argument {weight} is touched before the wait");
    assert!(run("unnamed", unnamed).unwrap_err().contains(&found));
    let source = kernel.source.replace("PW_WAIT();", "");
    let (loads, computes) = source.split_once("// m").unwrap();
    let late = LaunchRecipe { source: format!("{loads}PW_WAIT();\n// m{computes}"), ..kernel };
    let found = format!("argument {} is touched before the wait", 1 - weight);
    assert!(run("late", late).unwrap_err().contains(&found));
}
