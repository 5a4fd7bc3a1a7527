//! Where a cache is, how large it may grow, and whom it trusts.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::fault::FaultHook;

/// The environment variable that names the cache directory.
pub const DIR_VARIABLE: &str = "PIECEWISE_CACHE_DIR";

/// What a process may do in the cache directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheAccess {
    /// Serve entries, keep new ones, and evict where room is short.
    #[default]
    ReadWrite,
    /// Serve entries and change nothing, not even the time of last use; [`put`](crate::Cache::put)
    /// keeps nothing and is no error.
    ReadOnly,
}

/// Whose entries are served. An entry can hold code for a device, so who can write to the cache
/// directory can change what this process computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// Folders of this user or of root that not everybody can write to; any other is refused. What
    /// is created is for this user alone.
    #[default]
    Own,
    /// Any folder. What is created has the permissions that the process's umask leaves, so that a
    /// group or a whole machine can share it.
    Shared,
}

/// A second level that many machines share: what the directory lacks is looked up here, and kept in
/// the directory.
#[derive(Clone, derive_more::Debug)]
pub struct RemoteOptions {
    /// Where: `s3://bucket/path`, `gs://`, `az://`, `https://`, `file:///path`, as the crate
    /// `object_store` reads it. Credentials come from the environment, by the names that it knows.
    #[debug("{:?}", without_secrets(url))]
    pub url: String,
    /// Whether who can write there may change what this process computes. If not, the remote level
    /// is used only with a [`checksum_key`](CacheOptions::checksum_key).
    pub is_trusted: bool,
    /// Whether what is kept in the directory is also kept here.
    pub is_written: bool,
    /// How long an answer may take to begin; each MiB may take another second. When it takes
    /// longer, the remote level is not asked again before a [`Pause`](crate::Pause) is over.
    pub timeout: Duration,
}

impl RemoteOptions {
    /// A level that is only read, not trusted, and answers within five seconds.
    pub fn new(url: impl Into<String>) -> Self {
        let timeout = Duration::from_secs(5);
        Self { url: url.into(), is_trusted: false, is_written: false, timeout }
    }
}

/// A URL without user, password, query and fragment, which may hold what authorizes.
pub fn without_secrets(url: &str) -> String {
    let place = url.split(['?', '#']).next().unwrap_or_default();
    let Some((scheme, rest)) = place.split_once("://") else { return place.to_owned() };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = authority.rsplit('@').next().unwrap_or_default();
    format!("{scheme}://{host}{path}")
}

/// How to open a [`Cache`](crate::Cache).
#[derive(Clone, derive_more::Debug)]
pub struct CacheOptions {
    /// The cache directory; created if it is not there and may be written.
    pub dir: PathBuf,
    /// The bytes that entries may take together. When a new entry exceeds it, the least recently
    /// used are evicted until a tenth is free. `None` is no bound.
    pub max_bytes: Option<u64>,
    /// The bytes of payload that one entry may have, to keep and to read; 1 GiB by default.
    pub max_entry_bytes: u64,
    /// What this process may do there.
    pub access: CacheAccess,
    /// Whose entries are served. With a [`checksum_key`](Self::checksum_key) any folder is as good:
    /// who does not know the key can't make an entry.
    pub trust: Trust,
    /// Makes the checksums keyed blake3, for directories that others can write to. Entries of
    /// another key or of none are kept apart and not seen.
    #[debug("{:?}", checksum_key.map(|_| "set"))]
    pub checksum_key: Option<[u8; 32]>,
    /// A second level behind the directory; needs the cargo feature `remote`.
    pub remote: Option<RemoteOptions>,
    /// What tests break; unset otherwise.
    pub fault: Option<FaultHook>,
    /// Tells what time it is for each [`Pause`](crate::Pause): [`Instant::now`] but in tests.
    pub clock: fn() -> Instant,
}

impl CacheOptions {
    /// A cache of this user in `dir`, for reading and writing, without bounds on its size.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            max_bytes: None,
            max_entry_bytes: 1 << 30,
            access: CacheAccess::ReadWrite,
            trust: Trust::Own,
            checksum_key: None,
            remote: None,
            fault: None,
            clock: Instant::now,
        }
    }
}

/// The cache directory when none is configured: `PIECEWISE_CACHE_DIR`, else `piecewise` in the
/// user's cache folder (`XDG_CACHE_HOME`; `~/.cache`, on macOS `~/Library/Caches`). `None` if the
/// environment names neither.
pub fn default_dir() -> Option<PathBuf> {
    default_dir_in(|name| std::env::var_os(name))
}

fn default_dir_in(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let path = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(dir) = path(DIR_VARIABLE) {
        return Some(dir);
    }
    // The XDG specification says that a relative path is to be ignored.
    let absolute = |name: &str| path(name).filter(|path| path.is_absolute());
    let home_caches = if cfg!(target_os = "macos") { "Library/Caches" } else { ".cache" };
    absolute("XDG_CACHE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(home_caches)))
        .map(|caches| caches.join("piecewise"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(variables: &[(&str, &str)], expected: Option<&str>) {
        let found = default_dir_in(|name| {
            let set = variables.iter().find(|(set, _)| *set == name);
            set.map(|(_, value)| OsString::from(value))
        });
        assert_eq!(found, expected.map(PathBuf::from));
    }

    #[test]
    fn the_variable_wins_over_the_users_cache_folder() {
        check(&[(DIR_VARIABLE, "c"), ("XDG_CACHE_HOME", "/x"), ("HOME", "/h")], Some("c"));
        check(
            &[(DIR_VARIABLE, ""), ("XDG_CACHE_HOME", "/x"), ("HOME", "/h")],
            Some("/x/piecewise"),
        );
        check(&[], None);
        check(&[("HOME", "relative")], None);
    }

    #[test]
    #[cfg(not(target_os = "macos"))]
    fn a_relative_cache_folder_is_ignored() {
        check(&[("XDG_CACHE_HOME", "x"), ("HOME", "/h")], Some("/h/.cache/piecewise"));
    }

    #[test]
    fn a_printed_configuration_tells_no_secret() {
        let mut options = CacheOptions::new("c");
        options.checksum_key = Some([42; 32]);
        options.remote = Some(RemoteOptions::new("https://a:42@b:1/c/d?sig=42#42"));
        let shown = format!("{options:?}");
        assert!(shown.contains("\"https://b:1/c/d\"") && !shown.contains("42"), "{shown}");
    }

    #[test]
    fn an_address_is_shown_without_what_authorizes() {
        for (url, shown) in [
            ("s3://bucket/path", "s3://bucket/path"),
            ("http://a@b:c@host", "http://host"),
            ("no address?x", "no address"),
            ("", ""),
        ] {
            assert_eq!(without_secrets(url), shown);
        }
    }
}
