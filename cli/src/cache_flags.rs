//! Where compiled pieces are kept.

use super::amounts::parse_bytes;
use piecewise_runtime::config::ConfigLayers;
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
    pub(crate) fn over(&self, mut layers: ConfigLayers) -> anyhow::Result<ConfigLayers> {
        let paths = [
            ("cache.dir", &self.cache_dir, "--cache-dir"),
            ("cache.checksum_key_file", &self.cache_checksum_key_file, "--cache-checksum-key-file"),
        ];
        for (key, path, flag) in paths {
            let Some(path) = path else { continue };
            let Some(text) = path.to_str() else {
                anyhow::bail!("{flag} {} is not UTF-8", path.display())
            };
            layers = layers.flag(key, text, flag)?;
        }
        if self.no_cache {
            layers = layers.flag("cache.enabled", false, "--no-cache")?;
        }
        let switches = [
            ("cache.read_only", self.cache_read_only, "--cache-read-only"),
            ("cache.remote_write", self.cache_remote_write, "--cache-remote-write"),
            ("cache.remote_trusted", self.cache_remote_trusted, "--cache-remote-trusted"),
        ];
        for (key, _, flag) in switches.into_iter().filter(|(_, is_given, _)| *is_given) {
            layers = layers.flag(key, true, flag)?;
        }
        let numbers = [
            ("cache.max_bytes", self.cache_max_size, "--cache-max-size"),
            ("cache.remote_timeout_ms", self.cache_remote_timeout_ms, "--cache-remote-timeout-ms"),
        ];
        for (key, number, flag) in numbers {
            let Some(number) = number else { continue };
            layers = layers.flag(key, i64::try_from(number).unwrap_or(i64::MAX), flag)?;
        }
        if let Some(url) = &self.cache_remote {
            layers = layers.flag("cache.remote_url", url.as_str(), "--cache-remote")?;
        }
        Ok(layers)
    }
}
