//! Stores: where compilers keep what they have made, by kind and digest.

use crate::artifact::Digest;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What a store could not do; the compiler goes on without it.
#[derive(Debug, thiserror::Error)]
#[error("the store failed to {action} {kind} {key}: {reason}")]
pub struct StoreError {
    /// `read` or `write`.
    pub action: &'static str,
    /// The kind of entry, as [`Entry::kind`] has it.
    pub kind: &'static str,
    /// The key that was looked for or to be kept.
    pub key: Digest,
    /// What went wrong, in words.
    pub reason: String,
}

/// What a store is to keep.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// Its kind: entries of two kinds may have one key.
    pub kind: &'static str,
    /// A digest of all that its bytes are a function of.
    pub key: Digest,
    /// Names with values: what the key was made of and where the entry came from, for people and to
    /// explain a miss.
    pub factors: &'a [(&'a str, &'a str)],
    /// What is kept, which comes back byte for byte.
    pub bytes: &'a [u8],
}

/// Images, lowered pieces and tuning records by digest. Used by several threads at once.
pub trait Store: Send + Sync {
    /// The bytes of an entry, if the store has it.
    ///
    /// # Errors
    /// When the store can't tell.
    fn get(&self, kind: &'static str, key: Digest) -> Result<Option<Vec<u8>>, StoreError>;

    /// Keeps an entry.
    ///
    /// # Errors
    /// When the entry could not be kept.
    fn put(&self, entry: Entry<'_>) -> Result<(), StoreError>;

    /// Whether an entry that it gave came with the program, and was not made by a start.
    fn is_of_pack(&self, _kind: &'static str, _key: Digest) -> bool {
        false
    }

    /// Asks for the right to make an entry that the store did not give, so that of all who share the
    /// store one makes it.
    fn claim(&self, _kind: &'static str, _key: Digest) -> Claim {
        Claim::Mine(Box::new(()))
    }
}

/// What becomes of a wish to make an entry.
#[derive(Debug)]
pub enum Claim {
    /// It is granted, until this is dropped: others wait for the entry meanwhile.
    Mine(Box<dyn std::fmt::Debug + Send>),
    /// Another has made the entry by now.
    Made,
    /// Another is making the entry; ask again later.
    Taken,
}

/// How long one who makes an entry is waited for; then it is made twice.
const PATIENCE: Duration = Duration::from_secs(120);
const GLANCE: Duration = Duration::from_millis(5);

/// As [`Store::claim`], and waits while another makes the entry: [`Claim::Made`], or
/// [`Claim::Mine`] where the other one failed or takes too long.
pub fn claim_or_wait(store: &dyn Store, kind: &'static str, key: Digest) -> Claim {
    let started = Instant::now();
    loop {
        match store.claim(kind, key) {
            Claim::Taken if started.elapsed() < PATIENCE => std::thread::sleep(GLANCE),
            Claim::Taken => {
                let waited = PATIENCE.as_secs();
                tracing::warn!("{kind} {key}: another has not made it within {waited} s");
                return Claim::Mine(Box::new(()));
            }
            claim => return claim,
        }
    }
}

/// A store that keeps nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoStore;

impl Store for NoStore {
    fn get(&self, _: &'static str, _: Digest) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(None)
    }
    fn put(&self, _: Entry<'_>) -> Result<(), StoreError> {
        Ok(())
    }
}

/// An entry of a [`MemoryStore`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemoryEntry {
    /// Names with values, as [`Entry::factors`] had them.
    pub factors: Vec<(String, String)>,
    /// What was kept, byte for byte.
    pub bytes: Vec<u8>,
}

/// A store for as long as it lives.
#[derive(Debug, Default)]
pub struct MemoryStore {
    entries: Mutex<BTreeMap<(&'static str, Digest), MemoryEntry>>,
}

impl MemoryStore {
    /// Empty, and of this process alone.
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

    fn put(&self, Entry { kind, key, factors, bytes }: Entry<'_>) -> Result<(), StoreError> {
        let factors = factors.iter().map(|&(k, v)| (k.to_owned(), v.to_owned())).collect();
        let entry = MemoryEntry { factors, bytes: bytes.to_vec() };
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).insert((kind, key), entry);
        Ok(())
    }
}
