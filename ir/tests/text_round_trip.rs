//! Printing, parsing and printing again gives the same bytes; no text makes the parser panic.

mod support;

use piecewise_ir::text::{parse_graph, parse_module, print_graph, print_module};
use proptest::prelude::*;
use support::Rng;

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

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
        if let Err(errors) = parse_module(&text) {
            prop_assert!(!errors.items.is_empty() && errors.items.len() <= 64);
            let shown = errors.to_string();
            prop_assert!(shown.len() < 64 * 2000, "{} bytes of errors", shown.len());
        }
        let _ = parse_graph(&text);
    }
}

#[test]
fn text_cut_at_every_byte_is_an_error() {
    for seed in 0..40 {
        let text = print_module(&Rng(seed).module());
        let graph_end = text.find("\n}\n").unwrap() + 2;
        for end in (0..text.len() - 1).filter(|&end| text.is_char_boundary(end)) {
            let parsed = parse_module(&text[..end]);
            let whole_graph = end == graph_end || end == graph_end + 1 || text[end..].trim() == "}";
            if !whole_graph {
                assert!(
                    end < graph_end || parsed.is_err() || text[graph_end..end].trim().is_empty()
                );
            }
            if end < graph_end - 1 {
                assert!(parsed.is_err(), "{}", &text[..end]);
            }
        }
    }
}
