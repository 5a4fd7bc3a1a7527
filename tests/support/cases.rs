//! File tests: what is done with each file of a folder, so that adding a case needs no recompiling.

#[path = "tree.rs"]
mod tree;

use std::path::Path;

/// Hands each `.pw` file below `tests/filetests/FOLDER` to `check`, whose snapshots have the
/// file's name.
pub(crate) fn each_case(folder: &str, check: impl Fn(&str)) {
    let base = tree::root().join("tests/filetests").join(folder);
    let found = tree::files(&base, &["pw"]);
    assert!(!found.is_empty(), "no cases in {}", base.display());
    let read = |path: &Path| {
        std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    };
    for path in found {
        let mut settings = insta::Settings::clone_current();
        settings.set_input_file(&path);
        settings.set_snapshot_suffix(path.strip_prefix(&base).unwrap().to_string_lossy());
        settings.bind(|| check(&read(&path)));
    }
}
