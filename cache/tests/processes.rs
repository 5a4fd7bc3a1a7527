//! Processes that write at once, that die at the worst moment, and that run out of space.

#![allow(clippy::print_stdout, reason = "a child tells its parent what it saw")]

use std::fs;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::bounded::{Bound, Bounded};
use crate::children::{assert_succeeds, child, confined, said_until, wait_for_parent};
use crate::skip::skipped;
use crate::support::*;
use piecewise_cache::{Cache, CacheAccess, CacheOptions, Claim, Condition, FaultHook, FaultPoint};

const SHARED: u64 = 12;

pub(crate) fn write_with_others(dir: &Path, number: u64) {
    wait_for_parent();
    let cache = open(&dir.join("cache"));
    for round in 0..3 {
        for i in 0..SHARED {
            let i = (i + number) % SHARED;
            let served = get(&cache, i);
            assert!(served.is_none() || served == Some(payload(i)));
            put(&cache, i);
            assert_serves(&cache, i);
        }
        put(&cache, 100 + number * 3 + round);
    }
    let events = cache.events();
    assert!(events.conditions.is_empty() && events.quarantined == 0, "{events:?}");
}

#[test]
fn sixteen_processes_write_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let spawn = |number: u64| {
        let mut command = child("write", dir.path(), &[&number.to_string()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.bounded().unwrap()
    };
    let mut children: Vec<_> = (0..16).map(spawn).collect();
    children.iter_mut().for_each(|child| drop(child.stdin.take()));
    for child in children {
        let output = child.wait_with_output();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let cache = open(&dir.path().join("cache"));
    for i in (0..SHARED).chain(100..148) {
        assert_serves(&cache, i);
    }
    let report = cache.verify(false);
    assert!(report.is_clean() && report.foreign.is_empty(), "{report:?}");
    assert_eq!(report.good_entries, SHARED + 48);
    assert_eq!(temporaries(dir.path()), 0);
}

const POINTS: [(&str, FaultPoint); 5] = [
    ("write", FaultPoint::Write),
    ("sync", FaultPoint::Sync),
    ("rename", FaultPoint::Rename),
    ("evict", FaultPoint::Evict),
    ("import", FaultPoint::Import),
];

/// Entries whose bytes exceed what a dying child's cache may hold.
const DYING: u64 = 12;

pub(crate) fn die(dir: &Path, point: &str, nth: u64) {
    let point = POINTS.iter().find(|(name, _)| *name == point).unwrap().1;
    let reached = AtomicU64::new(0);
    let mut options = CacheOptions::new(dir.join("cache"));
    if point == FaultPoint::Evict {
        options.max_bytes = Some(12_000);
    }
    options.fault = Some(FaultHook::new(move |at| {
        if at == point && reached.fetch_add(1, Ordering::Relaxed) + 1 == nth {
            std::process::abort();
        }
        Ok(())
    }));
    let cache = Cache::open(options);
    if point == FaultPoint::Import {
        cache.import(&dir.join("archive")).unwrap();
    } else {
        (0..DYING).for_each(|i| put(&cache, i));
    }
    panic!("the point was not reached");
}

/// A child dies at the `nth` arrival at a point; what it had kept is served, nothing else, and
/// doing the same again without a fault works.
fn check_dying(point: &str, nth: u64) {
    let dir = tempfile::tempdir().unwrap();
    let exporter = open(&dir.path().join("exporter"));
    (0..DYING).for_each(|i| put(&exporter, i));
    let archive = dir.path().join("archive");
    exporter.export(&archive, |_| true).unwrap();

    let mut dying = child("die", dir.path(), &[point, &nth.to_string()]);
    let output = dying.bounded_output().unwrap();
    assert_eq!(output.status.signal(), Some(6), "{}", String::from_utf8_lossy(&output.stderr));

    let cache_dir = dir.path().join("cache");
    let cache = open(&cache_dir);
    assert!(cache.verify(false).bad.is_empty());
    let served = (0..DYING).filter(|&i| get(&cache, i).is_some()).count() as u64;
    for i in 0..DYING {
        let served = get(&cache, i);
        assert!(served.is_none() || served == Some(payload(i)), "{point} {nth}: entry {i}");
    }
    let half_written = u64::from(matches!(point, "write" | "sync" | "rename"));
    assert_eq!(temporaries(&cache_dir) as u64, half_written, "{point} {nth}");
    if point != "evict" {
        assert_eq!(served, nth - 1, "{point} {nth}");
    }
    if point == "import" {
        let report = cache.import(&archive).unwrap();
        assert_eq!((report.present, report.added), (nth - 1, DYING - nth + 1));
    }
    for i in 0..DYING {
        put(&cache, i);
        assert_serves(&cache, i);
    }
    let events = cache.events();
    assert!(events.conditions.is_empty() && events.quarantined == 0, "{events:?}");
    cache.gc(u64::MAX).unwrap();
    assert_eq!(temporaries(&cache_dir), 0);
    assert!(cache.verify(false).is_clean());
}

#[test]
fn a_writer_may_die_at_any_point() {
    for (point, _) in POINTS {
        for nth in [1, 2, 4] {
            check_dying(point, nth);
        }
    }
}

const FILLED: u64 = 40;

/// A sequence without a pattern that matters, the same for the same seed.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

/// What a child says once it is in the midst of an entry, and has kept others before.
const IS_WRITING: &str = "writing";

/// Whether a child of [`fill_forever`] stays in the midst of an entry: the others go on, and may be
/// anywhere when they are killed.
fn stays(seed: u64) -> bool {
    seed.is_multiple_of(2)
}

pub(crate) fn fill_forever(dir: &Path, seed: u64) {
    let mut options = CacheOptions::new(dir);
    options.max_bytes = Some(60_000);
    let point = [FaultPoint::Write, FaultPoint::Sync, FaultPoint::Rename][seed as usize % 3];
    // Of three that two threads begin, one is kept.
    let nth = 3 + seed / 6 % 4;
    let reached = AtomicU64::new(0);
    options.fault = Some(FaultHook::new(move |at| {
        if at == point && reached.fetch_add(1, Ordering::Relaxed) + 1 == nth {
            println!("\n{IS_WRITING}");
            while stays(seed) {
                std::thread::park();
            }
        }
        Ok(())
    }));
    let cache = Cache::open(options);
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let cache = &cache;
            scope.spawn(move || {
                let mut state = seed * 2 + thread;
                loop {
                    let i = next(&mut state) % FILLED;
                    match get(cache, i) {
                        None => put(cache, i),
                        Some(served) if served == payload(i) => {}
                        Some(_) => std::process::exit(17),
                    }
                    if cache.events().quarantined > 0 || !cache.events().conditions.is_empty() {
                        println!("{:?}", cache.events());
                        std::process::exit(18);
                    }
                }
            });
        }
    });
}

#[test]
fn two_hundred_kills_during_a_parallel_fill_corrupt_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let cache_dir = dir.path().join("cache");
    let spawn = |seed: u64| {
        let mut command = child("fill", &cache_dir, &[&seed.to_string()]);
        (seed, command.stdout(Stdio::piped()).stderr(Stdio::null()).bounded().unwrap())
    };
    let mut in_the_midst = 0;
    let mut kill = |(seed, mut child): (u64, Bounded)| {
        let (mut said, mut rest) = said_until(&mut child, IS_WRITING);
        child.kill().unwrap();
        rest.read_to_string(&mut said).unwrap();
        let status = child.wait();
        assert_eq!(status.signal(), Some(9), "{status:?}: {said}");
        in_the_midst += usize::from(stays(seed));
    };
    let mut children: Vec<_> = (0..6).map(spawn).collect();
    let mut state = 7;
    for seed in 6..206 {
        let victim = next(&mut state) as usize % children.len();
        kill(std::mem::replace(&mut children[victim], spawn(seed)));
    }
    children.into_iter().for_each(&mut kill);
    let left_behind = temporaries(&cache_dir);
    assert!(in_the_midst == 103 && left_behind >= in_the_midst, "{left_behind} of {in_the_midst}");
    let cache = open(&cache_dir);
    let report = cache.verify(false);
    assert!(
        report.bad.is_empty() && report.set_aside == 0 && report.failed.is_empty(),
        "{report:?}"
    );
    for i in 0..FILLED {
        let served = get(&cache, i);
        assert!(served.is_none() || served == Some(payload(i)));
        put(&cache, i);
        assert_serves(&cache, i);
    }
    assert_eq!(cache.gc(u64::MAX).unwrap().removed_leftovers, left_behind as u64);
    assert!(cache.verify(false).is_clean());
}

/// How this process gets a mount that only it and its children see. Where it can't, the test of
/// `what` is skipped.
fn private_mounts(what: &str) -> Option<Vec<&'static str>> {
    let mut words = vec!["unshare", "--mount"];
    if !rustix::process::geteuid().is_root() {
        words.push("--map-root-user");
    }
    let script = "mount -t tmpfs -o size=64k tmpfs /tmp";
    let tried =
        Command::new(words[0]).args(&words[1..]).args(["sh", "-c", script]).bounded_output();
    let reason = match tried {
        Ok(output) if output.status.success() => return Some(words),
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Err(error) => format!("unshare: {error}"),
    };
    let message = format!("{what} is not tested, no disk can be mounted: {reason}");
    skipped("PIECEWISE_REQUIRE_MOUNTS", message);
    None
}

/// Fills until the disk is full and past it: one report, no half entry, the kept ones served.
pub(crate) fn fill_the_disk(dir: &Path) {
    let cache = open(dir);
    let kept: Vec<_> = (0..60).filter(|&i| try_put(&cache, i).is_ok()).collect();
    assert!(kept.len() > 3 && kept.len() < 60, "{}", kept.len());
    kept.iter().for_each(|&i| assert_serves(&cache, i));
    let reports = cache.events().conditions;
    assert_eq!(reports.len(), 1, "{reports:?}");
    assert_eq!(reports[0].condition, Condition::Full);
    assert!(reports[0].times > 3, "{reports:?}");
    assert_eq!(temporaries(dir), 0);

    let next = open(dir);
    assert!(next.verify(false).is_clean());
    next.gc(10_000).unwrap();
    put(&next, 70);
    assert_serves(&next, 70);
    assert!(next.events().conditions.is_empty());
}

#[test]
fn a_full_disk_is_reported_once() {
    let Some(mounts) = private_mounts("a full disk") else { return };
    let dir = tempfile::tempdir().unwrap();
    let script = format!(
        "mount -t tmpfs -o size=64k,mode=700 tmpfs '{}' && exec \"$@\"",
        dir.path().display()
    );
    let confiner = [&mounts[..], &["sh", "-c", &script, "sh"]].concat();
    assert_succeeds(confined(&confiner, "full-disk", dir.path(), &[]));
    assert!(tree(dir.path()).is_empty(), "the disk was the child's own");
}

/// Files may have 3,000 bytes: the longer entries fail as on a full disk.
pub(crate) fn write_past_the_limit(dir: &Path) {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let cache = open(dir);
    let limit = Some(3000);
    setrlimit(Resource::Fsize, Rlimit { current: limit, maximum: limit }).unwrap();
    let kept: Vec<_> = (0..30).filter(|&i| try_put(&cache, i).is_ok()).collect();
    assert!(!kept.is_empty() && kept.len() < 30, "{kept:?}");
    kept.iter().for_each(|&i| assert_serves(&cache, i));
    let failed = 30 - kept.len() as u64;
    assert_eq!(conditions(&cache), [(Condition::Full, failed)]);
    assert_eq!(temporaries(dir), 0);
    assert!(cache.verify(false).is_clean());
}

#[test]
fn a_limit_on_files_is_reported_once() {
    let dir = tempfile::tempdir().unwrap();
    // The limit raises a signal that ends a process; ignored, writing fails instead.
    let ignoring = ["sh", "-c", "trap '' XFSZ; exec \"$@\"", "sh"];
    assert_succeeds(confined(&ignoring, "file-limit", dir.path(), &[]));
    let next = open(dir.path());
    (0..30).for_each(|i| put(&next, i));
    assert!(next.events().conditions.is_empty());
}

pub(crate) fn use_a_read_only_disk(dir: &Path) {
    let cache = open(dir);
    assert_serves(&cache, 1);
    assert!(try_put(&cache, 2).is_err());
    assert!(try_put(&cache, 3).is_err());
    assert_eq!(get(&cache, 9), None, "a bad entry that can't be set aside");
    assert_eq!(get(&cache, 9), None);
    let events = cache.events();
    assert_eq!(events.quarantined, 1);
    assert_eq!(conditions(&cache), [(Condition::NotWritable, 1)]);
    let other = open(&dir.join("new"));
    assert!(try_put(&other, 1).is_err());
    assert_eq!(conditions(&other), [(Condition::Unusable, 1)]);
}

#[test]
fn a_read_only_disk_serves_what_it_has() {
    let Some(mounts) = private_mounts("a read-only disk") else { return };
    let dir = tempfile::tempdir().unwrap();
    put(&open(dir.path()), 1);
    fs::write(entry_path(dir.path(), 9), b"bad").unwrap();
    let before = tree(dir.path());
    let path = dir.path().display();
    let script = format!(
        "mount --bind '{path}' '{path}' && mount -o remount,bind,ro '{path}' && exec \"$@\""
    );
    let confiner = [&mounts[..], &["sh", "-c", &script, "sh"]].concat();
    assert_succeeds(confined(&confiner, "read-only", dir.path(), &[]));
    assert_eq!(tree(dir.path()), before);
}

/// What a child says once it has claimed an entry.
const HAS_CLAIMED: &str = "claimed";

/// Claims an entry, says so, and holds it until it is killed.
pub(crate) fn hold_claim(dir: &Path) {
    let cache = open(&dir.join("cache"));
    let Claim::Mine(_guard) = cache.claim(KIND, &key(1)) else { panic!("it is taken") };
    println!("\n{HAS_CLAIMED}");
    wait_for_parent();
}

#[test]
fn a_claim_is_of_one_process_and_ends_with_it_or_with_the_entry() {
    let dir = tempfile::tempdir().unwrap();
    let mut other = child("claim", dir.path(), &[]);
    let mut other = other.stdin(Stdio::piped()).stdout(Stdio::piped()).bounded().unwrap();
    let _rest = said_until(&mut other, HAS_CLAIMED);
    let cache = open(&dir.path().join("cache"));
    assert!(matches!(cache.claim(KIND, &key(1)), Claim::Taken));
    assert!(matches!(cache.claim(KIND, &key(2)), Claim::Mine(_)), "another entry");
    // Who may not write has nothing to wait for.
    let mut options = CacheOptions::new(dir.path().join("cache"));
    options.access = CacheAccess::ReadOnly;
    assert!(matches!(Cache::open(options).claim(KIND, &key(1)), Claim::Mine(_)));
    other.kill().unwrap();
    other.wait();
    let Claim::Mine(guard) = cache.claim(KIND, &key(1)) else { panic!("its process is gone") };
    assert!(matches!(cache.claim(KIND, &key(1)), Claim::Taken), "another thread of this one");
    put(&cache, 1);
    assert!(matches!(cache.claim(KIND, &key(1)), Claim::Taken), "until it is given back");
    drop(guard);
    assert!(matches!(cache.claim(KIND, &key(1)), Claim::Made));
    assert_eq!(temporaries(dir.path()), 0);
}

/// Of entries that all want, each makes those that it can claim.
pub(crate) fn make_with_others(dir: &Path) {
    wait_for_parent();
    let cache = open(&dir.join("cache"));
    let mut made = 0;
    for i in 0..SHARED {
        loop {
            match cache.claim(KIND, &key(i)) {
                Claim::Taken => std::thread::yield_now(),
                Claim::Made => break assert_serves(&cache, i),
                Claim::Mine(_guard) => {
                    put(&cache, i);
                    made += 1;
                    break;
                }
            }
        }
    }
    fs::write(dir.join(format!("made-{}", std::process::id())), made.to_string()).unwrap();
}

#[test]
fn of_eight_processes_one_makes_each_entry() {
    let dir = tempfile::tempdir().unwrap();
    let spawn = |_| {
        let mut command = child("make", dir.path(), &[]);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).bounded().unwrap()
    };
    let mut children: Vec<_> = (0..8).map(spawn).collect();
    children.iter_mut().for_each(|child| drop(child.stdin.take()));
    for mut child in children {
        assert!(child.wait().success());
    }
    let names = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
    let made = names.filter(|path| path.to_string_lossy().contains("made-"));
    let made = made.map(|path| fs::read_to_string(path).unwrap().parse::<u64>().unwrap());
    assert_eq!(made.sum::<u64>(), SHARED);
    assert_eq!(temporaries(dir.path()), 0);
}
