//! What is measured with which settings: the file and the flags, and on top what the rows choose.

use super::super::set_keys::{put, turn_on};
use super::args::BenchArgs;
use super::bounds::Bounds;
use anyhow::bail;
use piecewise::assembly::{Assembly, Registries};
use piecewise_backend::store::MemoryStore;
use piecewise_runtime::config::{ConfigLayers, RuntimeConfig};
use piecewise_runtime::words::{CaptureWhen, CompileLevel, GraphMode};
use std::sync::Arc;

/// The flags, with the settings that they and the configuration come to.
#[derive(derive_more::Deref)]
pub(super) struct Bench {
    #[deref]
    args: BenchArgs,
    layers: ConfigLayers,
    pub(super) config: RuntimeConfig,
    /// What a model folder may hold, and a pipeline name.
    pub(super) registries: Registries,
}

impl Bench {
    pub(super) fn of(args: BenchArgs, registries: Registries) -> anyhow::Result<Self> {
        let layers = args.shared.layers()?;
        let layers = put(layers, "device", args.device.map(|device| device.to_string()))?;
        let layers = put(layers, "dtype", args.dtype)?;
        let layers = put(layers, "quantize", args.quantize)?;
        let layers = put(layers, "level", args.level)?;
        let layers = put(layers, "max_num_tokens", args.max_num_tokens)?;
        let layers = put(layers, "max_num_seqs", args.max_num_seqs)?;
        let layers = put(layers, "max_seq_len", args.max_seq_len)?;
        let layers = put(layers, "sampling_controls", args.sampling_controls)?;
        let layers = turn_on(layers, "measure_padding", args.measure_padding)?;
        let layers = put(layers, "tune", args.tune)?;
        let layers = put(layers, "tune_seconds", args.tune_seconds)?;
        let layers = args.memory.over(layers)?.derived("tune_seconds", 60, "what bench does")?;
        let layers = match args.startup {
            true => layers.derived("tune", "off", "what bench does")?,
            false => layers,
        };
        let config = layers.clone().finish()?.config;
        let alone = [
            ("--costs", args.costs.is_some()),
            ("--startup", args.startup),
            ("--timeline", args.timeline.is_some()),
        ];
        let given = alone.iter().find(|(_, is_given)| *is_given);
        if let (Some((flag, _)), true) = (given, config.measure_padding) {
            bail!("{flag} takes steps as their mode runs them; leave measure_padding out");
        }
        Ok(Self { args, layers, config, registries })
    }

    /// Those that a flag or a file asks for; else `full` where steps are looked into, or three beside each
    /// other.
    pub(super) fn modes(&self) -> Vec<GraphMode> {
        let looks_inside = self.timeline.is_some() || !self.without.is_empty();
        match (self.graph_mode.is_empty(), looks_inside) {
            _ if self.config.level != CompileLevel::Piecewise => vec![GraphMode::None],
            (false, _) => self.graph_mode.clone(),
            (true, _) if self.layers.is_set("graph_mode") => vec![self.config.graph_mode],
            (true, true) => vec![GraphMode::Full],
            (true, false) => vec![GraphMode::None, GraphMode::Piecewise, GraphMode::Full],
        }
    }

    /// Whether a flag or the file sets a list of sizes that rows choose else.
    pub(super) fn chose(&self, list: &str) -> bool {
        let by_flag = list == "capture_num_tokens" && !self.capture_num_tokens.is_empty();
        by_flag || self.layers.is_set(list)
    }

    /// Sizes in tokens, where somebody chose them.
    pub(super) fn sizes(&self) -> anyhow::Result<Vec<u64>> {
        match self.capture_num_tokens.is_empty() && self.layers.is_set("capture_num_tokens") {
            true => Ok(self.config.dispatcher()?.tokens.sizes().to_vec()),
            false => Ok(self.capture_num_tokens.clone()),
        }
    }

    /// The most positions that somebody wants room for.
    pub(super) fn longest(&self) -> Option<u64> {
        self.layers.is_set("max_seq_len").then_some(self.config.max_seq_len)
    }

    /// The settings with what the rows choose on top. Bounds are those of any other command, whose
    /// programs these are then, or larger.
    pub(super) fn configure(&self, assembly: Assembly, bounds: &Bounds, longest: u64) -> Assembly {
        let tokens = self.config.max_num_tokens.max(bounds.max_tokens);
        let sequences = self.config.max_num_seqs().max(bounds.positions.len() as u64);
        let is_piecewise = self.config.level == CompileLevel::Piecewise;
        let assembly = assembly
            .configure(self.layers.clone())
            .max_num_tokens(tokens)
            .max_num_seqs(sequences)
            .max_seq_len(longest)
            .kv_rows(bounds.positions.iter().sum())
            .graph_mode(if is_piecewise { bounds.mode } else { GraphMode::None })
            .capture_sizes(bounds.tokens.iter().copied())
            .set("decode_batch_sizes", &bounds.batches)
            .set("capture_query_lengths", &bounds.query_lengths)
            .set("capture", CaptureWhen::Lazy);
        let assembly = match self.layers.is_set("max_num_rows") {
            true => {
                let each = bounds.query_lengths.iter().copied().max().unwrap_or(1);
                let rows = sequences.saturating_mul(each).min(tokens.max(sequences));
                assembly.set("max_num_rows", rows)
            }
            false => assembly,
        };
        let of_cache = |key: &str| key.starts_with("cache.") && self.layers.is_set(key);
        let assembly = match self.startup && !RuntimeConfig::keys().any(of_cache) {
            true => assembly.store(Arc::new(MemoryStore::new())),
            false => assembly,
        };
        self.dumps.over(assembly)
    }
}
