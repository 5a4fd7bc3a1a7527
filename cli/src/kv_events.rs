//! Flags of the commands that publish KV events.

use super::amounts::parse_bytes;
use super::logs::warn;
use super::set_keys::put_server as put;
use anyhow::Context;
use piecewise_runtime::config::{ConfigLayers, ServerConfig};
use piecewise_runtime::engine::Engine;
use piecewise_worker::Address;
use piecewise_worker::kv_events::{KvPublisher, KvPublisherOptions};
use std::num::NonZeroU64;

/// Where KV events go.
#[derive(Debug, clap::Args)]
pub(crate) struct KvEventArgs {
    /// Publish what the prefix cache holds, as vLLM does, for routers that send requests to where
    /// their prefix is; of rank N, so many ports above. For example tcp://*:5557.
    #[arg(long, value_name = "tcp://HOST:PORT")]
    kv_events_endpoint: Option<Address>,
    /// Where those who missed some of it ask again; of rank N, so many ports above.
    #[arg(long, value_name = "tcp://HOST:PORT")]
    kv_events_replay_endpoint: Option<Address>,
    /// What each message begins with.
    #[arg(long, value_name = "TEXT")]
    kv_events_topic: Option<String>,
    /// Let so many read KV events at a time, of both endpoints; a further one is sent away
    /// [default: 64].
    #[arg(long, value_name = "N")]
    kv_events_max_readers: Option<NonZeroU64>,
    /// The memory that the last events may take, which are kept for those who are behind or have missed some,
    /// also with KiB, MiB or GiB [default: 64MiB].
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    kv_events_max_memory: Option<u64>,
}

impl KvEventArgs {
    /// The flags on top of a configuration.
    pub(crate) fn over(&self, layers: ConfigLayers) -> anyhow::Result<ConfigLayers> {
        let text = |address: &Option<Address>| address.as_ref().map(Address::to_string);
        let layers = put(layers, "kv_events_endpoint", text(&self.kv_events_endpoint))?;
        let replay = text(&self.kv_events_replay_endpoint);
        let layers = put(layers, "kv_events_replay_endpoint", replay)?;
        let layers = put(layers, "kv_events_topic", self.kv_events_topic.as_ref())?;
        let layers = put(layers, "kv_events_max_readers", self.kv_events_max_readers)?;
        put(layers, "kv_events_max_memory", self.kv_events_max_memory)
    }
}

/// Listens, where that is asked for; before a model is loaded, so that a port that is taken is known at
/// once.
pub(crate) fn bind(config: &ServerConfig, rank: u16) -> anyhow::Result<Option<KvPublisher>> {
    let Some(endpoint) = &config.kv_events_endpoint else { return Ok(None) };
    let of_rank = |key: &str, address: &String| -> anyhow::Result<Address> {
        let parsed = address.parse::<Address>().map_err(anyhow::Error::msg);
        let above = parsed.and_then(|address| address.above(rank).map_err(anyhow::Error::msg));
        above.with_context(|| format!("server.{key} = {address} is of no use"))
    };
    let replay = config.kv_events_replay_endpoint.as_ref();
    let replay = replay.map(|address| of_rank("kv_events_replay_endpoint", address)).transpose()?;
    let options = KvPublisherOptions {
        replay_endpoint: replay,
        topic: config.kv_events_topic.clone(),
        rank,
        kept_bytes: usize::try_from(config.kv_events_max_memory).unwrap_or(usize::MAX),
        most_readers: usize::try_from(config.kv_events_max_readers.get()).unwrap_or(usize::MAX),
        ..KvPublisherOptions::new(of_rank("kv_events_endpoint", endpoint)?)
    };
    let publisher = KvPublisher::bind(options);
    publisher.map(Some).with_context(|| format!("can't publish KV events at {endpoint}"))
}

/// Publishes what becomes of an engine's prefix cache.
pub(crate) fn publish(publisher: Option<&KvPublisher>, engine: &mut Engine) {
    let Some(publisher) = publisher else { return };
    if !engine.options().prefix_cache {
        warn("there is no prefix cache, so there will be no KV events");
    }
    engine.observe_kv(publisher.observer());
}
