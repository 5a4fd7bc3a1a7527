//! What the tests themselves promise: that a skip is said and demanded, and that little is linked.

use crate::architecture::crates;
use crate::support::tree::{files, root};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn read(file: &str) -> String {
    std::fs::read_to_string(root().join(file)).unwrap()
}

/// The Rust and Python files of a crate's folders.
fn texts(of: &str, folders: &[&str]) -> Vec<(PathBuf, String)> {
    let below = |folder| files(&root().join(of).join(folder), &["rs", "py"]);
    let found = folders.iter().flat_map(below);
    found.map(|file| (file.clone(), std::fs::read_to_string(file).unwrap())).collect()
}

/// Nothing but a GPU, and fixtures that only transformers makes, may be missing in `.ci/run`.
#[test]
fn what_may_be_skipped_is_demanded_by_the_check() {
    let prefix = "PIECEWISE_REQUIRE_";
    let mut demands = BTreeSet::new();
    for (file, text) in crates().into_iter().flat_map(|of| texts(of, &["src", "tests"])) {
        if file.ends_with("tests/checks.rs") {
            continue;
        }
        let is_rust = file.extension().is_some_and(|e| e == "rs");
        let is_silent = is_rust && text.contains("println!(\"skipped:");
        assert!(!is_silent, "{} skips where nobody sees it: see support/skip.rs", file.display());
        for rest in text.split(&format!("\"{prefix}")).skip(1) {
            let is_of_name = |c: char| c.is_ascii_uppercase() || c == '_';
            demands.insert(rest.split(|c| !is_of_name(c)).next().unwrap().to_owned());
        }
    }
    assert!(demands.len() > 6, "{demands:?}");
    let (check, page) = (read(".ci/run"), read("CONTRIBUTING.md"));
    for name in demands {
        assert!(page.contains(&format!("{prefix}{name}")), "CONTRIBUTING.md lacks {name}");
        let is_demanded = check.contains(&format!("{prefix}{name}=1"));
        let may_be_missing = name == "GPU";
        assert_ne!(is_demanded, may_be_missing, "{prefix}{name} in .ci/run");
    }
}

/// Each program is linked with everything: a further one says why it is.
#[test]
fn a_crate_has_one_test_program() {
    let further =
        [(".", "device_suite"), ("kernels", "cpu_allocations"), ("backend", "cpu_allocation")];
    for of in crates() {
        let mut names = test_programs(&root().join(of));
        names.retain(|name| !further.contains(&(of, name)));
        assert!(names.len() <= 1, "{of}: {names:?}");
    }
}

/// The test programs of a package: those that its manifest names, and those that cargo finds.
fn test_programs(package: &Path) -> BTreeSet<String> {
    let manifest = std::fs::read_to_string(package.join("Cargo.toml")).unwrap();
    let manifest: toml::Table = manifest.parse().unwrap();
    let programs = manifest.get("test").and_then(|list| list.as_array());
    let named = programs.into_iter().flatten().map(|test| test["name"].as_str().unwrap());
    let mut names = BTreeSet::from_iter(named.map(str::to_owned));
    let settings = manifest["package"].as_table().unwrap();
    let are_looked_for =
        settings.get("autotests").is_none_or(|given| given.as_bool() != Some(false));
    let entries = std::fs::read_dir(package.join("tests"));
    for entry in entries.into_iter().flatten().filter(|_| are_looked_for) {
        let path = entry.unwrap().path();
        if path.join("main.rs").exists() || path.extension().is_some_and(|e| e == "rs") {
            names.insert(path.file_stem().unwrap().to_string_lossy().into_owned());
        }
    }
    names
}

#[test]
fn programs_that_cargo_finds_are_counted() {
    let package = tempfile::tempdir().unwrap();
    let write = |file: &str, text: &str| {
        let file = package.path().join(file);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
    };
    let named = "[[test]]\nname = \"named\"\n";
    write("Cargo.toml", &format!("[package]\nname = \"p\"\n{named}"));
    write("tests/loose.rs", "");
    write("tests/folder/main.rs", "");
    write("tests/support/mod.rs", "");
    assert!(test_programs(package.path()).iter().eq(["folder", "loose", "named"]));
    write("Cargo.toml", &format!("[package]\nname = \"p\"\nautotests = false\n{named}"));
    assert!(test_programs(package.path()).iter().eq(["named"]));
}

/// Whether code or an attribute has a path that begins with a crate.
fn names_crate(text: &str, name: &str) -> bool {
    let name = name.replace('-', "_");
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.into_iter().any(|line| {
        line.match_indices(&name).any(|(at, _)| {
            let (before, after) = (&line[..at], &line[at + name.len()..]);
            let begins = !before.ends_with(|c: char| c.is_alphanumeric() || "_:.\"".contains(c));
            let is_brought = before.trim_end().ends_with("use") && after.starts_with([';', ' ']);
            begins && (after.starts_with("::") || is_brought)
        })
    })
}

#[test]
fn a_word_is_no_use_of_a_crate() {
    for text in ["use half::f16;", "f(half::f16::ONE)", "#[derive(half::F)]", "use half as h;"] {
        assert!(names_crate(text, "half"), "{text}");
    }
    for text in [
        "let half = 1;",
        "x.half::<u8>()",
        "use crate::half::f;",
        "// half::f16",
        "f(\"half::f16\", \"a half\")",
        "other_half::f()",
    ] {
        assert!(!names_crate(text, "half"), "{text}");
    }
}

/// What only a benchmark uses would be compiled with every test, if no crate needed it anyway.
#[test]
fn what_tests_depend_on_is_used_by_tests() {
    let manifest = |of: &str| read(&format!("{of}/Cargo.toml")).parse::<toml::Table>().unwrap();
    let names = |of: &str, kind: &str| -> Vec<String> {
        let table = manifest(of).remove(kind);
        table.iter().flat_map(|names| names.as_table().unwrap().keys().cloned()).collect()
    };
    let needed: BTreeSet<_> =
        crates().into_iter().flat_map(|of| names(of, "dependencies")).collect();
    for of in crates() {
        // Those of one crate are modules of another's program.
        let shared = "../passes/tests/common";
        let texts = texts(of, &["src", "tests", "examples", shared]);
        for name in names(of, "dev-dependencies") {
            let is_used = texts.iter().any(|(_, text)| names_crate(text, &name));
            assert!(is_used || needed.contains(&name), "no test of {of} uses {name}");
        }
        // What no source names is compiled for nothing, by all who depend on the crate. Its name may
        // be a word of any text and any variable: only in a path it is the crate.
        let sources = self::texts(of, &["src"]);
        for name in names(of, "dependencies") {
            let is_used = sources.iter().any(|(_, text)| names_crate(text, &name));
            assert!(is_used, "no source of {of} uses {name}");
        }
    }
}

/// Whoever has the package alone can run its examples and the code of its documents.
#[test]
fn what_examples_read_is_in_the_package() {
    let manifest: toml::Table = read("Cargo.toml").parse().unwrap();
    let included: Vec<&str> = manifest["package"]["include"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|path| path.as_str())
        .collect();
    let is_test = |file: &PathBuf| file.to_string_lossy().contains("/tests");
    let sources = texts(".", &["src"]).into_iter().filter(|(file, _)| !is_test(file));
    let examples = texts(".", &["examples"]).into_iter();
    let examples =
        examples.filter(|(file, _)| file.parent().is_some_and(|of| of.ends_with("examples")));
    let mut found = 0;
    for (file, text) in sources.chain(examples) {
        for named in text.split("env!(\"CARGO_MANIFEST_DIR\"), \"").skip(1) {
            let path = named.split('"').next().unwrap();
            found += 1;
            // The tiny model is in the repository alone: it is larger than all else of a package.
            if path == "/examples/tiny-qwen3" {
                continue;
            }
            let is_there = included.iter().any(|of| path.starts_with(of));
            assert!(is_there, "{} reads {path}, which is not in the package", file.display());
        }
    }
    assert!(found > 0, "{found}");
}

/// A registry shows a crate's own page, and each package is passed on alone, with its licence.
#[test]
fn each_package_has_its_page_and_its_licence() {
    for of in crates() {
        let page = read(&format!("{of}/README.md"));
        let manifest: toml::Table = read(&format!("{of}/Cargo.toml")).parse().unwrap();
        let title = format!("# {}\n", manifest["package"]["name"].as_str().unwrap());
        assert!(page.starts_with(&title), "{of}/README.md");
        for licence in ["LICENSE-APACHE", "LICENSE-MIT"] {
            assert_eq!(read(&format!("{of}/{licence}")), read(licence), "{of}/{licence}");
        }
    }
}

/// The manifests of all packages here, those beside the workspace among them.
fn manifests() -> Vec<(PathBuf, toml::Table)> {
    let found = files(root(), &["toml"]).into_iter();
    let found = found.filter(|file| file.ends_with("Cargo.toml"));
    let parsed = found.map(|file| {
        let text = std::fs::read_to_string(&file).unwrap();
        (file, text.parse().unwrap())
    });
    parsed.collect()
}

/// The tables of a manifest, at any depth, that name the doubles of tests, as paths of keys.
fn tables_with_doubles(of: &toml::Table, path: &str, found: &mut Vec<String>) {
    for (key, value) in of {
        if key == "piecewise-testing" {
            found.push(path.to_owned());
        }
        if let Some(table) = value.as_table() {
            tables_with_doubles(table, &format!("{path}/{key}"), found);
        }
    }
}

/// What plans faults, simulates a driver or makes random graphs is of no use to who installs a
/// package, and a stored artifact can't ask for it: its crate is for tests alone.
#[test]
fn what_tests_plan_is_in_no_build_of_a_user() {
    let mut users = 0;
    for (file, manifest) in manifests() {
        let mut found = Vec::new();
        tables_with_doubles(&manifest, "", &mut found);
        for table in &found {
            let is_for_tests = table == "/dev-dependencies" || table == "/workspace/dependencies";
            assert!(is_for_tests, "{} names piecewise-testing in {table}", file.display());
        }
        users += usize::from(found.contains(&"/dev-dependencies".to_owned()));
        // What has no version is left out of a package that is published.
        if let Some(shared) = manifest.get("workspace").and_then(|of| of.get("dependencies")) {
            let doubles = &shared["piecewise-testing"];
            assert!(doubles.get("version").is_none(), "{}", file.display());
        }
    }
    assert!(users > 5, "{users}");
    let manifest: toml::Table = read("testing/Cargo.toml").parse().unwrap();
    assert_eq!(manifest["package"]["publish"].as_bool(), Some(false));
}

#[test]
fn a_dependency_on_the_doubles_is_found_wherever_it_stands() {
    let text = "[target.'cfg(unix)'.dependencies]\npiecewise-testing.workspace = true\n\
                [dev-dependencies]\npiecewise-testing.workspace = true\n";
    let mut found = Vec::new();
    tables_with_doubles(&text.parse().unwrap(), "", &mut found);
    assert_eq!(found, ["/dev-dependencies", "/target/cfg(unix)/dependencies"]);
}

/// A build compiles the same whatever flags its user gives: tests need none.
#[test]
fn no_flag_of_the_compiler_chooses_what_is_compiled() {
    let config: toml::Table = read(".cargo/config.toml").parse().unwrap();
    assert!(!config.contains_key("build") && !config.contains_key("target"), "{config:?}");
    for (file, text) in crates().into_iter().flat_map(|of| texts(of, &["src", "tests"])) {
        let is_gated = text.contains(concat!("cfg(piecewise_", "testing"));
        assert!(!is_gated, "{} stands behind a flag", file.display());
    }
}

/// `CudaDevice::open` names the system's driver, and no other is there to be named.
#[test]
fn a_build_opens_the_systems_driver_alone() {
    let sources = crates().into_iter().filter(|of| *of != "testing");
    let mut drivers = Vec::new();
    for (file, text) in sources.flat_map(|of| texts(of, &["src"])) {
        let found = text.lines().filter(|line| line.contains(" Driver for "));
        drivers.extend(found.map(|line| format!("{}: {line}", file.display())));
    }
    assert_eq!(drivers.len(), 1, "{drivers:?}");
    assert!(drivers[0].ends_with("system.rs: impl Driver for SystemDriver {"), "{drivers:?}");
    let opening = read("backend/src/cuda/device/open.rs");
    let body = opening.split("pub fn open(").nth(1).unwrap().split("\n    }\n").next().unwrap();
    assert!(body.contains("let driver = SystemDriver::open()?;"), "{body}");
    assert!(body.contains("Self::over(Arc::new(driver), "), "{body}");
}
