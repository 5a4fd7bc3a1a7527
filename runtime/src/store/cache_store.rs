//! The cache on disk as a store.

use super::checksum_key::checksum_key;
use super::error::NoCache;
use crate::config::CacheConfig;
use piecewise_backend::artifact::Digest;
use piecewise_backend::compiler::{Claim, Entry, Store, StoreError};
use piecewise_cache::{
    Cache, CacheAccess, CacheError, CacheOptions, RemoteOptions, Trust, default_dir,
};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// A cache that compilers use.
#[derive(Debug)]
pub struct CacheStore {
    /// The folder of entries, with its remote level where it has one.
    pub cache: Cache,
    used: Mutex<BTreeSet<(&'static str, [u8; 32])>>,
}

impl CacheStore {
    /// A store over a cache that is open.
    pub fn new(cache: Cache) -> Self {
        Self { cache, used: Mutex::default() }
    }

    /// The cache of a configuration: in its folder, else in PIECEWISE_CACHE_DIR, else in the
    /// user's cache folder.
    ///
    /// # Errors
    /// When it is switched off, there is no folder, or the checksum key can't be read.
    pub fn open(config: &CacheConfig) -> Result<Self, NoCache> {
        if !config.enabled {
            return Err(NoCache::Disabled);
        }
        let dir = cache_dir(config).ok_or(NoCache::NoFolder)?;
        let mut options = CacheOptions::new(dir);
        options.max_bytes = Some(config.max_bytes);
        options.access =
            if config.read_only { CacheAccess::ReadOnly } else { CacheAccess::ReadWrite };
        options.trust = trust(config);
        options.checksum_key = checksum_key(config)?;
        options.remote = config.remote_url.as_ref().map(|url| RemoteOptions {
            is_trusted: config.remote_trusted,
            is_written: config.remote_write,
            timeout: Duration::from_millis(config.remote_timeout_ms.get()),
            ..RemoteOptions::new(url.as_str())
        });
        Ok(Self::new(Cache::open(options)))
    }

    /// The entries that it gave or was given, by kind and key.
    pub fn used(&self) -> BTreeSet<(&'static str, [u8; 32])> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn note(&self, kind: &'static str, key: Digest) {
        self.used.lock().unwrap_or_else(PoisonError::into_inner).insert((kind, key.0));
    }
}

/// Whose files of a configuration's cache are used.
pub(super) fn trust(config: &CacheConfig) -> Trust {
    if config.shared { Trust::Shared } else { Trust::Own }
}

/// The folder of a configuration's cache.
pub fn cache_dir(config: &CacheConfig) -> Option<PathBuf> {
    config.dir.clone().or_else(default_dir)
}

impl Store for CacheStore {
    fn get(&self, kind: &'static str, key: Digest) -> Result<Option<Vec<u8>>, StoreError> {
        let found = self.cache.get(kind, &key.0).map_err(|e| failed("read", kind, key, &e))?;
        Ok(found.inspect(|_| self.note(kind, key)))
    }

    fn put(&self, Entry { kind, key, factors, bytes }: Entry<'_>) -> Result<(), StoreError> {
        self.note(kind, key);
        self.cache.put(kind, &key.0, factors, bytes).map_err(|e| failed("write", kind, key, &e))
    }

    fn claim(&self, kind: &'static str, key: Digest) -> Claim {
        match self.cache.claim(kind, &key.0) {
            piecewise_cache::Claim::Mine(guard) => Claim::Mine(Box::new(guard)),
            piecewise_cache::Claim::Made => Claim::Made,
            piecewise_cache::Claim::Taken => Claim::Taken,
        }
    }
}

fn failed(action: &'static str, kind: &'static str, key: Digest, error: &CacheError) -> StoreError {
    StoreError { action, kind, key, reason: error.to_string() }
}
