//! Archives carry entries between caches, and nothing else, whoever made them.

use crate::children;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::LazyLock;

use crate::damage::{archive, damage, sealed};
use crate::support::*;
use piecewise_cache::{
    ArchiveFault, Cache, CacheError, CacheOptions, Condition, DecodeError, KeyHex,
};
use proptest::prelude::*;

const COUNT: u64 = 5;

fn archive_of(dir: &Path, entries: impl IntoIterator<Item = u64>) -> Vec<u8> {
    let cache = open(&dir.join("exporter"));
    cache.clear().unwrap();
    entries.into_iter().for_each(|i| put(&cache, i));
    let file = dir.join("exported");
    let report = cache.export(&file, |_| true).unwrap();
    let bytes = fs::read(file).unwrap();
    assert_eq!(report.bytes, bytes.len() as u64);
    bytes
}

fn import(cache: &Cache, bytes: &[u8]) -> Result<piecewise_cache::ImportReport, CacheError> {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), bytes).unwrap();
    cache.import(file.path())
}

/// Whether the cache holds sound sample entries and nothing else.
#[track_caller]
fn assert_holds_only_samples(cache: &Cache, dir: &Path) {
    let report = cache.verify(false);
    assert!(report.is_clean() && report.foreign.is_empty(), "{report:?}");
    assert_eq!(temporaries(dir), 0);
    for info in cache.entries().unwrap() {
        let i = (0..COUNT).find(|&i| key(i) == info.key).expect("a key that was exported");
        assert_eq!(info.kind, KIND);
        assert_eq!(cache.get(KIND, &key(i)).unwrap(), Some(payload(i)));
    }
}

#[test]
fn entries_travel_between_machines() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = archive_of(dir.path(), (0..COUNT).rev());
    assert_eq!(bytes, archive_of(dir.path(), 0..COUNT), "equal entries make equal archives");

    let importer_dir = dir.path().join("importer");
    let importer = open(&importer_dir);
    put(&importer, 1);
    let report = import(&importer, &bytes).unwrap();
    assert_eq!((report.added, report.present, report.refused.len()), (COUNT - 1, 1, 0));
    for i in 0..COUNT {
        assert_serves(&importer, i);
        let path = entry_path(&importer_dir, i);
        let exported = entry_path(&dir.path().join("exporter"), i);
        assert_eq!(fs::read(path).unwrap(), fs::read(exported).unwrap());
    }
    let again = import(&importer, &bytes).unwrap();
    assert_eq!((again.added, again.present), (0, COUNT));
}

#[test]
fn a_filter_chooses_and_bad_entries_stay() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(&dir.path().join("exporter"));
    (0..COUNT).for_each(|i| put(&cache, i));
    let bad = entry_path(&dir.path().join("exporter"), 2);
    let mut bytes = fs::read(&bad).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&bad, bytes).unwrap();
    let file = dir.path().join("archive");
    let report = cache.export(&file, |entry| entry.key != key(3)).unwrap();
    assert_eq!((report.entries, report.skipped), (COUNT - 2, 1));
    let importer = open(&dir.path().join("importer"));
    assert_eq!(importer.import(&file).unwrap().added, COUNT - 2);
    assert_eq!(get(&importer, 2), None);
    assert_eq!(get(&importer, 3), None);
}

#[test]
fn an_archive_replaces_a_file_only_when_it_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(&dir.path().join("cache"));
    put(&cache, 1);
    let nowhere = cache.export(&dir.path().join("none/archive"), |_| true);
    assert!(matches!(nowhere, Err(CacheError::Io { action: "write", .. })));
    let outside = dir.path().join("outside");
    fs::write(&outside, b"mine").unwrap();
    let file = dir.path().join("archive");
    symlink(&outside, &file).unwrap();
    cache.export(&file, |_| true).unwrap();
    assert_eq!(fs::read(&outside).unwrap(), b"mine");
    assert_eq!(open(&dir.path().join("other")).import(&file).unwrap().added, 1);
}

#[test]
fn a_bad_entry_is_refused_and_the_others_are_taken() {
    let dir = tempfile::tempdir().unwrap();
    archive_of(dir.path(), 0..3);
    let entry = |i| fs::read(entry_path(&dir.path().join("exporter"), i)).unwrap();
    let mut changed = entry(1);
    *changed.last_mut().unwrap() ^= 1;
    let mut version = entry(1);
    version[8] = 9;
    let cut = entry(1)[..100].to_vec();
    let bytes = archive(&[entry(0), changed, version, cut, b"#!/bin/sh".to_vec(), entry(2)]);
    let cache = open(&dir.path().join("importer"));
    let report = import(&cache, &bytes).unwrap();
    assert_eq!(report.added, 2);
    let refused: Vec<_> = report.refused.iter().map(|r| (r.index, r.reason.clone())).collect();
    assert_eq!(
        refused,
        [
            (1, DecodeError::Checksum { part: "payload" }),
            (2, DecodeError::Version { found: 9 }),
            (3, DecodeError::Truncated { bytes: 100, missing: "header" }),
            (4, DecodeError::Magic),
        ]
    );
    assert_holds_only_samples(&cache, &dir.path().join("importer"));
}

#[test]
fn a_cache_with_a_checksum_key_takes_only_entries_of_this_key() {
    let dir = tempfile::tempdir().unwrap();
    let keyed = |name: &str, byte: u8| {
        let mut options = CacheOptions::new(dir.path().join(name));
        options.checksum_key = Some([byte; 32]);
        Cache::open(options)
    };
    let plain = archive_of(dir.path(), 0..2);
    let exporter = keyed("keyed", 1);
    put(&exporter, 1);
    let file = dir.path().join("keyed-archive");
    exporter.export(&file, |_| true).unwrap();

    assert_eq!(keyed("same", 1).import(&file).unwrap().added, 1);
    for (cache, bytes) in [
        (keyed("other", 2), fs::read(&file).unwrap()),
        (open(&dir.path().join("without")), fs::read(&file).unwrap()),
        (keyed("with", 1), plain),
    ] {
        let report = import(&cache, &bytes).unwrap();
        assert_eq!(report.added, 0);
        let is_key =
            |r: &piecewise_cache::RefusedEntry| matches!(r.reason, DecodeError::ChecksumKey { .. });
        assert!(!report.refused.is_empty() && report.refused.iter().all(is_key), "{report:?}");
        assert!(cache.entries().unwrap().is_empty());
    }
}

#[test]
fn every_truncation_of_an_archive_is_a_typed_error() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = archive_of(dir.path(), 0..2);
    let importer = dir.path().join("importer");
    let cache = open(&importer);
    for length in (0..bytes.len()).step_by(7).chain(bytes.len() - 40..bytes.len()) {
        match import(&cache, &bytes[..length]) {
            Err(CacheError::Archive { offset, reason, .. }) => {
                assert!(offset <= length as u64);
                let is_expected =
                    matches!(reason, ArchiveFault::Truncated | ArchiveFault::Length { .. });
                assert!(is_expected, "{length}: {reason}");
            }
            other => panic!("{length}: {other:?}"),
        }
    }
    assert_holds_only_samples(&cache, &importer);
}

#[test]
fn faults_of_the_archive_itself_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let good = archive_of(dir.path(), 0..2);
    let changed = |at: usize, bytes: &[u8]| {
        let mut archive = good.clone();
        archive[at..at + bytes.len()].copy_from_slice(bytes);
        archive
    };
    let end = good.len();
    let cases = [
        (b"PK\x03\x04 another archive".to_vec(), ArchiveFault::Magic),
        (changed(8, &[9]), ArchiveFault::Version { found: 9, expected: 1 }),
        (
            changed(12, &u64::MAX.to_le_bytes()),
            ArchiveFault::Length { stated: u64::MAX, left: end as u64 - 20 },
        ),
        (changed(end - 8, &[9]), ArchiveFault::Count { stated: 9, found: 2 }),
        ([&good[..], b"and more"].concat(), ArchiveFault::Trailing { bytes: 8 }),
    ];
    for (bytes, expected) in cases {
        let cache = open(&dir.path().join("importer"));
        let Err(CacheError::Archive { reason, .. }) = import(&cache, &bytes) else { panic!() };
        assert_eq!(reason, expected);
    }
    let cache = open(&dir.path().join("importer"));
    assert!(matches!(cache.import(&dir.path().join("none")), Err(CacheError::Io { .. })));
    assert!(matches!(cache.import(dir.path()), Err(CacheError::Io { .. })));
}

/// An entry of this kind with a right checksum.
fn forged(kind: &[u8]) -> Vec<u8> {
    sealed(&[&[kind.len() as u8], kind, &[0, 0]].concat(), b"evil")
}

#[test]
fn an_entry_that_climbs_out_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let cache_dir = dir.path().join("cache");
    let cache = open(&cache_dir);
    assert_eq!(import(&cache, &archive(&[forged(b"image")])).unwrap().added, 1, "a sound forgery");
    let before = tree(dir.path());
    let long = [b'a'; 200];
    let kinds: [&[u8]; 8] =
        [b"../../up", b"/tmp/up", b"..", b".", b"", b"a/../../up", b"a\0b", &long];
    let entries = kinds.map(forged);
    let report = import(&cache, &archive(&entries)).unwrap();
    assert_eq!((report.added, report.refused.len()), (0, kinds.len()), "{report:?}");
    assert_eq!(tree(dir.path()), before);
}

#[test]
fn a_planted_link_leads_no_import_outside() {
    let dir = tempfile::tempdir().unwrap();
    let outside = dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("file"), b"mine").unwrap();
    let bytes = archive_of(dir.path(), 0..2);
    let cache_dir = dir.path().join("cache");
    let cache = open(&cache_dir);
    fs::create_dir(cache_dir.join("v1").join(KIND)).unwrap();
    symlink(outside.join("file"), entry_path(&cache_dir, 0)).unwrap();
    symlink(outside.join("none"), entry_path(&cache_dir, 1)).unwrap();
    assert_eq!(import(&cache, &bytes).unwrap().added, 2);
    assert_serves(&cache, 0);
    assert_serves(&cache, 1);

    let other = dir.path().join("other");
    let cache = open(&other);
    symlink(&outside, other.join("v1").join(KIND)).unwrap();
    assert!(import(&cache, &bytes).is_err());
    assert_eq!(conditions(&cache), [(Condition::Read, 1)]);
    assert_eq!(tree(&outside), ["file"]);
    assert_eq!(fs::read(outside.join("file")).unwrap(), b"mine");
}

/// Address space for the program and little more: believing a stated length ends the process.
pub(crate) fn read_huge_lengths_in_little_memory(dir: &Path) {
    children::limit_memory(16 << 20);
    let cache = open(&dir.join("cache"));
    put(&cache, 0);
    let path = entry_path(&dir.join("cache"), 0);
    let good = fs::read(&path).unwrap();
    for stated in [u64::MAX, 1 << 62, 1 << 40, 1 << 29] {
        for (at, bytes) in [(12, 4), (16, 8)] {
            let mut entry = good.clone();
            entry[at..at + bytes].copy_from_slice(&stated.to_le_bytes()[..bytes]);
            let report = import(&cache, &archive(std::slice::from_ref(&entry))).unwrap();
            assert_eq!(report.refused.len(), 1);
            fs::write(&path, entry).unwrap();
            assert_eq!(get(&cache, 0), None);
        }
        let mut lengths = archive(std::slice::from_ref(&good));
        lengths[12..20].copy_from_slice(&stated.to_le_bytes());
        assert!(matches!(import(&cache, &lengths), Err(CacheError::Archive { .. })));
    }
}

#[test]
fn a_stated_length_is_not_believed() {
    let dir = tempfile::tempdir().unwrap();
    children::assert_succeeds(children::child("little-memory", dir.path(), &[]));
}

static WHOLE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let dir = tempfile::tempdir().unwrap();
    archive_of(dir.path(), 0..3)
});

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn a_damaged_archive_brings_sound_entries_or_none(
        damages in proptest::collection::vec(damage(), 1..5),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let mut bytes = WHOLE.clone();
        damages.iter().for_each(|damage| damage.apply(&mut bytes));
        let importer = dir.path().join("importer");
        let cache = open(&importer);
        let before = tree(dir.path()).len();
        let kept = match import(&cache, &bytes) {
            Ok(report) => report.added,
            Err(CacheError::Archive { .. }) => cache.entries().unwrap().len() as u64,
            Err(error) => panic!("{error}"),
        };
        assert_holds_only_samples(&cache, &importer);
        let folder = u64::from(kept > 0);
        prop_assert_eq!(tree(dir.path()).len() as u64, before as u64 + kept + folder);
    }

    #[test]
    fn arbitrary_bytes_bring_nothing(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        is_archive in any::<bool>(),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let cache = open(dir.path());
        let start: &[u8] = if is_archive { b"PWARCHIV\x01\0\0\0" } else { b"" };
        if let Ok(report) = import(&cache, &[start, &bytes].concat()) {
            prop_assert_eq!(report.added + report.present, 0);
        }
        prop_assert_eq!(tree(dir.path()), ["v1"]);
    }
}

#[test]
fn an_entry_of_the_archive_is_named_by_its_own_key() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = archive_of(dir.path(), [3]);
    let cache_dir = dir.path().join("importer");
    import(&open(&cache_dir), &bytes).unwrap();
    let name = format!("v1/{KIND}/{}", KeyHex(&key(3)));
    assert_eq!(tree(&cache_dir), ["v1".to_owned(), format!("v1/{KIND}"), name]);
}
