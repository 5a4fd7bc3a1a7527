//! The cache stays within its size, and tells what is in it.

use std::fs;
use std::time::{Duration, SystemTime};

use crate::support::*;
use piecewise_cache::{Cache, CacheError, CacheOptions, Condition, FaultHook, FaultPoint};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Entries 0 to `count`, the first the least recently used, a day apart.
fn aged(dir: &std::path::Path, count: u64) -> u64 {
    let cache = open(dir);
    for i in 0..count {
        put(&cache, i);
        set_age(&entry_path(dir, i), DAY * (count - i) as u32);
    }
    (0..count).map(|i| entry_bytes(dir, i)).sum()
}

fn bounded(dir: &std::path::Path, max_bytes: u64) -> Cache {
    let mut options = CacheOptions::new(dir);
    options.max_bytes = Some(max_bytes);
    Cache::open(options)
}

fn present(dir: &std::path::Path) -> Vec<u64> {
    (0..40).filter(|&i| entry_path(dir, i).exists()).collect()
}

#[test]
fn the_least_recently_used_go_first() {
    let dir = tempfile::tempdir().unwrap();
    let all = aged(dir.path(), 6);
    // Being served makes the oldest the newest.
    assert_serves(&open(dir.path()), 0);
    let room_for_all_but_the_new = all + entry_bytes(dir.path(), 1) / 2;
    let cache = bounded(dir.path(), room_for_all_but_the_new);
    put(&cache, 6);
    let left = present(dir.path());
    assert!(left.contains(&0) && left.contains(&6) && !left.contains(&1), "{left:?}");
    let bytes: u64 = left.iter().map(|&i| entry_bytes(dir.path(), i)).sum();
    assert!(bytes <= room_for_all_but_the_new * 9 / 10 + 1, "a tenth is free");
    assert!(left.windows(2).skip(1).all(|pair| pair[1] == pair[0] + 1), "by age: {left:?}");
    let events = cache.events();
    assert_eq!(events.evicted, 7 - left.len() as u64);
    assert_eq!(events.bytes_evicted, all + entry_bytes(dir.path(), 6) - bytes);
}

/// A cache of which so many files to come can't be removed, as those of others in a directory that is
/// shared; the counter counts down.
fn unremovable(dir: &std::path::Path, max_bytes: u64, files: u64) -> (Cache, Arc<AtomicU64>) {
    let mut options = CacheOptions::new(dir);
    options.max_bytes = Some(max_bytes);
    let failing = Arc::new(AtomicU64::new(files));
    let left = Arc::clone(&failing);
    options.fault = Some(FaultHook::new(move |point| {
        let fails = |left: u64| left.checked_sub(1);
        let is_due = point == FaultPoint::Remove
            && left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fails).is_ok();
        if is_due { Err(std::io::ErrorKind::PermissionDenied.into()) } else { Ok(()) }
    }));
    (Cache::open(options), failing)
}

/// Newer entries go in the place of those that can't, which are told and counted as what is kept.
#[test]
fn the_bound_holds_where_what_is_oldest_can_not_be_removed() {
    let dir = tempfile::tempdir().unwrap();
    let all = aged(dir.path(), 6);
    let (cache, failing) = unremovable(dir.path(), all, 2);
    put(&cache, 6);
    let bytes = || present(dir.path()).iter().map(|&i| entry_bytes(dir.path(), i)).sum::<u64>();
    assert!(bytes() <= all * 9 / 10 + 1, "{:?}", present(dir.path()));
    assert!(present(dir.path()).starts_with(&[0, 1]) && !present(dir.path()).contains(&2));
    assert_eq!(conditions(&cache), [(Condition::Evict, 2)]);

    failing.store(1, Ordering::Relaxed);
    let kept = bytes();
    let report = cache.gc(kept - 1).unwrap();
    assert_eq!((report.failed, report.removed_entries), (1, 1), "{report:?}");
    let left = present(dir.path());
    assert_eq!((report.kept_entries, report.kept_bytes), (left.len() as u64, bytes()));
    assert!(bytes() < kept && left.starts_with(&[0]), "{left:?}");
}

/// Where nothing can be removed, every entry that is written would try all of them again.
#[test]
fn a_cache_that_can_not_shrink_is_looked_through_now_and_then() {
    let dir = tempfile::tempdir().unwrap();
    let all = aged(dir.path(), 36);
    let (cache, failing) = unremovable(dir.path(), all, u64::MAX);
    (36..40).for_each(|i| put(&cache, i));
    let tries = u64::MAX - failing.load(Ordering::Relaxed);
    assert!((36..=2 * 39).contains(&tries), "{tries} tries to remove");
    assert_eq!(present(dir.path()).len(), 40);
}

#[test]
fn a_new_entry_is_kept_where_other_clocks_are_ahead() {
    let dir = tempfile::tempdir().unwrap();
    let all = aged(dir.path(), 4);
    for i in 0..4 {
        let file = fs::File::open(entry_path(dir.path(), i)).unwrap();
        file.set_modified(SystemTime::now() + DAY).unwrap();
    }
    let cache = bounded(dir.path(), all);
    put(&cache, 9);
    assert_serves(&cache, 9);
    assert!(cache.events().evicted > 0);
}

#[test]
fn a_hit_is_noted_once_an_hour() {
    let dir = tempfile::tempdir().unwrap();
    put(&open(dir.path()), 1);
    let path = entry_path(dir.path(), 1);
    let last_use = || fs::metadata(&path).unwrap().modified().unwrap();
    set_age(&path, HOUR / 2);
    let before = last_use();
    assert_serves(&open(dir.path()), 1);
    assert_eq!(last_use(), before);
    set_age(&path, HOUR * 2);
    let before = last_use();
    assert_serves(&open(dir.path()), 1);
    assert!(last_use() > before + HOUR);
}

#[test]
fn what_other_processes_write_counts() {
    let dir = tempfile::tempdir().unwrap();
    let max_bytes = 20_000;
    let caches = [bounded(dir.path(), max_bytes), bounded(dir.path(), max_bytes)];
    for i in 0..40 {
        put(&caches[i as usize % 2], i);
        let bytes: u64 = present(dir.path()).iter().map(|&i| entry_bytes(dir.path(), i)).sum();
        // One cache may not have seen what the other wrote since it looked: at most a sixteenth.
        assert!(bytes <= max_bytes + max_bytes / 8 + 6000, "{bytes}");
        assert_serves(&caches[i as usize % 2], i);
    }
    let evicted: u64 = caches.iter().map(|cache| cache.events().evicted).sum();
    assert_eq!(evicted, 40 - present(dir.path()).len() as u64);
}

#[test]
fn an_entry_that_is_larger_than_the_cache_is_not_kept_and_evicts_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let all = aged(dir.path(), 3);
    let cache = bounded(dir.path(), all + 10);
    let large = vec![0; all as usize];
    for _ in 0..2 {
        let error = cache.put(KIND, &key(9), &[], &large).unwrap_err();
        assert!(matches!(error, CacheError::TooLarge { .. }), "{error}");
    }
    assert_eq!(conditions(&cache), [(Condition::TooLarge, 2)]);
    assert_eq!(present(dir.path()), [0, 1, 2]);

    let mut options = CacheOptions::new(dir.path());
    options.max_entry_bytes = payload(1).len() as u64 - 1;
    let cache = Cache::open(options);
    assert!(matches!(try_put(&cache, 1), Err(CacheError::TooLarge { .. })));
    assert_eq!(get(&cache, 1), None, "too long to read as well");
}

#[test]
fn gc_removes_leftovers_and_then_the_oldest() {
    let dir = tempfile::tempdir().unwrap();
    aged(dir.path(), 5);
    let folder = entry_path(dir.path(), 0).parent().unwrap().to_owned();
    fs::write(folder.join(".tmp-1-2-3"), b"half").unwrap();
    fs::rename(entry_path(dir.path(), 4), format!("{}.bad", entry_path(dir.path(), 4).display()))
        .unwrap();
    fs::write(folder.join("notes.txt"), b"mine").unwrap();
    let cache = open(dir.path());
    let bound = (0..4).map(|i| entry_bytes(dir.path(), i)).sum::<u64>() - 1;
    let report = cache.gc(bound).unwrap();
    assert_eq!((report.removed_leftovers, report.failed), (2, 0));
    assert_eq!((report.removed_entries, report.kept_entries), (1, 3));
    assert_eq!(present(dir.path()), [1, 2, 3]);
    assert!(report.kept_bytes <= bound, "{report:?}");

    fs::write(entry_path(dir.path(), 7), b"").unwrap();
    let report = cache.clear().unwrap();
    assert_eq!((report.kept_entries, report.failed), (0, 0), "{report:?}");
    assert_eq!(tree(dir.path()), ["v1", "v1/image", "v1/image/notes.txt"]);
    assert_eq!(cache.verify(false).foreign, ["image/notes.txt"]);
    put(&cache, 1);
    assert_serves(&cache, 1);
}

#[test]
fn a_temporary_file_is_removed_after_a_day() {
    let dir = tempfile::tempdir().unwrap();
    put(&open(dir.path()), 1);
    let folder = entry_path(dir.path(), 0).parent().unwrap().to_owned();
    for (name, age) in [(".tmp-old", DAY * 2), (".tmp-new", HOUR)] {
        fs::write(folder.join(name), b"half").unwrap();
        set_age(&folder.join(name), age);
    }
    let report = open(dir.path()).verify(false);
    assert_eq!(report.stale, 1);
    assert!(!report.is_clean());
    put(&open(dir.path()), 2);
    assert!(!folder.join(".tmp-old").exists() && folder.join(".tmp-new").exists());
}

#[test]
fn entries_are_listed_by_kind_and_key_without_the_bad_ones() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path());
    for i in [3, 1, 2] {
        put(&cache, i);
    }
    cache.put("a-kind", &key(9), &[("why", "first")], b"x").unwrap();
    fs::write(entry_path(dir.path(), 2), b"bad").unwrap();
    let entries = cache.entries().unwrap();
    let listed: Vec<_> = entries.iter().map(|e| (e.kind.as_str(), e.key)).collect();
    assert_eq!(listed, [("a-kind", key(9)), (KIND, key(1)), (KIND, key(3))]);
    let info = &entries[1];
    assert_eq!(info.payload_bytes, payload(1).len() as u64);
    assert_eq!(info.bytes, entry_bytes(dir.path(), 1));
    assert_eq!(info.factors[1], ("target".to_owned(), "cpu".to_owned()));
    let json = serde_json::to_value(info).unwrap();
    assert_eq!(json["key"].as_str().unwrap().len(), 64);

    let entry = cache.entry(KIND, &key(3)).unwrap().unwrap();
    assert_eq!((entry.info, entry.payload), (entries[2].clone(), payload(3)));
    assert!(cache.entry(KIND, &key(4)).unwrap().is_none());
    assert!(matches!(cache.entry(KIND, &key(2)), Err(CacheError::Bad(_))));
    assert!(entry_path(dir.path(), 2).exists(), "looking changes nothing");
    assert_eq!(cache.events().hits, 0);
}

#[test]
fn the_nearest_entry_differs_in_the_fewest_factors() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path());
    let wanted = [("target", "cuda:sm_90"), ("size", "8"), ("passes", "v3")];
    assert!(cache.nearest(KIND, &wanted).unwrap().is_none());
    let far = [("target", "cpu"), ("size", "16"), ("passes", "v3")];
    let near = [("target", "cuda:sm_80"), ("size", "8"), ("passes", "v3")];
    cache.put(KIND, &key(1), &far, b"x").unwrap();
    cache.put(KIND, &key(3), &near, b"x").unwrap();
    cache.put(KIND, &key(2), &near, b"x").unwrap();
    cache.put("other", &key(4), &wanted, b"x").unwrap();
    let nearest = cache.nearest(KIND, &wanted).unwrap().unwrap();
    assert_eq!(nearest.entry.key, key(2), "the smaller of two keys");
    let shown: Vec<_> = nearest.differing.iter().map(ToString::to_string).collect();
    assert_eq!(shown, ["target: \"cuda:sm_90\" is wanted, \"cuda:sm_80\" was found"]);
    let same = cache.nearest("other", &wanted).unwrap().unwrap();
    assert!(same.differing.is_empty());
}

#[test]
fn equal_entries_are_equal_bytes() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    for dir in &dirs {
        put(&open(dir.path()), 5);
    }
    let bytes = dirs.each_ref().map(|dir| fs::read(entry_path(dir.path(), 5)).unwrap());
    assert_eq!(bytes[0], bytes[1]);
}
