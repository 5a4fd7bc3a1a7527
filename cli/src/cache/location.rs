//! Which cache a command works on.

use crate::model_args::ConfigSource;
use anyhow::Context;
use piecewise_cache::{Cache, CacheAccess};
use piecewise_runtime::config::CacheConfig;
use piecewise_runtime::store::{CacheStore, NoCache, cache_dir};
use std::path::PathBuf;

/// Which cache a command works on.
#[derive(Debug, clap::Args)]
pub(crate) struct Location {
    #[command(flatten)]
    source: ConfigSource,
    /// The folder of the cache [default: PIECEWISE_CACHE_DIR, else `piecewise` in the user's cache
    /// folder].
    #[arg(long, value_name = "DIR")]
    cache_dir: Option<PathBuf>,
    /// Trust a folder that others can write to.
    #[arg(long)]
    cache_shared: bool,
    /// The file of the key that entries are checked with [default: PIECEWISE_CACHE_CHECKSUM_KEY,
    /// else none].
    #[arg(long, value_name = "FILE")]
    cache_checksum_key_file: Option<PathBuf>,
}

impl Location {
    fn configured(&self) -> anyhow::Result<CacheConfig> {
        let configured = self.source.layers()?.finish()?;
        let mut config = configured.config.cache;
        // The cache is there whether or not commands that compile use it.
        config.enabled = true;
        config.dir = self.cache_dir.clone().or(config.dir);
        config.shared |= self.cache_shared;
        let key_file = self.cache_checksum_key_file.clone();
        config.checksum_key_file = key_file.or(config.checksum_key_file);
        // These commands look after the folder alone.
        config.remote_url = None;
        Ok(config)
    }

    /// Fails where the configuration has no folder and the user has none for caches.
    pub(crate) fn dir(&self) -> anyhow::Result<PathBuf> {
        cache_dir(&self.configured()?).context(NoCache::NoFolder)
    }

    /// How many bytes it may take by the configuration.
    pub(crate) fn max_bytes(&self) -> anyhow::Result<u64> {
        Ok(self.configured()?.max_bytes)
    }

    /// The cache, which the configuration may let nobody change.
    pub(crate) fn open(&self, access: CacheAccess) -> anyhow::Result<Cache> {
        let mut config = self.configured()?;
        config.read_only |= access == CacheAccess::ReadOnly;
        Ok(CacheStore::open(&config)?.cache)
    }
}
