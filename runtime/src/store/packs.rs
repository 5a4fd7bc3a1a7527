//! Kernels that come with the program: packs, which are asked for what is not kept.

use super::cache_store::trust;
use crate::config::CacheConfig;
use piecewise_backend::artifact::Digest;
use piecewise_backend::compiler::{Claim, Entry, Store, StoreError};
use piecewise_backend::cuda::KERNEL_KIND;
use piecewise_cache::Pack;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The environment variable that names the folder of packs where the configuration does not.
const PACK_DIR_VARIABLE: &str = "PIECEWISE_PACK_DIR";

/// How the names of packs end.
const SUFFIX: &str = "pack";

/// A store over another one: a kernel that the other does not have may be in a pack, which is opened when
/// the first one is missed. What a pack gives is not copied: the pieces that are made of it are kept.
#[derive(derive_more::Debug)]
pub struct PackedStore {
    #[debug(skip)]
    kept: Arc<dyn Store>,
    config: CacheConfig,
    opened: OnceLock<Vec<Pack>>,
    given: Mutex<BTreeSet<Digest>>,
}

impl PackedStore {
    /// `kept`, and the packs of a configuration behind it.
    pub fn over(kept: Arc<dyn Store>, config: &CacheConfig) -> Self {
        Self { kept, config: config.clone(), opened: OnceLock::new(), given: Mutex::default() }
    }

    fn packs(&self) -> &[Pack] {
        self.opened.get_or_init(|| {
            let packs = open_packs(&self.config);
            if packs.is_empty() {
                let places = pack_places(&self.config);
                tracing::info!(
                    target: "piecewise::start",
                    "no kernel packs in {places}: kernels are compiled"
                );
            }
            packs
        })
    }
}

/// Where packs are looked for: in the folder of the configuration or of PIECEWISE_PACK_DIR, else in
/// `packs` beside the program and in `share/piecewise/packs` of the folder above it.
fn pack_folders(config: &CacheConfig) -> Vec<PathBuf> {
    if let Some(folder) = named_folder(config) {
        return vec![folder];
    }
    let program = std::env::current_exe().ok();
    let beside = program.as_deref().and_then(Path::parent);
    let above = beside.and_then(Path::parent);
    let folders =
        [beside.map(|dir| dir.join("packs")), above.map(|dir| dir.join("share/piecewise/packs"))];
    folders.into_iter().flatten().collect()
}

fn named_folder(config: &CacheConfig) -> Option<PathBuf> {
    let variable = std::env::var_os(PACK_DIR_VARIABLE).filter(|value| !value.is_empty());
    config.pack_dir.clone().or(variable.map(PathBuf::from))
}

/// The packs of a configuration, by name. What can't be used is warned about and left out.
pub fn open_packs(config: &CacheConfig) -> Vec<Pack> {
    let trust = trust(config);
    let folders = pack_folders(config);
    let is_named = named_folder(config).is_some();
    let read = |folder: &PathBuf| match std::fs::read_dir(folder) {
        Err(error) if is_named => {
            let folder = folder.display();
            tracing::warn!("no kernel pack is used: the folder {folder} can't be read: {error}");
            None
        }
        found => found.ok(),
    };
    let files = folders.iter().filter_map(read).flatten().flatten();
    let files = files.map(|entry| entry.path());
    let mut files =
        Vec::from_iter(files.filter(|file| file.extension().is_some_and(|end| end == SUFFIX)));
    files.sort();
    let opened = files.iter().filter_map(|file| match Pack::open(file, trust) {
        Ok(pack) => Some(pack),
        Err(error) => {
            tracing::warn!(%error, "a kernel pack is not used");
            None
        }
    });
    opened.collect()
}

/// The folders in which the packs of a configuration are looked for, in words.
pub fn pack_places(config: &CacheConfig) -> String {
    let folders = pack_folders(config);
    let shown = folders.iter().map(|folder| folder.display().to_string());
    shown.collect::<Vec<_>>().join(" and ")
}

impl Store for PackedStore {
    fn get(&self, kind: &'static str, key: Digest) -> Result<Option<Vec<u8>>, StoreError> {
        let kept = self.kept.get(kind, key);
        if kind != KERNEL_KIND || matches!(kept, Ok(Some(_))) {
            return kept;
        }
        for pack in self.packs() {
            match pack.get(kind, &key.0) {
                Ok(Some(found)) => {
                    self.given.lock().unwrap_or_else(PoisonError::into_inner).insert(key);
                    return Ok(Some(found));
                }
                Ok(None) => {}
                Err(error) => tracing::warn!(%error, "a kernel is compiled, which a pack has"),
            }
        }
        kept
    }

    fn put(&self, entry: Entry<'_>) -> Result<(), StoreError> {
        self.kept.put(entry)
    }

    fn claim(&self, kind: &'static str, key: Digest) -> Claim {
        self.kept.claim(kind, key)
    }

    fn is_of_pack(&self, kind: &'static str, key: Digest) -> bool {
        let given = || self.given.lock().unwrap_or_else(PoisonError::into_inner);
        kind == KERNEL_KIND && given().contains(&key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use piecewise_backend::store::MemoryStore;
    use piecewise_cache::{Cache, CacheOptions};

    fn config(folder: &Path) -> CacheConfig {
        CacheConfig { pack_dir: Some(folder.to_owned()), ..CacheConfig::default() }
    }

    /// A pack of these keys in `dir`, whose bytes are each key's first.
    fn write_pack(dir: &Path, name: &str, keys: &[u8]) {
        let exporter = dir.join(format!("of {name}"));
        let cache = Cache::open(CacheOptions::new(&exporter));
        for key in keys {
            cache.put(KERNEL_KIND, &[*key; 32], &[], &[*key]).unwrap();
        }
        cache.export(&dir.join(name), |_| true).unwrap();
        std::fs::remove_dir_all(exporter).unwrap();
    }

    #[test]
    fn what_is_kept_goes_before_packs_and_what_packs_give_is_counted() {
        let dir = tempfile::tempdir().unwrap();
        write_pack(dir.path(), "sm_80.pack", &[1, 2]);
        write_pack(dir.path(), "sm_90a.pack", &[3]);
        std::fs::write(dir.path().join("sm_70.pack"), "damaged").unwrap();
        std::fs::write(dir.path().join("README"), "of packs").unwrap();
        let kept = Arc::new(MemoryStore::default());
        let entry =
            |key, bytes| Entry { kind: KERNEL_KIND, key: Digest([key; 32]), factors: &[], bytes };
        let store = PackedStore::over(kept.clone(), &config(dir.path()));
        store.put(entry(2, b"kept")).unwrap();
        let get = |key| store.get(KERNEL_KIND, Digest([key; 32])).unwrap();
        assert_eq!(
            [1, 2, 3, 4].map(get),
            [Some(vec![1]), Some(b"kept".to_vec()), Some(vec![3]), None]
        );
        let is_of_pack = |key| store.is_of_pack(KERNEL_KIND, Digest([key; 32]));
        assert_eq!([1, 2, 3, 4].map(is_of_pack), [true, false, true, false]);
        assert_eq!(store.get("piece", Digest([1; 32])).unwrap(), None, "packs hold kernels alone");
        assert_eq!(kept.get(KERNEL_KIND, Digest([1; 32])).unwrap(), None, "nothing is copied");
    }

    #[test]
    fn a_folder_that_is_set_is_the_only_one() {
        let set = config(Path::new("/there"));
        assert_eq!(pack_folders(&set), [Path::new("/there")]);
        if std::env::var_os(PACK_DIR_VARIABLE).is_none() {
            let folders = pack_folders(&CacheConfig::default());
            let ends = ["packs", "share/piecewise/packs"];
            assert!(
                folders.iter().zip(ends).all(|(folder, end)| folder.ends_with(end)),
                "{folders:?}"
            );
            assert!(pack_places(&CacheConfig::default()).contains(" and "));
        }
    }
}
