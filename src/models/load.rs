//! From a model folder to an engine.

use super::{
    Checkpoint, CheckpointError, ConfigError, DecoderConfig, DecoderLimits, TextTokenizer,
    TokenizerError, check_weights, decoder, unused_tensors,
};
use crate::device::{DeviceSpec, OpenDevice, OpenError, all_threads};
use piecewise_backend::compiler::{Compiler, NoStore};
use piecewise_backend::device::Device;
use piecewise_backend::tuning::TuneMode;
use piecewise_ir::builder::BuildErrors;
use piecewise_ir::dtype::DType;
use piecewise_ir::module::Module;
use piecewise_kernels::attention::PAGE_ROWS;
use piecewise_kernels::op::OpRegistry;
use piecewise_runtime::batch::RoleMap;
use piecewise_runtime::dispatch::Dispatcher;
use piecewise_runtime::engine::{BatchingEngine, Engine, EngineError, EngineOptions};
use piecewise_runtime::mode::{GraphMode, Level};
use piecewise_runtime::model::{
    BuildOptions, CaptureWhen, Checks, CompiledModel, ModelError, OnCaptureFailure,
};
use piecewise_runtime::pipeline::{PlanError, plan};
use piecewise_runtime::sizes::{SizeError, SizeList};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// Why a model folder could not be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The weights.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The tokenizer.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The checkpoint holds a bias that the configuration knows nothing of.
    #[error(
        "checkpoint tensor \"{tensor}\" is a bias that the model of config.json does not have: \
         the configuration belongs to other weights"
    )]
    UnknownBias {
        /// The tensor.
        tensor: String,
    },
    /// A bound of 0, or beyond the model's.
    #[error("{option} is {value}; it must be from 1 to {most}")]
    Bound {
        /// The bound.
        option: &'static str,
        /// What was asked for.
        value: u64,
        /// The largest that fits.
        most: u64,
    },
    /// The capture sizes.
    #[error(transparent)]
    Sizes(#[from] SizeError),
    /// The graph of the family.
    #[error(transparent)]
    Build(#[from] BuildErrors),
    /// A pass.
    #[error(transparent)]
    Plan(#[from] Box<PlanError>),
    /// The device.
    #[error(transparent)]
    Device(#[from] Box<OpenError>),
    /// The compiled model.
    #[error(transparent)]
    Model(#[from] Box<ModelError>),
    /// The engine.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

macro_rules! boxed {
    ($($variant:ident($source:ty)),*) => {
        $(impl From<$source> for LoadError {
            fn from(error: $source) -> Self {
                Self::$variant(Box::new(error))
            }
        })*
    };
}

boxed!(Plan(PlanError), Device(OpenError), Model(ModelError));

/// The index of the sampled ids among a decoder's outputs.
const SAMPLED: usize = 1;

/// A model folder and the bounds to load it with.
#[derive(Clone, Debug)]
#[must_use = "a folder is read once it is loaded"]
pub struct DecoderLoader {
    folder: PathBuf,
    activations: Option<DType>,
    max_num_tokens: u64,
    max_num_seqs: u64,
    max_seq_len: Option<u64>,
    capture_num_tokens: Option<Vec<u64>>,
    graph_mode: GraphMode,
    device: DeviceSpec,
}

/// A decoder that is ready to serve.
#[derive(Debug)]
pub struct LoadedDecoder {
    /// What `config.json` says.
    pub config: DecoderConfig,
    /// Text to ids and back.
    pub tokenizer: TextTokenizer,
    /// Takes requests.
    pub engine: Box<dyn Engine>,
}

impl DecoderLoader {
    /// The folder, with bounds for a machine without a GPU: 256 tokens and 8 sequences a step.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
            activations: None,
            max_num_tokens: 256,
            max_num_seqs: 8,
            max_seq_len: None,
            capture_num_tokens: None,
            graph_mode: GraphMode::default(),
            device: DeviceSpec::Cpu,
        }
    }

    /// The dtype of activations and of the KV cache; without it, the configuration's.
    pub fn activations(mut self, dtype: DType) -> Self {
        self.activations = Some(dtype);
        self
    }

    /// The most tokens of a step; longer prompts are cut into chunks.
    pub fn max_num_tokens(mut self, tokens: u64) -> Self {
        self.max_num_tokens = tokens;
        self
    }

    /// The most sequences of a step.
    pub fn max_num_seqs(mut self, sequences: u64) -> Self {
        self.max_num_seqs = sequences;
        self
    }

    /// The longest sequence, prompt and reply together; without it, the configuration's. The KV
    /// pool holds as many rows for each of the sequences of a step.
    pub fn max_seq_len(mut self, tokens: u64) -> Self {
        self.max_seq_len = Some(tokens);
        self
    }

    /// The step sizes, ascending, that graphs are captured for.
    pub fn capture_num_tokens(mut self, sizes: impl IntoIterator<Item = u64>) -> Self {
        self.capture_num_tokens = Some(sizes.into_iter().collect());
        self
    }

    /// Where it runs: the CPU, unless said otherwise.
    pub fn device(mut self, device: DeviceSpec) -> Self {
        self.device = device;
        self
    }

    /// Which graphs are captured.
    pub fn graph_mode(mut self, mode: GraphMode) -> Self {
        self.graph_mode = mode;
        self
    }

    /// Reads the folder, compiles the model, loads its weights and captures its graphs.
    ///
    /// # Errors
    /// When a file is missing or invalid, the device can't be opened, a bound does not fit, or
    /// memory is short.
    pub fn load(&self) -> Result<LoadedDecoder, LoadError> {
        let config = DecoderConfig::load(&self.folder)?;
        let tokenizer = TextTokenizer::load(&self.folder, config.vocab_size)?;
        let checkpoint = Checkpoint::open(&self.folder)?;
        let limits = self.limits(&config)?;
        let stored: BTreeMap<String, DType> = checkpoint
            .names()
            .filter_map(|name| Some((name.to_owned(), checkpoint.dtype_of(name)?)))
            .collect();
        let graph = decoder(&config, &limits, move |name| stored.get(name).copied())?;
        check_weights(&graph, &checkpoint)?;
        let unused = unused_tensors(&graph, &checkpoint);
        if let Some(tensor) = unused.into_iter().find(|name| name.ends_with(".bias")) {
            return Err(LoadError::UnknownBias { tensor: tensor.to_owned() });
        }
        let (module, _) = plan(graph, Level::Piecewise, None, Vec::new())?;
        let options = BuildOptions {
            dispatcher: self.dispatcher()?,
            max_logit_rows: self.max_num_seqs,
            read_outputs: vec![SAMPLED],
            capture: CaptureWhen::Startup,
            on_capture_failure: OnCaptureFailure::Error,
            tune: TuneMode::default(),
            strict: false,
            checks: Checks::default(),
        };
        let registry = Arc::new(OpRegistry::builtin());
        let module = Arc::new(module);
        let engine = match self.device.open(&registry, all_threads())? {
            OpenDevice::Cpu(device, compiler) => {
                serving(module, options, &compiler, *device, &checkpoint)
            }
            OpenDevice::Cuda(device, compiler) => {
                serving(module, options, &compiler, *device, &checkpoint)
            }
        };
        Ok(LoadedDecoder { config, tokenizer, engine: engine? })
    }

    fn limits(&self, config: &DecoderConfig) -> Result<DecoderLimits, LoadError> {
        let bound = |option, value: u64, most: u64| {
            let fits = (1..=most).contains(&value);
            if fits { Ok(value) } else { Err(LoadError::Bound { option, value, most }) }
        };
        let most_rows = i32::MAX as u64;
        let longest = config.max_position_embeddings as u64;
        let max_tokens = bound("max_num_tokens", self.max_num_tokens, most_rows)?;
        let max_sequences = bound("max_num_seqs", self.max_num_seqs, most_rows)?;
        let max_length = bound("max_seq_len", self.max_seq_len.unwrap_or(longest), longest)?;
        Ok(DecoderLimits {
            activations: self.activations.or(config.dtype).unwrap_or(DType::F32),
            max_tokens,
            max_rows: max_sequences,
            max_sequences,
            max_length,
            kv_rows: max_length.next_multiple_of(PAGE_ROWS).saturating_mul(max_sequences),
        })
    }

    fn dispatcher(&self) -> Result<Dispatcher, LoadError> {
        let tokens = match &self.capture_num_tokens {
            None => SizeList::default_pattern(self.max_num_tokens),
            Some(sizes) => SizeList::new(
                "capture_num_tokens",
                sizes.clone(),
                "max_num_tokens",
                self.max_num_tokens,
            )?,
        };
        Ok(Dispatcher {
            mode: self.graph_mode,
            tokens,
            batches: SizeList::default_pattern(self.max_num_seqs),
            query_lengths: vec![1],
            max_tokens: self.max_num_tokens,
            max_rows: self.max_num_seqs,
            max_sequences: self.max_num_seqs,
            padding: true,
            own: Vec::new(),
        })
    }
}

fn serving<D: Device + 'static>(
    module: Arc<Module>,
    options: BuildOptions,
    compiler: &dyn Compiler,
    device: D,
    checkpoint: &Checkpoint,
) -> Result<Box<dyn Engine>, LoadError> {
    let build = CompiledModel::build;
    let model = build(module, options, compiler, &NoStore, device, checkpoint, &mut |_| {})?;
    let ops = OpRegistry::builtin();
    let roles = RoleMap::resolve(model.module().graph(), model.symbols(), &ops);
    let roles = roles.map_err(EngineError::from)?;
    let options = EngineOptions::of(&model, &roles);
    Ok(Box::new(BatchingEngine::new(model, roles, options)?))
}
