//! The evaluator's interface: what is given, checked, run and returned.

use super::error::EvalError;
use super::frame::{Context, Frame, Held, Rounding};
use super::node;
use crate::array::Array;
use crate::custom::OpDefs;
use crate::entity::Entity;
use crate::graph::Graph;
use crate::types::TensorType;
use std::borrow::Cow;

/// Evaluates a graph in f64.
///
/// A graph may be evaluated at any sizes up to its symbols' bounds, 0 included: `sizes` are the
/// number of rows to evaluate.
#[derive(Debug)]
pub struct Evaluator<'a> {
    graph: &'a Graph,
    ops: &'a OpDefs,
    rounding: Rounding,
    max_elements: u64,
}

impl<'a> Evaluator<'a> {
    /// The most elements of one value, unless set otherwise: 2 GiB of f64.
    pub const MAX_ELEMENTS: u64 = 1 << 28;

    /// An evaluator of `graph` with the custom op definitions `ops` and [`Rounding::Exact`].
    pub fn new(graph: &'a Graph, ops: &'a OpDefs) -> Self {
        Self { graph, ops, rounding: Rounding::Exact, max_elements: Self::MAX_ELEMENTS }
    }

    /// Sets whether values are rounded; [`Rounding::Exact`] where this is not called.
    #[must_use]
    pub fn rounding(mut self, rounding: Rounding) -> Self {
        self.rounding = rounding;
        self
    }

    /// Sets the most elements that one value may have.
    #[must_use]
    pub fn max_elements(mut self, limit: u64) -> Self {
        self.max_elements = limit;
        self
    }

    /// Evaluates the graph at `sizes`, by symbol index, and returns its outputs. Inputs, weights
    /// and states are in the order of their declarations; states are mutated in place. Weights
    /// are given as their recipes would make them.
    ///
    /// # Errors
    /// When the graph breaks a rule that evaluation relies on, what is given does not fit it, a
    /// value is too large, or a custom op can't be evaluated.
    pub fn run(
        &self,
        sizes: &[u64],
        inputs: &[Array],
        weights: &[Array],
        states: &mut [Array],
    ) -> Result<Vec<Array>, EvalError> {
        crate::verify::verify_structure(self.graph, self.ops)?;
        let graph = self.graph;
        self.check_sizes(sizes)?;
        self.check_count("inputs", graph.inputs().len(), inputs.len())?;
        self.check_count("weights", graph.weights().len(), weights.len())?;
        self.check_count("states", graph.states().len(), states.len())?;
        let context = Context {
            ops: self.ops,
            sizes,
            rounding: self.rounding,
            max_elements: self.max_elements,
        };
        let mut frame = Frame::new(graph);
        for (decl, array) in graph.inputs().iter().zip(inputs) {
            let what = || format!("input %{}", decl.name);
            frame.set(decl.value, given(&context, graph.ty(decl.value), array, what)?);
        }
        for (i, (decl, array)) in graph.weights().iter().zip(weights).enumerate() {
            let what = || format!("weight w{i}");
            frame.set(decl.value, given(&context, graph.ty(decl.value), array, what)?);
        }
        for (i, (decl, array)) in graph.states().iter().zip(states.iter_mut()).enumerate() {
            let what = || format!("state \"{}\"", decl.name);
            if let Held::Shared(Cow::Owned(rounded)) =
                given(&context, graph.ty(decl.value), array, what)?
            {
                *array = rounded;
            }
            frame.set(decl.value, Held::State(i));
        }
        let last_reader = frame.last_readers();
        for (position, &id) in graph.order().iter().enumerate() {
            node::run(&context, &mut frame, states, id)?;
            for &operand in &graph.node(id).operands {
                if last_reader[operand.index()] == Some(position) {
                    frame.forget(operand);
                }
            }
        }
        Ok(graph.outputs().iter().map(|&v| frame.array(v, states).clone()).collect())
    }

    fn check_sizes(&self, sizes: &[u64]) -> Result<(), EvalError> {
        let symbols = self.graph.symbols();
        self.check_count("sizes", symbols.len(), sizes.len())?;
        for (decl, &size) in symbols.values().zip(sizes) {
            if size > decl.max {
                return Err(EvalError::Size { symbol: decl.name.clone(), size, max: decl.max });
            }
        }
        Ok(())
    }

    fn check_count(
        &self,
        what: &'static str,
        expected: usize,
        given: usize,
    ) -> Result<(), EvalError> {
        if expected == given {
            return Ok(());
        }
        Err(EvalError::Count { graph: self.graph.name.clone(), what, expected, given })
    }
}

/// `array` as the value of type `ty`, rounded where the mode wants it.
fn given<'a>(
    context: &Context<'_>,
    ty: &TensorType,
    array: &'a Array,
    what: impl Fn() -> String,
) -> Result<Held<'a>, EvalError> {
    let shape = context.shape(ty, &what)?;
    let elements: usize = shape.iter().product();
    if array.dtype != ty.dtype || array.shape != shape || array.data.len() != elements {
        return Err(EvalError::Array {
            what: what(),
            expected: format!("{}{shape:?}", ty.dtype),
            given: format!("{}{:?} of {} elements", array.dtype, array.shape, array.data.len()),
        });
    }
    let rounded = |&x: &f64| ty.dtype.round(x).to_bits() == x.to_bits() || x.is_nan();
    Ok(Held::Shared(match context.rounding {
        Rounding::Typed if !array.data.iter().all(rounded) => Cow::Owned(array.clone().rounded()),
        _ => Cow::Borrowed(array),
    }))
}
