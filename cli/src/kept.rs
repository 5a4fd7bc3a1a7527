//! Whether all that a compile needs is in the cache when it ends.

use piecewise_backend::artifact::Digest;
use piecewise_backend::compiler::{Claim, Entry, Store, StoreError};
use piecewise_cache::Condition;
use piecewise_runtime::artifact_store::CacheStore;
use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// A cache that notes which entries it gives and gets.
pub(crate) struct NotingStore {
    pub store: CacheStore,
    noted: Mutex<BTreeSet<(&'static str, [u8; 32])>>,
}

impl NotingStore {
    pub(crate) fn new(store: CacheStore) -> Self {
        Self { store, noted: Mutex::default() }
    }

    fn note(&self, kind: &'static str, key: Digest) {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner).insert((kind, key.0));
    }

    /// Why the next start may have to compile something again; `None` where every entry is kept.
    /// A bad entry that was made anew is no reason, and neither is a remote level that is only read.
    pub(crate) fn what_is_lacking(&self, is_remote_written: bool) -> Option<String> {
        let cache = &self.store.cache;
        let events = cache.events();
        let keeps_nothing = |condition| match condition {
            Condition::Remote => is_remote_written,
            Condition::Read | Condition::Quarantine | Condition::Evict => false,
            _ => true,
        };
        let condition = events.conditions.iter().find(|report| keeps_nothing(report.condition));
        if let Some(report) = condition {
            return Some(report.message.clone());
        }
        let noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        let gone = noted.iter().filter(|(kind, key)| !cache.path_of(kind, key).exists()).count();
        (gone > 0).then(|| match events.evicted {
            0 => format!("{gone} of {} entries were removed meanwhile", noted.len()),
            _ => format!(
                "{gone} of {} entries were evicted again; raise cache.max_bytes or --cache-max-size",
                noted.len()
            ),
        })
    }
}

impl Store for NotingStore {
    fn get(&self, kind: &'static str, key: Digest) -> Result<Option<Vec<u8>>, StoreError> {
        let found = self.store.get(kind, key)?;
        if found.is_some() {
            self.note(kind, key);
        }
        Ok(found)
    }

    fn put(&self, entry: Entry<'_>) -> Result<(), StoreError> {
        self.note(entry.kind, entry.key);
        self.store.put(entry)
    }

    fn claim(&self, kind: &'static str, key: Digest) -> Claim {
        self.store.claim(kind, key)
    }
}
