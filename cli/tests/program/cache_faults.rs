//! What goes wrong with the compile cache under a run: the output is right, it is said once, and
//! the next run is clean.

use crate::bounded::{Bound, Bounded};
use crate::skip::skipped;
use crate::support::cache::*;
use crate::support::cli::command;
use crate::support::somebody::as_somebody;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Bytes of the version in an entry.
const VERSION: usize = 8;

/// A run with a bad entry, then another: the first is right and names the entry once, the second
/// is right and has nothing to say.
fn check_heals(damage: impl Fn(&Path, &[u8]), reason: &str) {
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path();
    let entry = entry_to_damage(cache, "piece");
    let expected = logits(cache, &["--no-cache"]);
    let good = fs::read(&entry).unwrap();
    damage(&entry, &good);
    let (found, warned) = logits_and_warnings(command(cache), &[]);
    assert!(found == expected, "{reason}");
    let name = entry.file_name().unwrap().to_str().unwrap();
    assert_eq!(warned.len(), 1, "{warned:?}");
    assert!(warned[0].contains(name) && warned[0].contains(reason), "{warned:?}");
    assert_eq!(fs::read(&entry).unwrap(), good, "{reason}");
    assert_eq!(logits_and_warnings(command(cache), &[]), (expected, Vec::new()), "{reason}");
}

#[test]
fn a_bad_entry_is_named_once_and_made_again() {
    check_heals(
        |entry, good| {
            let mut other = good.to_vec();
            other[VERSION] += 1;
            fs::write(entry, other).unwrap();
        },
        "format version 2",
    );
    check_heals(|entry, good| fs::write(entry, &good[..good.len() - 1]).unwrap(), "bytes");
    check_heals(|entry, _| fs::write(entry, b"").unwrap(), "ends");
    let another = |entry: &Path, _: &[u8]| {
        let others = fs::read_dir(entry.parent().unwrap()).unwrap().map(|e| e.unwrap().path());
        fs::copy(others.into_iter().find(|path| path != entry).unwrap(), entry).unwrap();
    };
    check_heals(another, "it is the entry piece");
    let link = |entry: &Path, good: &[u8]| {
        let elsewhere = entry.with_extension("elsewhere");
        fs::write(&elsewhere, good).unwrap();
        fs::remove_file(entry).unwrap();
        symlink(elsewhere, entry).unwrap();
    };
    check_heals(link, "regular file");
    let folder = |entry: &Path, _: &[u8]| {
        fs::remove_file(entry).unwrap();
        fs::create_dir(entry).unwrap();
    };
    check_heals(folder, "regular file");
}

#[test]
fn compile_succeeds_with_a_warning_where_it_healed_what_was_bad() {
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path();
    compile(cache, &[]);
    let entries = files(cache);
    let (name, bytes) = entries.iter().find(|(name, _)| name.starts_with("v1/piece")).unwrap();
    fs::write(cache.join(name), &bytes[1..]).unwrap();
    let args = [&["compile", "--model", MODEL, "--json"][..], &SETTINGS].concat();
    let healed = run(cache, &args);
    assert_eq!(warnings(&healed).len(), 1);
    assert_eq!(json(&healed)["bad_entries"], 1);
    assert_eq!(json(&healed)["compiled"], serde_json::json!({"piece": 1}));
    let clean = run(cache, &args);
    assert_eq!(warnings(&clean), Vec::<String>::new());
    assert_eq!(json(&clean)["bad_entries"], 0);
}

#[test]
fn compile_fails_where_entries_did_not_stay() {
    let dir = tempfile::tempdir().unwrap();
    let args = [&["compile", "--model", MODEL, "--cache-max-size", "8KiB"][..], &SETTINGS].concat();
    let output = command(dir.path()).args(args).bounded_output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success(), "{errors}");
    assert!(errors.contains("not everything is in the cache"), "{errors}");
    assert!(errors.contains("evicted again; raise cache.max_bytes"), "{errors}");
}

fn set_mode(folder: &Path, mode: u32) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            set_mode(&path, mode);
        }
    }
    fs::set_permissions(folder, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_directory_that_may_not_be_written_is_said_once() {
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path();
    let expected = logits(cache, &[]);
    let removed = files(cache).into_keys().find(|name| name.starts_with("v1/piece")).unwrap();
    fs::remove_file(cache.join(&removed)).unwrap();
    let filled = files(cache);
    let somebody = || as_somebody(command(cache), cache);
    if let Err(reason) = somebody() {
        return skipped("PIECEWISE_REQUIRE_USERS", reason);
    }
    set_mode(cache, 0o500);
    let (found, warned) = logits_and_warnings(somebody().unwrap(), &[]);
    assert!(found == expected && files(cache) == filled);
    assert_eq!(warned.len(), 1, "{warned:?}");
    assert!(warned[0].contains("Permission denied"), "{warned:?}");
    let mut compiling = somebody().unwrap();
    let output =
        compiling.args(["compile", "--model", MODEL]).args(SETTINGS).bounded_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && errors.contains("not everything is in"), "{errors}");
    assert_eq!(
        (warnings(&output).len(), output.stdout.len()),
        (0, 0),
        "it is said before: {errors}"
    );
    set_mode(cache, 0o700);
    assert_eq!(logits_and_warnings(somebody().unwrap(), &[]), (expected.clone(), Vec::new()));
    assert!(cache.join(&removed).exists());
    set_mode(cache, 0o500);
    let again = checked(
        somebody()
            .unwrap()
            .args(["compile", "--model", MODEL])
            .args(SETTINGS)
            .bounded_output()
            .unwrap(),
    );
    assert_eq!(warnings(&again), Vec::<String>::new(), "all that it needs is there");
    set_mode(cache, 0o700);
}

fn entries(cache: &Path) -> usize {
    let read = |folder: PathBuf| fs::read_dir(folder).into_iter().flatten().flatten();
    let names = read(cache.join("v1")).flat_map(|kind| read(kind.path()));
    names.filter(|entry| !entry.file_name().to_string_lossy().starts_with('.')).count()
}

/// Stops a child when the cache has some entries; how many it has then, or `None` if the child had
/// ended before.
fn stop_at(child: &Child, cache: &Path, least: usize) -> Option<usize> {
    let pid = Pid::from_child(child);
    let wait = |options| waitid(WaitId::Pid(pid), options | WaitIdOptions::NOWAIT).unwrap();
    let has_ended = || wait(WaitIdOptions::EXITED | WaitIdOptions::NOHANG).is_some();
    while entries(cache) < least && !has_ended() {
        std::hint::spin_loop();
    }
    kill_process(pid, Signal::STOP).unwrap();
    let status = wait(WaitIdOptions::STOPPED | WaitIdOptions::EXITED).unwrap();
    status.stopped().then(|| entries(cache))
}

/// Runs a command until it is stopped with more than `least` entries in the cache, but fewer than
/// `all`; where it was too fast, again from an empty cache.
fn stopped_between(
    start: impl Fn() -> Command,
    cache: &Path,
    (least, all): (usize, usize),
) -> Bounded {
    for _ in 0..200 {
        fs::remove_dir_all(cache).ok();
        let mut child = start().stdout(Stdio::piped()).stderr(Stdio::piped()).bounded().unwrap();
        if stop_at(&child, cache, least).is_some_and(|found| found < all) {
            return child;
        }
        child.kill().unwrap();
        child.wait();
    }
    panic!("never stopped between {least} and {all} entries");
}

#[test]
fn a_directory_that_is_removed_while_in_use_is_said_once() {
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path().join("cache");
    let (expected, _) = generate(&cache, &[]);
    let all = entries(&cache);
    let generating = || {
        let mut command = command(&cache);
        command.args(["generate", "--model", MODEL, "--prompt", "def __init__(self", "--json"]);
        command.args(SETTINGS).args(["--max-tokens", "8"]);
        command
    };
    let child = stopped_between(generating, &cache, (1, all));
    fs::remove_dir_all(&cache).unwrap();
    kill_process(Pid::from_child(&child), Signal::CONT).unwrap();
    let output = checked(child.wait_with_output());
    assert_eq!(output.stdout, expected);
    let warned = warnings(&output);
    assert!(warned.len() == 1 && warned[0].contains("was removed while in use"), "{warned:?}");
    let next = checked(generating().bounded_output().unwrap());
    assert_eq!((&next.stdout, warnings(&next)), (&expected, Vec::new()));
    assert_eq!(entries(&cache), all);
}

#[test]
fn an_import_may_be_killed() {
    let dir = tempfile::tempdir().unwrap();
    let (cache, there) = (dir.path().join("cache"), dir.path().join("there"));
    let expected = logits(&cache, &[]);
    let archive = dir.path().join("archive");
    let archive = archive.to_str().unwrap();
    run(&cache, &["cache", "export", archive]);
    let importing = || {
        let mut command = command(&there);
        command.args(["cache", "import", archive]);
        command
    };
    let all = entries(&cache);
    for least in [0, 1, all / 2, all - 2] {
        let mut child = stopped_between(importing, &there, (least, all));
        child.kill().unwrap();
        child.wait();
        let verified =
            command(&there).args(["cache", "verify", "--json"]).bounded_output().unwrap();
        assert_eq!(json(&verified)["bad"], serde_json::json!([]));
        assert_eq!(logits_and_warnings(command(&there), &[]), (expected.clone(), Vec::new()));
        let again = checked(importing().bounded_output().unwrap());
        assert_eq!(warnings(&again), Vec::<String>::new());
        let entry_files = |cache: &Path| {
            let mut files = files(cache);
            files.retain(|name, _| !name.to_string_lossy().contains(".tmp-"));
            files
        };
        assert!(entry_files(&there) == entry_files(&cache), "{least}");
    }
}

#[test]
fn sixteen_runs_fill_one_cache_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let (cache, alone) = (dir.path().join("cache"), dir.path().join("alone"));
    let args = [&["compile", "--model", MODEL][..], &SETTINGS].concat();
    let start = || {
        let mut command = command(&cache);
        command.args(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).bounded().unwrap()
    };
    let children: Vec<_> = (0..16).map(|_| start()).collect();
    for child in children {
        let output = checked(child.wait_with_output());
        assert_eq!(warnings(&output), Vec::<String>::new());
    }
    run(&alone, &args);
    assert!(files(&cache) == files(&alone));
}

/// A command that another program starts: the words `confiner`, then the command's own program.
fn confined(confiner: &[&str], command: &Command) -> Command {
    let mut confined = Command::new(confiner[0]);
    confined.args(&confiner[1..]).arg(command.get_program());
    confined.current_dir(command.get_current_dir().unwrap());
    for (name, value) in command.get_envs() {
        confined.env(name, value.unwrap());
    }
    confined
}

/// The words before a command that give it a mount namespace of its own, where `cache` has room for
/// a few entries; the reason if there can't be one.
fn small_disk(cache: &Path) -> Result<Vec<String>, String> {
    let mut words = vec!["unshare", "--mount"];
    if !rustix::process::geteuid().is_root() {
        words.push("--map-root-user");
    }
    let mount = format!("mount -t tmpfs -o size=64k,mode=700 tmpfs '{}'", cache.display());
    let tried =
        Command::new(words[0]).args(&words[1..]).args(["sh", "-c", &mount]).bounded_output();
    match tried {
        Ok(output) if output.status.success() => {}
        Ok(output) => return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => return Err(format!("unshare: {error}")),
    }
    let script = format!("{mount} && exec \"$@\"");
    words.extend(["sh", "-c", &script, "sh"]);
    Ok(words.into_iter().map(str::to_owned).collect())
}

/// Runs that find no room for entries are right and say so once, with what to try; the next one with
/// room is clean. `run` has what a command computes and what it warned about, and `is_left` looks at
/// the sizes of the files that the confined ones left.
fn check_full(
    cache: &Path,
    confiner: &[&str],
    advice: &str,
    run: impl Fn(Command, &[&str]) -> (Vec<u8>, Vec<String>),
    is_left: impl Fn(&[usize]) -> bool,
) {
    let full = || confined(confiner, &command(cache));
    let (expected, _) = run(command(cache), &["--no-cache"]);
    let (found, warned) = run(full(), &[]);
    assert!(found == expected);
    assert_eq!(warned.len(), 1, "{warned:?}");
    assert!(warned[0].contains(advice), "{warned:?}");
    let args = [&["compile", "--model", MODEL][..], &SETTINGS].concat();
    let output = full().args(args).bounded_output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && errors.contains("not everything is in"), "{errors}");
    let left = Vec::from_iter(files(cache).values().map(Vec::len));
    assert!(is_left(&left), "{left:?}");
    assert_eq!(run(command(cache), &[]), (expected, Vec::new()));
}

#[test]
fn a_full_disk_is_said_once() {
    let dir = tempfile::tempdir().unwrap();
    match small_disk(dir.path()) {
        Ok(words) => {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            // The disk was the run's own.
            check_full(dir.path(), &words, "free space", logits_and_warnings, <[_]>::is_empty);
        }
        Err(reason) => {
            let reason = format!("no small disk can be mounted: {reason}");
            skipped("PIECEWISE_REQUIRE_MOUNTS", reason);
        }
    }
}

/// Needs no mount. The limit raises a signal that ends a program; ignored, writing fails instead, of a
/// file of logits too.
#[test]
fn a_limit_on_files_is_said_once() {
    let dir = tempfile::tempdir().unwrap();
    let generate = |mut command: Command, extra: &[&str]| {
        command.args(["generate", "--model", MODEL, "--prompt", "def __init__(self", "--json"]);
        let output = checked(
            command
                .args(SETTINGS)
                .args(["--max-tokens", "8"])
                .args(extra)
                .bounded_output()
                .unwrap(),
        );
        (output.stdout.clone(), warnings(&output))
    };
    let is_within = |left: &[usize]| left.iter().all(|&bytes| bytes <= 1024);
    let script = "trap '' XFSZ; ulimit -f 1; exec \"$@\"";
    let words = ["sh", "-c", script, "sh"];
    check_full(dir.path(), &words, "raise the limit", generate, is_within);
}
