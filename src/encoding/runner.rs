//! Items to outputs, by steps at budgets.

use super::packing::pack;
use super::protocol::{ItemEncoder, ItemError};
use crate::assembly::{Assembly, AssemblyError, Notice};
use crate::models::Checkpoint;
use crate::models::encoder::EncoderBounds;
use crate::models::encoder::{OutputRows, Values};
use crate::session::{Session, SessionError};
use piecewise_ir::graph::Graph;
use piecewise_runtime::config::ConfigLayers;
use piecewise_runtime::stats::Statistics;
use std::sync::Arc;

/// What submitting a step costs, in rows.
const STEP_ROWS: f64 = 32.0;
/// The smallest budget where none are given.
const SMALLEST_BUDGET: u64 = 64;

/// Powers of two from 64 on, and `most`.
pub fn default_budgets(most: u64) -> Vec<u64> {
    let powers = std::iter::successors(Some(SMALLEST_BUDGET), |budget| budget.checked_mul(2));
    powers.take_while(|&budget| budget < most).chain([most]).collect()
}

/// The outputs of one item, each row-major.
pub type ItemOutputs = Vec<Vec<f32>>;

/// An encoder of items, its weights loaded and its graphs captured.
#[derive(Debug)]
pub struct Encoder<M> {
    model: M,
    session: Session,
    bounds: EncoderBounds,
    /// The sizes of captured graphs, ascending.
    budgets: Vec<u64>,
    one_by_one: bool,
}

impl<M: ItemEncoder> Encoder<M> {
    /// Runs `graph`, whose tokens are the rows of `model` and whose other rows are declared in it.
    /// Of the configuration, `capture_num_tokens` is the budgets: by default [`default_budgets`].
    ///
    /// # Errors
    /// When a setting, the device or a weight is wrong.
    pub fn new(
        model: M,
        graph: Graph,
        checkpoint: Checkpoint,
        bounds: EncoderBounds,
        layers: ConfigLayers,
        watch: impl FnMut(Notice<'_>) + Send + 'static,
    ) -> Result<Self, AssemblyError> {
        let budgets = default_budgets(bounds.max_rows);
        let list = budgets.iter().map(|&n| toml::Value::Integer(n.cast_signed())).collect();
        let from = "powers of two up to max_num_tokens";
        let layers = layers.derived("capture_num_tokens", toml::Value::Array(list), from)?;
        let assembly = Assembly::graph(graph).configure(layers).checkpoint(checkpoint).watch(watch);
        let planned = assembly.plan()?;
        let budgets = planned.settings().dispatcher.tokens.sizes().to_vec();
        Ok(Self { model, session: planned.session()?, bounds, budgets, one_by_one: false })
    }

    /// Runs each item in a step of its own.
    pub fn one_by_one(&mut self, alone: bool) {
        self.one_by_one = alone;
    }

    /// What the items are encoded by.
    pub fn model(&self) -> &M {
        &self.model
    }

    /// What was counted so far: steps, budgets hit and missed, padding.
    pub fn statistics(&self) -> &Statistics {
        self.session.statistics()
    }

    /// The outputs of each item, in the order of the items.
    pub fn encode(&mut self, items: &[M::Item]) -> Vec<Result<ItemOutputs, ItemError>> {
        let rows = Vec::from_iter(items.iter().map(|item| self.rows(item)));
        let taken = Vec::from_iter((0..items.len()).filter(|&i| rows[i].is_ok()));
        let sizes = Vec::from_iter(rows.iter().flatten().map(|&rows| vec![rows]));
        let packing = pack(&sizes, &|rows: &[u64], items: usize| self.step_cost(rows[0], items));
        let mut results = Vec::from_iter(rows.into_iter().map(|rows| rows.map(|_| Vec::new())));
        for step in packing.steps {
            let places = Vec::from_iter(step.iter().map(|&i| taken[i]));
            let members = Vec::from_iter(places.iter().map(|&place| &items[place]));
            let rows = Vec::from_iter(step.iter().map(|&i| sizes[i][0] as usize));
            match self.run(&members, &rows) {
                Ok(outputs) => {
                    for (place, outputs) in places.into_iter().zip(outputs) {
                        results[place] = Ok(outputs);
                    }
                }
                Err(error) => {
                    let error = Arc::new(error);
                    for place in places {
                        results[place] = Err(ItemError::Step(Arc::clone(&error)));
                    }
                }
            }
        }
        results
    }

    fn rows(&self, item: &M::Item) -> Result<u64, ItemError> {
        let (rows, max_num_tokens) = (self.model.rows(item)?, self.bounds.max_rows);
        match self.step_cost(rows, 1) {
            Some(_) => Ok(rows),
            None => Err(ItemError::LargerThanAStep { rows, max_num_tokens }),
        }
    }

    /// The cost of a step in rows: those of the smallest budget that holds it, or its own where it
    /// is launched.
    fn step_cost(&self, rows: u64, items: usize) -> Option<f64> {
        let most = if self.one_by_one { 1 } else { self.bounds.max_items };
        let fits = rows <= self.bounds.max_rows && items as u64 <= most;
        let budget = self.budgets.iter().find(|&&budget| budget >= rows);
        fits.then_some(*budget.unwrap_or(&rows) as f64 + STEP_ROWS)
    }

    /// Runs these items, of so many rows each, in one step.
    fn run(
        &mut self,
        items: &[&M::Item],
        rows: &[usize],
    ) -> Result<Vec<ItemOutputs>, SessionError> {
        let inputs = self.model.fill(items);
        let mut step = self.session.step();
        for (name, values) in &inputs {
            step = match values {
                Values::I32(values) => step.input(name, values),
                Values::F32(values) => step.input(name, values),
            };
        }
        let outputs = step.run()?;
        let kinds = self.model.outputs();
        let values = (0..kinds.len()).map(|i| outputs.get::<f32>(i));
        let values = values.collect::<Result<Vec<_>, _>>()?;
        let mut start = 0;
        let of_item = |(i, (item, &rows)): (usize, (&&M::Item, &usize))| {
            let parts = kinds.iter().zip(&values).map(|(kind, values)| match *kind {
                OutputRows::PerItem(width) => values[i * width..][..width].to_vec(),
                OutputRows::PerRow(width) => values[start * width..][..rows * width].to_vec(),
            });
            let mut outputs = Vec::from_iter(parts);
            start += rows;
            self.model.assemble(item, &mut outputs);
            outputs
        };
        Ok(items.iter().zip(rows).enumerate().map(of_item).collect())
    }
}
