//! The configuration of a command, with what follows from the model and from what is to be done.

use super::cache_flags::SharedStore;
use super::model_args::{BoundArgs, CompileArgs};
use anyhow::{anyhow, bail};
use piecewise::device::DeviceSpec;
use piecewise::models::DecoderConfig;
use piecewise_backend::compiler::Store;
use piecewise_ir::dtype::DType;
use piecewise_ir::graph::Graph;
use piecewise_kernels::attention::PAGE_ROWS;
use piecewise_kernels::op::OpRegistry;
use piecewise_runtime::batch::RoleMap;
use piecewise_runtime::config::{ConfigLayers, Purpose, RuntimeConfig, Source};
use piecewise_runtime::dispatch::Dispatcher;
use piecewise_runtime::symbols::{SymbolClass, SymbolTable};
use toml::Value;

/// What a model is loaded for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Workload {
    /// What is read back.
    pub purpose: Purpose,
    /// The sequences that there will be, where that is known.
    pub sequences: Option<u64>,
}

/// A configuration that makes sense.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub config: RuntimeConfig,
    pub dispatcher: Dispatcher,
    /// Where the model runs.
    pub device: DeviceSpec,
    layers: ConfigLayers,
    store: SharedStore,
}

impl Settings {
    /// For a model of a family.
    pub(crate) fn of_model(
        args: &BoundArgs,
        model: &DecoderConfig,
        workload: Workload,
    ) -> anyhow::Result<Self> {
        let mut layers = args.layers()?;
        let dtype = model.dtype.unwrap_or(DType::F32);
        layers = layers.derived("dtype", dtype.name(), "config.json")?;
        let longest = model.max_position_embeddings as u64;
        if RuntimeConfig::default().max_seq_len > longest {
            let from = "max_position_embeddings of config.json";
            layers = layers.derived("max_seq_len", number(longest), from)?;
        }
        let given = layers.clone().finish()?.config;
        let few = workload.sequences.map(|n| n.clamp(1, given.max_num_seqs().max(1)));
        if let (Some(few), false) = (few, layers.is_set("decode_batch_sizes")) {
            let from = "the number of prompts";
            layers = layers.derived("max_num_seqs", number(few), from)?;
        }
        let settings = Self::new(layers)?;
        let length = settings.config.max_seq_len;
        if length > longest {
            bail!(
                "{}: max_seq_len = {length} is above max_position_embeddings = {longest} of \
                 config.json; lower it",
                settings.layers.clone().finish()?.source("max_seq_len")
            );
        }
        Ok(settings)
    }

    /// For a graph, whose bounds are what they are.
    pub(crate) fn of_graph(args: &CompileArgs, graph: &Graph) -> anyhow::Result<Self> {
        let symbols = SymbolTable::new(graph.symbols())?;
        let roles = RoleMap::resolve(graph, &symbols, &OpRegistry::builtin());
        let positions = roles.ok().and_then(|roles| roles.max_positions());
        let bound = |class| number(symbols.count(class, symbols.bounds()).max(1));
        let mut layers = args.layers()?;
        let from = "the bounds of the graph";
        layers = layers.imposed("max_num_tokens", bound(SymbolClass::Tokens), from)?;
        layers = layers.imposed("max_num_seqs", bound(SymbolClass::Sequences), from)?;
        layers = layers.imposed("max_num_rows", bound(SymbolClass::Rows), from)?;
        if let Some(positions) = positions {
            layers = layers.imposed("max_seq_len", number(positions), from)?;
        }
        Self::new(layers)
    }

    fn new(layers: ConfigLayers) -> anyhow::Result<Self> {
        let configured = layers.clone().finish()?;
        let source = configured.source("target");
        let config = configured.config;
        let device = config.target.parse();
        let device = device.map_err(|reason| anyhow!("{source}: target: {reason}"))?;
        let dispatcher = config.dispatcher()?;
        Ok(Self { config, dispatcher, device, layers, store: SharedStore::default() })
    }

    /// Says on standard error what the configuration allows but hardly anybody wants.
    pub(crate) fn warn(&self) {
        for warning in self.config.warnings(&self.dispatcher) {
            super::warn(&warning.to_string());
        }
    }

    /// Prints every setting in force with where it came from: TOML, or a JSON object by key.
    pub(crate) fn print(&self, json: bool) -> anyhow::Result<()> {
        let list = |sizes: &[u64]| Value::Array(sizes.iter().map(|&n| number(n)).collect());
        let tokens = list(self.dispatcher.tokens.sizes());
        let batches = list(self.dispatcher.batches.sizes());
        let shown = self
            .layers
            .clone()
            .derived("max_num_seqs", number(self.config.max_num_seqs()), "max_num_tokens")?
            .derived("max_num_rows", number(self.config.max_num_rows()), "max_num_seqs")?
            .derived("capture_num_tokens", tokens, "max_num_tokens by the default pattern")?
            .derived("decode_batch_sizes", batches, "max_num_seqs by the default pattern")?
            .finish()?;
        if !json {
            return super::print_line(shown.to_string().trim_end());
        }
        let entry = |entry: piecewise_runtime::config::ConfigEntry| {
            let from = match &entry.source {
                Source::Default => "default",
                Source::File(_) => "file",
                Source::Flag(_) => "flag",
                _ => "derived",
            };
            let source = entry.source.to_string();
            let value = serde_json::json!({"value": entry.value, "from": from, "source": source});
            (entry.key.to_owned(), value)
        };
        let object: serde_json::Map<_, _> = shown.entries().into_iter().map(entry).collect();
        super::print_line(&serde_json::to_string_pretty(&object)?)
    }

    /// Where what is compiled is kept.
    pub(crate) fn store(&self) -> &dyn Store {
        self.store.open(&self.config.cache)
    }

    /// Rows of the KV pool that one sequence of the greatest length takes.
    pub(crate) fn rows_of_a_sequence(&self) -> u64 {
        self.config.max_seq_len.next_multiple_of(PAGE_ROWS)
    }

    /// Rows of the KV pool with which `sequences`, as far as they run at once, never wait for
    /// each other; slots are `i32` on the device.
    pub(crate) fn most_kv_rows(&self, sequences: Option<u64>) -> u64 {
        let running = self.config.max_num_seqs();
        let running = sequences.map_or(running, |n| n.clamp(1, running));
        let most = i32::MAX as u64 / PAGE_ROWS * PAGE_ROWS;
        self.rows_of_a_sequence().saturating_mul(running).min(most)
    }
}

fn number(n: u64) -> Value {
    // What passes the range of TOML passes every bound as well.
    Value::Integer(i64::try_from(n).unwrap_or(i64::MAX))
}
