//! `docs/ir.md` can't go out of date: its examples parse and print as they are, and its op table
//! is the one that the code generates.

use piecewise_ir::text::{
    canonical_piece, op_table_markdown, parse_graph, parse_module, print_graph, print_module,
};

const BEGIN: &str = "<!-- op table -->\n";
const END: &str = "<!-- end of op table -->";

fn document() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/ir.md");
    std::fs::read_to_string(path).expect("docs/ir.md")
}

/// The fenced blocks marked `kind`.
fn blocks<'a>(document: &'a str, kind: &str) -> Vec<&'a str> {
    let fence = format!("\n```{kind}\n");
    document
        .split(&fence)
        .skip(1)
        .map(|rest| rest.split_inclusive("```").next().unwrap_or_default())
        .collect()
}

#[test]
fn examples_parse_and_print_as_they_are() {
    let document = document();
    let graphs = blocks(&document, "graph");
    assert!(graphs.len() >= 5, "{} graph blocks", graphs.len());
    for block in graphs {
        let text = block.trim_end_matches("```");
        let graph = parse_graph(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        assert_eq!(print_graph(&graph), text);
    }
    let modules = blocks(&document, "module");
    assert!(!modules.is_empty());
    for block in modules {
        let text = block.trim_end_matches("```");
        let module = parse_module(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        assert_eq!(print_module(&module), text);
        assert!(module.layout().is_some());
        for piece in module.stitch().unwrap().unique.values() {
            let hash = blake3::hash(canonical_piece(&piece.graph, piece.over).as_bytes());
            assert_eq!(hash.as_bytes(), &piece.hash, "write {hash} for {}", piece.graph.name);
        }
    }
}

#[test]
fn the_op_table_is_the_document() {
    let document = document();
    let (_, rest) = document.split_once(BEGIN).unwrap();
    let (table, _) = rest.split_once(END).unwrap();
    let expected = op_table_markdown();
    assert!(table == expected, "the table of docs/ir.md must be:\n{BEGIN}{expected}{END}");
}
