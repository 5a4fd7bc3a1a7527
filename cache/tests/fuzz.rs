//! Damaged and forged entries, by the thousand, in a process that has little memory: a miss or what
//! was kept, and nothing else.

use crate::children;
use std::fs;
use std::path::Path;

use crate::damage::{archive, damage, sealed};
use crate::support::*;
use piecewise_cache::format::PREFIX_BYTES;
use piecewise_cache::{Cache, CacheError};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

/// Address space beyond what the program has when it begins: a few entries, and far less than the
/// lengths that they may state.
const MEMORY: u64 = 16 << 20;

fn runner(cases: u32) -> TestRunner {
    let unkept = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    TestRunner::new(ProptestConfig { cases, ..unkept })
}

/// Reads bytes as an entry in each way that there is; what `get` served and what an import took.
fn read_in_every_way(cache: &Cache, bytes: &[u8]) -> (Option<Vec<u8>>, u64) {
    let path = entry_path(cache.dir(), 0);
    let file = cache.dir().with_extension("archive");
    fs::write(&path, bytes).unwrap();
    let shown = cache.entry(KIND, &key(0));
    assert!(!matches!(shown, Err(CacheError::Io { .. })), "{shown:?}");
    let listed = cache.entries().unwrap();
    let exported = cache.export(&file, |_| true).unwrap();
    let verified = cache.verify(false);
    assert!(verified.failed.is_empty(), "{verified:?}");
    assert_eq!(verified.bad.len() as u64, 1 - verified.good_entries);
    let served = get(cache, 0);
    assert_eq!(served.is_some(), verified.good_entries == 1);
    assert_eq!(exported.entries, verified.good_entries);
    assert!(served.is_none() || listed.len() == 1);
    cache.clear().unwrap();
    fs::write(&file, archive(&[bytes.to_vec()])).unwrap();
    let taken = match cache.import(&file) {
        Ok(report) => report.added,
        // An entry of no bytes is the end mark.
        Err(CacheError::Archive { .. }) => 0,
        Err(error) => panic!("{error}"),
    };
    cache.clear().unwrap();
    (served, taken)
}

pub(crate) fn read_damaged_entries(dir: &Path) {
    children::limit_memory(MEMORY);
    let cache = open(&dir.join("cache"));
    put(&cache, 0);
    let whole = fs::read(entry_path(cache.dir(), 0)).unwrap();
    let damages = proptest::collection::vec(damage(), 1..5);
    let tested = runner(1500).run(&damages, |damages| {
        let mut bytes = whole.clone();
        damages.iter().for_each(|damage| damage.apply(&mut bytes));
        let (served, taken) = read_in_every_way(&cache, &bytes);
        if bytes == whole {
            prop_assert_eq!((served, taken), (Some(payload(0)), 1));
        } else {
            prop_assert_eq!((served, taken), (None, 0));
        }
        Ok(())
    });
    tested.unwrap();
}

/// Headers that are nearly right, their checksums quite.
pub(crate) fn read_forged_entries(dir: &Path) {
    children::limit_memory(MEMORY);
    let cache = open(&dir.join("cache"));
    put(&cache, 0);
    let whole = fs::read(entry_path(cache.dir(), 0)).unwrap();
    let header_bytes = u32::from_le_bytes(whole[12..16].try_into().unwrap()) as usize;
    let header = whole[PREFIX_BYTES..PREFIX_BYTES + header_bytes].to_vec();
    let given =
        (proptest::collection::vec(damage(), 0..4), proptest::collection::vec(any::<u8>(), 0..40));
    let tested = runner(1500).run(&given, |(damages, payload)| {
        let mut header = header.clone();
        damages.iter().for_each(|damage| damage.apply(&mut header));
        let (served, _) = read_in_every_way(&cache, &sealed(&header, &payload));
        if let Some(served) = served {
            prop_assert_eq!(served, payload);
        }
        Ok(())
    });
    tested.unwrap();
}

#[test]
fn damaged_entries_are_misses_and_take_no_memory() {
    let dir = tempfile::tempdir().unwrap();
    children::assert_succeeds(children::child("damaged", dir.path(), &[]));
}

#[test]
fn forged_entries_are_what_they_say_or_misses_and_take_no_memory() {
    let dir = tempfile::tempdir().unwrap();
    children::assert_succeeds(children::child("forged", dir.path(), &[]));
}
