//! From flags to an assembly, and from there to what runs.

use super::dumps::DumpArgs;
use super::logs::warn;
use super::model_args::{BoundArgs, ModelArgs};
use super::print::{print_line, print_report};
use super::progress::watcher;
use anyhow::{Context, bail};
use piecewise::assembly::{Assembly, AssemblyError, Registries, Settings};
use piecewise_backend::tuning::TuneMode;
use piecewise_runtime::config::{ConfigEntry, ConfigLayers, GenerationConfig, Source};
use piecewise_runtime::engine::Engine;
use piecewise_server::chat::GenerationDefaults;
use std::path::Path;
use std::process::ExitCode;

impl ModelArgs {
    /// The folder with the configuration of the flags.
    pub(crate) fn assembly(&self, registries: &Registries) -> anyhow::Result<Assembly> {
        let layers = self.bounds.layers()?;
        Ok(registries.folder(&self.model)?.configure(layers).watch(watcher()))
    }
}

/// Seconds between two lines about the steps of what serves, where nothing else is said.
const STATS_INTERVAL: i64 = 10;

/// The configuration of what serves others, which says how its steps go unless it is told not to, and
/// has no request wait for a measurement.
pub(crate) fn layers_for_requests(bounds: &BoundArgs) -> anyhow::Result<ConfigLayers> {
    let mut layers = bounds.layers()?;
    if layers.clone().finish()?.config.tune == TuneMode::Measure {
        warn(
            "a server answers first and measures nothing: tune = \"measure\" is taken as \"load\"; run \
             `piecewise tune` with the same settings, and start it again",
        );
        layers = layers.imposed("tune", "load", "serving requests")?;
    }
    Ok(layers.derived("stats_interval_seconds", STATS_INTERVAL, "serving requests")?)
}

/// An engine, with what the passes did and made dumped on the way.
pub(crate) fn engine(assembly: Assembly, dumps: &DumpArgs) -> anyhow::Result<Engine> {
    let planned = dumps.plan(assembly.check_weights())?;
    if dumps.stops() {
        bail!("the passes were stopped early; there is nothing to run");
    }
    let engine = planned.engine();
    engine.map_err(|error| with_remedy(error, "max_num_tokens, max_num_seqs or max_seq_len"))
}

/// The ids that a model has, and those that end a text.
pub(crate) fn vocabulary(assembly: &Assembly) -> (usize, Vec<u32>) {
    let known = assembly.facts().map(|facts| (facts.vocab_size, facts.eos_token_ids.clone()));
    known.unwrap_or_default()
}

/// What a model's own file says of sampling, unless it is not asked.
pub(crate) fn generation_defaults(
    folder: &Path,
    from: GenerationConfig,
) -> anyhow::Result<GenerationDefaults> {
    match from {
        GenerationConfig::None => Ok(GenerationDefaults::default()),
        GenerationConfig::Auto => {
            GenerationDefaults::load(folder).context("go without it by --generation-config none")
        }
    }
}

/// Says what to lower where memory is short.
pub(crate) fn with_remedy(error: AssemblyError, bounds: &str) -> anyhow::Error {
    match error.is_out_of_memory() {
        true => {
            anyhow::Error::from(error).context(format!("the model does not fit: lower {bounds}"))
        }
        false => error.into(),
    }
}

/// Prints every setting in force with where it came from, but for those of a server: TOML, or a JSON object
/// by key.
pub(crate) fn print_settings(settings: &Settings, json: bool) -> anyhow::Result<ExitCode> {
    print_entries(settings.configured()?.entries(), json, |key| !key.starts_with("server."))
}

/// The same with those of a server.
pub(crate) fn print_settings_of_server(settings: &Settings) -> anyhow::Result<ExitCode> {
    print_entries(settings.configured()?.entries(), false, |_| true)
}

/// Prints those settings whose keys are wanted.
pub(crate) fn print_entries(
    mut entries: Vec<ConfigEntry>,
    json: bool,
    is_wanted: impl Fn(&str) -> bool,
) -> anyhow::Result<ExitCode> {
    entries.retain(|entry| is_wanted(entry.key));
    let lines: Vec<String> = entries.iter().map(ConfigEntry::to_string).collect();
    let entry = |entry: ConfigEntry| {
        let from = match &entry.source {
            Source::Default => "default",
            Source::File(_) => "file",
            Source::Environment(_) => "environment",
            Source::Flag(_) => "flag",
            Source::Program => "program",
            Source::Derived(_) => "derived",
        };
        let source = entry.source.to_string();
        let value = serde_json::json!({"value": entry.value, "from": from, "source": source});
        (entry.key.to_owned(), value)
    };
    let object: serde_json::Map<_, _> = entries.into_iter().map(entry).collect();
    print_report(json, &object, || print_line(&lines.join("\n")))?;
    Ok(ExitCode::SUCCESS)
}
