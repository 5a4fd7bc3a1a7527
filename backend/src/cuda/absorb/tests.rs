use super::*;
use piecewise_ir::builder::Builder;
use piecewise_ir::dtype::DType;
use piecewise_ir::text::parse_graph;

#[test]
fn a_piece_without_regions_absorbs_nothing() {
    let b = Builder::new("plain");
    let rows = b.symbol("T", 1, 64);
    let x = b.input("x", DType::BF16, (rows, 64));
    let y = x.matmul_transposed(b.weight("w", [64u64, 64]), DType::BF16);
    let graph = b.finish([y]).unwrap();
    assert!(product(&graph, graph.nodes().next().unwrap()).unwrap().streams());
    for rows in [0, 1, 8, 9, 1 << 20] {
        for absorbing in Absorbing::in_order(&graph, Some(rows)) {
            assert_eq!(Absorption::of(&graph, &[rows], absorbing, &|_, _| true), None);
        }
    }
}

/// The nodes that are launched, in this order, and those that took in what follows them.
fn launched(nodes: &str) -> Option<(Vec<usize>, Vec<usize>)> {
    let text = format!(
        "graph @g {{\n dim T in [1..16]\n dim P in [1..64]\n input %x: f32[T,8]\n input %i: i32[T] pad -1\n \
         weight w0: f32[8,8] = \"w\"\n state s0: f32[P,8] = \"s\"\n {nodes}\n}}"
    );
    let graph = parse_graph(&text).unwrap_or_else(|e| panic!("{text}: {e}"));
    let absorbing = Absorbing { products: None, ops: true };
    let made = Absorption::of(&graph, &[16, 64], absorbing, &|_, _| true)?;
    let took = |at: &usize| made.groups[*at].as_ref().is_some_and(|group| group.after.is_some());
    let takers = (0..made.groups.len()).filter(took).collect();
    Some((made.launched, takers))
}

/// The sum of two values, row by row.
fn sum(made: &str, one: &str, other: &str) -> String {
    format!(
        "{made}: f32[T,8] = region over T (%a: row {one}, %b: row {other}) {{\n a0: f32[8] = add %a, %b\n ret a0\n }}"
    )
}

const TURN: &str = "v0: f32[T,8] = custom \"any.turn\" %x rows independent absorbs [1]";
const TWO: &str =
    "v0: f32[T,8], v1: f32[T,8] = custom \"any.two\" %x rows independent absorbs [1, 2]";

#[test]
fn a_region_is_taken_in_over_what_needs_neither() {
    let product = "v1: f32[T,8] = matmul %x, w0";
    let late = launched(&format!("{TURN}\n{product}\n{}\nret v2", sum("v2", "v0", "v1")));
    assert_eq!(late, Some((vec![1, 0], vec![0])), "the op waits for the product");
    let product = "v2: f32[T,8] = matmul v1, w0";
    let early = launched(&format!("{TWO}\n{product}\n{}\nret v2, v3", sum("v3", "v0", "%x")));
    assert_eq!(early, Some((vec![0, 1], vec![0])), "the product waits for the op");
    let sums = format!("{}\n{}", sum("v2", "v0", "%x"), sum("v3", "v1", "%x"));
    let first = launched(&format!("{TWO}\n{sums}\nret v2, v3"));
    assert_eq!(first, Some((vec![0, 2], vec![0])), "a launch takes in one region after it");
}

#[test]
fn a_region_that_waits_for_what_waits_for_the_op_is_not_taken_in() {
    let read = "v1: f32[T,8] = matmul v0, w0";
    assert_eq!(launched(&format!("{TURN}\n{read}\n{}\nret v2", sum("v2", "v0", "v1"))), None);
    let product = "v2: f32[T,8] = matmul v1, w0";
    assert_eq!(launched(&format!("{TWO}\n{product}\n{}\nret v3", sum("v3", "v0", "v2"))), None);
}

#[test]
fn an_op_and_a_region_change_no_order_of_states() {
    let ops = |first, second| {
        let op = |made, states| {
            format!(
                "{made}: f32[T,8] = custom \"any.turn\" %x, {states} rows independent absorbs [2]"
            )
        };
        let [first, second] = [op("v0", first), op("v1", second)];
        launched(&format!("{first}\n{second}\n{}\nret v2, v1", sum("v2", "v0", "v1")))
    };
    assert_eq!(ops("s0", "s0"), Some((vec![1, 0], vec![0])), "both read");
    assert_eq!(ops("mut s0", "s0"), None);
    assert_eq!(ops("s0", "mut s0"), None);
}
