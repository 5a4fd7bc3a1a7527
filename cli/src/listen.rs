//! Addresses to listen at, each by its name or its number.

use anyhow::{Context, bail};
use std::net::{SocketAddr, ToSocketAddrs};

/// The addresses that `place`, which a flag gave, stands for; one at least.
pub(crate) fn addresses(flag: &str, place: impl ToSocketAddrs) -> anyhow::Result<Vec<SocketAddr>> {
    let found = place.to_socket_addrs();
    let found = found.with_context(|| format!("{flag} is neither an address nor a name of one"))?;
    let found = Vec::from_iter(found);
    if found.is_empty() {
        bail!("{flag} is a name that stands for no address; give an address");
    }
    Ok(found)
}

/// Whether they are this machine's alone.
pub(crate) fn are_loopback(addresses: &[SocketAddr]) -> bool {
    addresses.iter().all(|address| address.ip().is_loopback())
}
