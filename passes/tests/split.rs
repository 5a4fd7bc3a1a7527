//! The splitter: members, their order, what moves, and which pieces are the same.

use crate::support::{Widths, custom, decoder, loc, matmul, region, symbol, unary, weight};
use piecewise_ir::dim::Dim;
use piecewise_ir::dtype::DType;
use piecewise_ir::entity::{Node, Value};
use piecewise_ir::graph::{Graph, Loc};
use piecewise_ir::module::{Module, Step, Stitch};
use piecewise_ir::op::{BinaryOp, Op, RowTreatment, UnaryOp};
use piecewise_ir::region::ParamMode;
use piecewise_ir::types::TensorType;
use piecewise_ir::verify::verify_module;
use piecewise_ir::weight::Recipe;
use piecewise_passes::split::{SplitOptions, SplitReport, split};

fn run(graph: Graph) -> (Module, SplitReport) {
    let mut module = Module::new(graph);
    let report = split(&mut module, &SplitOptions::default()).expect("the graph splits");
    (module, report)
}

fn shape_of(stitch: &Stitch) -> String {
    let letter = |step: &Step| match step {
        Step::Prologue(_) => 'm',
        Step::Piece(_) => 'p',
        Step::Split(_) => 'S',
    };
    stitch.steps.iter().map(letter).collect()
}

/// Every node once, data before use, states in program order.
fn assert_order_is_kept(module: &Module) {
    let graph = module.graph();
    let order = module.stitch().expect("split").node_order();
    let mut sorted = order.clone();
    sorted.sort_unstable();
    let mut expected: Vec<Node> = graph.nodes().collect();
    expected.sort_unstable();
    assert_eq!(sorted, expected, "each node runs once");
    let at = |n: Node| order.iter().position(|&o| o == n);
    let program: Vec<Node> = graph.nodes().collect();
    for &node in &program {
        for &operand in &graph.node(node).operands {
            if let Some(writer) = graph.defining_node(operand) {
                assert!(at(writer) < at(node), "{writer} before its reader {node}");
            }
        }
    }
    for (i, &earlier) in program.iter().enumerate() {
        for &later in &program[i + 1..] {
            if conflict(graph, earlier, later) {
                assert!(at(earlier) < at(later), "{earlier} and {later} touch one state");
            }
        }
    }
}

fn conflict(graph: &Graph, a: Node, b: Node) -> bool {
    let mutated = |n: Node| {
        let data = graph.node(n);
        data.op.mutated_operands().into_iter().map(|i| data.operands[i]).collect::<Vec<Value>>()
    };
    let touches =
        |n: Node, states: &[Value]| graph.node(n).operands.iter().any(|v| states.contains(v));
    touches(b, &mutated(a)) || touches(a, &mutated(b))
}

#[test]
fn a_decoder_becomes_pieces_between_its_attentions() {
    let (module, report) = run(decoder(Widths::tiny(6)));
    let stitch = module.stitch().expect("split");
    assert_eq!(shape_of(stitch), "mpSpSpSpSpSpSpp");
    assert_eq!((report.pieces, report.unique_pieces, report.split_ops), (8, 4, 6));
    assert_eq!(report.prologue_ops, 1);
    assert_eq!(report.moved, []);
    assert_order_is_kept(&module);
}

#[test]
fn unique_pieces_do_not_depend_on_the_number_of_layers() {
    let hashes = |layers| {
        let (module, _) = run(decoder(Widths::tiny(layers)));
        let stitch = module.stitch().expect("split").clone();
        stitch.unique.values().map(|u| u.hash).collect::<Vec<_>>()
    };
    let two = hashes(2);
    assert_eq!(two.len(), 6, "four pieces, one attention, one work list");
    assert_eq!(two, hashes(6));
    assert_eq!(two, hashes(60));
}

#[test]
fn the_bounds_of_symbols_are_no_part_of_a_piece() {
    let hashes = |max_tokens| {
        let (module, _) = run(decoder(Widths { max_tokens, ..Widths::tiny(2) }));
        let stitch = module.stitch().expect("split").clone();
        stitch.unique.values().map(|u| u.hash).collect::<Vec<_>>()
    };
    assert_eq!(hashes(64), hashes(8192));
}

#[test]
fn the_row_gather_begins_the_head_piece() {
    let (module, _) = run(decoder(Widths::tiny(2)));
    let stitch = module.stitch().expect("split");
    let r = module.graph().symbol_named("R").expect("declared");
    let Some(Step::Piece(head)) = stitch.steps.last() else { panic!("the head is a piece") };
    let unique = &stitch.unique[stitch.uses[*head].unique];
    assert_eq!(unique.over, Some(r));
    assert_eq!(unique.graph.inputs().len(), 2, "the T-shaped boundary and the row indices");
    assert_eq!(unique.graph.outputs().len(), 2);
}

#[test]
fn operands_name_the_values_of_the_module_by_position() {
    let (module, _) = run(decoder(Widths::tiny(3)));
    let graph = module.graph();
    let stitch = module.stitch().expect("split");
    for usage in stitch.uses.values() {
        let unique = &stitch.unique[usage.unique];
        let positions = unique.operands();
        assert_eq!(positions.len(), usage.operands.len());
        for (&inside, &outside) in positions.iter().zip(&usage.operands) {
            assert_eq!(unique.graph.ty(inside), graph.ty(outside));
        }
        for (inside, &outside) in unique.graph.nodes().zip(&usage.nodes) {
            let named =
                |v: &Value| usage.operands[positions.iter().position(|p| p == v).expect("named")];
            let operands: Vec<Value> =
                unique.graph.node(inside).operands.iter().map(named).collect();
            assert_eq!(operands, graph.node(outside).operands);
        }
    }
}

#[test]
fn no_split_op_means_one_piece_for_each_symbol() {
    let mut module = Module::new(decoder(Widths::tiny(2)));
    let options = SplitOptions { split_ops: Some(vec![]) };
    let report = split(&mut module, &options).expect("splits");
    assert_eq!(shape_of(module.stitch().expect("split")), "mpp");
    assert_eq!(report.split_ops, 0);
    assert_order_is_kept(&module);
}

#[test]
fn configured_names_decide_and_unknown_ones_are_reported() {
    let mut module = Module::new(decoder(Widths::tiny(2)));
    let names = vec!["user.sample".to_owned(), "user.attentoin".to_owned()];
    let report = split(&mut module, &SplitOptions { split_ops: Some(names) }).expect("splits");
    assert_eq!(shape_of(module.stitch().expect("split")), "mppS");
    assert_eq!(report.unmatched, ["user.attentoin"]);
}

/// `x -> split -> y` with what `build` puts before and after.
fn around_split(
    build: impl FnOnce(
        &mut Graph,
        piecewise_ir::entity::Symbol,
        Value,
        &dyn Fn(&mut Graph, Value) -> Value,
    ) -> Vec<Value>,
) -> Graph {
    let mut g = Graph::new("around");
    let t = symbol(&mut g, "T", 128);
    let x = g.add_input("x", TensorType::new(DType::F32, [t.into(), Dim::constant(8)]), None, None);
    let x = unary(&mut g, t, UnaryOp::Neg, x);
    let mix = |g: &mut Graph, v: Value| {
        let ty = g.ty(v).clone();
        g.push(custom("user.mix", vec![], RowTreatment::Masked, true), vec![v], ty, loc("mix"))
    };
    let outputs = build(&mut g, t, x, &mix);
    g.set_outputs(outputs);
    g
}

fn binary(g: &mut Graph, a: Value, b: Value) -> Value {
    let ty = g.ty(a).clone();
    g.push(Op::Binary(BinaryOp::Add), vec![a, b], ty, loc("add"))
}

#[test]
fn a_widening_before_the_cut_moves_after_it() {
    let graph = around_split(|g, _, x, mix| {
        let wide = {
            let ty = TensorType::new(DType::F32, [g.ty(x).shape[0].clone(), 4.into(), 8.into()]);
            g.push(Op::Broadcast, vec![x], ty.clone(), loc("wide"))
        };
        let wide = {
            let ty = g.ty(wide).clone();
            g.push(Op::Unary(UnaryOp::Exp), vec![wide], ty, loc("exp"))
        };
        let y = mix(g, x);
        let narrow = {
            let ty = TensorType::new(DType::F32, [g.ty(x).shape[0].clone(), 1.into(), 8.into()]);
            let op = Op::Slice { axis: 1, start: 0 };
            g.push(op, vec![wide], ty, loc("slice"))
        };
        let narrow = {
            let ty = g.ty(y).clone();
            g.push(Op::Reshape, vec![narrow], ty, loc("reshape"))
        };
        vec![binary(g, y, narrow)]
    });
    let (module, report) = run(graph);
    assert!(report.boundary_bytes < report.boundary_bytes_before);
    // The split op reads x anyway, so nothing else need cross.
    assert_eq!(report.boundary_bytes, 128 * 8 * 4);
    assert_eq!(shape_of(module.stitch().expect("split")), "pSp");
    assert_order_is_kept(&module);
}

#[test]
fn a_narrowing_after_the_cut_moves_before_it() {
    let graph = around_split(|g, t, x, mix| {
        let query = unary(g, t, UnaryOp::Abs, x);
        let wide = weight(g, "wide", DType::F32, [8, 64]);
        let wide = matmul(g, x, wide, "wide");
        let y = mix(g, query);
        let narrow = weight(g, "narrow", DType::F32, [64, 4]);
        let narrow = matmul(g, wide, narrow, "narrow");
        vec![unary(g, t, UnaryOp::Exp, y), narrow]
    });
    let (module, report) = run(graph);
    assert_eq!(report.boundary_bytes_before, (8 + 64) * 128 * 4);
    assert_eq!(report.boundary_bytes, (8 + 4) * 128 * 4);
    assert_eq!(report.moved.len(), 1);
    assert_order_is_kept(&module);
}

#[test]
fn a_node_with_an_effect_never_moves() {
    let graph = around_split(|g, t, x, mix| {
        let state = g.add_state("s", TensorType::new(DType::F32, [128, 8]), None);
        let slots = g.add_input("slots", TensorType::new(DType::I32, [t]), None, None);
        let y = mix(g, x);
        g.push_node(Op::Scatter, vec![state, slots, x], vec![], loc("late write"));
        vec![unary(g, t, UnaryOp::Abs, y)]
    });
    let (module, report) = run(graph);
    assert_eq!(report.moved, []);
    let stitch = module.stitch().expect("split");
    assert_eq!(shape_of(stitch), "pSp");
    assert_eq!(stitch.uses.values().map(|u| u.nodes.len()).collect::<Vec<_>>(), [1, 1, 2]);
    assert_order_is_kept(&module);
}

#[test]
fn consecutive_split_ops_share_a_cut_and_remaps_join_a_piece_with_a_kernel() {
    let graph = around_split(|g, t, x, mix| {
        let a = mix(g, x);
        let flat = TensorType::new(DType::F32, [t.into(), Dim::constant(2), Dim::constant(4)]);
        // Read only after the second cut, so that it can join the last piece.
        let shaped = g.push(Op::Reshape, vec![a], flat, loc("reshape"));
        let b = mix(g, x);
        let back = g.push(Op::Reshape, vec![shaped], g.ty(b).clone(), loc("reshape"));
        vec![binary(g, b, back)]
    });
    let (module, report) = run(graph);
    assert_eq!(shape_of(module.stitch().expect("split")), "pSSp");
    assert_eq!(report.pieces, 2);
    assert_order_is_kept(&module);
}

#[test]
fn a_remap_that_two_split_ops_enclose_stays_a_piece() {
    let graph = around_split(|g, t, x, mix| {
        let a = mix(g, x);
        let flat = TensorType::new(DType::F32, [t.into(), Dim::constant(2), Dim::constant(4)]);
        let shaped = g.push(Op::Reshape, vec![a], flat, loc("reshape"));
        vec![mix(g, shaped)]
    });
    let (module, report) = run(graph);
    assert_eq!(shape_of(module.stitch().expect("split")), "pSpS");
    assert_eq!(report.joined, []);
}

#[test]
fn a_literal_that_a_split_op_reads_joins_the_piece_before() {
    let graph = around_split(|g, _, x, _| {
        let one = g.push(
            Op::Literal(piecewise_ir::literal::Literal::new(DType::F32, [1.0])),
            vec![],
            TensorType::new(DType::F32, [1u64]),
            loc("one"),
        );
        let ty = g.ty(x).clone();
        let op = custom("user.mix", vec![], RowTreatment::Masked, true);
        vec![g.push(op, vec![x, one], ty, loc("mix"))]
    });
    let (module, _) = run(graph);
    let stitch = module.stitch().expect("split");
    assert_eq!(shape_of(stitch), "pS");
    assert_order_is_kept(&module);
}

/// A row-mixing op of a user that mutates a state, with no attention anywhere.
fn mixing_graph() -> Graph {
    let mut g = Graph::new("user");
    let t = symbol(&mut g, "N", 32);
    let x = g.add_input("x", TensorType::new(DType::F32, [t.into(), Dim::constant(8)]), None, None);
    let state = g.add_state("memory", TensorType::new(DType::F32, [16, 8]), None);
    let mut v = unary(&mut g, t, UnaryOp::Exp, x);
    for _ in 0..2 {
        let ty = g.ty(v).clone();
        let op = custom("user.recur", vec![1], RowTreatment::Mixed, true);
        v = g.push(op, vec![v, state], ty, loc("recur"));
        v = unary(&mut g, t, UnaryOp::Exp, v);
    }
    g.set_outputs(vec![v]);
    g
}

#[test]
fn a_users_op_that_mixes_rows_and_mutates_a_state_is_split() {
    let (module, report) = run(mixing_graph());
    assert_eq!(shape_of(module.stitch().expect("split")), "pSpSp");
    assert_eq!(report.unique_pieces, 1);
    assert_order_is_kept(&module);
}

/// One piece that writes two states (or one state twice) and reads two weights (or one twice).
fn coinciding(one_state: bool, one_weight: bool) -> [u8; 32] {
    let mut g = Graph::new("g");
    let t = symbol(&mut g, "T", 32);
    let x = g.add_input("x", TensorType::new(DType::F32, [t.into(), Dim::constant(8)]), None, None);
    let slots = g.add_input("slots", TensorType::new(DType::I32, [t]), None, None);
    let state = TensorType::new(DType::F32, [16, 8]);
    let a = g.add_state("a", state.clone(), None);
    let b = if one_state { a } else { g.add_state("b", state, None) };
    let first = weight(&mut g, "w.first", DType::F32, [8, 8]);
    let name = if one_weight { "w.first" } else { "w.second" };
    let ty = TensorType::new(DType::F32, [8u64, 8]);
    // The same tensor stored transposed: two weights of one source.
    let recipe = Recipe::Transpose {
        perm: vec![1, 0],
        of: Box::new(Recipe::Checkpoint { name: name.into(), ty: ty.clone() }),
    };
    let second = g.add_weight(ty, recipe);
    let y = matmul(&mut g, x, first, "first");
    let y = matmul(&mut g, y, second, "second");
    let operands =
        [(y, ParamMode::Row), (slots, ParamMode::Row), (a, ParamMode::Mut), (b, ParamMode::Mut)];
    let z = region(&mut g, t, &operands, "write", |body, p| {
        for state in [p[2], p[3]] {
            body.push_node(Op::Scatter, vec![state, p[1], p[0]], vec![], Loc::default());
        }
        let ty = body.ty(p[0]).clone();
        vec![body.push(Op::Unary(UnaryOp::Neg), vec![p[0]], ty, Loc::default())]
    });
    g.set_outputs(z);
    let (module, _) = run(g);
    module.stitch().expect("split").unique.values().next().expect("one piece").hash
}

#[test]
fn which_states_coincide_is_part_of_a_piece_and_where_weights_come_from_is_not() {
    let base = coinciding(false, false);
    assert_eq!(base, coinciding(false, false));
    assert_ne!(base, coinciding(true, false), "states");
    // Two weights of one tensor lie in memory as two of two tensors do.
    assert_eq!(base, coinciding(false, true), "weights");
}

#[test]
fn a_read_before_its_definition_is_an_error_that_names_the_node() {
    let mut g = mixing_graph();
    let mut order: Vec<Node> = g.nodes().collect();
    order.swap(0, 1);
    g.set_order(order);
    let mut module = Module::new(g);
    let error = split(&mut module, &SplitOptions::default()).expect_err("the order is broken");
    insta::assert_snapshot!(error);
    assert!(module.stitch().is_none());
}

#[test]
fn an_empty_graph_splits_into_nothing() {
    let (module, report) = run(Graph::new("empty"));
    assert_eq!(report.pieces, 0);
    assert!(module.stitch().expect("split").steps.is_empty());
}

/// What runs with a split op is what it may absorb, whatever is made of the step afterwards.
#[test]
fn a_split_step_of_more_than_it_absorbs_is_p0107() {
    let mut g = Graph::new("user");
    let t = symbol(&mut g, "N", 32);
    let x = g.add_input("x", TensorType::new(DType::F32, [t.into(), Dim::constant(8)]), None, None);
    let a = unary(&mut g, t, UnaryOp::Exp, x);
    let mut op = custom("user.turn", vec![], RowTreatment::Mixed, true);
    let Op::Custom(call) = &mut op else { unreachable!() };
    call.absorbs = vec![0, 1];
    let ty = g.ty(a).clone();
    let y = g.push(op, vec![a], ty, loc("turn"));
    let z = unary(&mut g, t, UnaryOp::Tanh, y);
    g.set_outputs(vec![z]);
    let (module, report) = run(g);
    let stitch = module.stitch().expect("split").clone();
    assert_eq!((shape_of(&stitch).as_str(), report.pieces), ("S", 0));
    let codes = |outputs: &[Value]| -> Vec<&'static str> {
        let mut module = module.clone();
        module.graph_mut().set_outputs(outputs.to_vec());
        module.set_stitch(stitch.clone());
        let found = verify_module(&module).err().into_iter();
        found.flat_map(|found| found.items).map(|item| item.code).collect()
    };
    assert_eq!(codes(&[z]), [] as [&str; 0]);
    for others in [[a, z], [y, z]] {
        assert!(codes(&others).contains(&"P0107"), "{:?}", codes(&others));
    }
}
