//! Evaluation of modules before and after passes, bit by bit.

use piecewise_ir::custom::{Attrs, CustomOpDef, OpDefs};
use piecewise_ir::dtype::DType;
use piecewise_ir::eval::{Array, Evaluator, Rounding, evaluate_constant};
use piecewise_ir::graph::Graph;
use piecewise_ir::module::Module;
use piecewise_ir::op::{Op, RowTreatment};
use piecewise_ir::types::TensorType;
use piecewise_ir::weight::Recipe;
use std::sync::Arc;

/// Outputs and states, as bits.
#[derive(Clone, PartialEq, Debug)]
pub struct Bits(Vec<Vec<u64>>);

/// An op that mixes rows: row `i` of the first operand plus the sum of all other operands' first
/// elements, repeated or cut to the result's row.
#[derive(Debug)]
struct Mix;

impl CustomOpDef for Mix {
    fn name(&self) -> &str {
        "test.attention"
    }
    fn infer(&self, operands: &[TensorType], _: &Attrs) -> Result<Vec<TensorType>, String> {
        let q = &operands[0];
        let row = q.shape[1..].iter().map(|d| d.as_constant().unwrap_or(0)).product::<u64>();
        let shape = [q.shape[0].clone(), row.into()];
        Ok(vec![TensorType::new(q.dtype, shape)])
    }
    fn rows(&self) -> RowTreatment {
        RowTreatment::Masked
    }
    fn splits(&self) -> bool {
        true
    }
    fn evaluate(&self, operands: &[Array], _: &Attrs, _: &[u64]) -> Result<Vec<Array>, String> {
        let q = &operands[0];
        let sum: f64 = operands[1..].iter().flat_map(|a| a.data.iter().take(64)).sum();
        let shape = vec![q.shape[0], q.row_len()];
        Ok(vec![Array::from_fn(q.dtype, shape, |i| q.data[i] + sum / 256.0).rounded()])
    }
}

fn ops() -> OpDefs {
    let mut ops = piecewise_testing::mix_ops();
    ops.register(Arc::new(Mix));
    ops
}

/// Elements that depend on `seed` and `name` alone: small numbers for floats, indices into the
/// first few rows for integers, some of them negative where `holes` says so.
fn array(seed: u64, name: &str, dtype: DType, shape: Vec<usize>) -> Array {
    let mut x = name.bytes().fold(seed ^ 0x9e37_79b9_7f4a_7c15, |h, b| {
        (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)
    });
    let mut next = move || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x >> 11
    };
    Array::from_fn(dtype, shape, |i| match dtype {
        DType::Bool => (next() & 1) as f64,
        // Distinct slots, so that the order of rows does not matter.
        _ if name == "slots" => [i as f64, -1.0][usize::from(next() % 4 == 0)],
        _ if !dtype.is_float() => (next() % 16) as f64,
        _ => (next() % 4001) as f64 / 1000.0 - 2.0,
    })
    .rounded()
}

fn dims(ty: &TensorType, sizes: &[u64]) -> Vec<usize> {
    ty.dims(sizes).into_iter().map(|d| d as usize).collect()
}

/// Appends `recipe` to `graph`, its sources as inputs with their arrays.
fn recipe_value(
    graph: &mut Graph,
    inputs: &mut Vec<Array>,
    recipe: &Recipe,
    seed: u64,
) -> piecewise_ir::entity::Value {
    let ty = recipe.ty().unwrap();
    let name = format!("w{}", inputs.len());
    let (op, of): (Op, Vec<&Recipe>) = match recipe {
        Recipe::Checkpoint { name: source, .. } => {
            inputs.push(array(seed, source, ty.dtype, dims(&ty, &[])));
            return graph.add_input(name, ty.clone(), padding(&ty), None);
        }
        Recipe::Graph(expression) => {
            inputs.push(evaluate_constant(expression).unwrap());
            return graph.add_input(name, ty.clone(), padding(&ty), None);
        }
        Recipe::Concat { axis, parts } => (Op::Concat { axis: *axis }, parts.iter().collect()),
        Recipe::Slice { axis, start, of, .. } => {
            (Op::Slice { axis: *axis, start: *start }, vec![of])
        }
        Recipe::Transpose { perm, of } => (Op::Permute { perm: perm.clone() }, vec![of]),
        Recipe::Cast { of, .. } => (Op::Cast, vec![of]),
        Recipe::Reshape { of, .. } => (Op::Reshape, vec![of]),
        Recipe::Broadcast { of, .. } => (Op::Broadcast, vec![of]),
        Recipe::Unpack { .. } => unreachable!("no pass makes such recipes"),
    };
    let operands = of.into_iter().map(|r| recipe_value(graph, inputs, r, seed)).collect();
    graph.push(op, operands, ty, Default::default())
}

fn padding(ty: &TensorType) -> Option<piecewise_ir::literal::Scalar> {
    Some(piecewise_ir::literal::Scalar::new(ty.dtype, 0.0))
}

fn evaluate_recipe(recipe: &Recipe, seed: u64) -> Array {
    let (mut graph, mut inputs) = (Graph::new("recipe"), Vec::new());
    let value = recipe_value(&mut graph, &mut inputs, recipe, seed);
    graph.set_outputs(vec![value]);
    let ops = OpDefs::new();
    let evaluator = Evaluator::new(&graph, &ops).rounding(Rounding::Typed);
    evaluator.run(&[], &inputs, &[], &mut []).unwrap().remove(0)
}

/// What the module's graph makes of arrays that depend on `seed` and names alone, at `sizes`,
/// each value rounded to its dtype.
pub fn evaluate(module: &Module, sizes: &[u64], seed: u64) -> Bits {
    let graph = module.graph();
    let inputs: Vec<_> = graph
        .inputs()
        .iter()
        .map(|i| {
            let ty = graph.ty(i.value);
            array(seed, &i.name, ty.dtype, dims(ty, sizes))
        })
        .collect();
    let weights: Vec<_> =
        graph.weights().iter().map(|w| evaluate_recipe(&w.recipe, seed)).collect();
    let mut states: Vec<_> = graph
        .states()
        .iter()
        .map(|s| {
            let ty = graph.ty(s.value);
            array(seed, &s.name, ty.dtype, dims(ty, sizes))
        })
        .collect();
    let ops = ops();
    let evaluator = Evaluator::new(graph, &ops).rounding(Rounding::Typed);
    let outputs = evaluator.run(sizes, &inputs, &weights, &mut states).unwrap();
    let bits =
        |a: &Array| a.data.iter().map(|x| if x.is_nan() { 1 } else { x.to_bits() }).collect();
    Bits(outputs.iter().chain(&states).map(bits).collect())
}

/// Asserts that `pipeline` keeps every bit of outputs and states, after each of its passes, and
/// that running each pass again changes nothing.
pub fn assert_keeps_bits(module: &Module, pipeline: &str, sizes: &[u64], seed: u64) -> Module {
    let expected = evaluate(module, sizes, seed);
    let mut module = module.clone();
    for pass in pipeline.split(',') {
        super::run(&mut module, pass);
        assert_eq!(evaluate(&module, sizes, seed), expected, "{pass}:\n{}", super::text(&module));
        let mut again = module.clone();
        super::run(&mut again, pass);
        assert_eq!(super::text(&again), super::text(&module), "{pass} is not idempotent");
    }
    module
}
