//! Floors inside the crates: what a file or a module imports is below it.

use super::crates;
use super::imports::{Files, circles};
use std::collections::BTreeSet;

/// What still stands in circles in a crate. These only shrink.
struct Allowed {
    folder: &'static str,
    /// Modules right below the root; the root itself is the empty name.
    modules: &'static [&'static [&'static str]],
    /// Files in the largest circle.
    largest: usize,
    /// Circles of files.
    circles: usize,
}

const fn no_circles(folder: &'static str) -> Allowed {
    Allowed { folder, modules: &[], largest: 1, circles: 0 }
}

const ALLOWED: &[Allowed] = &[
    Allowed { folder: "ir", modules: &[], largest: 6, circles: 3 },
    no_circles("passes"),
    no_circles("kernels"),
    no_circles("backend"),
    no_circles("cache"),
    no_circles("planner"),
    no_circles("source-digest"),
    no_circles("testing"),
    Allowed { folder: "runtime", modules: &[], largest: 2, circles: 3 },
    no_circles("."),
    Allowed { folder: "server", modules: &[], largest: 4, circles: 1 },
    no_circles("worker"),
    Allowed { folder: "cli", modules: &[], largest: 2, circles: 1 },
];

/// A circle can only be read, moved and tested as a whole.
#[test]
fn circles_of_imports_only_shrink() {
    let mut seen = BTreeSet::new();
    for allowed in ALLOWED {
        let Allowed { folder, modules, largest, circles: count } = allowed;
        assert!(seen.insert(*folder), "{folder} stands here once");
        let files = Files::of_crate(folder);
        for circle in circles(&files.modules()) {
            let is_allowed =
                modules.iter().any(|allowed| circle.is_subset(&allowed.iter().copied().collect()));
            assert!(is_allowed, "{folder}: a circle of modules {circle:?}");
        }
        let found = circles(&files.imports());
        for circle in &found {
            let named = Vec::from_iter(circle.iter().map(|file| file.join("::")));
            assert!(circle.len() <= *largest, "{folder}: a circle of files {named:?}");
        }
        assert!(found.len() <= *count, "{folder}: circles of files {found:?}");
    }
    assert_eq!(seen, BTreeSet::from_iter(crates()));
}

/// So that no circle is missed because nothing was read.
#[test]
fn imports_of_each_crate_are_found() {
    for folder in crates().into_iter().filter(|folder| *folder != "source-digest") {
        let files = Files::of_crate(folder);
        let (imports, modules) = (files.imports(), files.modules());
        assert!(imports.node_count() > 10, "{folder}: {} files", imports.node_count());
        assert!(imports.edge_count() > imports.node_count(), "{folder}: imports are found");
        assert!(modules.node_count() > 4, "{folder}: {} modules", modules.node_count());
    }
}
