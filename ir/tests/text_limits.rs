//! Hostile text: errors are bounded, and so are depth and memory.

use piecewise_ir::text::{ParseErrorKind, parse_graph, parse_module};
use std::fmt::Write;

fn kinds(text: &str) -> Vec<ParseErrorKind> {
    parse_graph(text).expect_err("hostile").items.into_iter().map(|e| e.kind).collect()
}

#[test]
fn regions_can_not_multiply_a_long_declaration() {
    let mut text =
        format!("graph {{\n  dim \"{}\" in [1..2]\n  dim T in [1..2]\n", "x".repeat(500_000));
    for _ in 0..5_000 {
        text.push_str("  region over T () {\n    ret\n  }\n");
    }
    text.push_str("  ret\n}\n");
    assert!(kinds(&text).contains(&ParseErrorKind::Size));
}

#[test]
fn parameters_can_not_multiply_a_long_type() {
    let mut text =
        format!("graph {{\n  dim T in [1..2]\n  input %x: f32[{}1]\n", "1,".repeat(200_000));
    text.push_str("  region over T (");
    for i in 0..50_000 {
        let _ = write!(text, "%p{i}: %x, ");
    }
    text.push_str("%end: %x) {\n    ret\n  }\n  ret\n}\n");
    assert!(kinds(&text).contains(&ParseErrorKind::Size));
}

#[test]
fn nesting_is_refused_before_the_stack_ends() {
    let regions = "region over T () {\n".repeat(100_000);
    let text = format!("graph {{\n  dim T in [1..2]\n{regions}");
    assert!(kinds(&text).iter().any(|kind| matches!(kind, ParseErrorKind::Depth { .. })));
    let recipes = "concat{axis=0}(".repeat(100_000);
    let text = format!("graph {{\n  weight w0: f32[1] = {recipes}\n");
    assert!(kinds(&text).iter().any(|kind| matches!(kind, ParseErrorKind::Depth { .. })));
    let graphs = "graph {\nweight w0: f32[1] = ".repeat(100_000);
    assert!(kinds(&graphs).iter().any(|kind| matches!(kind, ParseErrorKind::Depth { .. })));
}

#[test]
fn the_parser_gives_up_after_many_errors() {
    let text = format!("graph {{\n{}  ret\n}}\n", "  v0: f32[T] = neg %x\n".repeat(100_000));
    let errors = parse_graph(&text).unwrap_err();
    assert!(errors.gave_up);
    assert_eq!(errors.items.len(), 64);
    let garbage = "\u{1}?&|~".repeat(200_000);
    let errors = parse_module(&garbage).unwrap_err();
    assert!(errors.gave_up && errors.items.len() <= 64);
    assert!(errors.to_string().len() < 30_000);
}

#[test]
fn texts_without_a_graph_are_errors() {
    for text in [
        "",
        "\n\n",
        ";; prose",
        "graph",
        "graph {",
        "graph @",
        "plan {\n}\n",
        "\u{feff}graph {\n  ret\n}\n",
    ] {
        let errors = parse_module(text).unwrap_err();
        assert!(!errors.items.is_empty(), "{text:?}");
        assert!(parse_graph(text).is_err(), "{text:?}");
    }
}

#[test]
fn a_graph_is_not_a_module() {
    let text = "graph {\n  ret\n}\n\nplan {\n}\n";
    assert!(parse_module(text).is_ok());
    let message = parse_graph(text).unwrap_err().to_string();
    assert!(message.contains("this is the text of a module"), "{message}");
}

#[test]
fn line_ends_of_other_systems_are_read() {
    let text =
        "graph {\r\n  input %x: f32[4] ; prose\r\n  v0: f32[4] = neg %x\r\n  ret v0\r\n}\r\n";
    let graph = parse_graph(text).unwrap();
    assert_eq!(graph.node_count(), 1);
    assert_eq!(graph.inputs()[0].name, "x");
}
