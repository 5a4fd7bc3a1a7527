//! What a model is put together from.

use super::notice::Watcher;
use super::options::Purpose;
use super::registries::Registries;
use crate::device::{OpenDevice, all_threads};
use crate::models::{Checkpoint, CheckpointError, DecoderFacts, DecoderModel};
use piecewise_backend::compiler::Store;
use piecewise_backend::weights::WeightSource;
use piecewise_ir::graph::Graph;
use piecewise_ir::module::Module;
use piecewise_passes::Observer;
use piecewise_runtime::config::{ConfigError, ConfigLayers};
use piecewise_runtime::pipeline::PassLimits;
use std::sync::Arc;

/// Where the graph comes from.
pub(super) enum Model {
    Graph(Graph),
    /// With a plan or without one.
    Text {
        name: String,
        module: Box<Module>,
    },
    /// Of which settings make a graph.
    Decoder {
        model: Arc<dyn DecoderModel>,
        facts: DecoderFacts,
    },
}

/// A model with everything that it is put together from; nothing happens before one of the methods
/// that return a `Result`.
///
/// ```
/// use piecewise::prelude::*;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let b = Builder::new("twice");
/// let rows = b.symbol("T", 1, 8);
/// let x = b.input("x", DType::F32, (rows, 2));
/// let graph = b.finish([x + x])?;
///
/// // The last who sets a key wins, and each value knows who that was.
/// let file = ConfigLayers::new().file("run.toml", "graph_mode = \"none\"\ntune = \"off\"")?;
/// let assembly = Assembly::graph(graph.clone()).configure(file).graph_mode(GraphMode::Piecewise);
/// let configured = assembly.settings()?.configured()?;
/// assert_eq!(configured.config.graph_mode, GraphMode::Piecewise);
/// assert_eq!(configured.source("tune").to_string(), "run.toml");
///
/// let mut session = assembly.session()?;
/// let outputs = session.step().input("x", &[1.0f32, -0.5]).run()?;
/// assert_eq!(outputs.get::<f32>(0)?, [2.0, -1.0]);
///
/// // A wrong key is the error of whatever is put together.
/// let error = Assembly::graph(graph).set("tuna", "off").session().err().ok_or("no such key")?;
/// assert!(error.to_string().contains("`tune`"), "{error}");
/// # Ok(())
/// # }
/// ```
#[must_use = "nothing is put together before `plan`, `session`, `engine` or `timer`"]
#[derive(derive_more::Debug)]
#[debug("Assembly on {device:?}, {layers:?}, {registries:?}")]
pub struct Assembly {
    pub(super) model: Model,
    pub(super) layers: Result<ConfigLayers, ConfigError>,
    pub(super) registries: Registries,
    pub(super) weights: Option<Box<dyn WeightSource>>,
    pub(super) checkpoint: Option<Result<Checkpoint, CheckpointError>>,
    pub(super) store: Option<Arc<dyn Store>>,
    pub(super) device: Option<OpenDevice>,
    pub(super) threads: usize,
    pub(super) observers: Vec<Box<dyn Observer>>,
    pub(super) watcher: Option<Watcher>,
    pub(super) purpose: Purpose,
    pub(super) sequences: Option<u64>,
    pub(super) kv_rows: Option<u64>,
    pub(super) embedding_rows: Option<u64>,
    pub(super) checks_weights: bool,
    pub(super) built_by_settings: bool,
    pub(super) limits: PassLimits,
}

impl Assembly {
    pub(super) fn of(model: Model) -> Self {
        Self {
            model,
            layers: Ok(ConfigLayers::new()),
            registries: Registries::standard(),
            weights: None,
            checkpoint: None,
            store: None,
            device: None,
            threads: all_threads(),
            observers: Vec::new(),
            watcher: None,
            purpose: Purpose::default(),
            sequences: None,
            kv_rows: None,
            embedding_rows: None,
            checks_weights: false,
            built_by_settings: false,
            limits: PassLimits::default(),
        }
    }
}
