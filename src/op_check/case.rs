//! The operands of an op that is checked, and the graph around it.

use crate::models::{StepBounds, StepInputs};
use crate::session::InMemoryWeights;
use piecewise_ir::builder::{BuildErrors, Builder, Tensor};
use piecewise_ir::custom::{Attrs, CustomOpDef};
use piecewise_ir::dim::Dim;
use piecewise_ir::dtype::DType;
use piecewise_ir::eval::Array;
use piecewise_ir::graph::Graph;
use piecewise_ir::op::RowTreatment;
use piecewise_ir::random::Rng;
use piecewise_ir::types::{Shape, TensorType};
use piecewise_kernels::attention::PAGE_ROWS;
use piecewise_kernels::inputs::{Extent, StepInput};
use piecewise_kernels::roles;
use std::sync::Arc;

/// Tokens of the largest step.
pub(super) const TOKENS: u64 = 16;
/// Sequences of the largest step.
pub(super) const SEQUENCES: u64 = 4;

/// Evaluates an op in f64, as [`CustomOpDef::evaluate`] does.
type Evaluate = dyn Fn(&[Array], &Attrs, &[u64]) -> Result<Vec<Array>, String> + Send + Sync;

/// Where the values of an operand come from.
#[derive(Clone, Debug)]
pub(super) enum Operand {
    /// A row a token, computed by the graph of random values.
    Rows(DType, Vec<u64>),
    /// An index a token, below this.
    Indices(u64),
    State(DType, Vec<u64>),
    SlotState(DType, Vec<u64>),
    KvState(DType, Vec<u64>),
    Weight(Vec<u64>),
    Input(StepInput),
}

/// An op with its operands, in their order.
#[derive(Clone, derive_more::Debug)]
pub struct OpCase<'a> {
    pub(super) def: &'a dyn CustomOpDef,
    pub(super) operands: Vec<Operand>,
    attrs: Attrs,
    #[debug(skip)]
    pub(super) reference: Option<Arc<Evaluate>>,
}

impl<'a> OpCase<'a> {
    /// An op whose operands are said next.
    pub fn of(def: &'a dyn CustomOpDef) -> Self {
        Self { def, operands: Vec::new(), attrs: Attrs::new(), reference: None }
    }

    pub(super) fn name(&self) -> &'a str {
        self.def.name()
    }

    fn with(mut self, operand: Operand) -> Self {
        self.operands.push(operand);
        self
    }

    /// An operand `[T, row...]`: a row for each token, which other ops compute of random values.
    #[must_use]
    pub fn rows(self, dtype: DType, row: impl IntoIterator<Item = u64>) -> Self {
        self.with(Operand::Rows(dtype, row.into_iter().collect()))
    }

    /// An operand `i32 [T]` of random indices below `bound`; padding rows hold 0.
    #[must_use]
    pub fn indices(self, bound: u64) -> Self {
        self.with(Operand::Indices(bound))
    }

    /// A state of this shape, which is the same for all sequences.
    #[must_use]
    pub fn state(self, dtype: DType, shape: impl IntoIterator<Item = u64>) -> Self {
        self.with(Operand::State(dtype, shape.into_iter().collect()))
    }

    /// A state `[slots, row...]` of which each sequence has one row.
    #[must_use]
    pub fn slot_state(self, dtype: DType, row: impl IntoIterator<Item = u64>) -> Self {
        self.with(Operand::SlotState(dtype, row.into_iter().collect()))
    }

    /// A state `[rows, row...]` of the pool of keys and values, of which each token has one row.
    #[must_use]
    pub fn kv_state(self, dtype: DType, row: impl IntoIterator<Item = u64>) -> Self {
        self.with(Operand::KvState(dtype, row.into_iter().collect()))
    }

    /// A weight of this shape, of f32.
    #[must_use]
    pub fn weight(self, shape: impl IntoIterator<Item = u64>) -> Self {
        self.with(Operand::Weight(shape.into_iter().collect()))
    }

    /// An input that the op, the engine or another op declares, filled for each random batch.
    #[must_use]
    pub fn input(self, input: &StepInput) -> Self {
        self.with(Operand::Input(input.clone()))
    }

    /// What the op is called with besides its operands.
    #[must_use]
    pub fn attrs(mut self, attrs: Attrs) -> Self {
        self.attrs = attrs;
        self
    }

    /// What it computes in f64, for a definition that does not say it by [`CustomOpDef::evaluate`].
    #[must_use]
    pub fn reference(
        mut self,
        evaluate: impl Fn(&[Array], &Attrs, &[u64]) -> Result<Vec<Array>, String>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.reference = Some(Arc::new(evaluate));
        self
    }

    /// The graph: each computed operand is half of an input, and each float result is doubled after the
    /// op, so that there is something before it and after it. It returns the results, and then what
    /// shows that operands are still as they were.
    ///
    /// # Errors
    /// When the definition refuses these operands.
    pub(super) fn graph(&self) -> Result<Graph, BuildErrors> {
        let b = Builder::new("op_check").weight_dtype(DType::F32);
        let bounds = StepBounds {
            max_tokens: TOKENS,
            max_rows: TOKENS,
            max_sequences: SEQUENCES,
            max_length: PAGE_ROWS,
            kv_rows: SEQUENCES * PAGE_ROWS,
            state_slots: SEQUENCES,
        };
        let step = StepInputs::declare(&b, &bounds);
        for role in self.own_rows() {
            b.symbol_with_role(&role.replace('.', "_"), 0, TOKENS, &role);
        }
        let shape = |first: Dim, row: &[u64]| -> Shape {
            std::iter::once(first).chain(row.iter().map(|&n| Dim::constant(n))).collect()
        };
        let mut seen: Vec<Tensor<'_>> = Vec::new();
        let mutates = self.def.mutates();
        let operands = self.operands.iter().enumerate().map(|(i, operand)| {
            let state = |first: Dim, dtype, row: &[u64], role: Option<&str>| {
                let state = b.state(&format!("state{i}"), dtype, shape(first, row));
                role.map_or(state, |role| state.role(role))
            };
            let made = match operand {
                Operand::Rows(dtype, row) => {
                    let x = b.input(&format!("x{i}"), *dtype, shape(step.tokens.into(), row));
                    let x = if dtype.is_index() { x.padding(0.0) } else { x };
                    if dtype.is_float() { x * 0.5 } else { x }
                }
                Operand::Indices(_) => {
                    b.input(&format!("x{i}"), DType::I32, [step.tokens]).padding(0.0)
                }
                Operand::State(dtype, dims) => match dims.split_first() {
                    Some((first, row)) => state(Dim::constant(*first), *dtype, row, None),
                    None => b.state(&format!("state{i}"), *dtype, Shape::new()),
                },
                Operand::SlotState(dtype, row) => {
                    step.slot_state(&b, &format!("state{i}"), *dtype, row.iter().copied())
                }
                Operand::KvState(dtype, row) => {
                    state(step.kv_rows.into(), *dtype, row, Some(roles::KV_CACHE))
                }
                Operand::Weight(dims) => {
                    let dims: Shape = dims.iter().map(|&n| Dim::constant(n)).collect();
                    b.weight(&format!("w{i}"), dims)
                }
                Operand::Input(input) => declared(&b, &step, i, input),
            };
            let is_read = match operand {
                Operand::Rows(..) | Operand::Indices(_) => Some(made),
                Operand::State(dtype, _) | Operand::SlotState(dtype, _) => {
                    (!mutates.contains(&i) && dtype.is_float()).then_some(made)
                }
                Operand::KvState(..) | Operand::Weight(_) | Operand::Input(_) => None,
            };
            (made, is_read, matches!(operand, Operand::State(..) | Operand::SlotState(..)))
        });
        let operands = Vec::from_iter(operands);
        let values = Vec::from_iter(operands.iter().map(|(value, ..)| *value));
        let results = b.custom(self.def, &values, self.attrs.clone());
        let results = results.into_iter().map(|y| if y.dtype().is_float() { y * 2.0 } else { y });
        let results = Vec::from_iter(results);
        // A state is read after the op, by what it is no operand of.
        seen.extend(operands.iter().filter_map(|(_, read, is_state)| {
            read.map(|value| if *is_state { -value } else { value })
        }));
        b.finish(results.into_iter().chain(seen))
    }

    /// Results, after which outputs show operands.
    pub(super) fn results(&self, graph: &Graph) -> usize {
        graph.outputs().len() - self.shown().count()
    }

    /// The operands that outputs show, in their order.
    pub(super) fn shown(&self) -> impl Iterator<Item = (usize, &Operand)> {
        let mutates = self.def.mutates();
        self.operands.iter().enumerate().filter(move |(i, operand)| match operand {
            Operand::Rows(..) | Operand::Indices(_) => true,
            Operand::State(dtype, _) | Operand::SlotState(dtype, _) => {
                !mutates.contains(i) && dtype.is_float()
            }
            Operand::KvState(..) | Operand::Weight(_) | Operand::Input(_) => false,
        })
    }

    /// Roles of rows of one's own that its inputs are over.
    fn own_rows(&self) -> Vec<String> {
        let mut found: Vec<String> = Vec::new();
        for operand in &self.operands {
            let Operand::Input(input) = operand else { continue };
            for extent in input.shape() {
                if let Extent::Symbolic { of, .. } = extent
                    && of.starts_with(roles::OWN_ROWS)
                    && !found.contains(&of.to_string())
                {
                    found.push(of.to_string());
                }
            }
        }
        found
    }

    pub(super) fn weights(&self) -> InMemoryWeights {
        let weights = self.operands.iter().enumerate();
        weights.fold(InMemoryWeights::new(), |weights, (i, operand)| {
            let Operand::Weight(dims) = operand else { return weights };
            let mut rng = Rng::named(1, &format!("weight {i}"));
            let count = dims.iter().product::<u64>();
            let values = Vec::from_iter((0..count).map(|_| rng.symmetric(1.0) as f32));
            weights.with(&format!("w{i}"), dims.iter().copied(), values)
        })
    }
}

/// An input of a role; those that every decoder has are declared already.
fn declared<'b>(
    b: &'b Builder,
    step: &StepInputs<'b>,
    number: usize,
    input: &StepInput,
) -> Tensor<'b> {
    match input.role() {
        roles::KV_SLOTS => step.kv_slots,
        roles::KV_BLOCK_TABLE => step.attention.block_table,
        roles::KV_LENGTHS => step.attention.kv_lengths,
        roles::QUERY_STARTS => step.attention.query_starts,
        roles::QUERY_LENGTHS => step.attention.query_lengths,
        roles::TOKEN_POSITIONS => step.positions,
        roles::LOGIT_ROWS => step.logit_rows,
        _ => step.input(b, &format!("x{number}"), input),
    }
}

/// A definition whose evaluation is somebody else's.
#[derive(derive_more::Debug)]
pub(super) struct Evaluated {
    pub(super) def: Arc<dyn CustomOpDef>,
    #[debug(skip)]
    pub(super) evaluate: Arc<Evaluate>,
}

impl CustomOpDef for Evaluated {
    fn name(&self) -> &str {
        self.def.name()
    }

    fn infer(&self, operands: &[TensorType], attrs: &Attrs) -> Result<Vec<TensorType>, String> {
        self.def.infer(operands, attrs)
    }

    fn mutates(&self) -> Vec<usize> {
        self.def.mutates()
    }

    fn rows(&self) -> RowTreatment {
        self.def.rows()
    }

    fn splits(&self) -> bool {
        self.def.splits()
    }

    fn absorbs(&self) -> Vec<usize> {
        self.def.absorbs()
    }

    fn scatters(&self) -> Vec<(usize, usize)> {
        self.def.scatters()
    }

    fn evaluate(
        &self,
        operands: &[Array],
        attrs: &Attrs,
        counts: &[u64],
    ) -> Result<Vec<Array>, String> {
        (self.evaluate)(operands, attrs, counts)
    }
}
