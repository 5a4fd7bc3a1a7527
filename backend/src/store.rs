//! Stores: where compilers keep what they have made, by kind and digest.

use crate::artifact::Digest;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// What a store could not do; the compiler goes on without it.
#[derive(Debug, thiserror::Error)]
#[error("the store failed to {action} {kind} {key}: {reason}")]
pub struct StoreError {
    /// `read` or `write`.
    pub action: &'static str,
    /// The kind of entry.
    pub kind: &'static str,
    /// The entry's key.
    pub key: Digest,
    /// What went wrong.
    pub reason: String,
}

/// Images, lowered pieces and tuning records by digest. Used by several threads at once.
pub trait Store: Send + Sync {
    /// The bytes of an entry, if the store has it.
    ///
    /// # Errors
    /// When the store can't tell.
    fn get(&self, kind: &'static str, key: Digest) -> Result<Option<Vec<u8>>, StoreError>;

    /// Keeps an entry. `factors` are names with values: what its key was made of and where it came
    /// from, for people and to explain a miss.
    ///
    /// # Errors
    /// When the entry could not be kept.
    fn put(
        &self,
        kind: &'static str,
        key: Digest,
        factors: &[(&str, &str)],
        bytes: &[u8],
    ) -> Result<(), StoreError>;
}

/// A store that keeps nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoStore;

impl Store for NoStore {
    fn get(&self, _: &'static str, _: Digest) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(None)
    }
    fn put(
        &self,
        _: &'static str,
        _: Digest,
        _: &[(&str, &str)],
        _: &[u8],
    ) -> Result<(), StoreError> {
        Ok(())
    }
}

/// An entry of a [`MemoryStore`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemoryEntry {
    /// Names with values.
    pub factors: Vec<(String, String)>,
    /// The payload.
    pub bytes: Vec<u8>,
}

/// A store for as long as it lives.
#[derive(Debug, Default)]
pub struct MemoryStore {
    entries: Mutex<BTreeMap<(&'static str, Digest), MemoryEntry>>,
}

impl MemoryStore {
    /// A store without entries.
    pub const fn new() -> Self {
        Self { entries: Mutex::new(BTreeMap::new()) }
    }

    /// Every entry by kind and key.
    pub fn entries(&self) -> BTreeMap<(&'static str, Digest), MemoryEntry> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Store for MemoryStore {
    fn get(&self, kind: &'static str, key: Digest) -> Result<Option<Vec<u8>>, StoreError> {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(entries.get(&(kind, key)).map(|entry| entry.bytes.clone()))
    }

    fn put(
        &self,
        kind: &'static str,
        key: Digest,
        factors: &[(&str, &str)],
        bytes: &[u8],
    ) -> Result<(), StoreError> {
        let factors = factors.iter().map(|&(k, v)| (k.to_owned(), v.to_owned())).collect();
        let entry = MemoryEntry { factors, bytes: bytes.to_vec() };
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).insert((kind, key), entry);
        Ok(())
    }
}
