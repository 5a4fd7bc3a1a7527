//! Where a cache is, how large it may grow, and whom it trusts.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use crate::fault::FaultHook;

/// The environment variable that names the cache directory.
pub const DIR_VARIABLE: &str = "PIECEWISE_CACHE_DIR";

/// What a process may do in the cache directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// Serve and keep entries.
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

/// How to open a [`Cache`](crate::Cache).
#[derive(Clone)]
pub struct CacheOptions {
    /// The cache directory; created if it is not there and may be written.
    pub dir: PathBuf,
    /// The bytes that entries may take together. When a new entry exceeds it, the least recently
    /// used are evicted until a tenth is free. `None` is no bound.
    pub max_bytes: Option<u64>,
    /// The bytes of payload that one entry may have, to keep and to read; 1 GiB by default.
    pub max_entry_bytes: u64,
    /// What this process may do there.
    pub access: Access,
    /// Whose entries are served. With a [`checksum_key`](Self::checksum_key) any folder is as good:
    /// who does not know the key can't make an entry.
    pub trust: Trust,
    /// Makes the checksums keyed blake3, for directories that others can write to. Entries of
    /// another key or of none are kept apart and not seen.
    pub checksum_key: Option<[u8; 32]>,
    /// What tests break; unset otherwise.
    pub fault: Option<FaultHook>,
}

impl CacheOptions {
    /// A cache of this user in `dir`, for reading and writing, without bounds on its size.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            max_bytes: None,
            max_entry_bytes: 1 << 30,
            access: Access::ReadWrite,
            trust: Trust::Own,
            checksum_key: None,
            fault: None,
        }
    }
}

impl fmt::Debug for CacheOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CacheOptions")
            .field("dir", &self.dir)
            .field("max_bytes", &self.max_bytes)
            .field("max_entry_bytes", &self.max_entry_bytes)
            .field("access", &self.access)
            .field("trust", &self.trust)
            .field("checksum_key", &self.checksum_key.map(|_| "set"))
            .field("fault", &self.fault)
            .finish()
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
    fn a_printed_configuration_does_not_tell_the_key() {
        let mut options = CacheOptions::new("c");
        options.checksum_key = Some([42; 32]);
        assert!(!format!("{options:?}").contains("42"), "{options:?}");
    }
}
