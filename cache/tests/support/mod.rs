//! What the tests of the store share: sample entries, and looking at a directory from outside.

#![allow(dead_code, reason = "each test program uses its part")]

use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

use piecewise_cache::{Cache, CacheOptions, Condition, Key, KeyHex};

pub(crate) const KIND: &str = "image";

pub(crate) fn key(i: u64) -> Key {
    let mut key = [0x5a; 32];
    key[..8].copy_from_slice(&i.to_be_bytes());
    key
}

/// The one payload that belongs to a key.
pub(crate) fn payload(i: u64) -> Vec<u8> {
    let bytes = 200 + (i * 977 % 5000) as usize;
    (0..bytes).map(|at| (i.wrapping_mul(31) as usize + at * at) as u8).collect()
}

pub(crate) fn put(cache: &Cache, i: u64) {
    try_put(cache, i).unwrap();
}

pub(crate) fn try_put(cache: &Cache, i: u64) -> Result<(), piecewise_cache::CacheError> {
    let number = i.to_string();
    cache.put(KIND, &key(i), &[("number", &number), ("target", "cpu")], &payload(i))
}

pub(crate) fn get(cache: &Cache, i: u64) -> Option<Vec<u8>> {
    cache.get(KIND, &key(i)).unwrap()
}

#[track_caller]
pub(crate) fn assert_serves(cache: &Cache, i: u64) {
    assert!(get(cache, i) == Some(payload(i)), "entry {i}: {:?}", cache.events());
}

thread_local! {
    static PASSED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// So much time passes for the caches of this thread's [`options`], and none does by itself.
pub(crate) fn pass(time: Duration) {
    PASSED.set(PASSED.get() + time);
}

fn now() -> Instant {
    static START: OnceLock<Instant> = OnceLock::new();
    *START.get_or_init(Instant::now) + PASSED.get()
}

/// As [`CacheOptions::new`], with a clock that stands still but for [`pass`].
pub(crate) fn options(dir: &Path) -> CacheOptions {
    let mut options = CacheOptions::new(dir);
    options.clock = now;
    options
}

pub(crate) fn open(dir: &Path) -> Cache {
    Cache::open(options(dir))
}

pub(crate) fn entry_path(dir: &Path, i: u64) -> PathBuf {
    dir.join("v1").join(KIND).join(KeyHex(&key(i)).to_string())
}

pub(crate) fn entry_bytes(dir: &Path, i: u64) -> u64 {
    fs::metadata(entry_path(dir, i)).unwrap().len()
}

/// Every path below a folder, relative and sorted, links not followed.
pub(crate) fn tree(folder: &Path) -> Vec<String> {
    let mut paths = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(at) = folders.pop() {
        for entry in fs::read_dir(at).unwrap() {
            let path = entry.unwrap().path();
            paths.push(path.strip_prefix(folder).unwrap().to_string_lossy().into_owned());
            if fs::symlink_metadata(&path).unwrap().is_dir() {
                folders.push(path);
            }
        }
    }
    paths.sort();
    paths
}

pub(crate) fn temporaries(dir: &Path) -> usize {
    tree(dir).iter().filter(|path| path.contains(".tmp-")).count()
}

pub(crate) fn set_age(file: &Path, age: Duration) {
    let file = fs::File::options().read(true).open(file).unwrap();
    file.set_modified(SystemTime::now() - age).unwrap();
}

/// How often each condition came up.
pub(crate) fn conditions(cache: &Cache) -> Vec<(Condition, u64)> {
    let reports = cache.events().conditions;
    reports.into_iter().map(|report| (report.condition, report.times)).collect()
}

/// Runs `work` in a thread for which the permissions of files hold, whoever runs the tests.
pub(crate) fn without_privileges<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
    let none = CapabilitySet::empty();
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
            set_capabilities(None, sets).unwrap();
            work()
        });
        thread.join().unwrap()
    })
}
