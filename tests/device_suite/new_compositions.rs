//! A norm and a gate that no model family uses, written from primitives.

use crate::any_graph::{MODES, RandomWeights, build, elements, step};
use crate::target::{AbsorbingCpu, Target};
use piecewise_backend::artifact::PieceSize;
use piecewise_backend::compiler::PieceAt;
use piecewise_backend::weights::WeightLayout;
use piecewise_ir::builder::{Builder, Tensor};
use piecewise_ir::custom::OpDefs;
use piecewise_ir::dtype::DType::{self, F32};
use piecewise_ir::eval::{Array, Evaluator};
use piecewise_ir::graph::Graph;
use piecewise_ir::module::Module;
use piecewise_ir::op::Op;
use piecewise_kernels::op::OpRegistry;
use piecewise_runtime::pipeline::plan;
use piecewise_runtime::words::CompileLevel;
use piecewise_testing::{Rng, norm_error, random_arrays};
use std::any::TypeId;
use std::sync::Arc;

const SEED: u64 = 8;

/// `x / min(max((mean |x|^3)^(1/3), 0.1), 10)`, in f32.
fn cube_mean_norm(x: Tensor<'_>) -> Tensor<'_> {
    let dtype = x.dtype();
    let x = x.cast(F32);
    let magnitude = x.abs();
    let mean = (magnitude * magnitude * magnitude).reduce_mean([1]);
    let root = (mean.log() * (1.0 / 3.0)).exp();
    let clamped = root.maximum(0.1).minimum(10);
    (x / clamped).cast(dtype)
}

/// `max(gate, 0)^2 * tanh(up)`, in f32.
fn squared_relu_gate<'b>(gate: Tensor<'b>, up: Tensor<'b>) -> Tensor<'b> {
    let dtype = gate.dtype();
    let positive = gate.cast(F32).maximum(0);
    (positive * positive * up.cast(F32).tanh()).cast(dtype)
}

fn graph(dtype: DType) -> Graph {
    let b = Builder::new("composed").weight_dtype(dtype);
    let t = b.symbol("T", 1, 16);
    let x = b.input("x", dtype, (t, 24));
    let h = cube_mean_norm(x.linear(b.weight("in", [32, 24])));
    let gate = h.linear(b.weight("gate", [48, 32]));
    let up = h.linear(b.weight("up", [48, 32]));
    let y = squared_relu_gate(gate, up).linear(b.weight("out", [24, 48]));
    b.finish([y]).unwrap()
}

/// Both in one graph, planned.
pub(crate) fn composed(dtype: DType) -> Module {
    plan(graph(dtype), CompileLevel::Piecewise, None, Vec::new()).unwrap().0
}

/// Each is one region and one launch, and matches f64.
pub(crate) fn norm_and_gate<T: Target + 'static>(dtype: DType, tolerance: f64) {
    let graph = graph(dtype);
    let module = composed(dtype);
    let fused = module.graph();
    let is = |wanted: fn(&Op) -> bool| fused.nodes().filter(|&n| wanted(&fused.node(n).op)).count();
    assert_eq!(is(|op| matches!(op, Op::Region(_))), 2);
    assert_eq!(is(|op| matches!(op, Op::MatMul { .. })), 3, "gate and up are one");
    assert_eq!(fused.order().len(), 5);
    let registry = Arc::new(OpRegistry::builtin());
    let (_, compiler) = T::make(&registry, 2);
    let stitch = module.stitch().unwrap();
    let [unique] = stitch.unique_pieces()[..] else { panic!("one piece") };
    let layouts = vec![WeightLayout::default(); stitch.unique[unique].graph.weights().len()];
    let size = PieceSize::Exact(8);
    let artifact = compiler
        .compile(
            PieceAt { piece: &stitch.unique[unique], size, bounds: &[16] },
            &layouts,
            T::store(),
        )
        .unwrap();
    // Absorbing leaves the products, each with the regions beside it, of which two are computed again; one
    // moment writes what it does not read, which is poisoned first.
    let absorbs = TypeId::of::<T>() == TypeId::of::<AbsorbingCpu>();
    let names: Vec<&str> = artifact.first_launches().map(|launch| &*launch.name).collect();
    let poisons = names.iter().filter(|name| name.starts_with("test.poison")).count();
    assert_eq!((names.len(), poisons), if absorbs { (8, 1) } else { (5, 0) }, "{names:?}");

    let module = Arc::new(module);
    let weights = random_arrays(&graph, &[1], SEED).unwrap().weights;
    let mut rng = Rng::new(6);
    let ops = OpDefs::new();
    for (mode, step_mode) in MODES {
        let mut model = build::<T>(&module, &registry, mode, &[1, 8, 16], 16, RandomWeights(SEED));
        for rows in [1, 5, 8, 16] {
            let x = Array::from_fn(dtype, vec![rows, 24], |_| rng.symmetric(3.0)).rounded();
            let inputs = [x];
            let found = step(&mut model, rows as u64, &inputs, step_mode);
            let evaluator = Evaluator::new(&graph, &ops);
            let expected = evaluator.run(&[rows as u64], &inputs, &weights, &mut []).unwrap();
            let error = norm_error(&elements(dtype, &found[0]), &expected[0].data);
            assert!(error < tolerance, "{rows} rows of {dtype} in {mode:?}: {error}");
        }
    }
}
