//! The dependency direction between crates, and rules that hold for every source file.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What each crate may depend on inside the workspace, normal dependencies only.
fn allowed() -> BTreeMap<&'static str, &'static [&'static str]> {
    BTreeMap::from([
        ("ir", &[] as &[&str]),
        ("passes", &["ir"] as &[&str]),
        ("kernels", &["ir"]),
        ("backend", &["ir", "kernels"]),
        ("cache", &[]),
        ("planner", &[]),
        ("runtime", &["ir", "passes", "kernels", "backend", "cache", "planner"]),
        (".", &["ir", "passes", "kernels", "backend", "cache", "planner", "runtime"]),
        ("cli", &["ir", "passes", "kernels", "backend", "cache", "planner", "runtime"]),
    ])
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
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

fn sources() -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders: Vec<PathBuf> = [
        "src",
        "ir/src",
        "passes/src",
        "kernels/src",
        "backend/src",
        "runtime/src",
        "cache/src",
        "cli/src",
        "planner/src",
    ]
    .iter()
    .map(|folder| root().join(folder))
    .collect();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    files
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
        assert_only(family, &["src/models", "cli/src"]);
    }
}

#[test]
fn only_kernels_runtime_and_the_facade_know_attention() {
    assert_only("attention", &["kernels/src", "runtime/src", "src/", "cli/src"]);
}

#[test]
fn only_the_cuda_backend_names_cudarc() {
    assert_only("cudarc", &["backend/src/cuda"]);
}
