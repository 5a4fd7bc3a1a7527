//! What is given, made into a graph with its settings and weights: what every plan begins with.

use super::error::AssemblyError;
use super::given::{Assembly, Model};
use super::notice::{Notice, Watcher, tell};
use super::options::Purpose;
use super::registries::Registries;
use super::settings::Settings;
use crate::device::OpenDevice;
use crate::models::few_bits::{RoundedWeights, kept_matrices, rounded_layers};
use crate::models::{Checkpoint, DecoderBounds, DecoderFacts, DecoderModel};
use piecewise_backend::compiler::Store;
use piecewise_backend::weights::WeightSource;
use piecewise_ir::dtype::DType;
use piecewise_ir::graph::Graph;
use piecewise_ir::module::Module;
use piecewise_ir::text::render;
use piecewise_ir::verify::verify_graph_with;
use piecewise_kernels::op::OpRegistry;
use piecewise_passes::Observer;
use piecewise_runtime::config::{RuntimeConfig, Source};
use piecewise_runtime::words::Quantize;
use std::sync::Arc;

mod checkpoint;

use checkpoint::check_checkpoint;

/// An assembly whose graph is there.
pub(super) struct Prepared {
    pub(super) settings: Settings,
    pub(super) graph: Graph,
    /// The plan that a text brought.
    pub(super) brought: Option<Module>,
    pub(super) facts: Option<DecoderFacts>,
    pub(super) weights: Option<Box<dyn WeightSource>>,
    pub(super) registries: Registries,
    pub(super) observers: Vec<Box<dyn Observer>>,
    pub(super) watcher: Option<Watcher>,
    pub(super) device: Option<OpenDevice>,
    pub(super) threads: usize,
    pub(super) store: Option<Arc<dyn Store>>,
    pub(super) purpose: Purpose,
}

/// A text that brings its plan runs no pass, which would hold what it says of custom ops against
/// their definitions.
fn check_calls(name: String, module: &Module, ops: &OpRegistry) -> Result<(), AssemblyError> {
    verify_graph_with(module.graph(), ops.defs()).map_err(|found| AssemblyError::Text {
        name,
        what: "is not valid",
        reason: render(module.graph(), &found),
    })
}

/// Slots of states of which each sequence has one row: a quarter more than sequences run, for
/// conversations that are kept.
fn slots_of(sequences: u64) -> u64 {
    sequences + (sequences / 4).max(1)
}

fn bounds(config: &RuntimeConfig, kv_rows: u64, embedding_rows: Option<u64>) -> DecoderBounds {
    DecoderBounds {
        activations: config.dtype.unwrap_or(DType::F32),
        max_tokens: config.max_num_tokens,
        max_rows: config.max_num_rows(),
        max_sequences: config.max_num_seqs(),
        max_length: config.max_seq_len,
        kv_rows,
        state_slots: slots_of(config.max_num_seqs()),
        embedding_rows: embedding_rows.unwrap_or(config.max_seq_len),
        sampling_controls: config.sampling_controls,
    }
}

/// The model with its layers rounded when they are loaded, where the settings ask for it.
fn quantized(
    model: &dyn DecoderModel,
    settings: &Settings,
) -> Result<Option<Arc<dyn DecoderModel>>, AssemblyError> {
    match settings.config.quantize {
        Quantize::None => Ok(None),
        format => Ok(Some(model.quantized(format).map_err(|why| unquantized(settings, why))?)),
    }
}

fn unquantized(settings: &Settings, reason: String) -> AssemblyError {
    let from =
        settings.layers().asked("quantize").map_or(Source::Default, |(_, from)| from.clone());
    AssemblyError::Quantize { from, format: settings.config.quantize, reason }
}

pub(super) fn prepare(assembly: Assembly) -> Result<Prepared, AssemblyError> {
    let mut settings = assembly.settings()?;
    let config = &settings.config;
    let Assembly { registries, mut watcher, weights, .. } = assembly;
    let mut warn = |text: &str| tell(&mut watcher, Notice::Warning(text));
    let (mut decoder, mut facts) = (None, None);
    let checkpoint = match (assembly.checkpoint, &weights) {
        // Who brings weights does not need those of the folder.
        (_, Some(_)) | (None, None) => None,
        (Some(Err(error)), None) if assembly.checks_weights => return Err(error.into()),
        (Some(checkpoint), None) => checkpoint.ok(),
    };
    let mut brought = None;
    let given = matches!(assembly.model, Model::Graph(_) | Model::Text { .. });
    if given && config.quantize != Quantize::None {
        let why =
            "only decoders that are built of a config.json know which of their layers are linear";
        return Err(unquantized(&settings, why.to_owned()));
    }
    let mut rounded = None;
    let graph = match assembly.model {
        Model::Graph(graph) => graph,
        Model::Text { name, module } => {
            if module.layout().is_some() {
                check_calls(name, &module, &registries.ops)?;
                brought = Some(Module::clone(&module));
            }
            module.into_graph()
        }
        Model::Decoder { model, facts: known } => {
            known.warnings.iter().for_each(|warning| warn(warning));
            // Tensors of another type than the configuration's make other pieces.
            let stored = || {
                let stored = checkpoint.as_ref().map(Checkpoint::dtypes);
                Box::new(move |name: &str| stored.as_ref()?(name))
            };
            let rows = settings.most_kv_rows(assembly.sequences);
            let kv_rows = assembly.kv_rows.unwrap_or(rows);
            let bounds = bounds(config, kv_rows, assembly.embedding_rows);
            let graph = model.graph(&bounds, stored())?;
            settings = settings.held_by(&graph, &registries.ops)?;
            if let Some(model) = quantized(&*model, &settings)? {
                rounded = Some(model.graph(&bounds, stored())?);
            }
            (decoder, facts) = (Some(model), Some(known));
            graph
        }
    };
    if let (Some(checkpoint), true) = (&checkpoint, assembly.checks_weights) {
        check_checkpoint(&graph, checkpoint, decoder.as_deref(), &mut warn)?;
    }
    let read = |checkpoint| match &decoder {
        Some(model) => model.weights(checkpoint),
        None => Box::new(checkpoint) as _,
    };
    let weights = weights.or_else(|| checkpoint.map(read));
    // What is checked is the checkpoint as it is; what runs reads what its layers are rounded to.
    let (graph, weights) = match rounded {
        None => (graph, weights),
        Some(rounded) => {
            let format = settings.config.quantize;
            let layers = rounded_layers(&graph, &rounded);
            if layers.is_empty() {
                warn(&format!("quantize = \"{format}\" rounds no layer: all are too small for it"));
            }
            let kept = kept_matrices(&graph, &layers);
            let over = |weights| Box::new(RoundedWeights::new(weights, format, layers, kept)) as _;
            (rounded, weights.map(over))
        }
    };
    let registries = registries.without_passes(&settings.config.passes_off);
    Ok(Prepared {
        settings,
        graph,
        brought,
        facts,
        weights,
        registries,
        observers: assembly.observers,
        watcher,
        device: assembly.device,
        threads: assembly.threads,
        store: assembly.store,
        purpose: assembly.purpose,
    })
}
