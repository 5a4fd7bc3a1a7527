//! A compile cache with a second level: what it lacks comes from there, and no run depends on it.

use crate::bounded::Bound;
use crate::support::cache::*;
use crate::support::cli::command;
use std::path::Path;
use std::process::Output;

fn generating(cache: &Path, extra: &[&str]) -> Output {
    let args = ["generate", "--model", MODEL, "--prompt", "def __init__(self", "--max-tokens", "8"];
    checked(command(cache).args(args).args(SETTINGS).args(extra).bounded_output().unwrap())
}

/// Runs with a remote level that is not used: the text is right, it is said once, and the next run
/// without it finds all in the directory.
fn check_said_once(remote: &[&str], reason: &str) {
    let cache = tempfile::tempdir().unwrap();
    let cache = cache.path();
    let expected = generating(cache, &["--no-cache"]).stdout;
    // Memory is counted by a compile of its own, which says nothing twice.
    let output = generating(cache, &[remote, &["--memory-budget", "64MiB"]].concat());
    assert_eq!(output.stdout, expected);
    let warned = warnings(&output);
    assert!(warned.len() == 1 && warned[0].contains(reason), "{warned:?}");
    let (_, counts) = generate(cache, &[]);
    assert_eq!(counts["compiled"], serde_json::json!({}));
    let next = generating(cache, &[]);
    assert_eq!((&next.stdout, warnings(&next)), (&expected, Vec::new()));
}

/// Whether `compile` with a remote level that fails fills the directory, and says so in so many warnings.
fn check_compile(remote: &[&str], is_written: bool, warned: usize) {
    let cache = tempfile::tempdir().unwrap();
    let written: &[&str] = if is_written { &["--cache-remote-write"] } else { &[] };
    let args = [&["compile", "--model", MODEL][..], &SETTINGS, remote, written].concat();
    let output = command(cache.path()).args(args).bounded_output().unwrap();
    assert_eq!(output.status.success(), !is_written);
    assert_eq!(warnings(&output).len(), warned, "{output:?}");
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(errors.contains("not everything is in the cache"), is_written, "{errors}");
    assert_eq!(compile(cache.path(), &[])["compiled"], serde_json::json!({}));
}

#[test]
#[cfg(not(feature = "remote"))]
fn a_program_without_the_feature_says_so_once_and_goes_on() {
    let remote = ["--cache-remote", "s3://bucket/path", "--cache-remote-trusted"];
    check_said_once(&remote, "built without the cargo feature `remote`");
    check_compile(&remote, false, 1);
    check_compile(&remote, true, 1);
}

#[test]
fn a_remote_level_that_is_not_trusted_is_said_once() {
    // Trust would not help a program that can't ask at all.
    let reason = match cfg!(feature = "remote") {
        true => "it is not trusted; trust it (cache.remote_trusted, --cache-remote-trusted) or set",
        false => "built without the cargo feature `remote`; build it with --features remote",
    };
    check_said_once(&["--cache-remote", "s3://bucket/path"], reason);
}

#[test]
fn commands_on_the_directory_do_not_ask_the_remote_level() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("piecewise.toml");
    std::fs::write(&config, "cache.remote_url = \"s3://bucket/path\"").unwrap();
    let cache = folder.path().join("cache");
    compile(&cache, &[]);
    let config = ["--config", config.to_str().unwrap()];
    let explain = [&["explain", "--model", MODEL][..], &SETTINGS].concat();
    for args in [&["list"][..], &["verify"], &explain, &["gc", "--max-size", "1GiB"], &["clear"]] {
        let output = run(&cache, &[&["cache"][..], args, &config].concat());
        assert_eq!(warnings(&output), Vec::<String>::new(), "{args:?}");
    }
}

#[cfg(feature = "remote")]
mod with_the_feature {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn one_machine_compiles_and_the_others_are_served() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let (first, second, remote) = (at("first"), at("second"), at("remote"));
        std::fs::create_dir(&remote).unwrap();
        let url = format!("file://{}", remote.display());
        let key_file = at("key");
        std::fs::write(&key_file, "5a".repeat(32)).unwrap();
        let key = ["--cache-checksum-key-file", key_file.to_str().unwrap()];
        for trust in [&["--cache-remote-trusted"][..], &key] {
            let shared = [&["--cache-remote", &url][..], trust].concat();
            let writing = [&shared[..], &["--cache-remote-write", "--max-num-seqs", "1"]].concat();
            let made = compile(&first, &writing);
            assert!(made["compiled"]["piece"].as_u64() > Some(0));
            let expected = generating(&at("none"), &["--no-cache"]).stdout;
            let (_, counts) = generate(&second, &shared);
            assert_eq!(counts["compiled"], serde_json::json!({}));
            assert_eq!(counts["reused"], made["compiled"]);
            assert!(files(&second) == files(&first) && files(&remote) == files(&first));
            let served = generating(&second, &shared);
            assert_eq!((&served.stdout, warnings(&served)), (&expected, Vec::new()));
            for folder in [&first, &second, &remote] {
                std::fs::remove_dir_all(folder).unwrap();
            }
            std::fs::create_dir(&remote).unwrap();
        }
    }

    #[test]
    fn an_unreachable_remote_level_is_said_once() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/cache", listener.local_addr().unwrap());
        drop(listener);
        let limit = ["--cache-remote-trusted", "--cache-remote-timeout-ms", "300"];
        let remote = [&["--cache-remote", &url][..], &limit].concat();
        check_said_once(&remote, "/cache can't be read: ");
        check_compile(&remote, false, 1);
        // It can be neither read nor written.
        check_compile(&remote, true, 2);
    }
}
