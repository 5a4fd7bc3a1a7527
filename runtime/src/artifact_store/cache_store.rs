//! The cache on disk as a store.

use crate::config::CacheConfig;
use piecewise_backend::artifact::Digest;
use piecewise_backend::compiler::{Store, StoreError};
use piecewise_cache::{Access, Cache, CacheError, CacheOptions, Trust, default_dir};
use std::path::PathBuf;

/// Why a configuration gives no cache.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoCache {
    /// It is switched off.
    #[error("the cache is switched off (cache.enabled = false or --no-cache)")]
    Disabled,
    /// Nobody says where it is.
    #[error(
        "there is no folder for the cache: set cache.dir, --cache-dir, PIECEWISE_CACHE_DIR or HOME"
    )]
    NoFolder,
}

/// A cache that compilers use.
#[derive(Debug)]
pub struct CacheStore {
    /// The cache.
    pub cache: Cache,
}

impl CacheStore {
    /// The cache of a configuration: in its folder, else in PIECEWISE_CACHE_DIR, else in the
    /// user's cache folder.
    ///
    /// # Errors
    /// When it is switched off or there is no folder.
    pub fn open(config: &CacheConfig) -> Result<Self, NoCache> {
        if !config.enabled {
            return Err(NoCache::Disabled);
        }
        let dir = cache_dir(config).ok_or(NoCache::NoFolder)?;
        let mut options = CacheOptions::new(dir);
        options.max_bytes = Some(config.max_bytes);
        options.access = if config.read_only { Access::ReadOnly } else { Access::ReadWrite };
        options.trust = if config.shared { Trust::Shared } else { Trust::Own };
        Ok(Self { cache: Cache::open(options) })
    }
}

/// The folder of a configuration's cache.
pub fn cache_dir(config: &CacheConfig) -> Option<PathBuf> {
    config.dir.clone().or_else(default_dir)
}

impl Store for CacheStore {
    fn get(&self, kind: &'static str, key: Digest) -> Result<Option<Vec<u8>>, StoreError> {
        self.cache.get(kind, &key.0).map_err(|e| failed("read", kind, key, &e))
    }

    fn put(
        &self,
        kind: &'static str,
        key: Digest,
        factors: &[(&str, &str)],
        bytes: &[u8],
    ) -> Result<(), StoreError> {
        self.cache.put(kind, &key.0, factors, bytes).map_err(|e| failed("write", kind, key, &e))
    }
}

fn failed(action: &'static str, kind: &'static str, key: Digest, error: &CacheError) -> StoreError {
    StoreError { action, kind, key, reason: error.to_string() }
}
