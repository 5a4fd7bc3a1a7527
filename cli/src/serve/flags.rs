//! The flags of a server that are keys of the table `[server]`.

use super::super::amounts::parse_bytes;
use super::super::kv_events::KvEventArgs;
use super::super::named::named;
use super::super::set_keys::{put_by, put_server as put};
use super::super::step_file::StepFileArgs;
use piecewise_runtime::config::{ConfigLayers, GenerationConfig, SchedulingPolicy};
use std::num::{NonZeroU16, NonZeroU32, NonZeroU64};
use std::path::PathBuf;

/// Where a server listens, whom it lets in, and what it says of itself.
#[derive(Debug, clap::Args)]
pub(crate) struct ServerArgs {
    /// The address to listen at, or a name of it such as localhost; 0.0.0.0 is every one that the
    /// machine has [default: 127.0.0.1].
    #[arg(long, value_name = "ADDRESS")]
    host: Option<String>,
    /// The port to listen at; 0 is one that is free [default: 8000].
    #[arg(long)]
    port: Option<u16>,
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
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// The certificate's private key in PEM.
    #[arg(long, value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// Have paths for operators: /sleep and /wake_up give the engine's memory back and take it again,
    /// /graphs shows and changes its graphs, /start_profile and /stop_profile trace steps.
    #[arg(long)]
    admin: bool,
    /// The sites whose pages may ask by a browser, such as https://chat.example; * is any. Others are
    /// refused, unless they have a key.
    #[arg(long, value_name = "ORIGIN", value_delimiter = ',')]
    allowed_origins: Vec<String>,
    /// Threads that talk to clients. One carries tens of thousands of tokens a second; more wake each
    /// other, and a token costs more [default: 1].
    #[arg(long, value_name = "N")]
    http_threads: Option<NonZeroU32>,
    /// Log no line about each request.
    #[arg(long)]
    pub(crate) no_access_log: bool,
    #[command(flatten)]
    pub(super) texts: TextArgs,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    pub(super) steps: StepFileArgs,
    #[command(flatten)]
    pub(super) kv_events: KvEventArgs,
}

/// What texts of requests and replies are read by.
#[derive(Debug, clap::Args)]
pub(crate) struct TextArgs {
    /// A file with a chat template, instead of the folder's own.
    #[arg(long, value_name = "FILE")]
    pub(super) chat_template: Option<PathBuf>,
    /// How replies have thoughts, by the name of a parser; `none` is text as it is [default: as the chat
    /// template says].
    #[arg(long, value_name = "NAME")]
    pub(super) reasoning_parser: Option<String>,
    /// How replies call tools, by the name of a parser; `none` is text as it is [default: as the chat
    /// template says].
    #[arg(long, value_name = "NAME")]
    pub(super) tool_call_parser: Option<String>,
    /// Whether requests have the defaults of the model's generation_config.json: auto, or none, which is
    /// OpenAI's alone [default: auto].
    #[arg(long, value_name = "WHETHER", value_parser = named::<GenerationConfig>)]
    generation_config: Option<GenerationConfig>,
    /// Embeddings of an encoder may be cut to fewer dimensions, though its folder does not say so.
    #[arg(long)]
    pub(super) matryoshka: bool,
}

/// What clients may ask for, and how long they may take.
#[derive(Debug, clap::Args)]
pub(crate) struct LimitArgs {
    /// The most requests that may wait beyond those that run; more are told to try again later
    /// [default: 1024].
    #[arg(long, value_name = "N")]
    max_queue: Option<u64>,
    /// Who goes first: who comes first (fcfs), or who asks for it by `priority` (priority)
    /// [default: fcfs].
    #[arg(long, value_name = "POLICY", value_parser = named::<SchedulingPolicy>)]
    scheduling_policy: Option<SchedulingPolicy>,
    /// The longest that an answer may take; what there is by then is the answer.
    #[arg(long, value_name = "SECONDS")]
    request_timeout: Option<NonZeroU64>,
    /// How long a client may take to send a head or a body, and to take some of an answer
    /// [default: 60].
    #[arg(long, value_name = "SECONDS")]
    client_timeout: Option<NonZeroU64>,
    /// The most connections at a time, as far as the limit on open files lets there be so many. For a
    /// further one the longest idle is closed; where none is idle, it may only ask for /health, /ready,
    /// /metrics and what operators may [default: 4096].
    #[arg(long, value_name = "N")]
    max_connections: Option<NonZeroU64>,
    /// The most of them from one address [default: three quarters of them].
    #[arg(long, value_name = "N")]
    max_connections_per_address: Option<NonZeroU64>,
    /// The most connections beyond these, which may only ask for /health, /ready, /metrics and what operators
    /// may [default: 32].
    #[arg(long, value_name = "N")]
    max_probe_connections: Option<u64>,
    /// The largest head of a request, also with KiB, MiB or GiB [default: 64KiB].
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    max_head: Option<u64>,
    /// The largest body of a request, also with KiB, MiB or GiB [default: 8MiB].
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    max_body: Option<u64>,
    /// The most values of a body, and names of values [default: 1048576].
    #[arg(long, value_name = "N")]
    max_body_values: Option<NonZeroU64>,
    /// The memory that all bodies may take beyond their first 64 KiB each, from when they come until the
    /// engine has their requests, and answers until they are read, also with KiB, MiB or GiB
    /// [default: 256MiB].
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    max_body_memory: Option<u64>,
    /// The most requests with large texts that wait to be read, and the most with structures
    /// [default: 64].
    #[arg(long, value_name = "N")]
    max_waiting_texts: Option<u64>,
    /// The most answers to a prompt that a request asks for (`n`) [default: 128].
    #[arg(long, value_name = "N")]
    max_choices: Option<NonZeroU64>,
    /// The most log-probabilities of an answer that comes as a whole: of each token of all its choices and,
    /// where it asks for those, its prompts, with each of the likeliest ids beside it [default: 524288].
    #[arg(long, value_name = "N")]
    max_logprobs: Option<u64>,
    /// The most ids that a request says an answer ends with (`stop_token_ids`) [default: 1024].
    #[arg(long, value_name = "N")]
    max_stop_ids: Option<u64>,
    /// The most texts that a request says an answer ends with (`stop`), and the most that it may not have
    /// (`bad_words`), with 64 bytes for each in all [default: 64].
    #[arg(long, value_name = "N")]
    max_stop_texts: Option<NonZeroU16>,
    /// The most texts, or lists of ids, of a request to an encoder [default: 2048].
    #[arg(long, value_name = "N")]
    max_texts: Option<NonZeroU64>,
    /// Pass over fields of requests that nobody knows, and name them in the header `x-ignored-fields`.
    #[arg(long)]
    ignore_unknown_fields: bool,
}

/// A list, unless nothing was given.
fn listed(names: &[String]) -> Option<&[String]> {
    (!names.is_empty()).then_some(names)
}

impl ServerArgs {
    /// The flags on top of a configuration.
    pub(super) fn over(&self, layers: ConfigLayers) -> anyhow::Result<ConfigLayers> {
        let on = |is_on: bool| is_on.then_some(true);
        let layers = put(layers, "host", self.host.as_ref())?;
        let layers = put(layers, "port", self.port)?;
        let layers = put(layers, "served_model_name", listed(&self.served_model_name))?;
        let layers = put(layers, "api_key_file", self.api_key_file.as_ref())?;
        let layers = put(layers, "tls_cert", self.tls_cert.as_ref())?;
        let layers = put(layers, "tls_key", self.tls_key.as_ref())?;
        let layers = put(layers, "admin", on(self.admin))?;
        let layers = put(layers, "allowed_origins", listed(&self.allowed_origins))?;
        let layers = put(layers, "http_threads", self.http_threads)?;
        let silent = self.no_access_log.then_some(false);
        let layers = put_by(layers, "--no-access-log", "server.access_log", silent)?;
        let texts = &self.texts;
        let layers = put(layers, "chat_template", texts.chat_template.as_ref())?;
        let layers = put(layers, "reasoning_parser", texts.reasoning_parser.as_ref())?;
        let layers = put(layers, "tool_call_parser", texts.tool_call_parser.as_ref())?;
        let layers = put(layers, "generation_config", texts.generation_config)?;
        let layers = put(layers, "matryoshka", on(texts.matryoshka))?;
        let layers = self.limits.over(layers)?;
        self.kv_events.over(self.steps.over(layers)?)
    }
}

impl LimitArgs {
    fn over(&self, layers: ConfigLayers) -> anyhow::Result<ConfigLayers> {
        let layers = put(layers, "max_queue", self.max_queue)?;
        let layers = put(layers, "scheduling_policy", self.scheduling_policy)?;
        let layers = put(layers, "request_timeout", self.request_timeout)?;
        let layers = put(layers, "client_timeout", self.client_timeout)?;
        let layers = put(layers, "max_connections", self.max_connections)?;
        let per_address = self.max_connections_per_address;
        let layers = put(layers, "max_connections_per_address", per_address)?;
        let layers = put(layers, "max_probe_connections", self.max_probe_connections)?;
        let layers = put(layers, "max_head", self.max_head)?;
        let layers = put(layers, "max_body", self.max_body)?;
        let layers = put(layers, "max_body_values", self.max_body_values)?;
        let layers = put(layers, "max_body_memory", self.max_body_memory)?;
        let layers = put(layers, "max_waiting_texts", self.max_waiting_texts)?;
        let layers = put(layers, "max_choices", self.max_choices)?;
        let layers = put(layers, "max_logprobs", self.max_logprobs)?;
        let layers = put(layers, "max_stop_ids", self.max_stop_ids)?;
        let layers = put(layers, "max_stop_texts", self.max_stop_texts)?;
        let layers = put(layers, "max_texts", self.max_texts)?;
        put(layers, "ignore_unknown_fields", self.ignore_unknown_fields.then_some(true))
    }
}
