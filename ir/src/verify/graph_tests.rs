//! Every rule of graphs, broken once: exactly its code is found.

use super::{verify_graph, verify_graph_with};
use crate::custom::{Attr, CustomCall, CustomOpDef};
use crate::dim::{Dim, SymbolDecl};
use crate::dtype::DType;
use crate::entity::{Entity, Node, Symbol, Value};
use crate::graph::{Graph, Loc};
use crate::literal::{Literal, Scalar};
use crate::op::{BinaryOp, Op, UnaryOp};
use crate::region::{ParamMode, Region};
use crate::testing::{MixOp, mix_ops};
use crate::types::TensorType;
use crate::weight::Recipe;

const T: Symbol = Symbol(0);

fn rows(dtype: DType, inner: &[usize]) -> TensorType {
    let shape = std::iter::once(Dim::from(T)).chain(inner.iter().map(|&d| Dim::from(d)));
    TensorType::new(dtype, shape.collect::<Vec<_>>())
}

fn f32s(shape: &[usize]) -> TensorType {
    TensorType::new(DType::F32, shape)
}

fn symbol(name: &str, min: u64, max: u64) -> SymbolDecl {
    SymbolDecl { name: name.into(), min, max, role: None }
}

/// `T`, inputs `x: f32[T,4]` (`v0`), `slots: i32[T]` (`v1`), state `s: f32[8,4]` (`v2`), and
/// `v3 = neg x` (`n0`), which is returned.
fn base() -> Graph {
    let mut graph = Graph::new("base");
    graph.add_symbol(symbol("T", 1, 16));
    let x = graph.add_input("x", rows(DType::F32, &[4]), None, None);
    let padding = Some(Scalar::int(DType::I32, -1));
    graph.add_input("slots", rows(DType::I32, &[]), padding, None);
    graph.add_state("s", f32s(&[8, 4]), None);
    let y = graph.push(Op::Unary(UnaryOp::Neg), vec![x], rows(DType::F32, &[4]), Loc::default());
    graph.set_outputs(vec![y]);
    graph
}
const X: Value = Value(0);
const SLOTS: Value = Value(1);
const STATE: Value = Value(2);
const Y: Value = Value(3);
const NEG: Node = Node(0);

fn push(graph: &mut Graph, op: Op, operands: &[Value], results: Vec<TensorType>) -> Node {
    graph.push_node(op, operands.to_vec(), results, Loc::default())
}

fn codes_of(graph: &Graph) -> Vec<&'static str> {
    match verify_graph_with(graph, &mix_ops()) {
        Ok(()) => Vec::new(),
        Err(found) => found.items.iter().map(|item| item.code).collect(),
    }
}

#[track_caller]
fn expect(code: &str, plant: impl FnOnce(&mut Graph)) {
    let mut graph = base();
    plant(&mut graph);
    assert_eq!(codes_of(&graph), [code], "{:?}", verify_graph(&graph));
}

#[test]
fn the_base_is_clean() {
    assert_eq!(verify_graph(&base()), Ok(()));
}

#[test]
fn ids() {
    expect("V0001", |g| g.set_order(vec![NEG, NEG]));
    expect("V0001", |g| g.set_order(vec![NEG, Node(9)]));
    expect("V0002", |g| g.node_mut(NEG).operands[0] = Value(99));
    expect("V0002", |g| g.set_outputs(vec![Value::new(usize::MAX)]));
    expect("V0003", |g| g.node_mut(NEG).results[0] = X);
    expect("V0004", |g| {
        let ty = TensorType::new(DType::F32, [Symbol(7)]);
        g.add_input("z", ty, None, None);
    });
}

#[test]
fn declarations() {
    expect("V0101", |g| g.set_symbol_bounds(T, 5, 4));
    expect("V0101", |g| g.set_symbol_bounds(T, 0, 0));
    expect("V0101", |g| g.set_symbol_bounds(T, 1, 1 << 31));
    expect("V0102", |g| {
        g.add_symbol(symbol("T", 1, 2));
    });
    expect("V0102", |g| {
        g.add_input("x", f32s(&[1]), None, None);
    });
    expect("V0102", |g| {
        g.add_state("s", f32s(&[1]), None);
    });
    expect("V0103", |g| {
        g.add_input("ids", rows(DType::I64, &[]), None, None);
    });
    expect("V0104", |g| {
        let padding = Some(Scalar::int(DType::I64, 0));
        g.add_input("ids", rows(DType::I32, &[]), padding, None);
    });
}

#[test]
fn recipes() {
    let tensor = || Recipe::Checkpoint { name: "w".into(), ty: f32s(&[2, 3]) };
    expect("V0105", |g| {
        g.add_weight(f32s(&[3, 2]), tensor());
    });
    expect("V0105", |g| {
        let of = Box::new(tensor());
        g.add_weight(f32s(&[2, 9]), Recipe::Slice { axis: 1, start: 1, len: 9, of });
    });
    expect("V0106", |g| {
        let mut table = Graph::new("table");
        let literal = Op::Literal(Literal::new(DType::F32, [1.0]));
        let y = table.push(literal, vec![], f32s(&[2]), Loc::default());
        table.set_outputs(vec![y]);
        g.add_weight(f32s(&[2]), Recipe::Graph(Box::new(table)));
    });
}

#[test]
fn extents() {
    expect("V0107", |g| {
        let ty = TensorType::new(DType::F32, [Dim::affine(-2, [(T, 1)])]);
        g.add_input("z", ty, None, None);
    });
    expect("V0108", |g| {
        let big = Dim::affine(i64::MAX, []);
        g.add_input("z", TensorType::new(DType::F32, [big, 2.into()]), None, None);
    });
}

#[test]
fn narrow_dtypes_are_for_weights() {
    expect("V0109", |g| {
        g.add_input("z", TensorType::new(DType::E4M3, [4]), None, None);
    });
    expect("V0109", |g| {
        g.add_state("z", TensorType::new(DType::I4, [Dim::from(2), T.into()]), None);
    });
    let codes = |g: &mut Graph, dtype| {
        let ty = TensorType::new(dtype, [8, 4]);
        g.add_weight(ty.clone(), Recipe::Checkpoint { name: "codes".into(), ty })
    };
    let refused = |op: Op, dtype: DType, result: [usize; 2]| {
        expect("V0305", |g| {
            let codes = codes(g, dtype);
            push(g, op, &[codes], vec![TensorType::new(dtype, result)]);
        });
    };
    for dtype in [DType::E4M3, DType::I4] {
        refused(Op::Unary(UnaryOp::Neg), dtype, [8, 4]);
        refused(Op::Permute { perm: vec![1, 0] }, dtype, [4, 8]);
        refused(Op::Reshape, dtype, [4, 8]);
        // Along the innermost axis lines are not whole.
        refused(Op::Slice { axis: 1, start: 0 }, dtype, [8, 2]);
        refused(Op::Concat { axis: 1 }, dtype, [8, 4]);
    }
    expect("V0305", |g| {
        let codes = codes(g, DType::E4M3);
        let op = Op::MatMul { transpose_lhs: false, transpose_rhs: true };
        push(g, op, &[X, codes], vec![rows(DType::F32, &[8])]);
    });
    // Whole lines are gathered, cut, joined and cast.
    let mut g = base();
    let codes = codes(&mut g, DType::I4);
    push(&mut g, Op::Gather, &[codes, SLOTS], vec![rows(DType::I4, &[4])]);
    push(
        &mut g,
        Op::Slice { axis: 0, start: 2 },
        &[codes],
        vec![TensorType::new(DType::I4, [3, 4])],
    );
    push(&mut g, Op::Concat { axis: 0 }, &[codes; 2], vec![TensorType::new(DType::I4, [16, 4])]);
    push(&mut g, Op::Cast, &[codes], vec![f32s(&[8, 4])]);
    assert_eq!(codes_of(&g), [""; 0]);
}

#[test]
fn products_with_scales() {
    type Plant = fn(&mut [TensorType; 4], &mut [u64; 2], &mut TensorType);
    let plants: [(&str, Plant); 12] = [
        ("", |_, _, _| {}),
        ("V0301", |types, _, _| types[0].dtype = DType::I32),
        ("V0301", |types, _, _| types[1].shape[1] = 3.into()),
        ("V0301", |types, _, _| types[2].dtype = DType::I32),
        ("V0301", |types, _, _| types[2].shape[0] = 6.into()),
        ("V0301", |types, _, _| types[3].shape[1] = 1.into()),
        ("V0301", |types, _, _| types[1].dtype = DType::F32),
        ("V0301", |types, _, _| types[3].dtype = DType::E4M3),
        ("V0301", |_, block, _| block[0] = 0),
        ("V0301", |_, block, _| block[1] = 5),
        ("V0301", |_, _, result| result.shape[1] = 6.into()),
        ("V0305", |_, _, result| result.dtype = DType::E4M3),
    ];
    for (code, plant) in plants {
        let mut g = base();
        // Partial blocks of rows: 5 of them by 2, 4 columns by 3.
        let mut types = [
            rows(DType::F32, &[4]),
            TensorType::new(DType::I4, [5, 4]),
            TensorType::new(DType::BF16, [3, 2]),
            TensorType::new(DType::I4, [3, 2]),
        ];
        let (mut block, mut result) = ([2, 3], rows(DType::F16, &[5]));
        plant(&mut types, &mut block, &mut result);
        let operands = types.map(|ty| {
            let name = format!("t{}", g.weights().len());
            match ty.static_shape() {
                Some(_) => g.add_weight(ty.clone(), Recipe::Checkpoint { name, ty }),
                None => g.add_input(name, ty, Some(Scalar::new(DType::I32, 0.0)), None),
            }
        });
        push(&mut g, Op::ScaledMatMul { block }, &operands, vec![result]);
        let found = codes_of(&g);
        let found: Vec<_> = found.into_iter().filter(|code| *code != "V0104").collect();
        assert_eq!(found, Vec::from_iter(Some(code).filter(|code| !code.is_empty())));
    }
}

#[test]
fn findings_say_where_they_are_as_the_text_names_it() {
    let mut g = base();
    let z = push(&mut g, Op::Unary(UnaryOp::Neg), &[Y], vec![rows(DType::F32, &[4])]);
    g.set_order(vec![z, NEG]);
    let found = verify_graph(&g).unwrap_err();
    assert_eq!(
        found.to_string(),
        "error[V0201] at operand 0 of `v0 = neg`: v1 is read before it is defined; move \
         `v1 = neg` before `v0 = neg`"
    );
}

#[test]
fn program_order() {
    expect("V0201", |g| {
        let z = push(g, Op::Unary(UnaryOp::Neg), &[Y], vec![rows(DType::F32, &[4])]);
        g.set_order(vec![z, NEG]);
    });
    expect("V0201", |g| {
        let z = push(g, Op::Unary(UnaryOp::Neg), &[Y], vec![rows(DType::F32, &[4])]);
        g.set_outputs(vec![g.result(z)]);
        g.set_order(vec![z]);
    });
    expect("V0202", |g| g.set_order(vec![]));
}

#[test]
fn ops() {
    expect("V0301", |g| {
        push(g, Op::Unary(UnaryOp::Exp), &[X], vec![rows(DType::F32, &[5])]);
    });
    expect("V0301", |g| {
        push(g, Op::Binary(BinaryOp::Add), &[X], vec![rows(DType::F32, &[4])]);
    });
    expect("V0302", |g| {
        let literal = Op::Literal(Literal::new(DType::F32, vec![0.0; 1025]));
        push(g, literal, &[], vec![f32s(&[1025])]);
    });
    expect("V0303", |g| {
        let ty = f32s(&[8, 4]);
        let z = g.add_input("z", ty, None, None);
        push(g, Op::Scatter, &[z, SLOTS, X], vec![]);
    });
    expect("V0304", |g| {
        let literal = Op::Literal(Literal::new(DType::I32, vec![0.0; 8]));
        let slots = push(g, literal, &[], vec![TensorType::new(DType::I32, [8])]);
        let slots = g.result(slots);
        push(g, Op::Scatter, &[STATE, slots, STATE], vec![]);
    });
}

/// A region over `T` that negates rows of `x` and scatters them into the state.
fn region(graph: &Graph) -> Region {
    let mut body = Graph::with_symbols_of("body", graph);
    let row = body.add_input("row", f32s(&[4]), None, None);
    let slot = body.add_input("slot", TensorType::scalar(DType::I32), None, None);
    let state = body.add_input("state", f32s(&[8, 4]), None, None);
    let y = body.push(Op::Unary(UnaryOp::Neg), vec![row], f32s(&[4]), Loc::default());
    push(&mut body, Op::Scatter, &[state, slot, y], vec![]);
    body.set_outputs(vec![y]);
    Region { over: T, params: vec![ParamMode::Row, ParamMode::Row, ParamMode::Mut], body }
}
const ROW: Value = Value(0);
const MUT: Value = Value(2);
const NEGATED: Value = Value(3);

#[track_caller]
fn expect_region(code: &str, plant: impl FnOnce(&mut Region)) {
    expect_region_as(code, rows(DType::F32, &[4]), plant);
}

#[track_caller]
fn expect_region_as(code: &str, result: TensorType, plant: impl FnOnce(&mut Region)) {
    expect(code, |g| {
        let mut region = region(g);
        plant(&mut region);
        push(g, Op::Region(Box::new(region)), &[X, SLOTS, STATE], vec![result]);
    });
}

#[test]
fn a_sound_region_is_clean() {
    let mut g = base();
    let op = Op::Region(Box::new(region(&g)));
    push(&mut g, op, &[X, SLOTS, STATE], vec![rows(DType::F32, &[4])]);
    assert_eq!(verify_graph(&g), Ok(()));
    // Bounds are configured on the graph after regions are made.
    g.set_symbol_bounds(T, 1, 8);
    assert_eq!(verify_graph(&g), Ok(()));
}

#[test]
fn regions() {
    expect_region("V0004", |r| r.over = Symbol(5));
    expect_region("V0401", |r| r.params.truncate(2));
    expect_region("V0402", |r| r.params[0] = ParamMode::Whole);
    expect("V0402", |g| {
        let w = g.add_input("w", f32s(&[4]), None, None);
        let r = region(g);
        push(g, Op::Region(Box::new(r)), &[w, SLOTS, STATE], vec![rows(DType::F32, &[4])]);
    });
    expect_region("V0403", |r| {
        r.body.add_state("own", f32s(&[1]), None);
    });
    expect_region("V0404", |r| {
        let op = Op::MatMul { transpose_lhs: false, transpose_rhs: true };
        let literal = Op::Literal(Literal::new(DType::F32, [1.0]));
        let a = push(&mut r.body, literal, &[], vec![f32s(&[1, 1])]);
        let a = r.body.result(a);
        push(&mut r.body, op, &[a, a], vec![f32s(&[1, 1])]);
    });
    expect_region_as("V0405", f32s(&[16, 4]), |_| {});
    expect_region("V0405", |r| r.body.set_outputs(vec![]));
    expect_region("V0407", |r| {
        push(&mut r.body, Op::Unary(UnaryOp::Neg), &[MUT], vec![f32s(&[8, 4])]);
    });
    expect_region("V0408", |r| {
        r.body.add_symbol(symbol("R", 1, 2));
    });
    expect_region("V0409", |r| {
        push(&mut r.body, Op::Iota { axis: 0 }, &[], vec![rows(DType::F32, &[])]);
    });
    // The rules of graphs hold inside.
    expect_region("V0301", |r| {
        push(&mut r.body, Op::Unary(UnaryOp::Not), &[ROW], vec![f32s(&[4])]);
    });
    expect_region("V0202", |r| r.body.set_order(vec![]));
}

#[test]
fn a_body_scatters_only_into_mut_parameters() {
    // Into a whole parameter, which no longer makes the region mutate.
    expect_region("V0406", |r| r.params[2] = ParamMode::Whole);
    // Into a value of its own.
    expect_region("V0406", |r| {
        let ty = f32s(&[8, 4]);
        let own = push(&mut r.body, Op::Broadcast, &[NEGATED], vec![ty]);
        let own = r.body.result(own);
        push(&mut r.body, Op::Scatter, &[own, Value(1), NEGATED], vec![]);
    });
}

fn mix() -> CustomCall {
    CustomCall {
        name: MixOp::NAME.into(),
        attrs: [("scale".to_owned(), Attr::Float(0.5))].into(),
        mutates: vec![1],
        rows: MixOp.rows(),
        splits: true,
        absorbs: MixOp.absorbs(),
        scatters: MixOp.scatters(),
    }
}

#[track_caller]
fn expect_custom(code: &str, plant: impl FnOnce(&mut CustomCall)) {
    expect(code, |g| {
        let mut call = mix();
        plant(&mut call);
        let op = Op::Custom(Box::new(call));
        push(g, op, &[X, STATE, SLOTS], vec![rows(DType::F32, &[4])]);
    });
}

#[test]
fn custom_ops() {
    expect_custom("V0501", |c| c.mutates = vec![1, 1]);
    expect_custom("V0501", |c| c.mutates = vec![3]);
    expect_custom("V0501", |c| c.absorbs = vec![0, 0]);
    expect_custom("V0501", |c| c.absorbs = vec![1]);
    expect_custom("V0501", |c| c.absorbs = vec![4]);
    expect_custom("V0501", |c| c.scatters = vec![(0, 2)]);
    expect_custom("V0501", |c| c.scatters = vec![(1, 0)]);
    expect_custom("V0501", |c| c.scatters = vec![(1, 3)]);
    expect_custom("V0502", |c| c.absorbs = vec![0]);
    expect_custom("V0502", |c| c.scatters = vec![]);
    expect_custom("V0502", |c| c.rows = crate::op::RowTreatment::Independent);
    expect_custom("V0502", |c| c.splits = false);
    expect_custom("V0502", |c| (c.mutates, c.scatters) = (vec![], vec![]));
    expect_custom("V0503", |c| c.attrs.clear());
    expect("V0503", |g| {
        push(g, Op::Custom(Box::new(mix())), &[X, STATE, SLOTS], vec![f32s(&[1])]);
    });
    expect_custom("V0303", |c| {
        // An op without a definition is taken at its word.
        c.name = "other.mix".into();
        (c.mutates, c.absorbs, c.scatters) = (vec![0], vec![], vec![]);
    });
}
