//! Why there is no cache.

/// Why a configuration gives no cache.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoCache {
    /// The configuration switches it off.
    #[error("the cache is switched off (cache.enabled = false or --no-cache)")]
    Disabled,
    /// Nobody says where it is.
    #[error(
        "there is no folder for the cache: set cache.dir, --cache-dir, PIECEWISE_CACHE_DIR or HOME"
    )]
    NoFolder,
    /// There is to be a checksum key, and it can't be read. Without it nothing may be trusted.
    #[error("the checksum key of the cache can't be used: {place}: {reason}")]
    ChecksumKey {
        /// The file or the environment variable.
        place: String,
        /// What is wrong, without the key.
        reason: String,
    },
}
