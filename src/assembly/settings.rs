//! The configuration of an assembly, with what follows from its model and from what it is for.

use super::error::{AssemblyError, BoundOfGraph};
use crate::device::DeviceSpec;
use crate::models::DecoderFacts;
use piecewise_ir::dtype::DType;
use piecewise_ir::graph::Graph;
use piecewise_kernels::attention::PAGE_ROWS;
use piecewise_kernels::op::OpRegistry;
use piecewise_runtime::batch::RoleMap;
use piecewise_runtime::config::{
    ConfigError, ConfigLayers, ConfigWarning, Configured, RuntimeConfig, Source,
};
use piecewise_runtime::dispatch::{Dispatcher, OwnSizes};
use piecewise_runtime::words::{CompileLevel, SymbolClass, SymbolTable, roles};
use toml::Value;

/// The share of what is free on a GPU that a model may take where nobody says how much.
pub(super) const SHARE_OF_GPU: f64 = 0.9;

/// A configuration that makes sense for its model.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Every key with the value of the topmost layer that sets it.
    pub config: RuntimeConfig,
    /// The sizes and bounds that follow from them.
    pub dispatcher: Dispatcher,
    /// Where the model runs, or what it is compiled for.
    pub device: DeviceSpec,
    layers: ConfigLayers,
}

impl Settings {
    /// For a decoder.
    pub(super) fn of_model(
        mut layers: ConfigLayers,
        facts: &DecoderFacts,
    ) -> Result<Self, AssemblyError> {
        let dtype = facts.dtype.unwrap_or(DType::F32);
        let from = if facts.dtype.is_some() { "config.json" } else { "no dtype in config.json" };
        layers = layers.derived("dtype", dtype.name(), from)?;
        let Some((longest, key)) = facts.longest_sequence else { return Self::new(layers) };
        let longest = longest as u64;
        if RuntimeConfig::default().max_seq_len > longest {
            let from = format!("{key} of config.json");
            layers = layers.derived("max_seq_len", number(longest), &from)?;
        }
        let settings = Self::new(layers)?;
        let length = settings.config.max_seq_len;
        if length > longest {
            let from = settings.layers.clone().finish()?.source("max_seq_len");
            return Err(AssemblyError::TooLong { from, length, key, longest });
        }
        Ok(settings)
    }

    /// For a graph, whose bounds are what they are. Settings that differ from them are refused, unless
    /// the graph was built by the settings and says what became of them.
    pub(super) fn of_graph(
        mut layers: ConfigLayers,
        graph: &Graph,
        ops: &OpRegistry,
        built_by_settings: bool,
    ) -> Result<Self, AssemblyError> {
        let state = |layers: ConfigLayers, key, own: Value, from| match layers.asked(key) {
            Some((asked, _)) if *asked == own => Ok(layers),
            Some(asked) if !built_by_settings => {
                Err(AssemblyError::from(differs(graph, asked, key, own.to_string())))
            }
            _ => Ok(layers.imposed(key, own, from)?),
        };
        if let (Some(asked), false) = (layers.asked("dtype"), built_by_settings) {
            return Err(differs(graph, asked, "dtype", "a dtype of each value".to_owned()).into());
        }
        let symbols = symbols_of(graph)?;
        let roles = RoleMap::resolve(graph, &symbols, ops).ok();
        let positions = roles.as_ref().and_then(RoleMap::max_positions);
        let has_controls = roles.as_ref().is_some_and(RoleMap::has_controls);
        let controls =
            layers.asked("sampling_controls").filter(|(asked, _)| asked.as_bool() == Some(true));
        if let (Some(asked), false, false) = (controls, has_controls, built_by_settings) {
            let own = "false (it has them where it returns both that `StepInputs::sample_controlled` gives)";
            return Err(differs(graph, asked, "sampling_controls", own.to_owned()).into());
        }
        if built_by_settings || layers.asked("sampling_controls").is_none() {
            let from = "what the graph returns";
            layers = layers.imposed("sampling_controls", has_controls, from)?;
        }
        let count = |class| symbols.count(class, symbols.bounds());
        let bound = |class| number(count(class).max(1));
        let from = "the bounds of the graph";
        let tokens = match count(SymbolClass::Tokens) {
            0 => count(SymbolClass::Sequences).max(count(SymbolClass::Rows)).max(1),
            tokens => tokens,
        };
        layers = state(layers, "max_num_tokens", number(tokens), from)?;
        layers = state(layers, "max_num_seqs", bound(SymbolClass::Sequences), from)?;
        let rows = match count(SymbolClass::Rows) {
            0 => count(SymbolClass::Sequences).max(1),
            rows => rows,
        };
        layers = state(layers, "max_num_rows", number(rows), from)?;
        if let Some(positions) = positions {
            layers = state(layers, "max_seq_len", number(positions), from)?;
        }
        if count(SymbolClass::Sequences) == 0 {
            // Nothing decodes, so no step is captured as a batch of decodes.
            let from = "a graph without sequences";
            layers = state(layers, "capture_query_lengths", Value::Array(Vec::new()), from)?;
            if layers.clone().finish()?.config.level == CompileLevel::Piecewise {
                layers = layers.derived("graph_mode", "piecewise", from)?;
            }
        }
        Self::new(layers)
    }

    /// What became of the settings in the graph that a model built by them: what somebody set and the
    /// graph has no room for is refused by its name, and what nobody set is as the graph says.
    pub(super) fn held_by(self, graph: &Graph, ops: &OpRegistry) -> Result<Self, AssemblyError> {
        let symbols = symbols_of(graph)?;
        let count = |class| symbols.count(class, symbols.bounds());
        let roles = RoleMap::resolve(graph, &symbols, ops).ok();
        let pages = roles.as_ref().and_then(|roles| roles.table_pages);
        let config = &self.config;
        let bounds = [
            ("max_num_tokens", count(SymbolClass::Tokens), config.max_num_tokens),
            ("max_num_rows", count(SymbolClass::Rows), config.max_num_rows()),
            ("max_num_seqs", count(SymbolClass::Sequences), config.max_num_seqs()),
            ("max_seq_len", pages.map_or(0, |pages| pages as u64 * PAGE_ROWS), config.max_seq_len),
        ];
        let bounds = bounds.into_iter().filter(|(_, own, wanted)| (1..*wanted).contains(own));
        let mut own =
            Vec::from_iter(bounds.map(|(key, own, _)| (key, number(own), own.to_string())));
        if config.sampling_controls && !roles.as_ref().is_some_and(RoleMap::has_controls) {
            let how = "false (it has them where it returns `StepInputs::outputs`)";
            own.push(("sampling_controls", Value::Boolean(false), how.to_owned()));
        }
        let from = "what the model builds";
        let Self { mut layers, config, dispatcher, device } = self;
        if let (Some(asked), Some(dtype)) = (layers.asked("dtype"), config.dtype)
            && !has_dtype(graph, dtype)
        {
            return Err(differs(graph, asked, "dtype", "no value of it".to_owned()).into());
        }
        if own.is_empty() {
            return Ok(Self { config, dispatcher, device, layers });
        }
        for (key, value, shown) in own {
            if let Some(asked) = layers.asked(key) {
                return Err(differs(graph, asked, key, shown).into());
            }
            layers = layers.imposed(key, value, from)?;
        }
        Self::new(layers)
    }

    fn new(mut layers: ConfigLayers) -> Result<Self, AssemblyError> {
        let mut configured = layers.clone().finish()?;
        let from = configured.place("device").unwrap_or(configured.source("device"));
        let device = configured.config.device.parse();
        let device = device.map_err(|reason| AssemblyError::DeviceName { from, reason })?;
        let is_gpu = matches!(device, DeviceSpec::Cuda(_));
        if is_gpu && !["memory_budget", "memory_fraction"].iter().any(|key| layers.is_set(key)) {
            layers = layers.derived("memory_fraction", SHARE_OF_GPU, "the device, a GPU")?;
            configured = layers.clone().finish()?;
        }
        let dispatcher = configured.dispatcher()?;
        Ok(Self { config: configured.config, dispatcher, device, layers })
    }

    /// Sizes for rows that the graph does not have, or not so many of, would be dropped without a word.
    pub(super) fn check_own_rows(&self, graph: &Graph) -> Result<(), AssemblyError> {
        let (symbols, key) = (symbols_of(graph)?, "capture_own_rows");
        let kinds = symbols.own().iter().enumerate();
        let kinds = kinds
            .map(|(kind, role)| (role, symbols.count(SymbolClass::Own(kind), symbols.bounds())));
        let fits = |own: &OwnSizes| {
            kinds.clone().any(|(role, most)| *role == own.role && own.sizes.max() <= most)
        };
        let (false, Some((asked, from))) =
            (self.dispatcher.own.iter().all(fits), self.layers.asked(key))
        else {
            return Ok(());
        };
        let own = Vec::from_iter(kinds.map(|(role, most)| format!("{role} up to {most}")));
        let own = if own.is_empty() { "no rows.* of its own".to_owned() } else { own.join(", ") };
        let (from, asked, graph) = (from.clone(), asked.to_string(), graph.name.clone());
        Err(BoundOfGraph { from, key, asked, graph, own }.into())
    }

    /// The share of what is free that somebody lets the model take; none of what follows from the device.
    pub(super) fn memory_share(&self) -> Option<f64> {
        let is_derived =
            matches!(self.layers.source("memory_fraction"), None | Some(Source::Derived(_)));
        self.config.memory_fraction.filter(|_| !is_derived)
    }

    /// What was set, by whom.
    pub(super) fn layers(&self) -> &ConfigLayers {
        &self.layers
    }

    /// What the configuration allows but hardly anybody wants.
    pub fn warnings(&self) -> Vec<ConfigWarning> {
        self.config.warnings(&self.dispatcher)
    }

    /// Every setting in force with where it came from, those that follow from others among them.
    ///
    /// # Errors
    /// Never, for settings that were made; of the type's own accord.
    pub fn configured(&self) -> Result<Configured, ConfigError> {
        let list = |sizes: &[u64]| Value::Array(sizes.iter().map(|&n| number(n)).collect());
        let tokens = list(self.dispatcher.tokens.sizes());
        let batches = list(self.dispatcher.batches.sizes());
        self.layers
            .clone()
            .derived("max_num_seqs", number(self.config.max_num_seqs()), "max_num_tokens")?
            .derived("max_num_rows", number(self.config.max_num_rows()), "max_num_seqs")?
            .derived("capture_num_tokens", tokens, "max_num_tokens by the default pattern")?
            .derived("decode_batch_sizes", batches, "max_num_seqs by the default pattern")?
            .finish()
    }

    /// Rows of the KV pool with which `sequences`, as far as they run at once, never wait for
    /// each other; slots are `i32` on the device.
    pub(super) fn most_kv_rows(&self, sequences: Option<u64>) -> u64 {
        let running = self.config.max_num_seqs();
        let running = sequences.map_or(running, |n| n.clamp(1, running));
        let most = i32::MAX as u64 / PAGE_ROWS * PAGE_ROWS;
        let rows_of_a_sequence = self.config.max_seq_len.next_multiple_of(PAGE_ROWS);
        rows_of_a_sequence.saturating_mul(running).min(most)
    }
}

fn differs(
    graph: &Graph,
    (asked, from): (&Value, &Source),
    key: &'static str,
    own: String,
) -> BoundOfGraph {
    let (from, asked, graph) = (from.clone(), asked.to_string(), graph.name.clone());
    BoundOfGraph { from, key, asked, graph, own }
}

/// Whether keys and values are kept in `dtype`, or where there are none, anything is computed in it.
fn has_dtype(graph: &Graph, dtype: DType) -> bool {
    let of = |value| graph.ty(value).dtype == dtype;
    let mut kept = graph.states().iter().filter(|s| s.role.as_deref() == Some(roles::KV_CACHE));
    match kept.clone().next() {
        Some(_) => kept.any(|state| of(state.value)),
        None => graph.nodes().flat_map(|node| &graph.node(node).results).any(|&value| of(value)),
    }
}

pub(super) fn symbols_of(graph: &Graph) -> Result<SymbolTable, AssemblyError> {
    SymbolTable::new(graph.symbols()).map_err(|error| AssemblyError::Model(Box::new(error.into())))
}

fn number(n: u64) -> Value {
    // What passes the range of TOML passes every bound as well.
    Value::Integer(i64::try_from(n).unwrap_or(i64::MAX))
}
