//! What a cache can't use it reports once, and goes on without.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::*;
use piecewise_cache::{Cache, CacheError, Condition, FaultHook, FaultPoint};

/// Uses a cache in every way, and sees that no use panics or serves anything.
fn use_in_every_way(cache: &Cache) {
    for i in 0..3 {
        assert_eq!(get(cache, i), None);
        assert!(matches!(try_put(cache, i), Err(CacheError::Unusable { .. })));
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    assert!(cache.entries().is_err());
    assert!(cache.entry(KIND, &key(1)).is_err());
    assert!(cache.nearest(KIND, &[]).is_err());
    assert!(cache.gc(0).is_err());
    assert!(cache.clear().is_err());
    assert!(cache.export(file.path(), |_| true).is_err());
    assert!(cache.import(file.path()).is_err());
    assert_eq!(cache.verify(true).failed.len(), 1);
    assert_eq!(cache.events().misses, 3);
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_directory_below_a_file_is_reported_once() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let cache = open(&file.path().join("cache"));
    use_in_every_way(&cache);
    assert_eq!(conditions(&cache), [(Condition::Unusable, 1)]);
}

#[test]
fn a_directory_that_may_not_be_read_is_reported_once() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("cache");
    put(&open(&dir), 1);
    set_mode(&dir, 0o000);
    without_privileges(|| {
        let cache = open(&dir);
        use_in_every_way(&cache);
        assert_eq!(conditions(&cache), [(Condition::Unusable, 1)]);
    });
    set_mode(&dir, 0o700);
    assert_serves(&open(&dir), 1);
}

#[test]
fn a_directory_that_may_not_be_written_serves_what_it_has() {
    let dir = tempfile::tempdir().unwrap();
    put(&open(dir.path()), 1);
    put(&open(dir.path()), 2);
    let bad = entry_path(dir.path(), 2);
    fs::write(&bad, b"bad").unwrap();
    let folders = [dir.path().join("v1").join(KIND), dir.path().join("v1"), dir.path().to_owned()];
    folders.iter().for_each(|folder| set_mode(folder, 0o500));
    without_privileges(|| {
        let cache = open(dir.path());
        let told = cache.check_writable(KIND).unwrap_err();
        assert!(told.to_string().contains("choose a directory that can be written"), "{told}");
        assert!(cache.check_writable("new-kind").is_err());
        assert_eq!(conditions(&cache), [], "whoever asks is told, and nobody else");
        assert!(matches!(try_put(&cache, 3), Err(CacheError::Io { action: "write", .. })));
        assert!(matches!(try_put(&cache, 4), Err(CacheError::Unusable { .. })));
        assert!(cache.put("new-kind", &key(1), &[], b"").is_err());
        assert_serves(&cache, 1);
        assert_eq!(get(&cache, 2), None);
        assert_eq!(get(&cache, 2), None);
        let report = cache.gc(0).unwrap();
        assert_eq!((report.removed_entries, report.failed), (0, 2), "{report:?}");
        let events = cache.events();
        assert_eq!(events.quarantined, 1);
        assert_eq!(conditions(&cache), [(Condition::NotWritable, 1), (Condition::Evict, 2)]);
    });
    folders.iter().rev().for_each(|folder| set_mode(folder, 0o700));
    let next = open(dir.path());
    next.check_writable(KIND).unwrap();
    put(&next, 3);
    assert_serves(&next, 3);
    assert_eq!(get(&next, 2), None);
    assert!(!bad.exists(), "set aside now");
}

#[test]
fn an_entry_that_may_not_be_read_is_a_miss() {
    let dir = tempfile::tempdir().unwrap();
    put(&open(dir.path()), 1);
    set_mode(&entry_path(dir.path(), 1), 0o000);
    without_privileges(|| {
        let cache = open(dir.path());
        for _ in 0..2 {
            let error = cache.get(KIND, &key(1)).unwrap_err();
            assert!(matches!(error, CacheError::Io { action: "read", .. }), "{error}");
        }
        assert_eq!(conditions(&cache), [(Condition::Read, 2)]);
        assert_eq!(cache.verify(false).failed.len(), 1);
        put(&cache, 1);
        assert_serves(&cache, 1);
    });
}

#[test]
fn a_directory_that_is_removed_while_in_use_is_reported_once() {
    for first_noticed_by_put in [true, false] {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("cache");
        let cache = open(&dir);
        put(&cache, 1);
        fs::remove_dir_all(&dir).unwrap();
        if first_noticed_by_put {
            assert!(matches!(try_put(&cache, 1), Err(CacheError::Unusable { .. })));
        } else {
            assert_eq!(get(&cache, 1), None);
        }
        for i in 0..3 {
            pass(Duration::from_secs(600));
            assert_eq!(get(&cache, i), None);
            let error = try_put(&cache, i).unwrap_err().to_string();
            assert!(error.contains("removed while in use; make it again"), "{error}");
        }
        assert_eq!(conditions(&cache), [(Condition::Lost, 1)]);
        assert!(!dir.exists(), "not made again behind the back of who removed it");

        let next = open(&dir);
        put(&next, 1);
        assert_serves(&next, 1);
        assert!(next.events().conditions.is_empty());

        assert_eq!(get(&cache, 1), None, "not looked for during a pause");
        pass(Duration::from_secs(600));
        assert_serves(&cache, 1);
        put(&cache, 2);
        assert_serves(&next, 2);
        assert_eq!(conditions(&cache), [(Condition::Lost, 1)]);
    }
}

#[test]
fn a_directory_that_could_not_be_opened_is_opened_later() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("cache");
    fs::write(&dir, b"in its place").unwrap();
    let cache = open(&dir);
    pass(Duration::from_secs(30));
    assert_eq!(get(&cache, 1), None);
    fs::remove_file(&dir).unwrap();
    pass(Duration::from_secs(59));
    assert!(matches!(try_put(&cache, 1), Err(CacheError::Unusable { .. })));
    assert!(!dir.exists(), "not tried during a pause");
    pass(Duration::from_secs(1));
    put(&cache, 1);
    assert_serves(&cache, 1);
    assert_serves(&open(&dir), 1);
    assert_eq!(conditions(&cache), [(Condition::Unusable, 1)]);
}

#[test]
fn a_directory_that_can_be_written_again_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let (is_read_only, tries) = (Arc::new(AtomicBool::new(true)), Arc::new(Mutex::new(0)));
    let (is_refused, counted) = (Arc::clone(&is_read_only), Arc::clone(&tries));
    let mut options = options(dir.path());
    options.fault = Some(FaultHook::new(move |point| {
        if point != FaultPoint::Write {
            return Ok(());
        }
        *counted.lock().unwrap() += 1;
        match is_refused.load(Ordering::Relaxed) {
            true => Err(io::ErrorKind::ReadOnlyFilesystem.into()),
            false => Ok(()),
        }
    }));
    let cache = Cache::open(options);
    let check_tried = |count: u64| {
        try_put(&cache, 1).unwrap_err();
        let error = try_put(&cache, 2).unwrap_err().to_string();
        assert!(error.contains("it is tried again after a pause"), "{error}");
        assert_eq!(*tries.lock().unwrap(), count);
    };
    check_tried(1);
    pass(Duration::from_secs(29));
    check_tried(1);
    pass(Duration::from_secs(1));
    check_tried(2);
    pass(Duration::from_secs(59));
    is_read_only.store(false, Ordering::Relaxed);
    check_tried(2);
    pass(Duration::from_secs(1));
    (1..4).for_each(|i| put(&cache, i));
    (1..4).for_each(|i| assert_serves(&cache, i));
    assert_eq!(conditions(&cache), [(Condition::NotWritable, 2)]);
}

#[test]
fn a_folder_that_is_removed_while_in_use_is_made_again() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path());
    put(&cache, 1);
    fs::remove_dir_all(dir.path().join("v1").join(KIND)).unwrap();
    assert_eq!(get(&cache, 1), None);
    put(&cache, 1);
    assert_serves(&cache, 1);
    assert!(cache.events().conditions.is_empty());
}

#[test]
fn a_temporary_file_that_is_swept_is_written_again() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("v1").join(KIND);
    let is_swept = AtomicBool::new(false);
    let mut options = options(dir.path());
    options.fault = Some(FaultHook::new(move |point| {
        if point == FaultPoint::Rename && !is_swept.swap(true, Ordering::Relaxed) {
            fs::remove_dir_all(&folder)?;
        }
        Ok(())
    }));
    let cache = Cache::open(options);
    put(&cache, 1);
    assert_serves(&cache, 1);
    assert!(cache.events().conditions.is_empty());
}

/// What an error of the operating system at a point of writing does: the entry that was there is
/// still served, nothing is left behind, and the condition is reported once.
#[track_caller]
fn check_write_error(at: FaultPoint, kind: io::ErrorKind, condition: Condition, is_tried: bool) {
    let dir = tempfile::tempdir().unwrap();
    put(&open(dir.path()), 1);
    let tries = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&tries);
    let mut options = options(dir.path());
    options.fault = Some(FaultHook::new(move |point| {
        if point != at {
            return Ok(());
        }
        *counted.lock().unwrap() += 1;
        Err(kind.into())
    }));
    let cache = Cache::open(options);
    for i in 1..4 {
        assert!(try_put(&cache, i).is_err());
    }
    assert_eq!(*tries.lock().unwrap(), if is_tried { 3 } else { 1 });
    let reports = cache.events().conditions;
    assert_eq!(reports.len(), 1, "{reports:?}");
    assert_eq!(reports[0].condition, condition);
    assert_serves(&cache, 1);
    assert_eq!(get(&cache, 2), None);
    assert_eq!(temporaries(dir.path()), 0);
    assert!(open(dir.path()).verify(false).is_clean());
}

#[test]
fn errors_while_writing_leave_nothing_behind() {
    use io::ErrorKind as Kind;
    for point in [FaultPoint::Write, FaultPoint::Sync, FaultPoint::Rename] {
        check_write_error(point, Kind::StorageFull, Condition::Full, true);
        check_write_error(point, Kind::QuotaExceeded, Condition::Full, true);
        check_write_error(point, Kind::Other, Condition::Write, true);
        check_write_error(point, Kind::ReadOnlyFilesystem, Condition::NotWritable, false);
    }
}

#[test]
fn an_eviction_that_fails_loses_nothing_and_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(dir.path());
    options.max_bytes = Some(8000);
    options.fault = Some(FaultHook::new(|point| match point {
        FaultPoint::Evict => Err(io::Error::other("a fault")),
        _ => Ok(()),
    }));
    let cache = Cache::open(options);
    for i in 0..10 {
        put(&cache, i);
    }
    for i in 0..10 {
        assert_serves(&cache, i);
    }
    let reports = cache.events().conditions;
    assert_eq!(reports.len(), 1);
    assert_eq!(reports[0].condition, Condition::Evict);
    assert!(reports[0].message.contains("a fault"), "{reports:?}");
}

#[test]
fn messages_say_what_where_why_and_what_to_try() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(dir.path());
    options.max_bytes = Some(2000);
    options.fault = Some(FaultHook::new(|_| Err(io::ErrorKind::StorageFull.into())));
    let cache = Cache::open(options);
    let archive = dir.path().join("archive");
    fs::write(&archive, b"PWARCHIV\x02\0\0\0").unwrap();
    fs::write(entry_path(dir.path(), 0).parent().unwrap().with_file_name("file"), b"").unwrap();
    let errors = [
        cache.put(KIND, &key(1), &[], b"x").unwrap_err(),
        cache.put(KIND, &key(1), &[], &[0; 2000]).unwrap_err(),
        cache.import(&archive).unwrap_err(),
        cache.put("file", &key(1), &[], b"x").unwrap_err(),
        try_put(&open(&archive), 1).unwrap_err(),
    ];
    let shown = errors.map(|error| error.to_string()).join("\n");
    insta::assert_snapshot!(shown.replace(&*dir.path().to_string_lossy(), "DIR"));
}
