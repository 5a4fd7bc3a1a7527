//! A new op or dtype must not compile before every match of the backends is decided.

use super::imports;
use crate::support::tree::{files, root};
use std::path::PathBuf;
use syn::visit::{self, Visit};

/// Where what an op or a dtype means is computed or written.
const FOLDERS: [&str; 6] = [
    "ir/src/eval",
    "passes/src/split",
    "passes/src/fuse",
    "kernels/src",
    "backend/src/cpu",
    "backend/src/cuda",
];

/// Files beside those that do so, too.
const FILES: [&str; 1] = ["cli/src/worker.rs"];

const LINT: &str = "#![warn(clippy::wildcard_enum_match_arm)]";

/// Whether a pattern names an op or a dtype.
#[derive(Default)]
struct Named(bool);

impl<'a> Visit<'a> for Named {
    fn visit_path(&mut self, path: &'a syn::Path) {
        let mut parts = path.segments.iter().rev().skip(1);
        self.0 |= parts.next().is_some_and(|of| of.ident == "DType" || of.ident == "Op");
        visit::visit_path(self, path);
    }
}

/// Whether a file decides by ops or dtypes outside its tests.
#[derive(Default)]
struct Decides(bool);

impl<'a> Visit<'a> for Decides {
    fn visit_item_mod(&mut self, module: &'a syn::ItemMod) {
        if !imports::is_for_tests(module) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_expr_match(&mut self, decided: &'a syn::ExprMatch) {
        for arm in &decided.arms {
            let mut named = Named::default();
            named.visit_pat(&arm.pat);
            self.0 |= named.0;
        }
        visit::visit_expr_match(self, decided);
    }
}

fn decides(text: &str) -> bool {
    let mut decides = Decides::default();
    decides.visit_file(&syn::parse_file(text).unwrap());
    decides.0
}

#[test]
fn who_matches_on_ops_or_dtypes_names_each() {
    let is_test = |file: &PathBuf| file.to_string_lossy().contains("/tests");
    let below = |folder: &str| {
        let found = files(&root().join(folder), &["rs"]);
        assert!(found.len() > 2, "{folder} has no sources");
        found
    };
    let mut deciding = 0;
    let beside = FILES.into_iter().map(|file| root().join(file));
    let files = FOLDERS.into_iter().flat_map(below).chain(beside);
    for file in files.filter(|file| !is_test(file)) {
        let text = std::fs::read_to_string(&file).unwrap();
        if decides(&text) {
            deciding += 1;
            assert!(
                text.lines().any(|line| line == LINT),
                "{} matches on ops or dtypes without `{LINT}`; a function that hands the rest to \
                 another takes `#[expect(.., reason = ..)]`",
                file.display()
            );
        }
    }
    assert!(deciding > 15, "{deciding}");
}

#[test]
fn a_match_on_ops_or_dtypes_is_seen_however_it_is_written() {
    for text in [
        "fn f(x: DType) -> u8 { match x { DType::F32 => 1, _ => 2 } }",
        "fn f(x: T) -> u8 { match (x.op, 1) { (Op::Reduce { .. }, _) => 1, _ => 2 } }",
        "fn f(x: T) -> u8 { match x { Some(dtype::DType::F32 | DType::F16) => 1, _ => 2 } }",
        "impl T { fn f(&self) { g(|x| { match &x { &Op::Cast => 1, _ => 2 } }) } }",
    ] {
        assert!(decides(text), "{text}");
    }
    for text in [
        "fn f(x: T) -> DType { match x { T::A => DType::F32, _ => DType::F16 } }",
        "#[cfg(test)] mod tests { fn f(x: Op) { match x { Op::Cast => 1, _ => 2 } } }",
    ] {
        assert!(!decides(text), "{text}");
    }
}
