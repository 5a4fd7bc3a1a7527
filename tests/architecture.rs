//! The dependency direction between crates, and rules that hold for every source file.

use crate::bounded::Bound as _;
use crate::support::tree::{files, root};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

mod callers;
mod exhaustive;
mod floors;
mod imports;

/// What each crate may depend on inside the workspace, normal dependencies only.
fn allowed() -> BTreeMap<&'static str, &'static [&'static str]> {
    BTreeMap::from([
        ("ir", &[] as &[&str]),
        ("passes", &["ir"] as &[&str]),
        ("kernels", &["ir"]),
        ("backend", &["ir", "kernels"]),
        ("cache", &[]),
        ("planner", &[]),
        ("source-digest", &[]),
        ("testing", &["ir", "passes", "kernels", "backend"]),
        ("runtime", &["ir", "passes", "kernels", "backend", "cache", "planner"]),
        (".", &["ir", "passes", "kernels", "backend", "cache", "planner", "runtime"]),
        ("server", &["kernels", "runtime"]),
        ("worker", &["runtime", "server"]),
        (
            "cli",
            &[
                "ir", "passes", "kernels", "backend", "cache", "planner", "runtime", "server",
                "worker",
            ],
        ),
    ])
}

/// The folders of all crates.
pub(crate) fn crates() -> Vec<&'static str> {
    allowed().into_keys().collect()
}

fn workspace_dependencies(manifest: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(manifest).unwrap();
    let table: toml::Table = text.parse().unwrap();
    let dependencies = table["dependencies"].as_table().unwrap();
    dependencies
        .keys()
        .filter_map(|name| name.strip_prefix("piecewise-"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn crates_depend_in_one_direction() {
    for (folder, allowed) in allowed() {
        for name in workspace_dependencies(&root().join(folder).join("Cargo.toml")) {
            assert!(allowed.contains(&name.as_str()), "{folder} must not depend on {name}");
        }
    }
}

/// What draws in a terminal is the program's alone.
#[test]
fn only_the_command_line_depends_on_crates_for_terminals() {
    for (folder, _) in allowed().into_iter().filter(|(folder, _)| *folder != "cli") {
        let text = std::fs::read_to_string(root().join(folder).join("Cargo.toml")).unwrap();
        let table: toml::Table = text.parse().unwrap();
        for name in ["clap", "indicatif", "comfy-table"] {
            let dependencies = table["dependencies"].as_table().unwrap();
            assert!(!dependencies.contains_key(name), "{folder} depends on {name}");
        }
    }
}

/// Whoever embeds the library gets no server, no runtime of one and nothing for terminals, however
/// far down.
#[test]
fn the_library_has_no_crate_for_http_or_terminals() {
    let http = ["axum", "hyper", "http", "tokio", "tower"];
    let terminals = ["clap", "indicatif", "comfy-table"];
    let others = ["h2", "reqwest", "ureq"];
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    for package in
        ["piecewise", "piecewise-runtime", "piecewise-kernels", "piecewise-server", "piecewise-cli"]
    {
        let mut tree = std::process::Command::new(&cargo);
        tree.args(["tree", "-p", package, "-e", "normal", "--prefix", "none", "--locked"]);
        let said = tree.arg("--offline").current_dir(root()).bounded_output().unwrap();
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        let said = String::from_utf8(said.stdout).unwrap();
        let names = BTreeSet::from_iter(said.lines().filter_map(|line| line.split(' ').next()));
        assert!(names.contains("piecewise-kernels"), "{package}: {names:?}");
        for name in http.into_iter().chain(terminals).chain(others) {
            // Those of the server and of the program show that they would be seen.
            let expected = match package {
                "piecewise-server" => http.contains(&name),
                // It asks the hub, and servers that it measures.
                "piecewise-cli" => {
                    http.contains(&name) || terminals.contains(&name) || name == "reqwest"
                }
                _ => false,
            };
            assert_eq!(names.contains(name), expected, "{package}, {name}");
        }
    }
}

/// The package outside shows how little a model of one's own takes under every command, its op, its state
/// and a pass among it: fewer than 300 lines, and 200 without what computes the op.
#[test]
fn a_model_of_one_s_own_is_short() {
    let folder = root().join("examples/outside/src");
    let sources = files(&folder, &["rs", "cu"]);
    let (mut all, mut kernels) = (0, 0);
    // Another program of the package checks the engine.
    for file in sources.iter().filter(|file| !file.starts_with(folder.join("bin"))) {
        let text = std::fs::read_to_string(file).unwrap();
        all += text.lines().count();
        kernels += match file.extension().is_some_and(|extension| extension == "cu") {
            true => text.lines().count(),
            false => {
                ["impl CpuOp for", "impl CudaOp for"].map(|of| lines_of(&text, of)).iter().sum()
            }
        };
    }
    assert!(kernels > 50, "the kernels are found: {kernels} lines");
    assert!(all < 300 && all - kernels < 200, "{all} lines, {kernels} of kernels");
}

/// Lines of the block that begins so, if there is one.
fn lines_of(text: &str, begins: &str) -> usize {
    let Some((_, block)) = text.split_once(begins) else { return 0 };
    block.split("\n}\n").next().map_or(0, |block| block.lines().count() + 1)
}

fn sources() -> Vec<PathBuf> {
    let folders =
        crates().into_iter().map(|of| root().join(of.trim_start_matches('.')).join("src"));
    let of_crates = folders.flat_map(|folder| {
        let files = files(&folder, &["rs"]);
        assert!(!files.is_empty(), "{} has no sources", folder.display());
        files
    });
    of_crates.collect()
}

fn assert_only(word: &str, may_name_it: &[&str]) {
    for file in sources() {
        let relative = file.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
        if may_name_it.iter().any(|prefix| relative.starts_with(prefix)) {
            continue;
        }
        let text = std::fs::read_to_string(&file).unwrap().to_lowercase();
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        for line in code {
            assert!(!line.contains(word), "{relative} names `{word}`: {line}");
        }
    }
}

#[test]
fn only_the_models_name_a_model_family() {
    for family in ["qwen", "llama", "mistral"] {
        // Parsers of replies are named after the families that write so.
        let formats = "server/src/chat/formats.rs";
        let parsers = "server/src/chat/tool_calls/";
        let tests = ["src/assembly/tests.rs", "worker/src/tests.rs"];
        assert_only(family, &[&["src/models", "cli/src", formats, parsers], &tests[..]].concat());
    }
}

#[test]
fn only_kernels_runtime_and_the_facade_know_attention() {
    assert_only("attention", &["kernels/src", "runtime/src", "src/", "cli/src"]);
}

#[test]
fn only_backend_and_kernels_are_unsafe() {
    assert_only("unsafe", &["backend/src", "kernels/src", "testing/src/driver"]);
}

#[test]
fn only_the_cuda_backend_names_cudarc() {
    assert_only("cudarc", &["backend/src/cuda"]);
}

/// Cargo looks for no tests by itself where a crate names its programs, so that a file which no
/// program has as a module would never run; elsewhere a loose file would be one more to link.
#[test]
fn every_test_file_is_part_of_a_program() {
    for folder in
        [".", "ir", "passes", "kernels", "backend", "cache", "planner", "runtime", "server", "cli"]
    {
        let tests = root().join(folder).join("tests");
        let manifest = std::fs::read_to_string(root().join(folder).join("Cargo.toml")).unwrap();
        let main = std::fs::read_to_string(tests.join("main.rs")).unwrap_or_default();
        for entry in std::fs::read_dir(&tests).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            if path.extension().is_none_or(|e| e != "rs") || name == "main" {
                continue;
            }
            let is_module = main.lines().any(|line| line == format!("mod {name};"));
            let is_program = manifest.contains(&format!("[[test]]\nname = \"{name}\"\n"));
            assert!(is_module || is_program, "{folder}/tests/{name}.rs is run by no test program");
        }
        assert!(main.is_empty() || manifest.contains("autotests = false\n"), "{folder}");
    }
}

/// A user's flags for the compiler replace those of `.cargo/config.toml`, and break nothing.
#[test]
fn no_source_asks_for_a_flag_of_the_compiler() {
    let config = std::fs::read_to_string(root().join(".cargo/config.toml")).unwrap();
    assert!(!config.contains("rustflags") && !config.contains("--cfg"), "{config}");
    for file in files(root(), &["rs"]) {
        let text = std::fs::read_to_string(&file).unwrap();
        let of_flag = |line: &&str| {
            let line = line.trim_start();
            line.starts_with("#[cfg(") && line.contains("piecewise") && !line.contains("feature")
        };
        assert_eq!(text.lines().find(of_flag), None, "{}", file.display());
    }
}

/// Whoever opens a file has one idea to read: a folder of the same name has room for others.
#[test]
fn no_source_is_longer_than_one_idea() {
    // About 500, as CONTRIBUTING.md says.
    let limit = 520;
    let sources = files(root(), &["rs", "py", "cu", "cuh"]);
    assert!(sources.len() > 400, "{}", sources.len());
    for file in sources {
        let lines = std::fs::read_to_string(&file).unwrap().lines().count();
        assert!(lines <= limit, "{} has {lines} lines: split it by idea", file.display());
    }
}

/// The lower-case words of a name or a sentence.
fn words(text: &str) -> Vec<String> {
    let mut spaced = String::new();
    for c in text.chars() {
        if c.is_uppercase() {
            spaced.push(' ');
        }
        spaced.push(if c.is_alphanumeric() { c.to_ascii_lowercase() } else { ' ' });
    }
    spaced.split_whitespace().map(str::to_owned).collect()
}

/// A word without what makes it a plural or a form of a verb.
fn stem(word: &str) -> &str {
    let ends = ["ing", "es", "ed", "s", "e"];
    let cut = ends.iter().find_map(|end| word.strip_suffix(end).filter(|rest| rest.len() > 2));
    cut.unwrap_or(word)
}

/// The name that a line declares; empty where it declares none.
fn declared(line: &str) -> &str {
    let mut rest = line.trim_start();
    if let Some(inside) = rest.strip_prefix("pub(") {
        rest = inside.split_once(')').map_or("", |(_, rest)| rest).trim_start();
    }
    let before =
        ["pub ", "const ", "unsafe ", "async ", "fn ", "struct ", "enum ", "trait ", "type "];
    while let Some(cut) = before.iter().find_map(|word| rest.strip_prefix(word)) {
        rest = cut;
    }
    rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default()
}

/// A document of one line that repeats the name of its item, or of its type, tells nobody anything.
/// What clap reads is left out: there it is the help of a flag.
#[test]
fn documents_say_more_than_the_name() {
    let filler = "the a an its of it is what which where how many all this each their are there \
                  who that or and to by was be for whether has one these those them so such as in \
                  whose why when at";
    let filler: BTreeSet<&str> = filler.split_whitespace().collect();
    let mut empty = Vec::new();
    for file in sources() {
        let name = file.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
        if name.contains("/tests") || name.contains("/testing") {
            continue;
        }
        let text = std::fs::read_to_string(&file).unwrap();
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        let is_document = |i: usize| lines.get(i).is_some_and(|line| line.starts_with("///"));
        let is_help = |line: &str| {
            let derives = ["Args", "Parser", "Subcommand", "ValueEnum"];
            line.starts_with("#[derive(") && derives.iter().any(|name| line.contains(name))
        };
        let (mut owner, mut is_clap, mut owner_is_clap) = (String::new(), false, false);
        for (i, (line, whole)) in lines.iter().zip(text.lines()).enumerate() {
            is_clap |= is_help(line);
            owner_is_clap &= whole != "}";
            if ["struct ", "enum ", "trait "].iter().any(|kind| line.contains(kind)) {
                owner = declared(line).to_owned();
                owner_is_clap = std::mem::take(&mut is_clap);
            } else if let Some(of) = line.strip_prefix("impl ") {
                owner = of.split(['<', ' ']).next().unwrap_or_default().to_owned();
                owner_is_clap = false;
            }
            if !is_document(i) || is_document(i + 1) || i > 0 && is_document(i - 1) {
                continue;
            }
            if owner_is_clap || lines.get(i + 1).is_some_and(|line| is_help(line)) {
                continue;
            }
            let item = lines[i + 1..].iter().find(|line| !line.starts_with("#["));
            let item = item.map_or("", |line| declared(line));
            let names = [words(item), words(&owner)].concat();
            let known: BTreeSet<&str> = names.iter().map(|word| stem(word)).collect();
            let says = words(line)
                .iter()
                .any(|word| !filler.contains(word.as_str()) && !known.contains(stem(word)));
            if !says && !item.is_empty() && !line.contains('`') {
                empty.push(format!("{name}:{}: {line} ({item})", i + 1));
            }
        }
    }
    assert!(empty.is_empty(), "{}", empty.join("\n"));
}
