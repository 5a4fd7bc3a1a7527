//! Kernels that come with the program: packs, which are asked for what is not kept.

use super::cache_store::trust;
use crate::config::CacheConfig;
use piecewise_backend::artifact::Digest;
use piecewise_backend::compiler::{Claim, Entry, Store, StoreError};
use piecewise_backend::cuda::KERNEL_KIND;
use piecewise_cache::{CacheError, Pack, Pause};
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// The environment variable that names the folder of packs where the configuration does not.
const PACK_DIR_VARIABLE: &str = "PIECEWISE_PACK_DIR";

/// How the names of packs end.
const SUFFIX: &str = "pack";

/// A store over another one: a kernel that the other does not have may be in a pack, which is opened when
/// the first one is missed. What a pack gives is not copied: the pieces that are made of it are kept. Where
/// a folder or a pack can't be read, those that can are used, and all are looked for again after a
/// [`Pause`].
#[derive(derive_more::Debug)]
pub struct PackedStore {
    #[debug(skip)]
    kept: Arc<dyn Store>,
    config: CacheConfig,
    opened: Mutex<Opened>,
    /// Of looking for packs.
    pause: Pause,
    given: Mutex<BTreeSet<Digest>>,
}

/// What was found where packs are looked for.
#[derive(Debug, Default)]
struct Opened {
    packs: Arc<[Pack]>,
    /// Whether there is nothing to look for again: every folder and every pack was read.
    are_all: bool,
}

impl PackedStore {
    /// `kept`, and the packs of a configuration behind it.
    pub fn over(kept: Arc<dyn Store>, config: &CacheConfig) -> Self {
        Self::timed_by(Instant::now, kept, config)
    }

    fn timed_by(clock: fn() -> Instant, kept: Arc<dyn Store>, config: &CacheConfig) -> Self {
        let pause = Pause::new(clock);
        let (opened, given) = (Mutex::default(), Mutex::default());
        Self { kept, config: config.clone(), opened, pause, given }
    }

    fn packs(&self) -> Arc<[Pack]> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let attempt = if opened.are_all { None } else { self.pause.attempt() };
        if let Some(attempt) = attempt {
            *opened = find_packs(&self.config);
            if opened.packs.is_empty() {
                let places = pack_places(&self.config);
                tracing::info!(
                    target: "piecewise::start",
                    "no kernel packs in {places}: kernels are compiled"
                );
            }
            match opened.are_all {
                true => attempt.succeeded(),
                false => {
                    attempt.failed();
                }
            }
        }
        Arc::clone(&opened.packs)
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
pub fn open_packs(config: &CacheConfig) -> Arc<[Pack]> {
    find_packs(config).packs
}

fn find_packs(config: &CacheConfig) -> Opened {
    let trust = trust(config);
    let folders = pack_folders(config);
    let is_named = named_folder(config).is_some();
    let (mut files, mut are_all) = (Vec::new(), true);
    for folder in &folders {
        match files_of(folder) {
            Ok(found) => files.extend(found),
            // Most programs come without packs.
            Err(error) if error.kind() == io::ErrorKind::NotFound && !is_named => {}
            Err(error) => {
                let folder = folder.display();
                tracing::warn!(
                    "no kernel pack is used: the folder {folder} can't be read: {error}"
                );
                are_all = false;
            }
        }
    }
    files.sort();
    let opened = files.iter().filter_map(|file| match Pack::open(file, trust) {
        Ok(pack) => Some(pack),
        Err(error) => {
            tracing::warn!(%error, "a kernel pack is not used");
            are_all &= !matches!(error, CacheError::Io { .. });
            None
        }
    });
    let packs = opened.collect();
    Opened { packs, are_all }
}

fn files_of(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let is_pack = |file: &PathBuf| file.extension().is_some_and(|end| end == SUFFIX);
    let files = std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path()));
    files.filter(|file| file.as_ref().map_or(true, is_pack)).collect()
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
        for pack in &*self.packs() {
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
    use piecewise_testing::host_time;
    use std::time::Duration;

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
    fn a_folder_that_can_not_be_read_is_looked_at_again_after_a_pause() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("mounted later");
        let time = host_time::hold();
        let kept = Arc::new(MemoryStore::default());
        let store = PackedStore::timed_by(host_time::now, kept, &config(&folder));
        let get = |key| store.get(KERNEL_KIND, Digest([key; 32])).unwrap();
        assert_eq!(get(1), None);
        std::fs::create_dir(&folder).unwrap();
        write_pack(&folder, "sm_90a.pack", &[1]);
        time.pass(Duration::from_secs(29));
        assert_eq!(get(1), None, "not looked for during a pause");
        time.pass(Duration::from_secs(1));
        assert_eq!(get(1), Some(vec![1]));
        write_pack(&folder, "sm_100a.pack", &[2]);
        time.pass(Duration::from_secs(600));
        assert_eq!(get(2), None, "kept once every folder was read");
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
