//! One snapshot for each file: what the parser says, or what the printer makes of what it read.

use crate::cases::each_case;
use piecewise_ir::text::{parse_module, print_module};

#[test]
fn parse_errors() {
    each_case("parse_errors", |text| match parse_module(text) {
        Ok(module) => panic!("it parses:\n{}", print_module(&module)),
        Err(errors) => insta::assert_snapshot!(errors),
    });
}

#[test]
fn round_trips() {
    each_case("round_trip", |text| {
        let module = parse_module(text).unwrap_or_else(|e| panic!("{e}"));
        let text = print_module(&module);
        let again = parse_module(&text).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(print_module(&again), text);
        insta::assert_snapshot!(text);
    });
}
