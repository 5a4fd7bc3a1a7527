//! The documents can't go out of date: their code is in the examples, their links lead somewhere,
//! and the errors they quote are the errors. What they say that the program prints is held by the
//! program's own tests.

use crate::support::tree::{files, root};
use piecewise::backend::device::CaptureRule;
use piecewise::ir::text::{parse_graph, render};
use piecewise::ir::verify::verify_graph_with;
use piecewise::prelude::OpRegistry;
use std::collections::BTreeSet;
use std::path::PathBuf;

fn read(file: &str) -> String {
    std::fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// Every document by its path in the repository.
fn documents() -> Vec<PathBuf> {
    let names =
        ["README.md", "ARCHITECTURE.md", "BENCHMARKS.md", "CHANGELOG.md", "CONTRIBUTING.md"];
    let names = names.map(|name| root().join(name));
    let folder = std::fs::read_dir(root().join("docs")).unwrap();
    let docs = folder.map(|entry| entry.unwrap().path());
    let mut all: Vec<_> = names
        .into_iter()
        .chain(docs)
        .filter(|path| path.extension().is_some_and(|e| e == "md"))
        .collect();
    all.sort();
    all
}

/// The pages of experiments, whose names are those of their day: only what they link is held.
fn lab() -> Vec<PathBuf> {
    files(&root().join("docs/lab"), &["md"])
}

/// The fenced blocks of `language` in a document.
fn blocks(document: &str, language: &str) -> Vec<String> {
    let fence = format!("```{language}\n");
    let parts = document.split(&fence).skip(1);
    parts.map(|part| part.split("```").next().unwrap().to_owned()).collect()
}

#[test]
fn code_blocks_are_parts_of_the_examples() {
    let mut found = 0;
    for document in documents() {
        let document_text = std::fs::read_to_string(&document).unwrap();
        let document = document.display();
        let languages = ["rust", "cuda"].map(|language| blocks(&document_text, language));
        for block in languages.concat() {
            let (first, code) = block.split_once('\n').unwrap();
            let file = first.strip_prefix("// ");
            let file = file.unwrap_or_else(|| panic!("{document}: no file begins\n{block}"));
            assert!(read(file).contains(code), "{document}: {file} does not hold\n{code}");
            found += 1;
        }
    }
    assert!(found >= 14, "{found}");
}

#[test]
fn diff_blocks_fit_the_sources() {
    let blocks = blocks(&read("docs/adding-an-op.md"), "diff");
    // An elementwise op is two edits of code; the third is its row of a document.
    assert_eq!(blocks.len(), 2);
    for block in blocks {
        let (first, lines) = block.split_once('\n').unwrap();
        let file = first.strip_prefix("--- ").expect("a block begins with its file");
        let before: String = lines
            .lines()
            .filter_map(|line| line.strip_prefix(' ').or(line.strip_prefix('-')))
            .map(|line| format!("{line}\n"))
            .collect();
        assert!(read(file).contains(&before), "{file} does not hold\n{before}");
    }
}

#[test]
fn links_lead_somewhere() {
    for document in documents().into_iter().chain(lab()) {
        let text = std::fs::read_to_string(&document).unwrap();
        let targets = text.split("](").skip(1).map(|rest| rest.split(')').next().unwrap());
        let is_local = |target: &&str| !target.contains("://");
        for target in targets.filter(is_local) {
            let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
            let file = match path {
                "" => document.clone(),
                _ => document.parent().unwrap().join(path),
            };
            assert!(file.exists(), "{} links {target}", document.display());
            if !anchor.is_empty() {
                let headings = std::fs::read_to_string(&file).unwrap();
                let kept = |c: &char| c.is_alphanumeric() || [' ', '-', '_'].contains(c);
                let slug = |heading: &str| {
                    let heading = heading.trim_matches(['#', ' ']).to_lowercase();
                    heading.chars().filter(kept).collect::<String>().replace(' ', "-")
                };
                let mut slugs = headings.lines().filter(|line| line.starts_with('#')).map(slug);
                let is_there = slugs.any(|slug| slug == anchor);
                assert!(is_there, "{} links {target}", document.display());
            }
        }
    }
}

/// The rows of tables that have another number of cells than their heading: the number of the line, the
/// cells of the row and those of the heading. A bar in a cell is `\|`.
fn uneven_rows(page: &str) -> Vec<(usize, usize, usize)> {
    let cells = |line: &str| line.replace("\\|", "").matches('|').count().saturating_sub(1);
    let (mut heading, mut is_code, mut found) = (None, false, Vec::new());
    for (i, line) in page.lines().enumerate() {
        is_code ^= line.starts_with("```");
        if is_code || !line.starts_with('|') {
            heading = None;
            continue;
        }
        let expected = *heading.get_or_insert(cells(line));
        if cells(line) != expected {
            found.push((i + 1, cells(line), expected));
        }
    }
    found
}

#[test]
fn rows_of_tables_have_a_cell_for_each_of_their_heading() {
    let folders = [root().to_owned(), root().join("docs"), root().join("docs/lab")];
    let entries = folders.iter().flat_map(|folder| std::fs::read_dir(folder).unwrap());
    let mut tables = 0;
    for path in entries.map(|entry| entry.unwrap().path()) {
        if path.extension().is_some_and(|extension| extension == "md") {
            let page = std::fs::read_to_string(&path).unwrap();
            tables += page.matches("\n|---").count();
            assert_eq!(uneven_rows(&page), [], "{}: line, cells, of", path.display());
        }
    }
    assert!(tables > 80, "{tables}");
    let page = "| a | b |\n|---|---|\n| 1 | 2 |\n| 1 |\n| 1 \\| | 2 |\n\n\
                ```\n| 1 | 2 | 3 |\n```\n\n| c |\n|---|---|\n| 1 |\n";
    assert_eq!(uneven_rows(page), [(4, 1, 2), (12, 2, 1)]);
}

#[test]
fn quoted_capture_errors_are_the_errors() {
    let document = read("docs/capture-rules.md");
    for rule in [
        CaptureRule::NoAllocation,
        CaptureRule::NoSynchronization,
        CaptureRule::NoUnretained,
        CaptureRule::UnsupportedOp,
        CaptureRule::NoHostNode,
        CaptureRule::NoEmpty,
    ] {
        let row = format!("| `{rule:?}` | {rule} |");
        assert!(document.contains(&row), "docs/capture-rules.md lacks: {row}");
    }
}

#[test]
fn the_check_runs_the_two_commands_of_the_readme() {
    let readme = read("README.md");
    let check = read(".ci/run");
    for command in [
        "cargo run -- generate --model examples/tiny-qwen3 --prompt \"def __init__(self\"",
        "cargo test --workspace",
    ] {
        assert!(readme.contains(&format!("\n{command}\n")), "README.md lacks: {command}");
        let quiet = command.replacen("run --", "run --quiet --", 1);
        assert!(check.lines().any(|line| line.trim() == quiet), ".ci/run lacks: {quiet}");
    }
}

/// Codes of findings that a document shows are codes that the verifier gives.
#[test]
fn codes_in_documents_are_the_verifiers() {
    let folder = root().join("ir/src/verify");
    let sources: String = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| std::fs::read_to_string(entry.unwrap().path()).unwrap())
        .collect();
    for document in documents() {
        let text = std::fs::read_to_string(&document).unwrap();
        for code in text.split("error[V").skip(1).map(|rest| rest.split(']').next().unwrap()) {
            let known = sources.contains(&format!("V{code}"));
            assert!(known, "{} shows V{code}, which no rule has", document.display());
        }
    }
}

/// Graphs of the documents say of the framework's ops what their definitions say.
#[test]
fn graphs_in_documents_verify_with_the_builtin_ops() {
    let ops = OpRegistry::builtin();
    let mut calls = 0;
    for document in documents() {
        let text = std::fs::read_to_string(&document).unwrap();
        for block in text.split("```graph\n").skip(1).map(|rest| rest.split("```").next().unwrap())
        {
            let graph = parse_graph(block).unwrap();
            let found = verify_graph_with(&graph, ops.defs());
            let shown = found.map_err(|found| render(&graph, &found));
            assert!(shown.is_ok(), "{}: {}", document.display(), shown.unwrap_err());
            calls += block.matches("custom \"piecewise.").count();
        }
    }
    assert!(calls > 0, "no op of the framework is shown");
}

/// The least Rust that the README asks for is the manifest's, which `.ci/run` holds.
#[test]
fn the_oldest_rust_is_said_once() {
    let manifest: toml::Table = read("Cargo.toml").parse().unwrap();
    let oldest = manifest["workspace"]["package"]["rust-version"].as_str().unwrap();
    assert!(read("README.md").contains(&format!("Rust {oldest} or newer")));
    assert!(read(".ci/run").contains("step \"the oldest Rust\""));
}

/// Who comes from CUDA looks for the word that everybody uses.
#[test]
fn newcomers_find_cuda_graphs() {
    for document in ["README.md", "ARCHITECTURE.md", "docs/capture-rules.md", "src/lib.rs"] {
        assert!(read(document).contains("CUDA graph"), "{document}");
    }
    let library = read("src/lib.rs");
    let opening = library.split("//!\n").take(2).collect::<String>();
    assert!(opening.contains("CUDA graph"), "{opening}");
    for manifest in ["Cargo.toml", "cli/Cargo.toml", "runtime/Cargo.toml", "planner/Cargo.toml"] {
        let table: toml::Table = read(manifest).parse().unwrap();
        let description = table["package"]["description"].as_str().unwrap();
        assert!(description.contains("CUDA graph"), "{manifest}: {description}");
    }
}

/// A document that names `Type::method` names what is there; the changelog names what is gone, too.
#[test]
fn names_in_documents_are_in_the_sources() {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut words = BTreeSet::new();
    for file in files(root(), &["rs"]) {
        let text = std::fs::read_to_string(file).unwrap();
        words.extend(text.split(|c| !is_word(c)).map(str::to_owned));
    }
    let mut checked = 0;
    for document in documents().iter().filter(|document| !document.ends_with("CHANGELOG.md")) {
        let text = std::fs::read_to_string(document).unwrap();
        for quoted in text.split('`').skip(1).step_by(2) {
            let is_path = quoted.contains("::") && quoted.chars().all(|c| is_word(c) || c == ':');
            for name in quoted.split("::").filter(|_| is_path) {
                assert!(words.contains(name), "{} names `{quoted}`", document.display());
                checked += 1;
            }
        }
    }
    assert!(checked > 50, "{checked}");
}

/// Of what runs on a GPU machine, too.
#[test]
fn contributing_names_the_sections_of_the_run_on_a_gpu() {
    let script = read("tests/gpu/run.sh");
    let between = |text: &str, from: &str, to: &str| {
        let rest = text.split(from).nth(1).unwrap_or_else(|| panic!("{from}")).to_owned();
        rest.split(to).next().unwrap_or_default().to_owned()
    };
    let words = |text: &str| -> BTreeSet<String> {
        let words = text.split(|c: char| !c.is_ascii_lowercase());
        words.filter(|word| !word.is_empty()).map(str::to_owned).collect()
    };
    let sections = words(&between(&script, "|| sections=(", ")"));
    assert!(sections.len() > 5, "{sections:?}");
    let page = words(&between(&read("CONTRIBUTING.md"), "in sections:", "PIECEWISE_"));
    let lacking: Vec<_> = sections.difference(&page).collect();
    assert!(lacking.is_empty(), "CONTRIBUTING.md lacks {lacking:?}");
    assert_eq!(words(&between(&script, "  case $section in", ") $section ;;")), sections);
}
