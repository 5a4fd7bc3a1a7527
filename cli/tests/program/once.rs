//! Each piece is planned and lowered at most once a start, whatever the command and its flags.

use crate::support::cache::{MODEL, SETTINGS};
use crate::support::cli::{command, error_of};
use std::collections::BTreeMap;

/// Runs a command with its log, and returns how often each pass ran and each piece was lowered at
/// each size.
fn counted(args: &[&str]) -> (BTreeMap<String, usize>, BTreeMap<String, usize>) {
    let cache = tempfile::tempdir().unwrap();
    let mut command = command(cache.path());
    command.env("PIECEWISE_LOG", "piecewise_runtime=debug,piecewise_passes=debug");
    let output = command.args(args).output().unwrap();
    let log = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{args:?}: {log}");
    let count = |text: &str, of: fn(&str) -> Option<&str>| {
        let mut counts = BTreeMap::new();
        for line in log.lines().filter(|line| line.contains(text)) {
            *counts.entry(of(line).unwrap().to_owned()).or_default() += 1;
        }
        counts
    };
    let passes = count("pass done", |line| line.split("name=\"").nth(1)?.split('"').next());
    let pieces = count("a piece is lowered", |line| Some(line.split("unique=").nth(1)?.trim()));
    (passes, pieces)
}

#[test]
fn nothing_is_planned_or_lowered_twice() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (dump, page, cache) = (path("dump"), path("page.html"), path("cache"));
    let model = ["--model", MODEL];
    let of_model = |command: &[&'static str]| [command, &model, &SETTINGS].concat();
    let generate = of_model(&["generate", "--prompt", "a", "--max-tokens", "2"]);
    let sizes = of_model(&["inspect", "--sizes"]);
    let compile = of_model(&["compile"]);
    let (budget, no_cache) = (["--memory-budget", "64MiB"], ["--no-cache"]);
    let config = path("dumps.toml");
    std::fs::write(&config, format!("dump.dir = {dump:?}")).unwrap();
    let dumps_by_file = ["--config", &config];
    let bench = ["bench", "--model", MODEL, "--batch", "1", "--context", "16", "--steps", "2"];
    let (dumps, html) = (["--dump-dir", &dump], ["--html", &page]);
    let runs: [(&[&str], &[&[&str]]); 4] = [
        (
            &generate,
            &[
                &[],
                &budget,
                &no_cache,
                &[budget, dumps].concat(),
                &[&no_cache[..], &budget, &dumps].concat(),
            ],
        ),
        (
            &sizes,
            &[
                &[],
                &[&budget[..], &html, &dumps].concat(),
                &[&no_cache[..], &budget, &html, &dumps].concat(),
            ],
        ),
        (&compile, &[&[], &budget, &dumps_by_file, &[budget, dumps_by_file].concat()]),
        (
            &bench,
            &[
                &[],
                &budget,
                &no_cache,
                &dumps,
                &["--cache-dir", &cache],
                &[&no_cache[..], &budget, &dumps].concat(),
            ],
        ),
    ];
    for (command, flags) in runs {
        for flags in flags {
            let args = [command, flags].concat();
            let (passes, pieces) = counted(&args);
            assert!(passes.len() >= 9 && passes.values().all(|&n| n == 1), "{args:?}: {passes:?}");
            // Five unique pieces and split ops, at one size or more.
            assert!(pieces.len() > 5 && pieces.values().all(|&n| n == 1), "{args:?}: {pieces:?}");
        }
    }
    // Without sizes it shows the plan alone.
    let inspect = of_model(&["inspect"]);
    for flags in [&[][..], &budget, &no_cache, &dumps, &[&no_cache[..], &html, &dumps].concat()] {
        let args = [&inspect, flags].concat();
        let (passes, pieces) = counted(&args);
        assert!(passes.len() >= 9 && passes.values().all(|&n| n == 1), "{args:?}: {passes:?}");
        assert!(pieces.values().all(|&n| n == 1), "{args:?}: {pieces:?}");
    }
    // It fills a cache, and has no flag of dumps.
    let error = error_of(&[&compile[..], &no_cache].concat());
    assert!(error.contains("there is nothing to fill"), "{error}");
    let error = error_of(&[&compile[..], &dumps].concat());
    assert!(error.contains("--dump-dir"), "{error}");
}
