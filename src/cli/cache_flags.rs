//! Where compiled pieces are kept.

use super::amounts::parse_bytes;
use piecewise_backend::compiler::{NoStore, Store};
use piecewise_runtime::artifact_store::{CacheStore, NoCache};
use piecewise_runtime::config::{CacheConfig, ConfigLayers};
use std::path::PathBuf;

/// Flags of the compile cache.
#[derive(Debug, clap::Args)]
pub(crate) struct CacheFlags {
    /// The folder of the compile cache [default: PIECEWISE_CACHE_DIR, else `piecewise` in the
    /// user's cache folder].
    #[arg(long, value_name = "DIR", conflicts_with = "no_cache")]
    pub cache_dir: Option<PathBuf>,
    /// Compile everything, and keep nothing.
    #[arg(long)]
    pub no_cache: bool,
    /// Use the compile cache without changing it.
    #[arg(long, conflicts_with = "no_cache")]
    pub cache_read_only: bool,
    /// Bytes that the compile cache may take, also with KiB, MiB or GiB; the least recently used
    /// entries go first [default: 8GiB].
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub cache_max_size: Option<u64>,
}

impl CacheFlags {
    /// Puts the flags on top of a configuration.
    pub(crate) fn over(&self, mut layers: ConfigLayers) -> anyhow::Result<ConfigLayers> {
        if let Some(dir) = &self.cache_dir {
            let Some(dir) = dir.to_str() else {
                anyhow::bail!("--cache-dir {} is not UTF-8", dir.display())
            };
            layers = layers.flag("cache.dir", dir, "--cache-dir")?;
        }
        if self.no_cache {
            layers = layers.flag("cache.enabled", false, "--no-cache")?;
        }
        if self.cache_read_only {
            layers = layers.flag("cache.read_only", true, "--cache-read-only")?;
        }
        if let Some(bytes) = self.cache_max_size {
            let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
            layers = layers.flag("cache.max_bytes", bytes, "--cache-max-size")?;
        }
        Ok(layers)
    }
}

/// The store of a configuration, for commands that compile on the way to something else: without a
/// cache they compile everything.
pub(crate) fn open_store(config: &CacheConfig) -> Box<dyn Store> {
    match CacheStore::open(config) {
        Ok(store) => Box::new(store),
        Err(NoCache::Disabled) => Box::new(NoStore),
        Err(reason) => {
            super::warn(&format!("compiling without a cache: {reason}"));
            Box::new(NoStore)
        }
    }
}
