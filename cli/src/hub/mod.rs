//! Models by their name at the hub: `Qwen/Qwen3-0.6B` is a folder of the hub's cache, which is filled where it
//! lacks files. The cache is the one of the hub's own programs, so that both find what either brought.

mod cached;
mod digest;
mod download;
mod listing;
mod name;

use self::cached::HubCache;
use self::download::Hub;
use self::name::RepoName;
use anyhow::bail;
use std::path::{Path, PathBuf};

/// Where a model is: the folder itself, or that of a name in the hub's cache, downloaded where it is missing.
///
/// # Errors
/// When a name is not in the cache and can't be downloaded.
pub(crate) fn folder_of(model: &Path) -> anyhow::Result<PathBuf> {
    let is_path = model.exists()
        || model.parent().is_some_and(|parent| {
            // In a folder that is there, a name is of something in it.
            !parent.as_os_str().is_empty() && parent.is_dir()
        });
    let name = model.to_str().filter(|_| !is_path).and_then(RepoName::parse);
    let Some(name) = name else { return Ok(model.to_owned()) };
    let cache = HubCache::of_environment()?;
    let found = cache.snapshot(&name);
    let lacking = found.as_ref().map(|snapshot| snapshot.lacking());
    if let (Some(snapshot), Some([])) = (&found, lacking.as_deref()) {
        return Ok(snapshot.folder.clone());
    }
    if is_offline() {
        let what = match lacking {
            Some(files) => {
                format!("{} is in {} and lacks {}", name, cache.dir.display(), files.join(", "))
            }
            None => format!("{} is not in {}", name, cache.dir.display()),
        };
        bail!(
            "{what}; HF_HUB_OFFLINE is set, so that nothing is downloaded: unset it, or name a folder"
        );
    }
    // One thread is enough: what takes long is the net, and digests have threads of their own.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(Hub::of_environment()?.bring(&name, &cache))
}

/// What a folder is called at the hub, where it is one of its cache.
pub(crate) fn name_of_snapshot(folder: &Path) -> Option<String> {
    let mut parts = folder.components().rev().map(|part| part.as_os_str().to_str());
    let (_commit, snapshots, repo) = (parts.next()??, parts.next()??, parts.next()??);
    let (owner, name) = repo.strip_prefix("models--")?.split_once("--")?;
    (snapshots == "snapshots").then(|| format!("{owner}/{name}"))
}

/// Whether nothing is to be asked of the net.
fn is_offline() -> bool {
    let is_on = |name: &str| {
        let value = std::env::var(name).unwrap_or_default().to_ascii_lowercase();
        ["1", "on", "yes", "true"].contains(&value.as_str())
    };
    is_on("HF_HUB_OFFLINE") || is_on("TRANSFORMERS_OFFLINE")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_of_the_cache_has_the_models_name() {
        let name = |folder: &str| name_of_snapshot(Path::new(folder));
        let commit = "hub/models--Qwen--Qwen3-0.6B/snapshots/0123abc";
        assert_eq!(name(commit).as_deref(), Some("Qwen/Qwen3-0.6B"));
        assert_eq!(name("hub/models--a--b--c/snapshots/1").as_deref(), Some("a/b--c"));
        for other in ["examples/tiny-qwen3", "models--a--b/blobs/1", "a", ""] {
            assert_eq!(name(other), None, "{other}");
        }
    }
}
