//! The client of HTTP that commands ask other servers by.

use anyhow::Context;
use reqwest::Client;
use std::time::Duration;

/// How long a server may take to let a client in.
const CONNECT_TIME: Duration = Duration::from_secs(30);

/// A client that trusts whom this machine trusts, takes the proxies of the environment (`HTTPS_PROXY`), and
/// gives up where nothing comes for `patience`.
///
/// # Errors
/// When the machine has no certificates that anybody could be trusted by.
pub(crate) fn client(patience: Duration) -> anyhow::Result<Client> {
    // The first who asks decides for the process; all here ask for the same.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let agent = concat!("piecewise/", env!("CARGO_PKG_VERSION"));
    let client = Client::builder().user_agent(agent).connect_timeout(CONNECT_TIME);
    let client = client.read_timeout(patience).build();
    client.context("there is no client of HTTP")
}
