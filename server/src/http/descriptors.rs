//! Descriptors of the process: a connection is one, and systems give few unless they are asked.

use super::places::KEPT;
use rustix::process::{Resource, getrlimit, setrlimit};

/// Descriptors for what is no connection: files, the model, the cache.
const OTHERS: u64 = 64;
/// And for connections that are there beyond the bound: probes, and those that were told to leave.
const BEYOND: u64 = 2 * KEPT as u64;

/// Asks for as many descriptors as the process may have.
pub(super) fn raise() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!("the limit on open files stays as it is: {error}");
    }
}

/// So many connections, or as many as there are descriptors for.
pub(super) fn bounded(connections: usize) -> usize {
    let Some(limit) = getrlimit(Resource::Nofile).current else { return connections };
    let most = usize::try_from(limit.saturating_sub(OTHERS + BEYOND).max(1)).unwrap_or(usize::MAX);
    if most < connections {
        tracing::warn!(
            "{most} connections at a time instead of {connections}: the limit on open files is \
             {limit} (`ulimit -Hn`)"
        );
    }
    most.min(connections)
}
