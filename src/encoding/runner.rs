//! Items to outputs, by the paths of an encoder.

use super::budgets::{
    Budgets, CallLine, ItemLogError, default_budgets, planned_budgets, read_item_log,
};
use super::path::Path;
use super::protocol::{ItemEncoder, ItemError, ItemOutputs, PathSize, TokenRange};
use super::segments::SegmentRule;
use super::statistics::{EncoderStatistics, PathStatistics, Ticker};
use crate::assembly::{Assembly, AssemblyError, Notice};
use crate::models::Checkpoint;
use crate::models::encoder::EncoderBounds;
use piecewise_ir::graph::Graph;
use piecewise_runtime::config::ConfigLayers;
use piecewise_runtime::observe::Snapshot;
use piecewise_runtime::steps::CompiledModel;
use piecewise_runtime::words::{EngineLoad, narrowest_range};
use std::io::Write;
use std::sync::Arc;

/// The name of the only path of an encoder that has one.
const ONLY: &str = "items";

/// Why an encoder can't be put together.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EncoderBuildError {
    /// A path's model can't be put together.
    #[error(transparent)]
    Assembly(#[from] AssemblyError),
    /// The log that budgets are to be planned by.
    #[error(transparent)]
    ItemLog(#[from] ItemLogError),
}

/// A path of an encoder before it is compiled: its name, its graph with weights and configuration,
/// and what a step of it may have.
///
/// Of the configuration, `capture_num_tokens` is the budgets. Where it is not given,
/// `capture_item_log` plans them by a log; without either they are [`default_budgets`].
#[derive(Debug)]
pub struct EncoderPath {
    /// What errors, statistics and logs call it.
    pub name: String,
    /// A graph, whose tokens are those of the items.
    pub assembly: Assembly,
    /// The most tokens, items and frames of a step; no more tokens than the graph's bound.
    pub bounds: EncoderBounds,
}

impl EncoderPath {
    /// For an encoder that has no other.
    pub(super) fn only(
        graph: Graph,
        checkpoint: Checkpoint,
        bounds: EncoderBounds,
        layers: ConfigLayers,
    ) -> Self {
        let assembly = Assembly::graph(graph).configure(layers).checkpoint(checkpoint);
        let assembly = assembly.built_by_settings();
        Self { name: ONLY.to_owned(), assembly, bounds }
    }

    /// What is planned: with budgets for items of this range, where the configuration has none.
    pub(super) fn budgeted(self, range: TokenRange) -> Result<Assembly, EncoderBuildError> {
        let Self { name, assembly, bounds } = self;
        let given = assembly.layers()?.finish().map_err(AssemblyError::from)?.config;
        let (sizes, from) = match &given.capture_item_log {
            Some(file) if given.capture_num_tokens.is_none() => {
                let calls = read_item_log(file, &name)?;
                let planned = planned_budgets(&calls, range, bounds).map_err(ItemLogError::Plan)?;
                (planned, file.display().to_string())
            }
            _ => (default_budgets(range, bounds), "what items may have".to_owned()),
        };
        let sizes = sizes.into_iter().map(|n| toml::Value::Integer(n.cast_signed())).collect();
        let assembly = match &given.dump.dir {
            // Each path has a plan of its own.
            Some(dir) if name != ONLY => {
                assembly.impose("dump.dir", dir.join(&name).display().to_string(), &name)
            }
            _ => assembly,
        };
        let assembly = assembly
            .derive("capture_num_tokens", toml::Value::Array(sizes), &from)
            .derive("batch_invariant", true, "what encoders do");
        Ok(assembly.whole_where_possible()?)
    }
}

/// An encoder of items, its weights loaded and its graphs captured.
#[derive(derive_more::Debug)]
pub struct Encoder<M> {
    model: M,
    paths: Vec<Path>,
    one_by_one: bool,
    #[debug(skip)]
    log: Option<Box<dyn Write + Send>>,
    log_error: Option<std::io::Error>,
    ticker: Option<Ticker>,
}

impl<M: ItemEncoder> Encoder<M> {
    /// An encoder of one path, over `graph`.
    ///
    /// # Errors
    /// As for [`Self::of_paths`].
    pub fn new(
        model: M,
        graph: Graph,
        checkpoint: Checkpoint,
        bounds: EncoderBounds,
        layers: ConfigLayers,
        watch: impl FnMut(Notice<'_>) + Send + 'static,
    ) -> Result<Self, EncoderBuildError> {
        Self::of_only(model, EncoderPath::only(graph, checkpoint, bounds, layers), watch)
    }

    pub(super) fn of_only(
        model: M,
        path: EncoderPath,
        watch: impl FnMut(Notice<'_>) + Send + 'static,
    ) -> Result<Self, EncoderBuildError> {
        let path = EncoderPath { assembly: path.assembly.watch(watch), ..path };
        Self::of_paths(model, vec![path])
    }

    /// An encoder of these paths, in the order in which `model` counts them. A budget that no step
    /// can take is a warning of its assembly. With `stats_interval_seconds` a call that ends so long
    /// after the last line logs another one.
    ///
    /// # Errors
    /// When a setting, the device, a weight or the log of items is wrong.
    pub fn of_paths(model: M, paths: Vec<EncoderPath>) -> Result<Self, EncoderBuildError> {
        let mut ticker = None;
        let mut build = |(at, path): (usize, EncoderPath)| {
            let (path, interval) = build(&model, at, path)?;
            ticker = ticker.take().or(interval);
            Ok::<_, EncoderBuildError>(path)
        };
        let paths = paths.into_iter().enumerate().map(&mut build).collect::<Result<_, _>>()?;
        Ok(Self { model, paths, one_by_one: false, log: None, log_error: None, ticker })
    }

    /// Runs each item in a step of its own.
    pub fn one_by_one(&mut self, alone: bool) {
        self.one_by_one = alone;
    }

    /// Whether steps are timed by the device's clock, for the statistics.
    pub fn time_steps(&mut self, by_device: bool) {
        self.paths.iter_mut().for_each(|path| path.session.model_mut().time_steps(by_device));
    }

    /// What the items are encoded by.
    pub fn model(&self) -> &M {
        &self.model
    }

    /// What was counted so far: hits and misses, padding, budgets that are never reached.
    pub fn statistics(&self) -> EncoderStatistics {
        let paths = self.paths.iter().map(|path| path.statistics.clone());
        EncoderStatistics { paths: paths.collect() }
    }

    /// Everything that the model of the first path counts, with this load; `None` without a path.
    pub fn snapshot(&self, load: EngineLoad) -> Option<Snapshot> {
        let session = &self.paths.first()?.session;
        Some(Snapshot { load, ..session.snapshot() })
    }

    /// The compiled model of each path by its name.
    pub fn compiled(&self) -> impl Iterator<Item = (&str, &CompiledModel)> {
        self.paths.iter().map(|path| (&*path.name, path.session.model()))
    }

    /// The budgets of each path by its name.
    pub fn budgets(&self) -> impl Iterator<Item = (&str, &[u64])> {
        self.paths.iter().map(|path| (&*path.name, path.budgets.sizes.as_slice()))
    }

    /// Writes a line for each path and call to come: what `capture_item_log` plans budgets by.
    pub fn log_items(&mut self, to: impl Write + Send + 'static) {
        self.log = Some(Box::new(to));
    }

    /// Ends the log of items.
    ///
    /// # Errors
    /// The first that there was in writing it.
    pub fn finish_log(&mut self) -> std::io::Result<()> {
        let flushed = self.log.take().map_or(Ok(()), |mut log| log.flush());
        self.log_error.take().map_or(flushed, Err)
    }

    /// The outputs of each item, in the order of the items.
    pub fn encode(&mut self, items: &[M::Item]) -> Vec<Result<ItemOutputs, ItemError>> {
        let sizes = items.iter().map(|item| self.sizes(item));
        let mut states = Vec::from_iter(sizes.map(|sizes| sizes.map(|sizes| (sizes, Vec::new()))));
        let is_alone = self.paths.len() == 1;
        for (at, path) in self.paths.iter_mut().enumerate() {
            let mut members = Vec::new();
            let mut brought = Vec::new();
            for (place, state) in states.iter_mut().enumerate() {
                let Ok((sizes, outputs)) = state else { continue };
                if sizes[at].tokens > 0 {
                    members.push(place);
                    brought.push((&items[place], sizes[at]));
                } else {
                    path.statistics.skipped += 1;
                    outputs.push(self.model.outputs(at).iter().map(|_| Vec::new()).collect());
                }
            }
            if let (Some(log), false) = (&mut self.log, brought.is_empty()) {
                let tokens = brought.iter().map(|(_, size)| size.tokens).collect();
                if let Err(error) = write_call(log, &path.name, tokens) {
                    self.log_error.get_or_insert(error);
                }
            }
            let outputs = path.encode(&self.model, at, &brought, self.one_by_one);
            for (place, outputs) in members.into_iter().zip(outputs) {
                match (outputs, &mut states[place]) {
                    (Ok(outputs), Ok((_, of_paths))) => of_paths.push(outputs),
                    (Err(error), state) => *state = Err(path.named(error, is_alone)),
                    (Ok(_), Err(_)) => {}
                }
            }
        }
        let counted = self.ticker.is_some().then(|| self.statistics());
        if let (Some(ticker), Some(counted)) = (&mut self.ticker, counted) {
            for line in ticker.lines(counted) {
                tracing::info!(target: "piecewise::stats", "{line}");
            }
        }
        let results = states.into_iter().zip(items);
        results.map(|(state, item)| self.model.assemble(item, state?.1)).collect()
    }

    /// What an item brings to each path.
    fn sizes(&self, item: &M::Item) -> Result<Vec<PathSize>, ItemError> {
        let sizes = self.model.sizes(item)?;
        if sizes.len() != self.paths.len() {
            let reason = format!("{} sizes for {} paths", sizes.len(), self.paths.len());
            return Err(ItemError::Protocol { reason });
        }
        Ok(sizes)
    }
}

impl Path {
    fn named(&self, error: ItemError, is_alone: bool) -> ItemError {
        match is_alone {
            true => error,
            false => ItemError::Path { path: Arc::clone(&self.name), source: Box::new(error) },
        }
    }
}

fn write_call(to: &mut dyn Write, path: &str, tokens: Vec<u64>) -> std::io::Result<()> {
    serde_json::to_writer(&mut *to, &CallLine { path: path.into(), tokens })?;
    to.write_all(b"\n")
}

fn build<M: ItemEncoder>(
    model: &M,
    at: usize,
    path: EncoderPath,
) -> Result<(Path, Option<Ticker>), EncoderBuildError> {
    let (name, bounds, range) = (path.name.clone(), path.bounds, model.range(at));
    let rules = path.assembly.given_graph().map_or_else(Vec::new, SegmentRule::of);
    let planned = path.budgeted(range)?.plan()?;
    let settings = planned.settings();
    let (sizes, is_strict) = (settings.dispatcher.tokens.sizes().to_vec(), settings.config.strict);
    let budgets = Budgets { sizes, bounds };
    let unreachable = budgets.unreachable(range);
    for (budget, reason) in &unreachable {
        planned.warn(&format!("the budget {budget} of `{name}` is never reached: {reason}"));
    }
    let ticker = settings.config.stats_interval().map(Ticker::new);
    let session = planned.session()?;
    let compile = session.model().statistics().compile.clone();
    let statistics =
        PathStatistics { path: name.clone(), compile, unreachable, ..Default::default() };
    let computes_in = narrowest_range(session.model().module().graph());
    let name = name.into();
    let path = Path { name, session, budgets, rules, is_strict, computes_in, statistics };
    Ok((path, ticker))
}
