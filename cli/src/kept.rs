//! Whether all that a compile needs is in the cache when it ends.

use piecewise_cache::Condition;
use piecewise_runtime::store::CacheStore;

/// Why the next start may have to compile something again; `None` where every entry is kept.
/// A bad entry that was made anew is no reason, and neither is a remote level that is only read.
pub(crate) fn what_is_lacking(store: &CacheStore, is_remote_written: bool) -> Option<String> {
    let cache = &store.cache;
    let events = cache.events();
    let keeps_nothing = |condition| match condition {
        Condition::Remote | Condition::RemoteWrite => is_remote_written,
        Condition::Read
        | Condition::RemoteRead
        | Condition::RemoteObject
        | Condition::Quarantine
        | Condition::Evict => false,
        _ => true,
    };
    let condition = events.conditions.iter().find(|report| keeps_nothing(report.condition));
    if let Some(report) = condition {
        return Some(report.message.clone());
    }
    let used = store.used();
    let gone = used.iter().filter(|(kind, key)| !cache.path_of(kind, key).exists()).count();
    (gone > 0).then(|| match events.evicted {
        0 => format!("{gone} of {} entries were removed meanwhile", used.len()),
        _ => format!(
            "{gone} of {} entries were evicted again; raise cache.max_bytes or --cache-max-size",
            used.len()
        ),
    })
}
