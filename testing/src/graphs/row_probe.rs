//! Which rows reach which: one row perturbed, and the rows that change looked at.

use piecewise_ir::custom::OpDefs;
use piecewise_ir::dtype::DType;
use piecewise_ir::entity::Symbol;
use piecewise_ir::eval::{Array, EvalError, Evaluator};
use piecewise_ir::graph::Graph;
use piecewise_ir::random::random_arrays;
use piecewise_ir::types::TensorType;

/// What evaluation shows of the rows of a symbol.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RowProbe {
    /// Whether a perturbed row changed another row of an output, or an output without such rows.
    pub outputs_mix: bool,
    /// Whether a perturbed row changed more rows of a state than the one.
    pub states_mix: bool,
    /// Whether a perturbed row changed its own row of an output or any row of a state.
    pub reaches: bool,
}

/// Perturbs each row of each float and bool input of `graph` in turn, along every dimension that is
/// `symbol`, and compares outputs and states with those of unperturbed inputs.
///
/// # Errors
/// When the graph can't be evaluated at `sizes`.
pub fn row_probe(
    graph: &Graph,
    ops: &OpDefs,
    symbol: Symbol,
    sizes: &[u64],
    seed: u64,
) -> Result<RowProbe, EvalError> {
    let given = random_arrays(graph, sizes, seed)?;
    let run = |inputs: &[Array]| -> Result<(Vec<Array>, Vec<Array>), EvalError> {
        let mut states = given.states.clone();
        let outputs = Evaluator::new(graph, ops).run(sizes, inputs, &given.weights, &mut states)?;
        Ok((outputs, states))
    };
    let (outputs, states) = run(&given.inputs)?;
    let mut probe = RowProbe::default();
    for (i, input) in graph.inputs().iter().enumerate() {
        let ty = graph.ty(input.value);
        if ty.dtype.is_int() {
            continue;
        }
        for axis in (0..ty.rank()).filter(|&a| ty.shape[a].mentions(symbol)) {
            for row in 0..given.inputs[i].shape[axis] {
                let mut inputs = given.inputs.clone();
                perturb(&mut inputs[i], axis, row);
                let (new_outputs, new_states) = run(&inputs)?;
                let pairs = graph.outputs().iter().zip(outputs.iter().zip(&new_outputs));
                for (&value, (old, new)) in pairs {
                    probe.look_at_output(graph.ty(value), symbol, old, new, row);
                }
                for (old, new) in states.iter().zip(&new_states) {
                    let changed = changed_rows(old, new).len();
                    probe.states_mix |= changed > 1;
                    probe.reaches |= changed > 0;
                }
            }
        }
    }
    Ok(probe)
}

impl RowProbe {
    fn look_at_output(
        &mut self,
        ty: &TensorType,
        symbol: Symbol,
        old: &Array,
        new: &Array,
        row: usize,
    ) {
        if ty.outer_symbol() == Some(symbol) {
            for changed in changed_rows(old, new) {
                self.outputs_mix |= changed != row;
                self.reaches |= changed == row;
            }
        } else {
            self.outputs_mix |= !same(&old.data, &new.data);
        }
    }
}

/// Moves every element whose index along `axis` is `row`, each by another amount; flips bools.
fn perturb(array: &mut Array, axis: usize, row: usize) {
    let inner: usize = array.shape[axis + 1..].iter().product();
    let extent = array.shape[axis];
    for (flat, x) in array.data.iter_mut().enumerate() {
        if flat / inner % extent == row {
            *x = match array.dtype {
                DType::Bool => 1.0 - *x,
                _ => *x + 3.0 + flat as f64 / 16.0,
            };
        }
    }
}

fn changed_rows(old: &Array, new: &Array) -> Vec<usize> {
    let width = old.row_len().max(1);
    let pairs = old.data.chunks(width).zip(new.data.chunks(width));
    pairs.enumerate().filter(|(_, (a, b))| !same(a, b)).map(|(row, _)| row).collect()
}

/// By bits, for a NaN stays a NaN.
fn same(a: &[f64], b: &[f64]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(x, y)| x.to_bits() == y.to_bits())
}
