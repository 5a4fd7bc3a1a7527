//! `piecewise serve`: an OpenAI-compatible server.

mod encoder;

use super::amounts::parse_bytes;
use super::dumps::DumpArgs;
use super::encoder_args::ItemLogArgs;
use super::kv_events::{KvEventArgs, publish};
use super::listen::{addresses, are_loopback};
use super::load::{engine, generation_defaults, layers_for_requests, print_settings, vocabulary};
use super::logs::warn;
use super::model_args::BoundArgs;
use super::preset_weights;
use super::print::announce;
use super::progress::watcher;
use super::start::log_engine;
use super::step_file::{IterationLog, StepFile, TraceArgs};
use anyhow::{Context, bail};
use piecewise::assembly::{Assembly, Registries};
use piecewise::models::encoder::is_encoder;
use piecewise::models::{Preset, TextTokenizer};
use piecewise_runtime::engine_thread::{EngineThread, ThreadOptions};
use piecewise_server::chat::{ChatTemplate, ReplyFormat};
use piecewise_server::{
    AllowedOrigins, ApiKeys, Limits, Outcome, ServedModel, Server, ServerOptions, Tls,
};
use std::num::{NonZeroU16, NonZeroU64, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Arguments of `serve`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  piecewise serve --model examples/tiny-qwen3
  piecewise serve --model DIR --device cuda --port 8080 --max-num-seqs 128 --memory-fraction 0.9
  piecewise serve --model DIR --host 0.0.0.0 --api-key-file keys.txt --served-model-name chat
  piecewise serve --preset qwen3-8b --device cuda
  piecewise serve --model ENCODER                 # embeddings, or scores of a cross-encoder")]
#[group(id = "served", required = true, multiple = false, args = ["model", "preset"])]
pub(crate) struct ServeArgs {
    /// A Hugging Face model folder.
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// A published model with random weights, for load tests: qwen3-0.6b, llama-3.2-1b, qwen3-8b or
    /// llama-3.1-8b. It has no tokenizer: prompts are token ids.
    #[arg(long, value_name = "NAME")]
    preset: Option<Preset>,
    /// The address to listen at, or a name of it such as localhost; 0.0.0.0 is every one that the
    /// machine has.
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS")]
    host: String,
    /// The port to listen at; 0 is one that is free.
    #[arg(long, default_value_t = 8000)]
    port: u16,
    /// What clients call the model; repeat it for several names [default: the folder's, or the
    /// preset's].
    #[arg(long, value_name = "NAME")]
    served_model_name: Vec<String>,
    /// A file with a key in each line, one of which a client must send; or, where its name ends with .toml,
    /// with a table for each key that says what it may take.
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// A certificate in PEM, with those that it is signed by: clients then talk by TLS. Both files are read
    /// again at SIGHUP.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The certificate's private key in PEM.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Have paths for operators: /sleep and /wake_up give the engine's memory back and take it again,
    /// /graphs shows and changes its graphs.
    #[arg(long)]
    admin: bool,
    /// The sites whose pages may ask by a browser, such as https://chat.example; * is any. Others are
    /// refused, unless they have a key.
    #[arg(long, value_name = "ORIGIN", value_delimiter = ',')]
    allowed_origins: Vec<String>,
    /// The most requests that may wait beyond those that run; more are told to try again later.
    #[arg(long, default_value_t = 1024, value_name = "N")]
    max_queue: usize,
    /// A file with a chat template, instead of the folder's own.
    #[arg(long, value_name = "FILE", requires = "model")]
    chat_template: Option<PathBuf>,
    /// How replies have thoughts, by the name of a parser; `none` is text as it is [default: as the chat
    /// template says].
    #[arg(long, value_name = "NAME")]
    reasoning_parser: Option<String>,
    /// How replies call tools, by the name of a parser; `none` is text as it is [default: as the chat
    /// template says].
    #[arg(long, value_name = "NAME")]
    tool_call_parser: Option<String>,
    /// Whether requests have the defaults of the model's generation_config.json, or OpenAI's alone.
    #[arg(long, value_name = "WHETHER", default_value = "auto", value_parser = ["auto", "none"])]
    generation_config: String,
    /// The largest body of a request, also with KiB, MiB or GiB.
    #[arg(long, default_value = "8MiB", value_name = "BYTES", value_parser = parse_body)]
    max_body: u64,
    /// The most values of a body, and names of values.
    #[arg(long, default_value_t = NonZeroUsize::MIN.saturating_add((1 << 20) - 1), value_name = "N")]
    max_body_values: NonZeroUsize,
    /// The memory that all bodies may take beyond their first 64 KiB each, from when they come until the
    /// engine has their requests, also with KiB, MiB or GiB.
    #[arg(long, default_value = "512MiB", value_name = "BYTES", value_parser = parse_bytes)]
    max_body_memory: u64,
    /// The most requests with large texts that wait to be read, and the most with structures.
    #[arg(long, default_value_t = 64, value_name = "N")]
    max_waiting_texts: usize,
    /// The most answers to a prompt that a request asks for (`n`).
    #[arg(long, default_value_t = NonZeroUsize::MIN.saturating_add(127), value_name = "N")]
    max_choices: NonZeroUsize,
    /// The most ids that a request says an answer ends with (`stop_token_ids`).
    #[arg(long, default_value_t = 1024, value_name = "N")]
    max_stop_ids: usize,
    /// The most texts that a request says an answer ends with (`stop`), and the most that it may not have
    /// (`bad_words`), with 64 bytes for each in all.
    #[arg(long, default_value_t = NonZeroU16::MIN.saturating_add(63), value_name = "N")]
    max_stop_texts: NonZeroU16,
    /// Pass over fields of requests that nobody knows, and name them in the header `x-ignored-fields`.
    #[arg(long)]
    ignore_unknown_fields: bool,
    /// Who goes first: who comes first, or who asks for it by `priority`.
    #[arg(long, default_value = "fcfs", value_name = "POLICY", value_parser = ["fcfs", "priority"])]
    scheduling_policy: String,
    /// The longest that an answer may take; what there is by then is the answer.
    #[arg(long, value_name = "SECONDS")]
    request_timeout: Option<NonZeroU64>,
    /// How long a client may take to send a head or a body, and to take some of an answer.
    #[arg(long, default_value_t = NonZeroU64::MIN.saturating_add(59), value_name = "SECONDS")]
    client_timeout: NonZeroU64,
    /// The most connections at a time, as far as the limit on open files lets there be so many. For a
    /// further one the longest idle is closed; where none is idle, it may only ask for /health, /ready,
    /// /metrics and what operators may.
    #[arg(long, default_value_t = NonZeroUsize::MIN.saturating_add(4095), value_name = "N")]
    max_connections: NonZeroUsize,
    /// The most of them from one address [default: three quarters of them].
    #[arg(long, value_name = "N")]
    max_connections_per_address: Option<NonZeroUsize>,
    /// Threads that talk to clients. One carries tens of thousands of tokens a second; more wake each
    /// other, and a token costs more.
    #[arg(long, default_value_t = NonZeroUsize::MIN, value_name = "N")]
    http_threads: NonZeroUsize,
    /// Embeddings of an encoder may be cut to fewer dimensions, though its folder does not say so.
    #[arg(long, requires = "model")]
    matryoshka: bool,
    /// Log no line about each request.
    #[arg(long)]
    pub(crate) no_access_log: bool,
    /// Write a line about each step, for `piecewise plan --log`.
    #[arg(long, value_name = "FILE")]
    iteration_log: Option<PathBuf>,
    #[command(flatten)]
    trace: TraceArgs,
    #[command(flatten)]
    items: ItemLogArgs,
    #[command(flatten)]
    kv_events: KvEventArgs,
    #[command(flatten)]
    bounds: BoundArgs,
    #[command(flatten)]
    dumps: DumpArgs,
}

/// A size of bodies: the smallest useful one is not refused.
fn parse_body(text: &str) -> Result<u64, String> {
    let bytes = parse_bytes(text)?;
    if bytes < 1024 {
        return Err(format!("{bytes} bytes refuse every request; take at least 1KiB"));
    }
    Ok(bytes)
}

impl ServeArgs {
    /// The model, and the name that it has of itself.
    fn assembly(&self, registries: &Registries) -> anyhow::Result<(Assembly, String)> {
        let (assembly, name) = match (&self.model, self.preset) {
            (Some(folder), _) => (registries.folder(folder)?, name_of(folder)),
            (None, Some(preset)) => {
                let assembly = preset_weights::assembly(preset, self.bounds.dtype);
                (assembly.registries(registries.clone()), preset.name().to_owned())
            }
            (None, None) => bail!("give --model or --preset"),
        };
        let assembly = self.dumps.over(assembly.configure(layers_for_requests(&self.bounds)?));
        Ok((assembly.watch(watcher()), name))
    }

    /// A server that listens, and what its metrics call the model; `name` is what the model calls
    /// itself.
    fn listen(&self, name: String) -> anyhow::Result<(Server, String)> {
        let keys = match &self.api_key_file {
            Some(file) => ApiKeys::read(file)
                .with_context(|| format!("can't take keys from {}", file.display()))?,
            None => ApiKeys::default(),
        };
        let host = self.host.trim_start_matches('[').trim_end_matches(']');
        let addresses = addresses(&format!("--host {}", self.host), (host, self.port))?;
        if !are_loopback(&addresses) && self.api_key_file.is_none() {
            if self.admin {
                bail!(
                    "--admin lets whoever reaches this machine put the engine to sleep; give \
                     --api-key-file, or listen at 127.0.0.1"
                );
            }
            warn("whoever reaches this machine may ask; --api-key-file lets in who has a key");
        }
        let mut model_names = self.served_model_name.clone();
        if model_names.is_empty() {
            model_names.push(name);
        }
        let model_name = model_names[0].clone();
        let patience = Duration::from_secs(self.client_timeout.get());
        let limits = Limits {
            body_bytes: usize::try_from(self.max_body).unwrap_or(usize::MAX),
            body_values: self.max_body_values.get(),
            bodies_bytes: usize::try_from(self.max_body_memory).unwrap_or(usize::MAX),
            waiting_texts: self.max_waiting_texts,
            choices: self.max_choices.get(),
            stop_ids: self.max_stop_ids,
            stop_texts: self.max_stop_texts.get().into(),
            ignores_unknown_fields: self.ignore_unknown_fields,
            priorities: self.scheduling_policy == "priority",
            head_time: patience,
            body_time: patience,
            write_time: patience,
            connections: self.max_connections.get(),
            connections_of_address: self.max_connections_per_address.map(NonZeroUsize::get),
            request_time: self.request_timeout.map(|seconds| Duration::from_secs(seconds.get())),
            ..Limits::default()
        };
        let threads = self.http_threads;
        let admin = self.admin;
        let origins = AllowedOrigins::new(self.allowed_origins.iter().map(String::as_str))
            .map_err(|error| anyhow::anyhow!("--allowed-origins: {error}"))?;
        let tls = match (&self.tls_cert, &self.tls_key) {
            (Some(cert), Some(key)) => {
                let tls = Tls::read(cert, key);
                Some(Arc::new(tls.map_err(|why| anyhow::anyhow!("--tls-cert, --tls-key: {why}"))?))
            }
            _ => None,
        };
        let scheme = if tls.is_some() { "https" } else { "http" };
        let options =
            ServerOptions { addresses, model_names, keys, origins, limits, tls, admin, threads };
        let server = Server::bind(options)
            .with_context(|| format!("can't listen at {}:{}; try --port", self.host, self.port))?;
        announce(&format!("listening at {scheme}://{}", server.address()));
        Ok((server, model_name))
    }

    /// What the folder says of text and chat.
    fn model(&self, vocab: usize, end_ids: Vec<u32>) -> anyhow::Result<ServedModel> {
        let Some(folder) = &self.model else {
            return Ok(ServedModel { end_ids, ..ServedModel::default() });
        };
        let tokenizer = Some(Arc::new(TextTokenizer::load(folder, vocab)?));
        let template = ChatTemplate::load(folder, self.chat_template.as_deref())?;
        let text = template.as_ref().map(ChatTemplate::source).unwrap_or_default();
        let (reasoning, tools) =
            (self.reasoning_parser.as_deref(), self.tool_call_parser.as_deref());
        let format = ReplyFormat::new(reasoning, tools, &text)?;
        let defaults = generation_defaults(folder, &self.generation_config)?;
        Ok(ServedModel { tokenizer, end_ids, defaults, template, format })
    }
}

/// What a folder is called.
pub(crate) fn name_of(folder: &Path) -> String {
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
    if let Some(folder) = &args.model
        && is_encoder(folder)?
    {
        return encoder::run(&args, folder, started);
    }
    let of_encoders = [
        ("--matryoshka", args.matryoshka),
        ("--item-log", args.items.item_log.is_some()),
        ("--capture-item-log", args.items.capture_item_log.is_some()),
    ];
    if let Some((flag, _)) = of_encoders.iter().find(|(_, is_given)| *is_given) {
        bail!("{flag} is for encoders of text; this model writes text");
    }
    let (assembly, name) = args.assembly(registries)?;
    let settings = assembly.settings()?;
    if args.bounds.compile.shared.print_config {
        return print_settings(&settings, false);
    }
    let (vocab, end_ids) = vocabulary(&assembly);
    let layers = assembly.facts().and_then(|facts| facts.num_layers);
    let model = args.model(vocab, end_ids)?;
    let publisher = args.kv_events.bind(0)?;
    let log = args.iteration_log.as_deref().map(IterationLog::create).transpose()?;
    let trace = args.trace.create()?;
    let (server, model_name) = args.listen(name.clone())?;
    let mut engine = engine(assembly, &args.dumps)?;
    log_engine(&name, &settings.configured()?.config, &engine, started);
    publish(publisher.as_ref(), &mut engine);
    if let Some(log) = &log {
        log.observe(&mut engine, &model_name, layers);
    }
    let trace = trace.map(|trace| trace.start(&mut engine)).transpose()?;
    let thread =
        ThreadOptions { max_queue: args.max_queue, model_name, ..ThreadOptions::default() };
    let thread = EngineThread::start(engine, thread).context("no thread for the engine")?;
    super::logs::count_lost(thread.metrics());
    let outcome = server.serve(thread, model, || announce("ready"))?;
    log.map_or(Ok(()), StepFile::finish)?;
    trace.map_or(Ok(()), StepFile::finish)?;
    ended(outcome)
}

#[cfg(test)]
mod tests {
    use super::parse_body;

    #[test]
    fn a_bound_that_refuses_every_body_is_refused() {
        assert_eq!(parse_body("1KiB"), Ok(1024));
        for bad in ["0", "1023", "x"] {
            assert!(parse_body(bad).is_err(), "{bad}");
        }
    }
}
