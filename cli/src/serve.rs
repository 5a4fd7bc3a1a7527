//! `piecewise serve`: an OpenAI-compatible server.

mod encoder;
pub(crate) mod flags;
mod listening;

use self::flags::ServerArgs;
use self::listening::{listen, number};
use super::dumps::DumpArgs;
use super::encoder_args::ItemLogArgs;
use super::hub::{folder_of, name_of_snapshot};
use super::kv_events::{bind, publish};
use super::load::{
    engine, generation_defaults, layers_for_requests, print_settings_of_server, vocabulary,
};
use super::logs::warn;
use super::model_args::BoundArgs;
use super::preset_weights;
use super::print::announce;
use super::progress::watcher;
use super::start::log_engine;
use super::step_file::StepFiles;
use anyhow::{Context, bail};
use piecewise::assembly::{Assembly, Registries};
use piecewise::models::encoder::is_encoder;
use piecewise::models::{Preset, TextTokenizer};
use piecewise_runtime::config::{ConfigLayers, ServerConfig};
use piecewise_runtime::engine_thread::{EngineThread, ThreadOptions};
use piecewise_server::chat::{ChatTemplate, ReplyFormat};
use piecewise_server::{Outcome, ServedModel};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

/// Arguments of `serve`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  piecewise serve --model examples/tiny-qwen3
  piecewise serve -m Qwen/Qwen3-0.6B
  piecewise serve --model DIR --device cuda --port 8080 --max-num-seqs 128 --memory-fraction 0.9
  piecewise serve --model DIR --host 0.0.0.0 --api-key-file keys.txt --served-model-name chat
  piecewise serve --preset qwen3-8b --device cuda
  piecewise serve --model ENCODER                 # embeddings, or scores of a cross-encoder")]
pub(crate) struct ServeArgs {
    /// A Hugging Face model folder, or a model of the hub by its name, such as Qwen/Qwen3-0.6B: what its
    /// cache lacks is downloaded [default: server.model of the configuration].
    #[arg(short, long, value_name = "DIR|NAME")]
    model: Option<PathBuf>,
    /// A published model with random weights, for load tests: qwen3-0.6b, llama-3.2-1b, qwen3-8b,
    /// llama-3.1-8b or qwen3-30b-a3b. It has no tokenizer: prompts are token ids.
    #[arg(long, value_name = "NAME", conflicts_with = "model")]
    preset: Option<Preset>,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    items: ItemLogArgs,
    #[command(flatten)]
    bounds: BoundArgs,
    #[command(flatten)]
    dumps: DumpArgs,
}

impl ServeArgs {
    /// Whether each request is a line of the log. What is wrong with the configuration is said later.
    pub(crate) fn logs_access(&self) -> bool {
        let layers = self.bounds.compile.shared.source.layers();
        let configured = layers.ok().and_then(|layers| layers.finish().ok());
        let is_on = configured.is_none_or(|configured| configured.config.server.access_log);
        is_on && !self.server.no_access_log
    }

    /// The configuration of the file, the environment and the flags.
    fn layers(&self) -> anyhow::Result<ConfigLayers> {
        self.server.over(layers_for_requests(&self.bounds)?)
    }

    /// The folder that is served, of the flag or of the configuration; none where it is a preset.
    fn folder(&self, config: &ServerConfig) -> anyhow::Result<Option<PathBuf>> {
        match (&self.model, self.preset, &config.model) {
            (Some(model), ..) => Ok(Some(folder_of(model)?)),
            (None, Some(_), _) => Ok(None),
            (None, None, Some(model)) => Ok(Some(folder_of(Path::new(model))?)),
            (None, None, None) => {
                bail!("nothing says what to serve: give --model or --preset, or set server.model")
            }
        }
    }

    /// The model, and the name that it has of itself.
    fn assembly(
        &self,
        registries: &Registries,
        folder: Option<&Path>,
        layers: ConfigLayers,
    ) -> anyhow::Result<(Assembly, String)> {
        let (assembly, name) = match (folder, self.preset) {
            (Some(folder), _) => (registries.folder(folder)?, name_of(folder)),
            (None, Some(preset)) => {
                let assembly = preset_weights::assembly(preset, self.bounds.dtype);
                (assembly.registries(registries.clone()), preset.name().to_owned())
            }
            (None, None) => bail!("give --model or --preset"),
        };
        let assembly = self.dumps.over(assembly.configure(layers));
        Ok((assembly.watch(watcher()), name))
    }
}

/// What the folder says of text and chat; a preset says nothing.
fn served_model(
    config: &ServerConfig,
    folder: Option<&Path>,
    vocab: usize,
    end_ids: Vec<u32>,
) -> anyhow::Result<ServedModel> {
    let Some(folder) = folder else {
        if let Some(file) = &config.chat_template {
            bail!("{} is for the texts of a folder; a preset has ids alone", file.display());
        }
        return Ok(ServedModel { end_ids, ..ServedModel::default() });
    };
    let tokenizer = Some(Arc::new(TextTokenizer::load(folder, vocab)?));
    let template = ChatTemplate::load(folder, config.chat_template.as_deref())?;
    let text = template.as_ref().map(ChatTemplate::source).unwrap_or_default();
    let (reasoning, tools) =
        (config.reasoning_parser.as_deref(), config.tool_call_parser.as_deref());
    let format = ReplyFormat::new(reasoning, tools, &text)?;
    let defaults = generation_defaults(folder, config.generation_config)?;
    Ok(ServedModel { tokenizer, end_ids, defaults, template, format })
}

/// What a folder is called, or a model of the hub.
pub(crate) fn name_of(folder: &Path) -> String {
    if let Some(name) = name_of_snapshot(folder) {
        return name;
    }
    let name = folder.canonicalize().ok();
    let name = name.as_ref().and_then(|folder| folder.file_name());
    let name = name.map(|name| name.to_string_lossy().into_owned());
    name.unwrap_or_else(|| "model".to_owned())
}

/// The exit code of a server that ended so.
fn ended(outcome: Outcome) -> anyhow::Result<ExitCode> {
    match outcome {
        Outcome::Drained => Ok(ExitCode::SUCCESS),
        Outcome::Ended => {
            warn("ended before every request had its answer");
            Ok(ExitCode::FAILURE)
        }
        Outcome::Died => bail!("the engine has stopped"),
    }
}

pub(crate) fn run(args: ServeArgs, registries: &Registries) -> anyhow::Result<ExitCode> {
    let started = Instant::now();
    let layers = args.layers()?;
    let config = layers.clone().finish()?.config.server;
    let folder = args.folder(&config)?;
    if let Some(folder) = &folder
        && is_encoder(folder)?
    {
        return encoder::run(&args, folder, layers, started);
    }
    let of_encoders = [
        ("--matryoshka", config.matryoshka),
        ("--item-log", args.items.item_log.is_some()),
        ("--capture-item-log", args.items.capture_item_log.is_some()),
    ];
    if let Some((flag, _)) = of_encoders.iter().find(|(_, is_given)| *is_given) {
        bail!("{flag} is for encoders of text; this model writes text");
    }
    let (assembly, name) = args.assembly(registries, folder.as_deref(), layers)?;
    let settings = assembly.settings()?;
    if args.bounds.compile.shared.print_config {
        return print_settings_of_server(&settings);
    }
    let (vocab, end_ids) = vocabulary(&assembly);
    let num_layers = assembly.facts().and_then(|facts| facts.num_layers);
    let model = served_model(&config, folder.as_deref(), vocab, end_ids)?;
    let publisher = bind(&config, 0)?;
    let mut steps = StepFiles::create(config.iteration_log.as_deref(), config.trace.as_deref())?;
    let (server, model_name) = listen(&config, name.clone())?;
    let mut engine = engine(assembly, &args.dumps)?;
    log_engine(&name, &settings.configured()?.config, &engine, started);
    publish(publisher.as_ref(), &mut engine);
    steps.start(&mut engine, &model_name, num_layers)?;
    let max_queue = number(config.max_queue);
    let thread = ThreadOptions { max_queue, model_name, ..ThreadOptions::default() };
    let thread = EngineThread::start(engine, thread).context("no thread for the engine")?;
    super::logs::count_lost(thread.metrics());
    let outcome = server.serve(thread, model, || announce("ready"))?;
    steps.finish()?;
    ended(outcome)
}
