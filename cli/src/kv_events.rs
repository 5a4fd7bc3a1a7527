//! Flags of the commands that publish KV events.

use super::logs::warn;
use anyhow::Context;
use piecewise_runtime::engine::Engine;
use piecewise_worker::Address;
use piecewise_worker::kv_events::{KvPublisher, KvPublisherOptions};
use std::num::NonZeroUsize;

/// Where KV events go.
#[derive(Debug, clap::Args)]
pub(crate) struct KvEventArgs {
    /// Publish what the prefix cache holds, as vLLM does, for routers that send requests to where
    /// their prefix is; of rank N, so many ports above. For example tcp://*:5557.
    #[arg(long, value_name = "tcp://HOST:PORT")]
    kv_events_endpoint: Option<Address>,
    /// Where those who missed some of it ask again; of rank N, so many ports above.
    #[arg(long, value_name = "tcp://HOST:PORT", requires = "kv_events_endpoint")]
    kv_events_replay_endpoint: Option<Address>,
    /// What each message begins with.
    #[arg(long, value_name = "TEXT", default_value = "", requires = "kv_events_endpoint")]
    kv_events_topic: String,
    /// Let so many read KV events at a time, of both endpoints; a further one is sent away.
    #[arg(
        long, value_name = "N", default_value_t = NonZeroUsize::new(64).unwrap_or(NonZeroUsize::MIN),
        requires = "kv_events_endpoint"
    )]
    kv_events_max_readers: NonZeroUsize,
}

impl KvEventArgs {
    pub(crate) fn is_asked_for(&self) -> bool {
        self.kv_events_endpoint.is_some()
    }

    /// Listens, where that is asked for; before a model is loaded, so that a port that is taken is
    /// known at once.
    pub(crate) fn bind(&self, rank: u16) -> anyhow::Result<Option<KvPublisher>> {
        let Some(endpoint) = &self.kv_events_endpoint else { return Ok(None) };
        let of_rank = |address: &Address| address.above(rank).map_err(anyhow::Error::msg);
        let options = KvPublisherOptions {
            replay_endpoint: self.kv_events_replay_endpoint.as_ref().map(of_rank).transpose()?,
            topic: self.kv_events_topic.clone(),
            rank,
            most_readers: self.kv_events_max_readers.get(),
            ..KvPublisherOptions::new(of_rank(endpoint)?)
        };
        let publisher = KvPublisher::bind(options);
        publisher.map(Some).with_context(|| format!("can't publish KV events at {endpoint}"))
    }
}

/// Publishes what becomes of an engine's prefix cache.
pub(crate) fn publish(publisher: Option<&KvPublisher>, engine: &mut Engine) {
    let Some(publisher) = publisher else { return };
    if !engine.options().prefix_cache {
        warn("there is no prefix cache, so there will be no KV events");
    }
    engine.observe_kv(publisher.observer());
}
