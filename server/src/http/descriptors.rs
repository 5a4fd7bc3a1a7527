//! Descriptors of the process: a connection is one, and systems give few unless they are asked.

use rustix::process::{Resource, getrlimit, setrlimit};

/// Descriptors for what is no connection: files, the model, the cache.
const OTHERS: u64 = 64;
/// Each who reads KV events has a stream to read from, one to write to, and one to be cut off by.
const OF_READER: u64 = 3;

/// Asks for as many descriptors as the process may have.
pub(super) fn raise() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!("the limit on open files stays as it is: {error}");
    }
}

/// So many connections, or as many as there are descriptors for beside those of `readers` and as many as
/// are `kept` for probes, which take as many again until they have left.
pub(super) fn bounded(connections: usize, kept: usize, readers: usize) -> usize {
    let Some(limit) = getrlimit(Resource::Nofile).current else { return connections };
    let most = fit(limit, kept, readers);
    if most < connections {
        tracing::warn!(
            "{most} connections at a time instead of {connections}: the limit on open files is \
             {limit} (`ulimit -Hn`)"
        );
    }
    most.min(connections)
}

/// The connections that fit into a limit on descriptors.
fn fit(limit: u64, kept: usize, readers: usize) -> usize {
    let beyond = OTHERS.saturating_add((kept as u64).saturating_mul(2));
    let others = beyond.saturating_add(OF_READER.saturating_mul(readers as u64));
    usize::try_from(limit.saturating_sub(others).max(1)).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_reads_kv_events_leaves_fewer_connections() {
        let alone = fit(1024, 32, 0);
        assert_eq!(alone as u64, 1024 - OTHERS - 64);
        assert_eq!(alone - fit(1024, 32, 100), 300, "three descriptors each");
        assert_eq!(fit(1024, 0, 0) - alone, 64, "those of probes and of who leaves");
        assert_eq!((fit(1024, 32, usize::MAX), fit(1024, usize::MAX, 0)), (1, 1));
        assert_eq!(fit(0, 0, 0), 1, "one can ask all the same");
    }
}
