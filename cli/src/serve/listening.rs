//! A server that listens, by the table `[server]` of the configuration.

use super::super::listen::{addresses, are_loopback};
use super::super::logs::warn;
use super::super::print::announce;
use anyhow::{Context, anyhow, bail};
use piecewise_runtime::config::{SchedulingPolicy, ServerConfig};
use piecewise_server::{AllowedOrigins, ApiKeys, Limits, Server, ServerOptions, Tls};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

/// A number of the configuration as this machine counts.
pub(super) fn number(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

/// A server that listens, and what its metrics call the model; `name` is what the model calls itself.
pub(super) fn listen(config: &ServerConfig, name: String) -> anyhow::Result<(Server, String)> {
    let ServerConfig { host, port, admin, .. } = config;
    let keys = match &config.api_key_file {
        Some(file) => ApiKeys::read(file)
            .with_context(|| format!("can't take keys from {}", file.display()))?,
        None => ApiKeys::default(),
    };
    let unbracketed = host.trim_start_matches('[').trim_end_matches(']');
    let addresses = addresses(&format!("--host {host}"), (unbracketed, *port))?;
    if !are_loopback(&addresses) && config.api_key_file.is_none() {
        if *admin {
            bail!(
                "--admin lets whoever reaches this machine put the engine to sleep; give \
                 --api-key-file, or listen at 127.0.0.1"
            );
        }
        warn("whoever reaches this machine may ask; --api-key-file lets in who has a key");
    }
    let mut model_names = config.served_model_name.clone();
    if model_names.is_empty() {
        model_names.push(name);
    }
    let model_name = model_names[0].clone();
    let origins = AllowedOrigins::new(config.allowed_origins.iter().map(String::as_str))
        .map_err(|error| anyhow!("--allowed-origins: {error}"))?;
    let tls = match (&config.tls_cert, &config.tls_key) {
        (Some(cert), Some(key)) => {
            let tls = Tls::read(cert, key);
            Some(Arc::new(tls.map_err(|why| anyhow!("--tls-cert, --tls-key: {why}"))?))
        }
        _ => None,
    };
    let scheme = if tls.is_some() { "https" } else { "http" };
    let threads = NonZeroUsize::try_from(config.http_threads)?;
    let (limits, admin) = (limits(config), *admin);
    let options =
        ServerOptions { addresses, model_names, keys, origins, limits, tls, admin, threads };
    let server = Server::bind(options)
        .with_context(|| format!("can't listen at {host}:{port}; try --port"))?;
    announce(&format!("listening at {scheme}://{}", server.address()));
    Ok((server, model_name))
}

fn limits(config: &ServerConfig) -> Limits {
    let patience = Duration::from_secs(config.client_timeout.get());
    let readers = config.kv_events_max_readers.get();
    Limits {
        head_bytes: number(config.max_head),
        body_bytes: number(config.max_body),
        body_values: number(config.max_body_values.get()),
        bodies_bytes: number(config.max_body_memory),
        waiting_texts: number(config.max_waiting_texts),
        choices: number(config.max_choices.get()),
        logprobs: number(config.max_logprobs),
        stop_ids: number(config.max_stop_ids),
        stop_texts: config.max_stop_texts.get().into(),
        texts: number(config.max_texts.get()),
        ignores_unknown_fields: config.ignore_unknown_fields,
        priorities: config.scheduling_policy == SchedulingPolicy::Priority,
        head_time: patience,
        body_time: patience,
        write_time: patience,
        connections: number(config.max_connections.get()),
        connections_of_address: config.max_connections_per_address.map(|n| number(n.get())),
        probe_connections: number(config.max_probe_connections),
        kv_readers: config.kv_events_endpoint.as_ref().map_or(0, |_| number(readers)),
        request_time: config.request_timeout.map(|seconds| Duration::from_secs(seconds.get())),
        ..Limits::default()
    }
}
