//! What the printer writes, for graphs built by hand.

use crate::decoder::{block, block_module, every_format};
use piecewise_ir::diagnostic::{Anchor, Diagnostics};
use piecewise_ir::dim::SymbolDecl;
use piecewise_ir::dtype::DType;
use piecewise_ir::entity::{Entity, Node, PieceId, Slot, Symbol, Value};
use piecewise_ir::graph::{Graph, Loc};
use piecewise_ir::literal::Literal;
use piecewise_ir::op::{Op, UnaryOp, op_table};
use piecewise_ir::text::{
    canonical_piece, parse_graph, parse_module, print_graph, print_module, render,
};
use piecewise_ir::types::TensorType;

fn assert_round_trip(text: &str) {
    let parsed = parse_module(text).unwrap_or_else(|errors| panic!("{errors}\n{text}"));
    assert_eq!(print_module(&parsed), text);
}

#[test]
fn a_block() {
    let text = print_graph(&block());
    assert_round_trip(&text);
    insta::assert_snapshot!(text);
}

#[test]
fn a_compact_graph_parses_to_an_equal_one() {
    // `every_format` holds a NaN attribute, which equals nothing.
    let mut parsed = parse_graph(&print_graph(&block())).unwrap();
    assert_eq!(parsed, block());
    parsed.compact();
    assert_eq!(parsed, block());
}

#[test]
fn every_op_format() {
    let graph = every_format();
    let text = print_graph(&graph);
    assert_round_trip(&text);
    let both = text.clone() + &print_graph(&block());
    let families = ["neg", "max", "lt", "reduce_sum"];
    for info in op_table() {
        let in_family = format!("{:?}", info.format).contains('(');
        if !in_family || families.contains(&info.mnemonic) {
            let used = both.contains(&format!("= {}", info.mnemonic))
                || both.contains(&format!("  {} ", info.mnemonic));
            assert!(used, "{} is not covered", info.mnemonic);
        }
    }
    insta::assert_snapshot!(text);
}

#[test]
fn a_module_with_all_its_parts() {
    let text = print_module(&block_module());
    assert_round_trip(&text);
    let (graph, plan) = text.split_at(text.find("\nplan").unwrap());
    assert_eq!(graph, print_graph(&block()));
    insta::assert_snapshot!(plan.trim_start());
}

#[test]
fn every_stage_of_a_module_round_trips() {
    let full = block_module();
    let mut module = piecewise_ir::module::Module::new(block());
    assert_eq!(print_module(&module), print_graph(&block()));
    module.set_stitch(full.stitch().unwrap().clone());
    assert_round_trip(&print_module(&module));
    module.set_slots(full.slots().unwrap().clone());
    assert_round_trip(&print_module(&module));
    assert!(!print_module(&module).contains("arena"));
    module.set_layout(full.layout().unwrap().clone());
    assert_eq!(print_module(&module), print_module(&full));
    assert_eq!(parse_module(&print_module(&module)).unwrap(), full);
}

#[test]
fn the_canonical_text_of_a_piece() {
    let graph = block();
    insta::assert_snapshot!(canonical_piece(&graph, graph.symbol_named("T")));
}

#[test]
fn identity_ignores_names_places_and_bounds() {
    let graph = block();
    let over = graph.symbol_named("T");
    let expected = canonical_piece(&graph, over);
    let renamed = print_graph(&graph)
        .replace("@block", "@other")
        .replace("[1..512]", "[2..16]")
        .replace("dim T", "dim Tokens")
        .replace("[T", "[Tokens")
        .replace("over T", "over Tokens")
        .replace("%slots", "%where")
        .replace("layers.0", "layers.17")
        .replace(" role \"kv.key\"", "")
        .replace("decoder.rs", "encoder.rs");
    let other = parse_graph(&renamed).unwrap();
    assert_eq!(canonical_piece(&other, other.symbol_named("Tokens")), expected);
}

#[test]
fn identity_sees_what_changes_the_result() {
    let text = print_graph(&block());
    let graph = block();
    let expected = canonical_piece(&graph, graph.symbol_named("T"));
    assert_ne!(canonical_piece(&graph, graph.symbol_named("S")), expected);
    assert_ne!(canonical_piece(&graph, None), expected);
    for (from, to) in [
        ("pad -1", "pad 0"),
        ("1e-6", "1e-5"),
        ("scale=0.25", "scale=0.5"),
        ("axis=0}(\"", "axis=1}(\""),
        ("{transpose_rhs}", ""),
        ("mut s1", "mut s0"),
        ("rows mixed", "rows masked"),
        ("mixed split", "mixed"),
        ("add %x", "sub %x"),
        // Which parts are one checkpoint tensor is structure, not a name.
        ("\"layers.0.k\":", "\"layers.0.q\":"),
        ("slice v1 {axis=1, start=64}", "slice v1 {axis=1, start=32}"),
    ] {
        assert!(text.contains(from), "{from}");
        let other = parse_graph(&text.replace(from, to)).unwrap();
        assert_ne!(canonical_piece(&other, other.symbol_named("T")), expected, "{from}");
    }
}

#[test]
fn identity_does_not_depend_on_the_order_of_symbols() {
    let swapped = |first: &str, second: &str| {
        let text = format!(
            "graph {{\n  dim {first} in [1..8]\n  dim {second} in [1..8]\n  \
             input %x: f32[T,R]\n  v0: f32[T,R] = neg %x\n  ret v0\n}}\n"
        );
        let graph = parse_graph(&text).unwrap();
        canonical_piece(&graph, graph.symbol_named("T"))
    };
    assert_eq!(swapped("T", "R"), swapped("R", "T"));
}

#[test]
fn findings_in_a_short_listing() {
    let mut findings = Diagnostics::default();
    let graph = every_format();
    let nodes: Vec<Node> = graph.nodes().collect();
    findings.push("V0101", Anchor::Graph, "the graph has no purpose");
    findings.push("V0201", Anchor::Symbol(Symbol::new(1)), "`odd name` is odd");
    findings.push("V0202", Anchor::Value(graph.inputs()[1].value), "i64 where i32 would do");
    findings.push("V0203", Anchor::Value(graph.weights()[0].value), "a weight");
    findings.push_with_notes(
        "V0412",
        Anchor::Operand(nodes[3], 1),
        "the shapes differ\nsay they were equal".to_owned(),
        vec!["v1 was produced by `max`".to_owned(), "another note".to_owned()],
    );
    findings.push("V0413", Anchor::Node(nodes[3]), "the whole statement");
    findings.push("V0414", Anchor::Value(graph.result(nodes[2])), "a result");
    findings.push("V0901", Anchor::Outputs, "returns too much");
    findings.push("V0902", Anchor::Value(Value::new(9999)), "a value that is not shown");
    insta::assert_snapshot!(render(&graph, &findings));
}

#[test]
fn findings_in_a_long_listing() {
    let module = block_module();
    let region = module.graph().order()[0];
    let Op::Region(inner) = &module.graph().node(region).op else { panic!("a region") };
    let mut findings = Diagnostics::default();
    let statement = inner.body.order()[5];
    findings.push("V0501", Anchor::Body(region, statement), "a statement of the body");
    findings.push("V0502", Anchor::Operand(region, 1), "a parameter");
    findings.push("P0107", Anchor::Piece(PieceId::new(1)), "writes what nothing reads");
    findings.push("B0003", Anchor::Slot(Slot::new(2)), "overlaps b1 while both live");
    insta::assert_snapshot!(render(&module, &findings));
}

#[test]
fn invalid_graphs_still_print() {
    let mut graph = Graph::new("broken");
    let decl = SymbolDecl { name: "T".to_owned(), min: 3, max: 1, role: None };
    graph.add_symbol(decl);
    let ty = TensorType::new(DType::F32, [Symbol::new(7)]);
    let missing = Value::new(77);
    let neg = Op::Unary(UnaryOp::Neg);
    let dead = graph.push(neg.clone(), vec![missing], ty.clone(), Loc::default());
    let node = graph.push_node(neg, vec![dead, missing], vec![ty.clone()], Loc::default());
    let long = Literal::new(DType::F32, vec![0.5; Literal::MAX_ELEMENTS + 1]);
    let literal = graph.push(Op::Literal(long), vec![], ty, Loc::default());
    let literal = graph.defining_node(literal).unwrap();
    graph.node_mut(literal).results.push(missing);
    graph.set_order(vec![node, literal, Node::new(500)]);
    graph.set_outputs(vec![dead, missing]);
    let text = print_graph(&graph);
    assert!(parse_graph(&text).is_err());
    assert!(!render(&graph, &Diagnostics::default()).is_empty());
    let canonical = canonical_piece(&graph, Some(Symbol::new(50)));
    assert!(canonical.lines().count() > Literal::MAX_ELEMENTS / 16);
    insta::assert_snapshot!(text);
}
