//! The keys of what serves requests: the table `[server]` of a file.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::num::{NonZeroU16, NonZeroU32, NonZeroU64};
use std::path::PathBuf;

/// What `piecewise serve` is beside its model, and of it what `piecewise worker` has, too.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ServerConfig {
    /// The model that is served where no flag names one: a folder, or a name of the hub.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// What clients call the model, by any of these names; empty is the folder's name, or the preset's.
    pub served_model_name: Vec<String>,
    /// The address to listen at, or a name of it such as `localhost`; `0.0.0.0` is every one that the
    /// machine has.
    pub host: String,
    /// The port to listen at; 0 is one that is free.
    pub port: u16,
    /// A file with a key in each line, one of which a client must send; or, where its name ends with
    /// `.toml`, with a table for each key that says what it may take. Unset lets in whoever reaches the
    /// server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_key_file: Option<PathBuf>,
    /// A certificate in PEM, with those that it is signed by: clients then talk by TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_cert: Option<PathBuf>,
    /// The certificate's private key in PEM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_key: Option<PathBuf>,
    /// Whether there are paths for operators: to sleep and to wake, graphs, and profiles of steps.
    pub admin: bool,
    /// The sites whose pages may ask by a browser, such as `https://chat.example`; `*` is any.
    pub allowed_origins: Vec<String>,
    /// The most requests that may wait beyond those that run.
    pub max_queue: u64,
    /// Who goes first.
    pub scheduling_policy: SchedulingPolicy,
    /// A file with a chat template, in the place of the model's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chat_template: Option<PathBuf>,
    /// How replies have thoughts, by the name of a parser; `none` is text as it is, unset is as the chat
    /// template says. A worker has none unless its flag names one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_parser: Option<String>,
    /// How replies call tools, by the name of a parser; `none` is text as it is, unset is as the chat
    /// template says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call_parser: Option<String>,
    /// Whether requests have the defaults of the model's generation_config.json.
    pub generation_config: GenerationConfig,
    /// The largest head of a request, in bytes, at least 8192.
    #[schemars(range(min = 8192))]
    pub max_head: u64,
    /// The largest body of a request, in bytes, at least 1024.
    #[schemars(range(min = 1024))]
    pub max_body: u64,
    /// The most values of a body, and names of values.
    pub max_body_values: NonZeroU64,
    /// Bytes that all bodies may take beyond their first 64 KiB each, from when they come until the engine
    /// has their requests, and answers until they are read; three quarters of them have room for the largest
    /// body.
    pub max_body_memory: u64,
    /// The most requests with large texts that wait to be read, and the most with structures.
    pub max_waiting_texts: u64,
    /// The most answers to a prompt that a request asks for (`n`).
    pub max_choices: NonZeroU64,
    /// The most log-probabilities of an answer that comes as a whole: of each token of all its choices and,
    /// where it asks for those, its prompts, with each of the likeliest ids beside it.
    pub max_logprobs: u64,
    /// The most ids that a request says an answer ends with (`stop_token_ids`).
    pub max_stop_ids: u64,
    /// The most texts that a request says an answer ends with (`stop`), and the most that it may not have
    /// (`bad_words`), with 64 bytes for each in all.
    pub max_stop_texts: NonZeroU16,
    /// The most texts, or lists of ids, of a request to an encoder.
    pub max_texts: NonZeroU64,
    /// Whether fields of requests that nobody knows are passed over, and named in the header
    /// `x-ignored-fields`.
    pub ignore_unknown_fields: bool,
    /// The most seconds that an answer may take; what there is by then is the answer. Unset bounds none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_timeout: Option<NonZeroU64>,
    /// Seconds that a client may take to send a head or a body, and to take some of an answer.
    pub client_timeout: NonZeroU64,
    /// The most connections at a time, as far as the limit on open files lets there be so many.
    pub max_connections: NonZeroU64,
    /// The most of them from one address; unset is three quarters of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_connections_per_address: Option<NonZeroU64>,
    /// The most connections beyond these, which may only ask how the server is and what operators ask.
    pub max_probe_connections: u64,
    /// Threads that talk to clients.
    pub http_threads: NonZeroU32,
    /// Whether embeddings of an encoder may be cut to fewer dimensions, though its folder does not say so.
    pub matryoshka: bool,
    /// Whether each request is a line of the log.
    pub access_log: bool,
    /// The file that a line about each step goes to, for `piecewise plan --log`; unset writes none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iteration_log: Option<PathBuf>,
    /// The file that a trace of all steps goes to; unset writes none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<PathBuf>,
    /// Where it is published what the prefix cache holds, such as `tcp://*:5557`; unset publishes nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_events_endpoint: Option<String>,
    /// Where those who missed some of it ask again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_events_replay_endpoint: Option<String>,
    /// What each message about the prefix cache begins with.
    pub kv_events_topic: String,
    /// The most that read them at a time, of both endpoints.
    pub kv_events_max_readers: NonZeroU64,
    /// Bytes that the last of them may take, which are kept for those who are behind or have missed some.
    pub kv_events_max_memory: u64,
}

impl ServerConfig {
    /// Bytes of each body that take nothing of `max_body_memory`.
    pub const SMALL_BODY: u64 = 64 << 10;
    /// Bytes of memory that each value of a body takes beside its text.
    pub const BODY_VALUE: u64 = 128;

    /// Bytes of memory of which the largest body has room: `max_body` with `max_body_values`, of which
    /// there is none without a byte. One client has three quarters of `max_body_memory`.
    pub fn least_body_memory(&self) -> u64 {
        let values = self.max_body_values.get().min(self.max_body);
        let body = self.max_body.saturating_add(values.saturating_mul(Self::BODY_VALUE));
        let counted = body.saturating_sub(Self::SMALL_BODY);
        counted.saturating_add(counted.div_ceil(3))
    }
}

/// Who goes first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SchedulingPolicy {
    /// Who comes first.
    #[default]
    Fcfs,
    /// Who asks for it by `priority`.
    Priority,
}

/// Where defaults of requests come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GenerationConfig {
    /// The model's generation_config.json, and OpenAI's of what it does not say.
    #[default]
    Auto,
    /// OpenAI's alone.
    None,
}

const fn nonzero(n: u64) -> NonZeroU64 {
    match NonZeroU64::new(n) {
        Some(n) => n,
        None => NonZeroU64::MIN,
    }
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            model: None,
            served_model_name: Vec::new(),
            host: "127.0.0.1".to_owned(),
            port: 8000,
            api_key_file: None,
            tls_cert: None,
            tls_key: None,
            admin: false,
            allowed_origins: Vec::new(),
            max_queue: 1024,
            scheduling_policy: SchedulingPolicy::default(),
            chat_template: None,
            reasoning_parser: None,
            tool_call_parser: None,
            generation_config: GenerationConfig::default(),
            max_head: 64 << 10,
            max_body: 8 << 20,
            max_body_values: nonzero(1 << 20),
            max_body_memory: 256 << 20,
            max_waiting_texts: 64,
            max_choices: nonzero(128),
            max_logprobs: 1 << 19,
            max_stop_ids: 1024,
            max_stop_texts: NonZeroU16::MIN.saturating_add(63),
            max_texts: nonzero(2048),
            ignore_unknown_fields: false,
            request_timeout: None,
            client_timeout: nonzero(60),
            max_connections: nonzero(4096),
            max_connections_per_address: None,
            max_probe_connections: 32,
            http_threads: NonZeroU32::MIN,
            matryoshka: false,
            access_log: true,
            iteration_log: None,
            trace: None,
            kv_events_endpoint: None,
            kv_events_replay_endpoint: None,
            kv_events_topic: String::new(),
            kv_events_max_readers: nonzero(64),
            kv_events_max_memory: 64 << 20,
        }
    }
}
