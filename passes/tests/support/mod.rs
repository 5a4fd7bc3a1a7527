//! Hand-built graphs as they are after fusion.

#![allow(dead_code, reason = "each test binary uses its own part")]

pub(crate) mod launches;
pub(crate) mod plans;

use piecewise_ir::custom::{Attrs, CustomCall};
use piecewise_ir::dim::SymbolDecl;
use piecewise_ir::dtype::DType;
use piecewise_ir::entity::{Symbol, Value};
use piecewise_ir::graph::{Graph, Loc};
use piecewise_ir::literal::Scalar;
use piecewise_ir::op::{BinaryOp, Op, ReduceOp, RowTreatment, UnaryOp};
use piecewise_ir::region::{ParamMode, Region};
use piecewise_ir::types::{IntoShape, TensorType};
use piecewise_ir::weight::Recipe;

/// The widths of a small decoder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Widths {
    pub(crate) layers: usize,
    pub(crate) hidden: u64,
    pub(crate) heads: u64,
    pub(crate) kv_heads: u64,
    pub(crate) head_dim: u64,
    pub(crate) intermediate: u64,
    pub(crate) vocab: u64,
    pub(crate) max_tokens: u64,
    pub(crate) max_rows: u64,
}

impl Widths {
    pub(crate) fn tiny(layers: usize) -> Self {
        Self {
            layers,
            hidden: 64,
            heads: 4,
            kv_heads: 2,
            head_dim: 16,
            intermediate: 176,
            vocab: 97,
            max_tokens: 512,
            max_rows: 64,
        }
    }
}

pub(crate) fn symbol(graph: &mut Graph, name: &str, max: u64) -> Symbol {
    graph.add_symbol(SymbolDecl { name: name.into(), min: 1, max, role: None })
}

pub(crate) fn loc(scope: impl Into<String>) -> Loc {
    Loc { scope: scope.into(), source: String::new() }
}

pub(crate) fn weight(
    graph: &mut Graph,
    name: impl Into<String>,
    dtype: DType,
    shape: impl IntoShape,
) -> Value {
    let ty = TensorType::new(dtype, shape);
    graph.add_weight(ty.clone(), Recipe::Checkpoint { name: name.into(), ty })
}

/// A region over `over` whose body is made by `body` from its parameters.
pub(crate) fn region(
    graph: &mut Graph,
    over: Symbol,
    operands: &[(Value, ParamMode)],
    scope: impl Into<String>,
    body: impl FnOnce(&mut Graph, &[Value]) -> Vec<Value>,
) -> Vec<Value> {
    let mut inner = Graph::with_symbols_of("body", graph);
    let mut params = Vec::new();
    for (i, &(value, mode)) in operands.iter().enumerate() {
        let ty = graph.ty(value);
        let ty = if mode == ParamMode::Row { ty.row() } else { ty.clone() };
        params.push(inner.add_input(format!("a{i}"), ty, None, None));
    }
    let outputs = body(&mut inner, &params);
    let types: Vec<TensorType> = outputs
        .iter()
        .map(|&v| {
            let row = inner.ty(v);
            let mut ty = TensorType::new(row.dtype, [over]);
            ty.shape.extend(row.shape.iter().cloned());
            ty
        })
        .collect();
    inner.set_outputs(outputs);
    let modes = operands.iter().map(|o| o.1).collect();
    let op = Op::Region(Box::new(Region { over, params: modes, body: inner }));
    let node = graph.push_node(op, operands.iter().map(|o| o.0).collect(), types, loc(scope));
    graph.node(node).results.clone()
}

/// An elementwise unary region of one operand.
pub(crate) fn unary(graph: &mut Graph, over: Symbol, op: UnaryOp, x: Value) -> Value {
    region(graph, over, &[(x, ParamMode::Row)], "unary", |b, p| {
        let ty = b.ty(p[0]).clone();
        vec![b.push(Op::Unary(op), vec![p[0]], ty, Loc::default())]
    })[0]
}

pub(crate) fn matmul(graph: &mut Graph, x: Value, w: Value, scope: impl Into<String>) -> Value {
    let mut ty = graph.ty(x).clone();
    let columns = graph.ty(w).shape[1].clone();
    let last = ty.rank() - 1;
    ty.shape[last] = columns;
    let op = Op::MatMul { transpose_lhs: false, transpose_rhs: false };
    graph.push(op, vec![x, w], ty, loc(scope))
}

pub(crate) fn custom(name: &str, mutates: Vec<usize>, rows: RowTreatment, splits: bool) -> Op {
    Op::Custom(Box::new(CustomCall {
        name: name.into(),
        attrs: Attrs::new(),
        mutates,
        rows,
        splits,
        absorbs: vec![],
        scatters: vec![],
    }))
}

fn broadcast(b: &mut Graph, x: Value, to: &TensorType) -> Value {
    b.push(Op::Broadcast, vec![x], to.clone(), Loc::default())
}

/// `x * rsqrt(mean(x * x)) * w` on one row.
fn norm_body(b: &mut Graph, x: Value, w: Value) -> Value {
    let ty = b.ty(x).clone();
    let one = TensorType::new(ty.dtype, [1u64]);
    let l = Loc::default;
    let square = b.push(Op::Binary(BinaryOp::Mul), vec![x, x], ty.clone(), l());
    let mean = Op::Reduce { op: ReduceOp::Mean, axes: vec![0] };
    let mean = b.push(mean, vec![square], one.clone(), l());
    let scale = b.push(Op::Unary(UnaryOp::Rsqrt), vec![mean], one, l());
    let scale = broadcast(b, scale, &ty);
    let scaled = b.push(Op::Binary(BinaryOp::Mul), vec![x, scale], ty.clone(), l());
    b.push(Op::Binary(BinaryOp::Mul), vec![scaled, w], ty, l())
}

/// A decoder as it is after fusion: regions, matmuls, attention and sampling.
pub(crate) fn decoder(w: Widths) -> Graph {
    use ParamMode::{Mut, Row, Whole};
    let dtype = DType::BF16;
    let mut g = Graph::new("decoder");
    let t = symbol(&mut g, "T", w.max_tokens);
    let r = symbol(&mut g, "R", w.max_rows);
    let s = symbol(&mut g, "S", w.max_rows);
    let index = |g: &mut Graph, name: &str, shape: TensorType, pad: i64| {
        let padding = Some(Scalar::int(DType::I32, pad));
        g.add_input(name, shape, padding, Some(format!("kv.{name}")))
    };
    let ids = index(&mut g, "ids", TensorType::new(DType::I32, [t]), 0);
    let slots = index(&mut g, "slots", TensorType::new(DType::I32, [t]), -1);
    let lengths = index(&mut g, "lengths", TensorType::new(DType::I32, [s]), 0);
    let rows = index(&mut g, "rows", TensorType::new(DType::I32, [r]), 0);
    let embed = weight(&mut g, "embed", dtype, [w.vocab, w.hidden]);
    let split = |op| custom(op, vec![], RowTreatment::Masked, true);
    let mut x = g.push(
        Op::Gather,
        vec![embed, ids],
        TensorType::new(dtype, [t.into(), piecewise_ir::dim::Dim::constant(w.hidden)]),
        loc("embed"),
    );
    let work = {
        let op = custom("user.work_list", vec![], RowTreatment::Masked, false);
        let ty = TensorType::new(DType::I32, [w.max_rows * 2]);
        g.push(op, vec![lengths], ty, loc("metadata"))
    };
    let (q_width, kv_width) = (w.heads * w.head_dim, w.kv_heads * w.head_dim);
    let mut down: Option<Value> = None;
    for layer in 0..w.layers {
        let at = |name: &str| format!("layers.{layer}.{name}");
        let norm = weight(&mut g, at("norm1"), dtype, [w.hidden]);
        let (residual, normed) = match down {
            None => {
                let h = region(&mut g, t, &[(x, Row), (norm, Whole)], at("norm1"), |b, p| {
                    vec![norm_body(b, p[0], p[1])]
                });
                (x, h[0])
            }
            Some(down) => add_norm(&mut g, t, x, down, norm, at("norm1")),
        };
        let qkv = weight(&mut g, at("qkv"), dtype, [w.hidden, q_width + 2 * kv_width]);
        let qkv = matmul(&mut g, normed, qkv, at("qkv"));
        let cache = TensorType::new(dtype, [1024, kv_width]);
        let k = g.add_state(at("k"), cache.clone(), Some("kv.k".into()));
        let v = g.add_state(at("v"), cache, Some("kv.v".into()));
        let operands = [(qkv, Row), (slots, Row), (k, Mut), (v, Mut)];
        let q = region(&mut g, t, &operands, at("rope"), |b, p| {
            let part = |b: &mut Graph, start: u64, n: u64| {
                let op = Op::Slice { axis: 0, start };
                b.push(op, vec![p[0]], TensorType::new(dtype, [n]), Loc::default())
            };
            let q = part(b, 0, q_width);
            let k = part(b, q_width, kv_width);
            let v = part(b, q_width + kv_width, kv_width);
            for (state, row) in [(p[2], k), (p[3], v)] {
                b.push_node(Op::Scatter, vec![state, p[1], row], vec![], Loc::default());
            }
            let ty = b.ty(q).clone();
            vec![b.push(Op::Unary(UnaryOp::Neg), vec![q], ty, Loc::default())]
        })[0];
        let ty = g.ty(q).clone();
        let attn =
            g.push(split("user.attention"), vec![q, k, v, lengths, work], ty, loc(at("attn")));
        let o = weight(&mut g, at("o"), dtype, [q_width, w.hidden]);
        let o = matmul(&mut g, attn, o, at("o"));
        let norm = weight(&mut g, at("norm2"), dtype, [w.hidden]);
        let (residual, normed) = add_norm(&mut g, t, residual, o, norm, at("norm2"));
        let gate_up = weight(&mut g, at("gate_up"), dtype, [w.hidden, 2 * w.intermediate]);
        let gate_up = matmul(&mut g, normed, gate_up, at("gate_up"));
        let act = region(&mut g, t, &[(gate_up, Row)], at("act"), |b, p| {
            let ty = TensorType::new(dtype, [w.intermediate]);
            let half = |b: &mut Graph, start| {
                b.push(Op::Slice { axis: 0, start }, vec![p[0]], ty.clone(), Loc::default())
            };
            let (gate, up) = (half(b, 0), half(b, w.intermediate));
            let gate = b.push(Op::Unary(UnaryOp::Tanh), vec![gate], ty.clone(), Loc::default());
            vec![b.push(Op::Binary(BinaryOp::Mul), vec![gate, up], ty.clone(), Loc::default())]
        })[0];
        let down_w = weight(&mut g, at("down"), dtype, [w.intermediate, w.hidden]);
        down = Some(matmul(&mut g, act, down_w, at("down")));
        x = residual;
    }
    if let Some(down) = down {
        x = region(&mut g, t, &[(x, Row), (down, Row)], "residual", |b, p| {
            let ty = b.ty(p[0]).clone();
            vec![b.push(Op::Binary(BinaryOp::Add), vec![p[0], p[1]], ty, Loc::default())]
        })[0];
    }
    let norm = weight(&mut g, "norm", dtype, [w.hidden]);
    let operands = [(x, Whole), (rows, Row), (norm, Whole)];
    let last = region(&mut g, r, &operands, "norm", |b, p| {
        let ty = TensorType::new(dtype, [w.hidden]);
        let row = b.push(Op::Gather, vec![p[0], p[1]], ty, Loc::default());
        vec![norm_body(b, row, p[2])]
    })[0];
    let head = weight(&mut g, "head", dtype, [w.hidden, w.vocab]);
    let logits = matmul(&mut g, last, head, "head");
    let logits = region(&mut g, r, &[(logits, Row)], "cast", |b, p| {
        let ty = b.ty(p[0]).with_dtype(DType::F32);
        vec![b.push(Op::Cast, vec![p[0]], ty, Loc::default())]
    })[0];
    let sampled = g.add_state("sampled", TensorType::new(DType::I32, [w.max_rows]), None);
    let sample = custom("user.sample", vec![1], RowTreatment::Independent, false);
    let ids =
        g.push(sample, vec![logits, sampled], TensorType::new(DType::I32, [r]), loc("sample"));
    g.set_outputs(vec![logits, ids]);
    g
}

fn add_norm(
    g: &mut Graph,
    over: Symbol,
    x: Value,
    y: Value,
    w: Value,
    scope: String,
) -> (Value, Value) {
    use ParamMode::{Row, Whole};
    let results = region(g, over, &[(x, Row), (y, Row), (w, Whole)], scope, |b, p| {
        let ty = b.ty(p[0]).clone();
        let sum = b.push(Op::Binary(BinaryOp::Add), vec![p[0], p[1]], ty, Loc::default());
        vec![sum, norm_body(b, sum, p[2])]
    });
    (results[0], results[1])
}
