//! What is kept is served, and nothing else is; what is bad is set aside, named and made again.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::time::Duration;

use crate::support::*;
use piecewise_cache::{
    Cache, CacheAccess, CacheError, CacheOptions, Condition, DecodeError, FaultHook, FaultPoint,
    KeyHex, Trust,
};

#[test]
fn an_entry_is_served_by_every_cache_in_the_directory() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path());
    assert_eq!(get(&cache, 1), None);
    put(&cache, 1);
    assert_serves(&cache, 1);
    assert_serves(&open(dir.path()), 1);
    assert_eq!(get(&cache, 2), None);
    assert_eq!(cache.get("tuning", &key(1)).unwrap(), None, "another kind");

    let events = cache.events();
    assert_eq!((events.hits, events.misses, events.stored), (1, 3, 1));
    assert_eq!(events.bytes_read, payload(1).len() as u64);
    assert_eq!(events.bytes_written, entry_bytes(dir.path(), 1));
    assert!(events.conditions.is_empty() && events.quarantined == 0, "{events:?}");
    assert_eq!(cache.path_of(KIND, &key(1)), entry_path(dir.path(), 1));
    assert_eq!(tree(dir.path()).len(), 3, "v1, the kind, the entry: {:?}", tree(dir.path()));
}

#[test]
fn an_empty_payload_is_an_entry() {
    let dir = tempfile::tempdir().unwrap();
    open(dir.path()).put(KIND, &key(0), &[], b"").unwrap();
    assert_eq!(open(dir.path()).get(KIND, &key(0)).unwrap(), Some(Vec::new()));
}

#[test]
fn the_directory_is_created_for_this_user_alone() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("a/b");
    put(&open(&dir), 1);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let entry = entry_path(&dir, 1);
    assert_eq!(mode(&dir), 0o700);
    assert_eq!(mode(entry.parent().unwrap()), 0o700);
    assert_eq!(mode(&entry), 0o600);
}

#[test]
fn a_kind_that_climbs_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(&dir.path().join("cache"));
    for kind in ["../up", "/etc", "a/b", "", "."] {
        assert!(matches!(cache.get(kind, &key(1)), Err(CacheError::Encode(_))), "{kind}");
        assert!(matches!(cache.put(kind, &key(1), &[], b""), Err(CacheError::Encode(_))));
        assert!(matches!(cache.entry(kind, &key(1)), Err(CacheError::Encode(_))));
    }
    assert_eq!(tree(dir.path()), ["cache", "cache/v1"]);
}

/// Keeps an entry, breaks it, and sees it reported once, set aside, made again and served.
#[track_caller]
fn check_heals(break_entry: impl Fn(&Path), is_expected: impl Fn(&DecodeError) -> bool) {
    let dir = tempfile::tempdir().unwrap();
    put(&open(dir.path()), 1);
    put(&open(dir.path()), 2);
    let path = entry_path(dir.path(), 1);
    break_entry(&path);

    let cache = open(dir.path());
    let report = cache.verify(false);
    assert_eq!((report.bad.len(), report.good_entries), (1, 1), "{report:?}");
    assert!(is_expected(&report.bad[0].reason), "{report:?}");

    assert_eq!(get(&cache, 1), None);
    assert_eq!(get(&cache, 1), None);
    assert_serves(&cache, 2);
    let events = cache.events();
    assert_eq!((events.quarantined, events.misses), (1, 2));
    assert_eq!(events.bad_entries[0].name, KeyHex(&key(1)).to_string());
    assert_eq!(events.bad_entries[0].reason, report.bad[0].reason.to_string());
    assert!(events.conditions.is_empty(), "{events:?}");
    assert!(fs::symlink_metadata(&path).is_err(), "set aside");

    put(&cache, 1);
    assert_serves(&cache, 1);
    let next = open(dir.path());
    assert_serves(&next, 1);
    assert_eq!(next.events().quarantined, 0);
    let report = next.verify(true);
    assert_eq!((report.set_aside, report.removed, report.bad.len()), (1, 1, 0), "{report:?}");
    assert!(next.verify(false).is_clean());
}

fn change_byte(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 1;
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_changed_byte_is_healed() {
    let is_payload = |error: &DecodeError| *error == DecodeError::Checksum { part: "payload" };
    check_heals(
        |path| change_byte(path, fs::metadata(path).unwrap().len() as usize - 1),
        is_payload,
    );
}

#[test]
fn a_cut_entry_is_healed() {
    let cut = |path: &Path| {
        let file = fs::File::options().write(true).open(path).unwrap();
        file.set_len(150).unwrap();
    };
    check_heals(cut, |error| matches!(error, DecodeError::Length { .. }));
}

#[test]
fn an_empty_file_is_healed() {
    let truncate = |path: &Path| fs::write(path, b"").unwrap();
    check_heals(truncate, |error| matches!(error, DecodeError::Truncated { .. }));
}

#[test]
fn an_entry_of_another_version_is_healed() {
    let version = |path: &Path| change_byte(path, 8);
    check_heals(version, |error| *error == DecodeError::Version { found: 0 });
}

#[test]
fn an_entry_of_another_key_is_healed() {
    let rename = |path: &Path| {
        fs::copy(path.with_file_name(KeyHex(&key(2)).to_string()), path).unwrap();
    };
    check_heals(
        rename,
        |error| matches!(error, DecodeError::OtherEntry { key: found, .. } if *found == key(2)),
    );
}

#[test]
fn an_entry_of_another_kind_is_healed() {
    let replace = |path: &Path| {
        let dir = path.ancestors().nth(3).unwrap();
        let cache = open(dir);
        cache.put("tuning", &key(1), &[], b"x").unwrap();
        fs::rename(cache.path_of("tuning", &key(1)), path).unwrap();
    };
    check_heals(
        replace,
        |error| matches!(error, DecodeError::OtherEntry { kind, .. } if kind == "tuning"),
    );
}

#[test]
fn a_link_in_place_of_an_entry_is_healed_and_not_followed() {
    let outside = tempfile::tempdir().unwrap();
    let target = outside.path().join("kept");
    fs::write(&target, b"mine").unwrap();
    let link = |path: &Path| {
        fs::remove_file(path).unwrap();
        symlink(&target, path).unwrap();
    };
    check_heals(link, |error| *error == DecodeError::NotAFile);
    assert_eq!(fs::read(&target).unwrap(), b"mine");
    assert_eq!(tree(outside.path()), ["kept"]);
}

#[test]
fn a_folder_in_place_of_an_entry_is_healed() {
    let folder = |path: &Path| {
        fs::remove_file(path).unwrap();
        fs::create_dir(path).unwrap();
    };
    check_heals(folder, |error| *error == DecodeError::NotAFile);
}

#[test]
fn a_pipe_in_place_of_an_entry_is_healed_and_not_waited_for() {
    let pipe = |path: &Path| {
        fs::remove_file(path).unwrap();
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, path, mode).unwrap();
    };
    check_heals(pipe, |error| *error == DecodeError::NotAFile);
}

#[test]
fn a_stated_length_allocates_nothing() {
    let stated = |path: &Path| {
        let mut bytes = fs::read(path).unwrap();
        bytes[16..24].copy_from_slice(&(1_u64 << 50).to_le_bytes());
        fs::write(path, bytes).unwrap();
        let file = fs::File::options().write(true).open(path).unwrap();
        // A hole of the stated length: the file's own length does not bound it either.
        file.set_len(1 << 40).unwrap();
    };
    check_heals(stated, |error| matches!(error, DecodeError::TooLong { part: "payload", .. }));
}

#[test]
fn a_bad_entry_that_was_made_again_meanwhile_is_served() {
    let dir = tempfile::tempdir().unwrap();
    put(&open(dir.path()), 1);
    fs::write(entry_path(dir.path(), 1), b"bad").unwrap();
    let mut options = CacheOptions::new(dir.path());
    let other = open(dir.path());
    options.fault = Some(FaultHook::new(move |point| {
        if point == FaultPoint::Reread {
            put(&other, 1);
        }
        Ok(())
    }));
    let cache = Cache::open(options);
    assert_serves(&cache, 1);
    assert_eq!(cache.events().quarantined, 0);
    assert!(cache.verify(false).is_clean());
}

#[test]
fn entries_replaced_by_bad_ones_all_the_time_are_served_right_or_not() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path());
    put(&cache, 1);
    let path = entry_path(dir.path(), 1);
    let good = fs::read(&path).unwrap();
    std::thread::scope(|scope| {
        let rewriter = scope.spawn(|| {
            for _ in 0..200 {
                let bad = path.with_extension("writing");
                fs::write(&bad, &good[..good.len() / 2]).unwrap();
                fs::rename(&bad, &path).unwrap();
                put(&cache, 1);
            }
        });
        while !rewriter.is_finished() {
            let served = get(&cache, 1);
            assert!(served.is_none() || served == Some(payload(1)));
        }
    });
    put(&cache, 1);
    assert_serves(&cache, 1);
}

#[test]
fn links_in_place_of_folders_lead_nowhere() {
    let parent = tempfile::tempdir().unwrap();
    let outside = parent.path().join("outside");
    fs::create_dir(&outside).unwrap();

    let dir = parent.path().join("kind-is-a-link");
    let cache = open(&dir);
    symlink(&outside, dir.join("v1").join(KIND)).unwrap();
    assert!(matches!(try_put(&cache, 1), Err(CacheError::Io { action: "write", .. })));
    assert!(matches!(cache.get(KIND, &key(1)), Err(CacheError::Io { action: "read", .. })));
    assert_eq!(cache.verify(true).foreign, [KIND]);
    assert_eq!(conditions(&cache), [(Condition::Read, 1), (Condition::Write, 1)]);
    cache.put("other", &key(1), &[], b"x").unwrap();
    assert_eq!(cache.get("other", &key(1)).unwrap().unwrap(), b"x");
    cache.clear().unwrap();

    let dir = parent.path().join("root-is-a-link");
    fs::create_dir(&dir).unwrap();
    symlink(&outside, dir.join("v1")).unwrap();
    let cache = open(&dir);
    assert!(matches!(try_put(&cache, 1), Err(CacheError::Unusable { .. })));
    assert_eq!(get(&cache, 1), None);
    assert_eq!(conditions(&cache), [(Condition::Unusable, 1)]);

    assert!(tree(&outside).is_empty(), "{:?}", tree(&outside));
}

#[test]
fn a_linked_cache_directory_is_the_users_choice() {
    let parent = tempfile::tempdir().unwrap();
    let real = parent.path().join("real");
    fs::create_dir(&real).unwrap();
    symlink(&real, parent.path().join("link")).unwrap();
    put(&open(&parent.path().join("link")), 1);
    assert_serves(&open(&real), 1);
}

#[test]
fn reading_only_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let writer = open(dir.path());
    (1..4).for_each(|i| put(&writer, i));
    change_byte(&entry_path(dir.path(), 2), 100);
    set_age(&entry_path(dir.path(), 1), Duration::from_secs(86_400));
    let facts = |i: u64| {
        let facts = fs::metadata(entry_path(dir.path(), i)).unwrap();
        (facts.modified().unwrap(), facts.len())
    };
    let before = (tree(dir.path()), facts(1));

    let mut options = CacheOptions::new(dir.path());
    options.access = CacheAccess::ReadOnly;
    let cache = Cache::open(options);
    assert_serves(&cache, 1);
    assert_eq!(get(&cache, 2), None);
    assert_eq!(get(&cache, 2), None);
    put(&cache, 9);
    assert_eq!(get(&cache, 9), None);
    assert!(matches!(cache.gc(0), Err(CacheError::ReadOnly { .. })));
    assert!(matches!(cache.clear(), Err(CacheError::ReadOnly { .. })));
    assert!(matches!(cache.import(dir.path()), Err(CacheError::ReadOnly { .. })));
    assert!(!cache.verify(true).failed.is_empty());
    assert_eq!((tree(dir.path()), facts(1)), before);
    let events = cache.events();
    assert_eq!((events.quarantined, events.not_stored), (1, 1));
    assert!(events.conditions.is_empty(), "{events:?}");
}

#[test]
fn reading_only_creates_nothing() {
    let parent = tempfile::tempdir().unwrap();
    let mut options = CacheOptions::new(parent.path().join("none"));
    options.access = CacheAccess::ReadOnly;
    let cache = Cache::open(options);
    assert_eq!(get(&cache, 1), None);
    assert_eq!(conditions(&cache), [(Condition::Unusable, 1)]);
    assert!(tree(parent.path()).is_empty());
}

#[test]
fn caches_with_different_checksum_keys_do_not_see_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let keyed = |byte: u8| {
        let mut options = CacheOptions::new(dir.path());
        options.checksum_key = Some([byte; 32]);
        Cache::open(options)
    };
    let caches = [open(dir.path()), keyed(1), keyed(2)];
    for (i, cache) in caches.iter().enumerate() {
        assert_eq!(get(cache, 1), None);
        cache.put(KIND, &key(1), &[], &[i as u8]).unwrap();
    }
    for (i, cache) in caches.iter().enumerate() {
        assert_eq!(get(cache, 1), Some(vec![i as u8]));
    }
    // An entry that was made without the key, put where entries with the key are.
    fs::copy(caches[0].path_of(KIND, &key(1)), caches[1].path_of(KIND, &key(1))).unwrap();
    assert_eq!(get(&caches[1], 1), None);
    assert!(caches[1].events().bad_entries[0].reason.contains("without a key"));
}

#[test]
fn a_directory_that_everybody_can_write_to_is_trusted_by_explicit_setting() {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let refusing = open(dir.path());
    let CacheError::Unusable { reason, .. } = try_put(&refusing, 1).unwrap_err() else { panic!() };
    assert!(
        reason.contains(
            "every user can write to it; trust it as shared (cache.shared, --cache-shared)"
        ),
        "{reason}"
    );
    assert_eq!(conditions(&refusing), [(Condition::Unusable, 1)]);
    assert!(tree(dir.path()).is_empty());

    let mut options = CacheOptions::new(dir.path());
    options.trust = Trust::Shared;
    let shared = Cache::open(options.clone());
    put(&shared, 1);
    assert_serves(&shared, 1);
    let mode = fs::metadata(entry_path(dir.path(), 1)).unwrap().permissions().mode();
    assert_eq!(mode & 0o400, 0o400);

    options.trust = Trust::Own;
    options.checksum_key = Some([1; 32]);
    let keyed = Cache::open(options);
    put(&keyed, 1);
    assert_serves(&keyed, 1);
}
