//! Tuning records for as long as a measurement lasts.

use piecewise_backend::artifact::Digest;
use piecewise_backend::compiler::{Store, StoreError};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// What an entry is kept under.
type Key = (&'static str, [u8; 32]);

/// Entries in memory, so that equal problems are tuned once.
#[derive(Debug, Default)]
pub(super) struct MemoryStore {
    entries: Mutex<BTreeMap<Key, Vec<u8>>>,
}

impl Store for MemoryStore {
    fn get(&self, kind: &'static str, key: Digest) -> Result<Option<Vec<u8>>, StoreError> {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(entries.get(&(kind, key.0)).cloned())
    }

    fn put(&self, kind: &'static str, key: Digest, bytes: &[u8]) -> Result<(), StoreError> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.insert((kind, key.0), bytes.to_vec());
        Ok(())
    }
}
