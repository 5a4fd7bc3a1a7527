//! Hand-built graphs: an attention block with regions, and one use of every op.

use piecewise_ir::custom::{Attr, Attrs, CustomCall};
use piecewise_ir::dim::{Dim, SymbolDecl};
use piecewise_ir::dtype::DType::{self, BF16, Bool, F32, I4, I32, I64, U8};
use piecewise_ir::entity::{Symbol, Value};
use piecewise_ir::graph::{Graph, Loc};
use piecewise_ir::literal::{Literal, Scalar};
use piecewise_ir::module::{
    ArenaLayout, LiveRange, Module, PieceUse, SlotData, SlotKind, SlotTable, Step, Stitch,
    UniquePiece,
};
use piecewise_ir::op::{BinaryOp, CompareOp, Op, ReduceOp, RowTreatment, UnaryOp};
use piecewise_ir::region::{ParamMode, Region};
use piecewise_ir::types::TensorType;
use piecewise_ir::weight::Recipe;

fn ty<const N: usize>(dtype: DType, shape: [Dim; N]) -> TensorType {
    TensorType::new(dtype, shape)
}

fn d(n: u64) -> Dim {
    n.into()
}

fn at(scope: &str, line: u32) -> Loc {
    Loc { scope: scope.to_owned(), source: format!("src/models/decoder.rs:{line}") }
}

fn checkpoint(name: &str, ty: &TensorType) -> Recipe {
    Recipe::Checkpoint { name: name.to_owned(), ty: ty.clone() }
}

/// The row program of an RMS norm over `width` elements.
fn norm_body(graph: &Graph, width: u64) -> Graph {
    let mut body = Graph::with_symbols_of("norm", graph);
    let row = ty(BF16, [d(width)]);
    let wide = row.with_dtype(F32);
    let one = ty(F32, [d(1)]);
    let none = Loc::default;
    let x = body.add_input("x", row.clone(), None, None);
    let w = body.add_input("w", row.clone(), None, None);
    let x = body.push(Op::Cast, vec![x], wide.clone(), none());
    let squares = body.push(Op::Binary(BinaryOp::Mul), vec![x, x], wide.clone(), none());
    let mean = Op::Reduce { op: ReduceOp::Mean, axes: vec![0] };
    let mean = body.push(mean, vec![squares], one.clone(), none());
    let eps = Op::Literal(Literal::new(F32, [1e-6]));
    let eps = body.push(eps, vec![], one.clone(), none());
    let sum = body.push(Op::Binary(BinaryOp::Add), vec![mean, eps], one.clone(), none());
    let scale = body.push(Op::Unary(UnaryOp::Rsqrt), vec![sum], one, none());
    let scale = body.push(Op::Broadcast, vec![scale], wide.clone(), none());
    let y = body.push(Op::Binary(BinaryOp::Mul), vec![x, scale], wide, none());
    let y = body.push(Op::Cast, vec![y], row.clone(), none());
    let y = body.push(Op::Binary(BinaryOp::Mul), vec![y, w], row, at("norm", 12));
    body.set_outputs(vec![y]);
    body
}

fn symbol(graph: &mut Graph, name: &str, max: u64, role: Option<&str>) -> Symbol {
    let role = role.map(str::to_owned);
    graph.add_symbol(SymbolDecl { name: name.to_owned(), min: 1, max, role })
}

/// Norm, qkv, KV write, attention, output projection.
pub(crate) fn block() -> Graph {
    let mut g = Graph::new("block");
    let t = symbol(&mut g, "T", 512, Some("tokens"));
    let s = symbol(&mut g, "S", 64, Some("sequences"));
    let pages = symbol(&mut g, "P", 65_536, Some("kv.rows"));
    let (t, s, pages) = (Dim::from(t), Dim::from(s), Dim::from(pages));
    let x_ty = ty(BF16, [t.clone(), d(64)]);
    let x = g.add_input("x", x_ty.clone(), None, None);
    let pad = Some(Scalar::int(I32, -1));
    let slots = g.add_input("slots", ty(I32, [t.clone()]), pad, Some("kv.slots".to_owned()));
    let zero = Some(Scalar::int(I32, 0));
    let lens = g.add_input("lens", ty(I32, [s]), zero, Some("kv.lengths".to_owned()));
    let norm_ty = ty(BF16, [d(64)]);
    let w_norm = g.add_weight(norm_ty.clone(), checkpoint("layers.0.norm.weight", &norm_ty));
    let part = |name: &str, rows: u64| checkpoint(name, &ty(BF16, [d(rows), d(64)]));
    let parts = vec![part("layers.0.q", 64), part("layers.0.k", 32), part("layers.0.v", 32)];
    let w_qkv = g.add_weight(ty(BF16, [d(128), d(64)]), Recipe::Concat { axis: 0, parts });
    let w_o = Recipe::Transpose { perm: vec![1, 0], of: Box::new(part("layers.0.o", 64)) };
    let w_o = g.add_weight(ty(BF16, [d(64), d(64)]), w_o);
    let kv_ty = ty(BF16, [pages, d(2), d(16)]);
    let k = g.add_state("layers.0.k", kv_ty.clone(), Some("kv.key".to_owned()));
    let v = g.add_state("layers.0.v", kv_ty, Some("kv.value".to_owned()));

    let over = t.as_symbol().expect("one symbol");
    let params = vec![ParamMode::Row, ParamMode::Whole];
    let norm = Region { over, params, body: norm_body(&g, 64) };
    let h =
        g.push(Op::Region(Box::new(norm)), vec![x, w_norm], x_ty.clone(), at("layers.0.norm", 10));
    let qkv_ty = ty(BF16, [t.clone(), d(128)]);
    let matmul = Op::MatMul { transpose_lhs: false, transpose_rhs: true };
    let qkv = g.push(matmul, vec![h, w_qkv], qkv_ty, at("layers.0.qkv", 20));
    let mut heads = |start: u64, heads: u64| {
        let flat = ty(BF16, [t.clone(), d(heads * 16)]);
        let cut = g.push(Op::Slice { axis: 1, start }, vec![qkv], flat, Loc::default());
        g.push(Op::Reshape, vec![cut], ty(BF16, [t.clone(), d(heads), d(16)]), Loc::default())
    };
    let (q, new_k, new_v) = (heads(0, 4), heads(64, 2), heads(96, 2));
    g.push_node(Op::Scatter, vec![k, slots, new_k], vec![], at("layers.0.kv", 30));
    g.push_node(Op::Scatter, vec![v, slots, new_v], vec![], at("layers.0.kv", 31));
    let attrs = Attrs::from([
        ("causal".to_owned(), Attr::Bool(true)),
        ("scale".to_owned(), Attr::Float(0.25)),
    ]);
    let call = CustomCall {
        name: "piecewise.paged_attention".to_owned(),
        attrs,
        mutates: vec![],
        rows: RowTreatment::Mixed,
        splits: true,
        absorbs: vec![],
        scatters: vec![],
    };
    let heads_ty = ty(BF16, [t.clone(), d(4), d(16)]);
    let attention = Op::Custom(Box::new(call));
    let a = g.push(attention, vec![q, k, v, lens], heads_ty, at("layers.0.attn", 40));
    let a = g.push(Op::Reshape, vec![a], x_ty.clone(), Loc::default());
    let o = Op::MatMul { transpose_lhs: false, transpose_rhs: false };
    let o = g.push(o, vec![a, w_o], x_ty.clone(), at("layers.0.o", 50));
    let sum = g.push(Op::Binary(BinaryOp::Add), vec![x, o], x_ty, at("layers.0", 60));
    g.set_outputs(vec![sum]);
    g
}

/// Every op format, recipe and attribute once, and values that only bits can print.
pub(crate) fn every_format() -> Graph {
    let mut g = Graph::new("every format");
    let t = symbol(&mut g, "T", 8, None);
    let row = Dim::from(t);
    let odd = symbol(&mut g, "odd name", 4, None);
    let x_ty = ty(F32, [row.clone(), d(4)]);
    let x = g.add_input("x", x_ty.clone(), Some(Scalar::new(F32, f64::INFINITY)), None);
    let ids = g.add_input("ids", ty(I64, [row.clone()]), None, None);
    g.add_input("un\"used", ty(U8, [Dim::affine(-1, [(t, 2), (odd, 1)])]), None, None);
    let table_ty = ty(BF16, [d(10), d(4)]);
    let stored = checkpoint("embed", &ty(F32, [d(4), d(20)]));
    let cut = Recipe::Slice { axis: 1, start: 5, len: 10, of: Box::new(stored) };
    let turned = Recipe::Transpose { perm: vec![1, 0], of: Box::new(cut) };
    let table = g.add_weight(table_ty.clone(), Recipe::Cast { to: BF16, of: Box::new(turned) });
    let mut rope = Graph::new("rope");
    let angles_ty = ty(F32, [d(4)]);
    let steps = rope.push(Op::Iota { axis: 0 }, vec![], angles_ty.clone(), Loc::default());
    let cos = rope.push(Op::Unary(UnaryOp::Cos), vec![steps], angles_ty, at("rope", 1));
    rope.set_outputs(vec![cos]);
    g.add_weight(ty(F32, [d(4)]), Recipe::Graph(Box::new(rope)));
    let state = g.add_state("s", table_ty, None);

    let mut push =
        |op: Op, operands: Vec<Value>, ty: TensorType| g.push(op, operands, ty, Loc::default());
    let flags_ty = x_ty.with_dtype(Bool);
    let neg = push(Op::Unary(UnaryOp::Neg), vec![x], x_ty.clone());
    let max = push(Op::Binary(BinaryOp::Max), vec![x, neg], x_ty.clone());
    let lt = push(Op::Compare(CompareOp::Lt), vec![x, neg], flags_ty);
    let select = push(Op::Select, vec![lt, max, x], x_ty.clone());
    let reduce = Op::Reduce { op: ReduceOp::Sum, axes: vec![0, 1] };
    push(reduce, vec![select], ty(F32, [d(1), d(1)]));
    push(Op::ArgMax { axis: 1 }, vec![x], ty(I32, [row.clone()]));
    push(Op::Permute { perm: vec![1, 0] }, vec![x], ty(F32, [d(4), row.clone()]));
    push(Op::Concat { axis: 1 }, vec![x, neg, max], ty(F32, [row.clone(), d(12)]));
    let rows = push(Op::Gather, vec![table, ids], ty(BF16, [row.clone(), d(4)]));
    push(Op::Iota { axis: 0 }, vec![], ty(I32, [row.clone()]));
    let bits = [0x7fc0_0001, 0xff80_0000, 0x8000_0000, 1, 0x3dcc_cccd]
        .map(|bits| Scalar::from_bits(F32, bits));
    push(Op::Literal(Literal::from_scalars(F32, bits)), vec![], ty(F32, [d(5)]));
    push(Op::Literal(Literal::new(I32, (0..40).map(f64::from))), vec![], ty(I32, [d(40)]));
    push(Op::Literal(Literal::new(Bool, [1.0, 0.0])), vec![], ty(Bool, [d(2)]));
    let pair = vec![ty(F32, [row.clone(), d(2)]), ty(I32, [row.clone(), d(2)])];
    g.push_node(Op::TopK { axis: 1 }, vec![x], pair, Loc::default());
    g.push_node(Op::Scatter, vec![state, ids, rows], vec![], Loc::default());
    let [codes, scales, zeros] =
        [ty(I4, [d(6), d(4)]), ty(F32, [d(3), d(1)]), ty(I4, [d(3), d(1)])];
    let words = |name: &str, shape: [Dim; 2]| Box::new(checkpoint(name, &ty(I32, shape)));
    let order = [0, 2, 4, 6, 1, 3, 5, 7];
    let unpack = |of, axis, len| Recipe::Unpack { axis, order, less: 8, len, of };
    let codes = g.add_weight(codes, unpack(words("codes", [d(6), d(1)]), 1, 4));
    let one = Box::new(checkpoint("scale", &ty(F32, [d(1)])));
    let scales = g.add_weight(scales, Recipe::Broadcast { shape: vec![3, 1], of: one });
    let zeros = g.add_weight(zeros, unpack(words("zeros", [d(1), d(1)]), 0, 3));
    let product = Op::ScaledMatMul { block: [2, 4] };
    let operands = vec![x, codes, scales, zeros];
    g.push(product, operands, ty(F32, [row.clone(), d(6)]), Loc::default());
    let attrs = Attrs::from([
        ("dtype".to_owned(), Attr::DType(BF16)),
        ("nan".to_owned(), Attr::Float(f64::NAN)),
        ("odd key".to_owned(), Attr::Str("line\nbreak".to_owned())),
        ("seed".to_owned(), Attr::Int(-7)),
        ("tiny".to_owned(), Attr::Float(1e-300)),
    ]);
    let call = CustomCall {
        name: "test.sample".to_owned(),
        attrs,
        mutates: vec![1],
        rows: RowTreatment::SlotMapped,
        splits: false,
        absorbs: vec![0, 2],
        scatters: vec![],
    };
    let custom = Op::Custom(Box::new(call));
    g.push_node(custom, vec![x, state], vec![ty(I32, [row])], at("sample", 9));
    g.set_outputs(vec![select, rows]);
    g
}

/// The block cut at attention by hand, with slots and offsets.
pub(crate) fn block_module() -> Module {
    let graph = block();
    let nodes: Vec<_> = graph.nodes().collect();
    let mut attention = Graph::with_symbols_of("attention", &graph);
    let custom = graph.node(nodes[10]).clone();
    let inputs: Vec<_> = custom
        .operands
        .iter()
        .enumerate()
        .map(|(i, &v)| attention.add_input(format!("i{i}"), graph.ty(v).clone(), None, None))
        .collect();
    let result = graph.result_types(nodes[10]).remove(0);
    let out = attention.push(custom.op.clone(), inputs, result, Loc::default());
    attention.set_outputs(vec![out]);

    let mut stitch = Stitch::default();
    let over = graph.symbol_named("T");
    let unique = stitch.unique.push(UniquePiece { over, graph: attention, hash: [0xab; 32] });
    let mut operands = custom.operands.clone();
    operands.extend(&custom.results);
    let split = PieceUse { unique, nodes: vec![nodes[10]], operands };
    let before = PieceUse { unique, nodes: nodes[..10].to_vec(), operands: vec![] };
    let after = PieceUse { unique, nodes: nodes[11..].to_vec(), operands: vec![] };
    let ids: Vec<_> = [before, split, after].map(|piece| stitch.uses.push(piece)).into();
    stitch.steps = vec![Step::Piece(ids[0]), Step::Split(ids[1]), Step::Piece(ids[2])];

    let slot = |value, kind, start, end| SlotData { value, kind, live: LiveRange { start, end } };
    let result = |i: usize| graph.node(nodes[i]).results[0];
    let slots = [
        slot(graph.inputs()[0].value, SlotKind::Input, 0, 13),
        slot(result(1), SlotKind::Local, 1, 9),
        slot(result(10), SlotKind::Boundary, 10, 12),
        slot(result(13), SlotKind::Output, 13, 13),
    ];
    let layout = ArenaLayout {
        bounds: vec![512, 64, 65_536],
        align: 256,
        counts: 0,
        staged: 65_792,
        offsets: vec![256, 65_792, 196_864, 262_400],
        sizes: vec![65_536, 131_072, 65_536, 65_536],
        bytes: 327_936,
    };
    let mut module = Module::new(graph);
    module.set_stitch(stitch);
    module.set_slots(SlotTable { slots: slots.into_iter().collect() });
    module.set_layout(layout);
    module
}
