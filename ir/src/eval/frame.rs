//! The values of one graph while it is evaluated.

use super::error::EvalError;
use crate::array::Array;
use crate::custom::OpDefs;
use crate::entity::{Entity, Value};
use crate::graph::Graph;
use crate::text::Names;
use crate::types::TensorType;
use std::borrow::Cow;

/// Whether values are rounded to their dtypes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Rounding {
    /// Floats stay f64 throughout, whatever their dtype. Integers are exact.
    #[default]
    Exact,
    /// Each value is rounded to its dtype after its op, as the unfused ops would. Reductions and
    /// matrix products accumulate in f64 and round once.
    Typed,
}

/// What is the same for a graph and the bodies of its regions.
#[derive(Debug)]
pub(super) struct Context<'a> {
    pub(super) ops: &'a OpDefs,
    pub(super) sizes: &'a [u64],
    pub(super) rounding: Rounding,
    pub(super) max_elements: u64,
}

impl Context<'_> {
    /// The extents of `ty` at the sizes.
    pub(super) fn shape(
        &self,
        ty: &TensorType,
        what: impl Fn() -> String,
    ) -> Result<Vec<usize>, EvalError> {
        let mut elements = 1u64;
        let mut shape = Vec::with_capacity(ty.rank());
        for (axis, dim) in ty.shape.iter().enumerate() {
            let extent = dim.exact(self.sizes);
            if extent < 0 {
                return Err(EvalError::NegativeDimension { what: what(), axis, extent });
            }
            let extent = u64::try_from(extent).unwrap_or(u64::MAX);
            elements = elements.saturating_mul(extent);
            shape.push(usize::try_from(extent).unwrap_or(usize::MAX));
        }
        // A zero extent must not hide one that no index space can have.
        let largest = shape.iter().copied().max().unwrap_or(0) as u64;
        if elements.max(largest) > self.max_elements {
            let elements = elements.max(largest);
            return Err(EvalError::TooLarge { what: what(), elements, limit: self.max_elements });
        }
        Ok(shape)
    }

    /// `array` as a node leaves it: rounded to its dtype where the mode wants it.
    pub(super) fn settle(&self, array: Array) -> Array {
        match self.rounding {
            Rounding::Typed => array.rounded(),
            Rounding::Exact => array,
        }
    }
}

/// Where the array of a value is.
#[derive(Clone, Debug)]
pub(super) enum Held<'a> {
    /// In the caller's hands, or here.
    Shared(Cow<'a, Array>),
    /// Among the states, at this position.
    State(usize),
}

/// The arrays of a graph's values so far.
#[derive(Debug)]
pub(super) struct Frame<'a> {
    pub(super) graph: &'a Graph,
    pub(super) names: Names<'a>,
    held: Vec<Option<Held<'a>>>,
}

impl<'a> Frame<'a> {
    pub(super) fn new(graph: &'a Graph) -> Self {
        Self { graph, names: Names::of(graph), held: vec![None; graph.value_count()] }
    }

    pub(super) fn of_body(body: &'a Graph) -> Self {
        Self { names: Names::of_body(body), ..Self::new(body) }
    }

    pub(super) fn set(&mut self, value: Value, held: Held<'a>) {
        self.held[value.index()] = Some(held);
    }

    pub(super) fn define(&mut self, value: Value, array: Array) {
        self.set(value, Held::Shared(Cow::Owned(array)));
    }

    pub(super) fn forget(&mut self, value: Value) {
        if let Some(Held::Shared(_)) = self.held[value.index()] {
            self.held[value.index()] = None;
        }
    }

    /// The array of a defined value.
    ///
    /// # Panics
    /// If the value is not defined, which verification excludes.
    pub(super) fn array<'s>(&'s self, value: Value, states: &'s [Array]) -> &'s Array {
        match &self.held[value.index()] {
            Some(Held::Shared(array)) => array,
            Some(Held::State(i)) => &states[*i],
            None => unreachable!("{} is read before it is defined", self.names.value(value)),
        }
    }

    /// The position among the states of a value that is one.
    pub(super) fn state(&self, value: Value) -> Option<usize> {
        match self.held[value.index()] {
            Some(Held::State(i)) => Some(i),
            _ => None,
        }
    }

    /// For each value, the position of the last node that reads it; `None` for outputs.
    pub(super) fn last_readers(&self) -> Vec<Option<usize>> {
        let mut last = vec![None; self.held.len()];
        for (position, &node) in self.graph.order().iter().enumerate() {
            for &operand in &self.graph.node(node).operands {
                last[operand.index()] = Some(position);
            }
        }
        for &output in self.graph.outputs() {
            last[output.index()] = None;
        }
        last
    }
}
