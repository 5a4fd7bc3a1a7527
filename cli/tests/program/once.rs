//! Each piece is planned and lowered at most once a start, whatever the command and its flags.

use crate::bounded::Bound;
use crate::support::cache::{MODEL, SETTINGS};
use crate::support::cli::{command, error_of};
use std::collections::BTreeMap;

type Counts = BTreeMap<String, usize>;

/// Runs a command with its log, and returns how often each pass ran over each form of the graph, and
/// each piece was lowered at each size.
fn counted(args: &[&str]) -> (Counts, Counts) {
    let cache = tempfile::tempdir().unwrap();
    let mut command = command(cache.path());
    command.env("PIECEWISE_LOG", "piecewise_runtime=debug,piecewise_passes=debug");
    let output = command.args(args).bounded_output().unwrap();
    let log = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{args:?}: {log}");
    let count = |text: &str, of: fn(&str) -> Option<String>| {
        let mut counts = Counts::new();
        for line in log.lines().filter(|line| line.contains(text)) {
            *counts.entry(of(line).unwrap()).or_default() += 1;
        }
        counts
    };
    let passes = count("pass done", |line| {
        let field = |name: &str| line.split(name).nth(1)?.split('"').nth(1);
        Some(format!("{} {}", field("form=")?, field("name=")?))
    });
    let pieces =
        count("a piece is lowered", |line| Some(line.split("unique=").nth(1)?.trim().to_owned()));
    (passes, pieces)
}

/// Of the compiled form, once each.
fn assert_planned_once(passes: &Counts, args: &[&str]) {
    let is_compiled = passes.keys().all(|pass| pass.starts_with("compiled "));
    assert!(passes.len() >= 9 && is_compiled, "{args:?}: {passes:?}");
    assert!(passes.values().all(|&n| n == 1), "{args:?}: {passes:?}");
}

/// Five unique pieces and split ops, at one size or more, once each.
fn assert_lowered_once(pieces: &Counts, args: &[&str]) {
    assert!(pieces.len() > 5 && pieces.values().all(|&n| n == 1), "{args:?}: {pieces:?}");
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
                &dumps,
                &[budget, dumps].concat(),
                &[&no_cache[..], &budget].concat(),
                &[&no_cache[..], &dumps].concat(),
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
                &["--startup"],
                &[&no_cache[..], &budget, &dumps].concat(),
            ],
        ),
    ];
    for (command, flags) in runs {
        for flags in flags {
            let args = [command, flags].concat();
            let (passes, pieces) = counted(&args);
            assert_planned_once(&passes, &args);
            assert_lowered_once(&pieces, &args);
        }
    }
    // Without sizes it shows the plan alone.
    let inspect = of_model(&["inspect"]);
    for flags in [&[][..], &budget, &no_cache, &dumps, &[&no_cache[..], &html, &dumps].concat()] {
        let args = [&inspect, flags].concat();
        let (passes, pieces) = counted(&args);
        assert_planned_once(&passes, &args);
        assert!(pieces.values().all(|&n| n == 1), "{args:?}: {pieces:?}");
    }
    // Of its two forms the compiled one is made to be checked, and the launched one to run.
    for command in [&generate[..], &bench] {
        let args = [command, &["--level", "trace"]].concat();
        let (mut passes, pieces) = counted(&args);
        for pass in ["split", "destination", "plan"] {
            assert_eq!(passes.remove(&format!("launched {pass}")), Some(1), "{args:?}");
        }
        assert_planned_once(&passes, &args);
        assert_lowered_once(&pieces, &args);
    }
    // It fills a cache, and has no flag of dumps.
    let error = error_of(&[&compile[..], &no_cache].concat());
    assert!(error.contains("there is nothing to fill"), "{error}");
    let error = error_of(&[&compile[..], &dumps].concat());
    assert!(error.contains("--dump-dir"), "{error}");
}
