//! The dependency direction between crates, and rules that hold for every source file.

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
        assert_only(family, &["src/models", "src/assembly/tests.rs", "cli/src"]);
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

/// Whoever wants a compiled model asks the assembly.
#[test]
fn one_place_builds_a_compiled_model() {
    let is_test = |file: &str| {
        file.ends_with("tests.rs") || file.contains("/tests/") || file.contains("src/testing/")
    };
    let mut places = Vec::new();
    for file in sources() {
        let relative = file.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&file).unwrap();
        let builds = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        let builds = builds.filter(|line| line.contains("CompiledModel::build")).count();
        if builds > 0 && !is_test(&relative) {
            places.push((relative, builds));
        }
    }
    assert_eq!(places, [("src/assembly/planned.rs".to_owned(), 1)]);
}

/// Cargo looks for no tests by itself where a crate names its programs, so that a file which no
/// program has as a module would never run; elsewhere a loose file would be one more to link.
#[test]
fn every_test_file_is_part_of_a_program() {
    for folder in [".", "ir", "passes", "kernels", "backend", "cache", "planner", "runtime", "cli"]
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
