//! Printing, parsing and printing again gives the same bytes; no text makes the parser panic.

use crate::support::Rng;
use piecewise_ir::text::{parse_graph, parse_module, print_graph, print_module};
use piecewise_testing::soak;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: soak(4000), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn graphs_round_trip(seed: u64) {
        let text = print_graph(&Rng(seed).graph(3));
        match parse_graph(&text) {
            Ok(parsed) => prop_assert_eq!(print_graph(&parsed), text),
            Err(errors) => prop_assert!(false, "{}\n{}", errors, text),
        }
    }

    #[test]
    fn modules_round_trip(seed: u64) {
        let text = print_module(&Rng(seed).module());
        match parse_module(&text) {
            Ok(parsed) => prop_assert_eq!(print_module(&parsed), text),
            Err(errors) => prop_assert!(false, "{}\n{}", errors, text),
        }
    }

    #[test]
    fn a_compacted_graph_parses_to_itself_and_prints_alike(seed: u64) {
        let mut graph = Rng(seed).graph(2);
        let text = print_graph(&graph);
        let parsed = parse_graph(&text).map_err(|e| TestCaseError::fail(e.to_string()))?;
        prop_assert_eq!(parsed.node_count(), graph.order().len());
        let weights = graph.weights().len();
        graph.compact();
        if graph.weights().len() == weights {
            prop_assert_eq!(print_graph(&graph), text);
        }
    }

    #[test]
    fn mutated_text_never_panics(seed: u64) {
        let mut rng = Rng(seed);
        let mut bytes = print_module(&rng.module()).into_bytes();
        for _ in 0..1 + rng.below(8) {
            if bytes.is_empty() { break }
            let at = rng.below(bytes.len());
            let byte = b"{}[]()=:,;%@#\"\\.-*+ \n09avbxe\xff"[rng.below(29)];
            match rng.below(4) {
                0 => { bytes.remove(at); }
                1 => bytes.insert(at, byte),
                2 => bytes[at] = byte,
                _ => {
                    let end = at + rng.below(bytes.len() - at);
                    let copy = bytes[at..end].to_vec();
                    bytes.splice(at..at, copy);
                }
            }
        }
        let text = String::from_utf8_lossy(&bytes);
        match parse_module(&text) {
            Ok(module) => {
                let printed = print_module(&module);
                match parse_module(&printed) {
                    Ok(again) => prop_assert_eq!(print_module(&again), printed),
                    Err(errors) => prop_assert!(false, "{}\n{}", errors, printed),
                }
            }
            Err(errors) => {
                prop_assert!(!errors.items.is_empty() && errors.items.len() <= 64);
                let shown = errors.to_string();
                prop_assert!(shown.len() < 64 * 2000, "{} bytes of errors", shown.len());
            }
        }
        let _ = parse_graph(&text);
    }
}

#[test]
fn text_cut_at_every_byte_never_panics() {
    for seed in 0..40 {
        let text = print_module(&Rng(seed).module());
        let graph_end = text.find("\n}\n").unwrap() + 2;
        for end in (0..text.len()).filter(|&end| text.is_char_boundary(end)) {
            let cut = &text[..end];
            // The graph alone is a module; a plan without its last line end is whole too.
            let is_whole = cut.trim_end().len() == graph_end || end == text.len() - 1;
            assert_eq!(parse_module(cut).is_ok(), is_whole, "{cut}");
        }
    }
}
