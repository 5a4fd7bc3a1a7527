//! Where compiled pieces are kept.

use super::amounts::parse_bytes;
use super::set_keys::{put, put_by, turn_on};
use piecewise_runtime::config::ConfigLayers;
use std::path::PathBuf;

/// Flags of the compile cache.
#[derive(Debug, clap::Args)]
pub(crate) struct CacheFlags {
    /// The folder of the compile cache [default: PIECEWISE_CACHE_DIR, else `piecewise` in the
    /// user's cache folder].
    #[arg(long, value_name = "DIR", conflicts_with = "no_cache")]
    pub cache_dir: Option<PathBuf>,
    /// The folder of kernel packs, which have kernels that the cache lacks [default:
    /// PIECEWISE_PACK_DIR, else `packs` beside the program and `share/piecewise/packs` of the folder
    /// above it].
    #[arg(long, value_name = "DIR")]
    pub pack_dir: Option<PathBuf>,
    /// Compile everything, and keep nothing.
    #[arg(long)]
    pub no_cache: bool,
    /// Use the compile cache without changing it.
    #[arg(long, conflicts_with = "no_cache")]
    pub cache_read_only: bool,
    /// Trust a folder of the compile cache that others can write to: who can may change what is
    /// computed.
    #[arg(long, conflicts_with = "no_cache")]
    pub cache_shared: bool,
    /// Bytes that the compile cache may take, also with KiB, MiB or GiB; the least recently used
    /// entries go first [default: 8GiB].
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub cache_max_size: Option<u64>,
    /// The file of the key that entries are checked with: 64 hexadecimal digits [default:
    /// PIECEWISE_CACHE_CHECKSUM_KEY, else none].
    #[arg(long, value_name = "FILE")]
    pub cache_checksum_key_file: Option<PathBuf>,
    /// The object store that is asked for what the compile cache lacks, such as s3://bucket/path;
    /// credentials come from the environment.
    #[arg(long, value_name = "URL", conflicts_with = "no_cache")]
    pub cache_remote: Option<String>,
    /// Keep what is compiled in the object store, too.
    #[arg(long)]
    pub cache_remote_write: bool,
    /// Trust the object store without a checksum key: who can write there can change what is
    /// computed.
    #[arg(long)]
    pub cache_remote_trusted: bool,
    /// Milliseconds within which the object store begins to answer [default: 5000].
    #[arg(long, value_name = "MS")]
    pub cache_remote_timeout_ms: Option<u64>,
}

impl CacheFlags {
    /// Puts the flags on top of a configuration.
    pub(crate) fn over(&self, layers: ConfigLayers) -> anyhow::Result<ConfigLayers> {
        if let Some(folder) = self.pack_dir.as_ref().filter(|folder| !folder.is_dir()) {
            anyhow::bail!("--pack-dir {}: there is no such folder", folder.display());
        }
        let layers = put(layers, "cache.dir", self.cache_dir.as_ref())?;
        let layers = put(layers, "cache.pack_dir", self.pack_dir.as_ref())?;
        let file = self.cache_checksum_key_file.as_ref();
        let layers = put(layers, "cache.checksum_key_file", file)?;
        let enabled = self.no_cache.then_some(false);
        let layers = put_by(layers, "--no-cache", "cache.enabled", enabled)?;
        let layers = turn_on(layers, "cache.read_only", self.cache_read_only)?;
        let layers = turn_on(layers, "cache.shared", self.cache_shared)?;
        let layers = turn_on(layers, "cache.remote_write", self.cache_remote_write)?;
        let layers = turn_on(layers, "cache.remote_trusted", self.cache_remote_trusted)?;
        let layers = put_by(layers, "--cache-max-size", "cache.max_bytes", self.cache_max_size)?;
        let layers = put(layers, "cache.remote_timeout_ms", self.cache_remote_timeout_ms)?;
        put_by(layers, "--cache-remote", "cache.remote_url", self.cache_remote.as_ref())
    }
}
