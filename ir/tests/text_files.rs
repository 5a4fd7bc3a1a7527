//! File tests: one snapshot for each `.pw` file, so that adding a case needs no recompiling.

use piecewise_ir::text::{parse_module, print_module};
use std::path::Path;

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn parse_errors() {
    insta::glob!("filetests/parse_errors/*.pw", |path| {
        match parse_module(&read(path)) {
            Ok(module) => panic!("{} parses:\n{}", path.display(), print_module(&module)),
            Err(errors) => insta::assert_snapshot!(errors),
        }
    });
}

#[test]
fn round_trips() {
    insta::glob!("filetests/round_trip/*.pw", |path| {
        let module =
            parse_module(&read(path)).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let text = print_module(&module);
        let again = parse_module(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        assert_eq!(print_module(&again), text);
        insta::assert_snapshot!(text);
    });
}
