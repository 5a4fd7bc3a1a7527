//! A graph with all that it is put together with, to be put together again and again: as a whole, in
//! part, or with another graph in its place.

use super::error::AssemblyError;
use super::given::Assembly;
use super::notice::Notice;
use super::prepared::{Prepared, prepare};
use super::registries::Registries;
use super::settings::Settings;
use crate::device::OpenDevice;
use crate::session::InMemoryWeights;
use piecewise_backend::compiler::Store;
use piecewise_backend::store::MemoryStore;
use piecewise_backend::weights::{
    TensorSource, TensorSpec, WeightError, WeightFindings, WeightSource,
};
use piecewise_ir::graph::Graph;
use piecewise_passes::Pipeline;
use piecewise_runtime::config::RuntimeConfig;
use piecewise_runtime::pipeline::{PlanError, pipeline_of_level};
use piecewise_runtime::words::{CompileLevel, Quantize};
use std::cell::OnceCell;
use std::sync::Arc;

/// What an assembly has become before any pass has run. What is compiled of it is kept as long as this
/// lives, and in no cache.
#[derive(derive_more::Debug)]
#[debug("Subject @{}, {settings:?}", graph.name)]
pub(crate) struct Subject {
    /// The graph as it was given or built.
    pub(crate) graph: Graph,
    pub(crate) registries: Registries,
    settings: Settings,
    weights: Arc<dyn WeightSource>,
    device: OnceCell<OpenDevice>,
    threads: usize,
    store: Arc<dyn Store>,
}

/// Weights that several models are made from.
struct Shared(Arc<dyn WeightSource>);

impl WeightSource for Shared {
    fn tensor(&self, spec: TensorSpec<'_>) -> Result<TensorSource<'_>, WeightError> {
        self.0.tensor(spec)
    }

    fn findings(&self) -> WeightFindings {
        self.0.findings()
    }
}

impl Subject {
    /// Builds the graph. A plan that a text brings is left out.
    ///
    /// # Errors
    /// As for [`Assembly::plan`] before its first pass.
    pub(crate) fn of(assembly: Assembly) -> Result<Self, AssemblyError> {
        let Prepared { settings, graph, weights, registries, device, threads, mut watcher, .. } =
            prepare(assembly)?;
        for warning in settings.warnings() {
            super::notice::tell(&mut watcher, Notice::Warning(&warning.to_string()));
        }
        let weights = weights.map_or_else(|| Arc::new(InMemoryWeights::new()) as _, Arc::from);
        let device = device.map_or_else(OnceCell::new, OnceCell::from);
        let store = Arc::new(MemoryStore::new());
        Ok(Self { graph, registries, settings, weights, device, threads, store })
    }

    /// Another graph in the place of this one; what is compiled is kept for both.
    pub(crate) fn with_graph(&self, graph: Graph) -> Self {
        Self {
            graph,
            registries: self.registries.clone(),
            settings: self.settings.clone(),
            weights: Arc::clone(&self.weights),
            device: self.device.clone(),
            threads: self.threads,
            store: Arc::clone(&self.store),
        }
    }

    /// The configuration that the graph was built with.
    pub(crate) fn config(&self) -> &RuntimeConfig {
        &self.settings.config
    }

    /// The passes of a compile.
    ///
    /// # Errors
    /// As for [`Registries::pipeline`].
    pub(crate) fn pipeline(&self) -> Result<Pipeline, AssemblyError> {
        let pipeline = self.registries.pipeline().map_err(PlanError::from)?.clone();
        let split_ops = self.config().splitting_ops.as_deref();
        Ok(pipeline_of_level(pipeline, CompileLevel::Compile, split_ops))
    }

    pub(crate) fn weights(&self) -> &dyn WeightSource {
        &*self.weights
    }

    /// This or another graph, put together as this one is.
    ///
    /// # Errors
    /// When the device can't be opened.
    pub(crate) fn assembly(&self, graph: Graph) -> Result<Assembly, AssemblyError> {
        let device = match self.device.get() {
            Some(device) => device,
            None => {
                let device = self.settings.device.resolve().0.open(self.threads)?;
                self.device.get_or_init(|| device)
            }
        };
        Ok(Assembly::graph(graph)
            .configure(self.settings.layers().clone())
            .impose("quantize", Quantize::None.name(), "weights that are in their form")
            .built_by_settings()
            .registries(self.registries.clone())
            .weights(Shared(Arc::clone(&self.weights)))
            .store(Arc::clone(&self.store))
            .on(device))
    }
}
