//! Arrays that fit a graph: bounded floats, and indices that are safe where they are used.

use super::rng::Rng;
use crate::array::Array;
use crate::dtype::DType;
use crate::entity::{Entity, Symbol, Value};
use crate::eval::{EvalError, evaluate_recipe};
use crate::graph::Graph;
use crate::op::Op;
use crate::region::Region;
use crate::types::TensorType;

/// Rows of the smallest static table that indices are made for.
const FEW_ROWS: u64 = 8;

/// Values for everything that a graph declares, in the order of the declarations.
#[derive(Clone, PartialEq, Debug)]
pub struct RandomArrays {
    /// What a step brings.
    pub inputs: Vec<Array>,
    /// The weights, as their recipes make them of [`random_weight`]s.
    pub weights: Vec<Array>,
    /// The states before the step.
    pub states: Vec<Array>,
}

/// Values for everything that `graph` declares, at `sizes` by symbol index. Each follows from
/// `seed` and its name, so a graph and what passes make of it get the same.
///
/// Floats are in `[-1, 1)`, rounded to their dtype. An input that indexes a table is below the
/// table's rows; one that holds slots has distinct values and some -1. Indices are below 8 and
/// below the sizes of the symbols that do not shape them: with that, they do not depend on which
/// tables there are, as long as static ones have 8 rows.
///
/// # Errors
/// When a weight's recipe can't be evaluated.
pub fn random_arrays(graph: &Graph, sizes: &[u64], seed: u64) -> Result<RandomArrays, EvalError> {
    let shape = |ty: &TensorType| -> Vec<usize> {
        ty.dims(sizes).iter().map(|&d| usize::try_from(d).unwrap_or(usize::MAX)).collect()
    };
    let inputs = graph
        .inputs()
        .iter()
        .map(|input| {
            let ty = graph.ty(input.value);
            let rng = Rng::named(seed, &format!("input {}", input.name));
            match ty.dtype.is_index() {
                true => {
                    let others =
                        sizes.iter().enumerate().filter(|(i, _)| !ty.mentions(Symbol::new(*i)));
                    let rows = others.map(|(_, &size)| size).chain([FEW_ROWS]).min();
                    let used = index_use(graph, input.value, sizes);
                    indices(ty.dtype, shape(ty), used, rows.unwrap_or(FEW_ROWS), rng)
                }
                false => numbers(ty.dtype, shape(ty), 1.0, rng),
            }
        })
        .collect();
    let weights = graph
        .weights()
        .iter()
        .map(|w| evaluate_recipe(&w.recipe, &mut |name, ty| Ok(random_weight(name, ty, seed))))
        .collect::<Result<_, _>>()?;
    let states = graph
        .states()
        .iter()
        .map(|state| {
            let ty = graph.ty(state.value);
            numbers(ty.dtype, shape(ty), 1.0, Rng::named(seed, &format!("state {}", state.name)))
        })
        .collect();
    Ok(RandomArrays { inputs, weights, states })
}

/// The checkpoint tensor `name` of static type `ty` under `seed`. A matrix is scaled so that its
/// products keep their operand's magnitude.
pub fn random_weight(name: &str, ty: &TensorType, seed: u64) -> Array {
    let shape: Vec<usize> =
        ty.dims(&[]).iter().map(|&d| usize::try_from(d).unwrap_or(usize::MAX)).collect();
    let bound = match shape[..] {
        [a, b] => 1.0 / (a.min(b).max(1) as f64).sqrt(),
        _ => 1.0,
    };
    numbers(ty.dtype, shape, bound, Rng::named(seed, &format!("weight {name}")))
}

fn numbers(dtype: DType, shape: Vec<usize>, bound: f64, mut rng: Rng) -> Array {
    // Integers that are no index get small values.
    let bound = if dtype.is_float() { bound } else { 8.0 };
    Array::from_fn(dtype, shape, |_| rng.symmetric(bound)).rounded()
}

/// What an index input is used for.
#[derive(Clone, Copy, Default)]
struct IndexUse {
    /// The rows of the smallest table or state that it indexes.
    rows: Option<u64>,
    /// Whether it says where rows are written.
    slots: bool,
}

impl IndexUse {
    fn join(&mut self, rows: u64, slots: bool) {
        self.rows = Some(self.rows.map_or(rows, |r| r.min(rows)));
        self.slots |= slots;
    }
}

fn index_use(graph: &Graph, value: Value, sizes: &[u64]) -> IndexUse {
    let mut found = IndexUse::default();
    visit_uses(graph, value, &mut |ty: &TensorType, slots| {
        if let Some(rows) = ty.dims(sizes).first() {
            found.join(*rows, slots);
        }
    });
    found
}

/// Calls `visit` with each table that `value` indexes, and whether rows are written there. An
/// index operand of a custom op is taken to hold slots of the states that the op mutates.
fn visit_uses(graph: &Graph, value: Value, visit: &mut impl FnMut(&TensorType, bool)) {
    for node in graph.nodes() {
        let data = graph.node(node);
        for (i, _) in data.operands.iter().enumerate().filter(|(_, v)| **v == value) {
            match &data.op {
                Op::Gather if i == 1 => visit(graph.ty(data.operands[0]), false),
                Op::Scatter if i == 1 => visit(graph.ty(data.operands[0]), true),
                Op::Custom(call) => {
                    call.mutates.iter().for_each(|&m| visit(graph.ty(data.operands[m]), true));
                }
                Op::Region(region) => visit_body_uses(region, i, visit),
                _ => {}
            }
        }
    }
}

fn visit_body_uses(region: &Region, i: usize, visit: &mut impl FnMut(&TensorType, bool)) {
    let body = &region.body;
    let Some(param) = body.inputs().get(i) else { return };
    for statement in body.nodes() {
        let data = body.node(statement);
        if data.operands.get(1) == Some(&param.value) {
            match &data.op {
                Op::Gather => visit(body.ty(data.operands[0]), false),
                Op::Scatter => visit(body.ty(data.operands[0]), true),
                _ => {}
            }
        }
    }
}

fn indices(dtype: DType, shape: Vec<usize>, used: IndexUse, most: u64, mut rng: Rng) -> Array {
    let indexed = usize::try_from(used.rows.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
    if !used.slots {
        let rows = indexed.min(usize::try_from(most).unwrap_or(usize::MAX)).max(1);
        return Array::from_fn(dtype, shape, |_| rng.below(rows) as f64);
    }
    let rows = indexed;
    let slots = rng.permutation(rows);
    let slot = |i: usize| match slots.get(i) {
        Some(&slot) if !rng.one_in(5) => slot as f64,
        _ => -1.0,
    };
    Array::from_fn(dtype, shape, slot)
}
