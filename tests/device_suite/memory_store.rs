//! A store in memory, so that the many models of a run compile each kernel once.

use piecewise_backend::artifact::Digest;
use piecewise_backend::compiler::{Store, StoreError};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

type Entries = BTreeMap<(&'static str, Digest), Vec<u8>>;

/// Entries by kind and digest.
pub(crate) struct MemoryStore(Mutex<Entries>);

impl MemoryStore {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for MemoryStore {
    fn get(&self, kind: &'static str, key: Digest) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.entries().get(&(kind, key)).cloned())
    }

    fn put(&self, kind: &'static str, key: Digest, bytes: &[u8]) -> Result<(), StoreError> {
        self.entries().insert((kind, key), bytes.to_vec());
        Ok(())
    }
}
