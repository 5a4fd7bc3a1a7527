//! The hub's cache folder: `models--OWNER--NAME/{refs,snapshots,blobs}`.

use super::listing::shards_of;
use super::name::RepoName;
use anyhow::Context;
use std::path::{Path, PathBuf};

/// The folder that holds what was downloaded from the hub.
#[derive(Clone, Debug)]
pub(super) struct HubCache {
    pub(super) dir: PathBuf,
}

/// The files of a model at a commit.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    pub(super) folder: PathBuf,
}

/// A variable that holds something.
pub(super) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The folder of the hub's programs: `HF_HOME`, else `huggingface` in the user's cache folder.
pub(super) fn hub_home() -> Option<PathBuf> {
    let of_user = || {
        let caches = variable("XDG_CACHE_HOME").map(PathBuf::from);
        let caches =
            caches.or_else(|| variable("HOME").map(|home| Path::new(&home).join(".cache")));
        caches.map(|caches| caches.join("huggingface"))
    };
    variable("HF_HOME").map(PathBuf::from).or_else(of_user)
}

impl HubCache {
    /// That of the environment: `HF_HUB_CACHE`, else `hub` in the folder of the hub's programs.
    pub(super) fn of_environment() -> anyhow::Result<Self> {
        let named = variable("HF_HUB_CACHE").map(PathBuf::from);
        let dir = named.or_else(|| hub_home().map(|home| home.join("hub")));
        let dir = dir.context("there is no folder for what the hub sends: set HF_HOME")?;
        Ok(Self { dir })
    }

    /// The folder of a model.
    pub(super) fn repo(&self, name: &RepoName) -> PathBuf {
        self.dir.join(name.folder())
    }

    /// What there is of a model at its revision.
    pub(super) fn snapshot(&self, name: &RepoName) -> Option<Snapshot> {
        let repo = self.repo(name);
        let commit = match name.commit() {
            Some(commit) => commit.to_owned(),
            None => std::fs::read_to_string(repo.join("refs").join(&name.revision)).ok()?,
        };
        let commit = commit.trim();
        let is_commit = !commit.is_empty() && commit.chars().all(|c| c.is_ascii_hexdigit());
        let folder = repo.join("snapshots").join(commit);
        (is_commit && folder.is_dir()).then_some(Snapshot { folder })
    }
}

impl Snapshot {
    /// The files without which a model does not run, that are not there.
    pub(super) fn lacking(&self) -> Vec<String> {
        let is_there = |file: &str| self.folder.join(file).is_file();
        let mut needed = vec!["config.json".to_owned()];
        let index = std::fs::read_to_string(self.folder.join("model.safetensors.index.json"));
        match index {
            Ok(index) => needed.extend(shards_of(&index)),
            Err(_) if self.has_weights() => {}
            Err(_) => needed.push("model.safetensors".to_owned()),
        }
        if is_there("tokenizer_config.json") {
            needed.push("tokenizer.json".to_owned());
        }
        needed.retain(|file| !is_there(file));
        needed
    }

    fn has_weights(&self) -> bool {
        let files = std::fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let mut weights =
            files.filter(|file| file.path().extension().is_some_and(|e| e == "safetensors"));
        // A link whose file is gone is none.
        weights.any(|file| file.path().is_file())
    }
}
