//! Random regions, and the same program op by op.

use piecewise_ir::dim::{Dim, SymbolDecl};
use piecewise_ir::dtype::DType;
use piecewise_ir::entity::{Entity, Symbol, Value};
use piecewise_ir::graph::{Graph, Loc, ValueDef};
use piecewise_ir::literal::Literal;
use piecewise_ir::op::{BinaryOp, CompareOp, Op, ReduceOp, UnaryOp};
use piecewise_ir::region::{ParamMode, Region};
use piecewise_ir::types::TensorType;

/// The dtypes that rows have; narrow ones are of weights that products take.
pub const WIDE: [DType; 7] =
    [DType::F32, DType::F16, DType::BF16, DType::I32, DType::I64, DType::U8, DType::Bool];

/// A small generator of random numbers.
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678)
    }
    pub fn below(&mut self, n: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % n.max(1)
    }
    pub fn pick<T: Clone>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())].clone()
    }
}

/// What a program may hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Every dtype, and only ops whose result is the nearest to the exact one.
    Exact,
    /// Floats, and only ops that small errors of the operands change little.
    Smooth,
    /// [`Kind::Smooth`] in f32 alone.
    SmoothF32,
}

pub const ROWS: u64 = 24;
pub const TABLE: u64 = 9;
pub const STATE: u64 = 32;

/// A graph of one region.
pub struct Program {
    pub fused: Graph,
    pub unfused: Graph,
    pub over: Symbol,
}

struct Draft {
    rng: Rng,
    kind: Kind,
    body: Graph,
    values: Vec<Value>,
}

fn dims(ty: &TensorType) -> Vec<u64> {
    ty.static_shape().unwrap()
}

impl Draft {
    fn push(&mut self, op: Op, operands: Vec<Value>, ty: TensorType) -> Value {
        let value = self.body.push(op, operands, ty, Loc::default());
        self.values.push(value);
        value
    }

    fn ty(&self, v: Value) -> TensorType {
        self.body.ty(v).clone()
    }

    fn any(&mut self) -> Value {
        // Later values more often, so that programs get deep.
        let n = self.values.len();
        let at = self.rng.below(n).max(self.rng.below(n));
        self.values[at]
    }

    fn any_of(&mut self, fits: impl Fn(&TensorType) -> bool) -> Option<Value> {
        let all: Vec<Value> =
            self.values.iter().copied().filter(|&v| fits(self.body.ty(v))).collect();
        if all.is_empty() { None } else { Some(self.rng.pick(&all)) }
    }

    fn float(&mut self) -> Value {
        self.any_of(|ty| ty.dtype.is_float()).unwrap()
    }

    /// A value of type `ty` made from another by cast and broadcast, or a literal.
    fn like(&mut self, ty: &TensorType) -> Value {
        let same = self.any_of(|t| t == ty);
        if let (Some(v), true) = (same, self.rng.below(3) > 0) {
            return v;
        }
        let target = dims(ty);
        let fits = |t: &TensorType| {
            let from = dims(t);
            from.len() <= target.len()
                && t.dtype == ty.dtype
                && from.iter().rev().zip(target.iter().rev()).all(|(&a, &b)| a == b || a == 1)
        };
        let v = match self.any_of(fits) {
            Some(v) if self.rng.below(4) > 0 => v,
            _ => {
                let x = self.rng.below(9) as f64 * 0.25 + 0.5;
                let literal = Literal::new(ty.dtype, [x]);
                self.push(Op::Literal(literal), vec![], TensorType::scalar(ty.dtype))
            }
        };
        self.push(Op::Broadcast, vec![v], ty.clone())
    }

    fn statement(&mut self) {
        let choice = self.rng.below(16);
        let exact = self.kind == Kind::Exact;
        let v = self.any();
        let ty = self.ty(v);
        let shape = dims(&ty);
        let size: u64 = shape.iter().product();
        match choice {
            0 | 1 => self.unary(),
            2..=4 => {
                if ty.dtype == DType::Bool {
                    let op = self.rng.pick(&[BinaryOp::And, BinaryOp::Or]);
                    let b = self.like(&ty);
                    self.push(Op::Binary(op), vec![v, b], ty);
                    return;
                }
                let mut ops = vec![BinaryOp::Add, BinaryOp::Sub, BinaryOp::Max, BinaryOp::Min];
                if ty.dtype != DType::I64 {
                    ops.push(BinaryOp::Mul);
                }
                if exact {
                    ops.push(BinaryOp::Div);
                }
                let op = self.rng.pick(&ops);
                let b = self.like(&ty);
                let r = self.push(Op::Binary(op), vec![v, b], ty.clone());
                if !exact {
                    // Keeps magnitudes near 1.
                    self.push(Op::Unary(UnaryOp::Tanh), vec![r], ty);
                }
            }
            5 if exact => {
                let op = self.rng.pick(CompareOp::ALL);
                let b = self.like(&ty);
                let flag = ty.with_dtype(DType::Bool);
                let c = self.push(Op::Compare(op), vec![v, b], flag);
                self.push(Op::Select, vec![c, v, b], ty);
            }
            6 => {
                let targets: &[DType] = match (exact, ty.dtype.is_float()) {
                    (false, _) if self.kind == Kind::SmoothF32 => &[DType::F32],
                    (false, _) => &[DType::F32, DType::F16, DType::BF16],
                    (true, true) => {
                        &[DType::F32, DType::F16, DType::BF16, DType::I32, DType::U8, DType::Bool]
                    }
                    (true, false) => &WIDE,
                };
                let to = self.rng.pick(targets);
                self.push(Op::Cast, vec![v], ty.with_dtype(to));
            }
            7 | 8 if !shape.is_empty() && ty.dtype != DType::Bool => {
                let axes: Vec<usize> =
                    (0..shape.len()).filter(|_| self.rng.below(2) == 0).collect();
                if axes.is_empty() {
                    return;
                }
                let float = ty.dtype.is_float();
                let op = match (float, exact) {
                    (true, true) => self.rng.pick(&[ReduceOp::Max, ReduceOp::Min]),
                    (true, false) => self.rng.pick(&[ReduceOp::Mean, ReduceOp::Max]),
                    _ => self.rng.pick(&[ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min]),
                };
                let mut to = ty.clone();
                axes.iter().for_each(|&a| to.shape[a] = Dim::constant(1));
                self.push(Op::Reduce { op, axes }, vec![v], to);
            }
            9 if exact && !shape.is_empty() && ty.dtype != DType::Bool => {
                let axis = self.rng.below(shape.len());
                let mut to = ty.with_dtype(DType::I32);
                if self.rng.below(2) == 0 {
                    to.shape.remove(axis);
                    self.push(Op::ArgMax { axis }, vec![v], to);
                    return;
                }
                let k = 1 + self.rng.below(shape[axis] as usize) as u64;
                to.shape[axis] = k.into();
                let types = vec![to.with_dtype(ty.dtype), to];
                let node = self.body.push_node(Op::TopK { axis }, vec![v], types, Loc::default());
                self.values.extend(self.body.node(node).results.clone());
            }
            10 => {
                let mut to: Vec<u64> = match self.rng.below(3) {
                    0 => vec![size],
                    1 if size.is_multiple_of(2) => vec![2, size / 2],
                    _ => shape.iter().rev().copied().collect(),
                };
                if self.rng.below(2) == 0 {
                    to.insert(self.rng.below(to.len() + 1), 1);
                }
                self.push(Op::Reshape, vec![v], TensorType::new(ty.dtype, to));
            }
            11 if !shape.is_empty() => {
                let mut perm: Vec<usize> = (0..shape.len()).collect();
                for i in 0..perm.len() {
                    let j = self.rng.below(perm.len());
                    perm.swap(i, j);
                }
                let to: Vec<u64> = perm.iter().map(|&a| shape[a]).collect();
                self.push(Op::Permute { perm }, vec![v], TensorType::new(ty.dtype, to));
            }
            12 if !shape.is_empty() => {
                let axis = self.rng.below(shape.len());
                let start = self.rng.below(shape[axis] as usize) as u64;
                let n = 1 + self.rng.below((shape[axis] - start) as usize) as u64;
                let mut to = ty.clone();
                to.shape[axis] = n.into();
                self.push(Op::Slice { axis, start }, vec![v], to);
            }
            13 if !shape.is_empty() && size < 400 => {
                let axis = self.rng.below(shape.len());
                let b = self.like(&ty);
                let mut to = ty.clone();
                to.shape[axis] = (2 * shape[axis]).into();
                self.push(Op::Concat { axis }, vec![v, b], to);
            }
            14 => {
                let n = 1 + self.rng.below(5) as u64;
                let to = match (exact, self.rng.below(2)) {
                    (true, 0) => TensorType::new(DType::I32, [n, 3]),
                    _ => TensorType::new(DType::F32, [n, 3]),
                };
                let axis = self.rng.below(2);
                self.push(Op::Iota { axis }, vec![], to);
            }
            15 => {
                let Some(i) = self.any_of(|t| t.dtype == DType::I32 && t.rank() <= 1) else {
                    return;
                };
                let index = dims(self.body.ty(i));
                if shape.is_empty() || size * index.iter().product::<u64>() > 2000 {
                    return;
                }
                let to = index.iter().chain(&shape[1..]).copied();
                let to = TensorType::new(ty.dtype, to.collect::<Vec<_>>());
                self.push(Op::Gather, vec![v, i], to);
            }
            _ => self.unary(),
        }
    }

    fn unary(&mut self) {
        let v = self.float();
        let ty = self.ty(v);
        let smooth = [UnaryOp::Tanh, UnaryOp::Sin, UnaryOp::Cos, UnaryOp::Erf, UnaryOp::Neg];
        let exact = UnaryOp::ALL.iter().copied().filter(|op| op.is_exact() && op.takes(ty.dtype));
        let exact = Vec::from_iter(exact);
        let op = match self.kind {
            Kind::Exact => self.rng.pick(&exact),
            Kind::Smooth | Kind::SmoothF32 => self.rng.pick(&smooth),
        };
        let r = self.push(Op::Unary(op), vec![v], ty.clone());
        match (self.kind, self.rng.below(4)) {
            (Kind::Exact, 0) => {
                let r = self.push(Op::Unary(UnaryOp::Abs), vec![r], ty.clone());
                self.push(Op::Unary(UnaryOp::Sqrt), vec![r], ty);
            }
            (Kind::Smooth | Kind::SmoothF32, 0) => {
                // exp(-|x|) and rsqrt(1 + |x|) and log(1 + |x|) stay near 1.
                let a = self.push(Op::Unary(UnaryOp::Abs), vec![r], ty.clone());
                let one = Op::Literal(Literal::new(ty.dtype, [1.0]));
                let one = self.push(one, vec![], TensorType::scalar(ty.dtype));
                let one = self.push(Op::Broadcast, vec![one], ty.clone());
                let s = self.push(Op::Binary(BinaryOp::Add), vec![a, one], ty.clone());
                self.push(Op::Unary(UnaryOp::Rsqrt), vec![s], ty.clone());
                self.push(Op::Unary(UnaryOp::Log), vec![s], ty.clone());
                let n = self.push(Op::Unary(UnaryOp::Neg), vec![a], ty.clone());
                self.push(Op::Unary(UnaryOp::Exp), vec![n], ty);
            }
            _ => {}
        }
    }
}

/// A random region over rows of operands of several dtypes and shapes, with a weight, a table
/// gathered by rows, and a state scattered into.
pub fn program(seed: u64, kind: Kind) -> Program {
    let mut graph = Graph::new("random");
    let over = graph.add_symbol(SymbolDecl { name: "T".into(), min: 1, max: ROWS, role: None });
    let mut rng = Rng::new(seed);
    let floats = match kind {
        Kind::SmoothF32 => [DType::F32; 3],
        Kind::Exact | Kind::Smooth => [DType::F32, DType::F16, DType::BF16],
    };
    let shapes: [&[u64]; 5] = [&[6], &[4, 6], &[1], &[2, 3, 4], &[67]];
    let mut operands: Vec<(ParamMode, TensorType)> = Vec::new();
    for _ in 0..3 {
        let dtype = match kind {
            Kind::Exact if rng.below(3) == 0 => rng.pick(&WIDE),
            _ => rng.pick(&floats),
        };
        let shape = rng.pick(&shapes).to_vec();
        operands.push((ParamMode::Row, TensorType::new(dtype, shape)));
    }
    operands.push((ParamMode::Row, TensorType::new(rng.pick(&floats), [4u64, 6])));
    let row = TensorType::new(rng.pick(&floats), [4u64, 6]);
    let (weight, table) = (operands.len(), operands.len() + 1);
    operands.push((ParamMode::Whole, row.clone()));
    operands.push((ParamMode::Whole, TensorType::new(row.dtype, [TABLE, 4, 6])));
    let ids = operands.len();
    operands.push((ParamMode::Row, TensorType::scalar(DType::I32)));
    let slots = operands.len();
    operands.push((ParamMode::Row, TensorType::scalar(DType::I64)));
    let state = operands.len();
    operands.push((ParamMode::Mut, TensorType::new(row.dtype, [STATE, 4, 6])));

    let mut draft =
        Draft { rng, kind, body: Graph::with_symbols_of("body", &graph), values: Vec::new() };
    let params: Vec<Value> = operands
        .iter()
        .enumerate()
        .map(|(i, (_, ty))| draft.body.add_input(format!("p{i}"), ty.clone(), None, None))
        .collect();
    draft.values.extend((0..4).chain([weight]).map(|i| params[i]));
    if kind == Kind::Exact {
        draft.values.extend([params[ids], params[slots]]);
    }
    draft.push(Op::Gather, vec![params[table], params[ids]], row.clone());
    let statements = 4 + draft.rng.below(16);
    for _ in 0..statements {
        draft.statement();
    }
    let written = draft.like(&row);
    let scatter = vec![params[state], params[slots], written];
    draft.body.push_node(Op::Scatter, scatter, vec![], Loc::default());
    let count = draft.values.len();
    let mut outputs = vec![draft.values[count - 1], draft.values[count / 2]];
    outputs.push(draft.any());
    if draft.rng.below(3) == 0 {
        outputs.push(params[0]);
    }
    draft.body.set_outputs(outputs.clone());
    let body = draft.body;

    let wide = |ty: &TensorType| TensorType {
        dtype: ty.dtype,
        shape: [Dim::from(over)].into_iter().chain(ty.shape.iter().cloned()).collect(),
    };
    let declare = |graph: &mut Graph| -> Vec<Value> {
        operands
            .iter()
            .enumerate()
            .map(|(i, (mode, ty))| match mode {
                ParamMode::Row => graph.add_input(format!("p{i}"), wide(ty), None, None),
                ParamMode::Whole => graph.add_input(format!("p{i}"), ty.clone(), None, None),
                ParamMode::Mut => graph.add_state("state", ty.clone(), None),
            })
            .collect()
    };
    let (mut fused, mut unfused) = (graph.clone(), graph);
    let inputs = declare(&mut fused);
    let types = outputs.iter().map(|&v| wide(body.ty(v))).collect();
    let params = operands.iter().map(|(mode, _)| *mode).collect();
    let region = Region { over, params, body };
    let inputs_unfused = declare(&mut unfused);
    unfuse(&mut unfused, &region, &inputs_unfused);
    let node = fused.push_node(Op::Region(Box::new(region)), inputs, types, Loc::default());
    let results = fused.node(node).results.clone();
    fused.set_outputs(results);
    Program { fused, unfused, over }
}

/// Appends the body of `region` op by op, with the rows as the outermost axis, and returns it.
fn unfuse(graph: &mut Graph, region: &Region, inputs: &[Value]) {
    let body = &region.body;
    let wide = |ty: &TensorType| TensorType {
        dtype: ty.dtype,
        shape: [Dim::from(region.over)].into_iter().chain(ty.shape.iter().cloned()).collect(),
    };
    let mut map: Vec<Option<Value>> = vec![None; body.value_count()];
    for (decl, &input) in body.inputs().iter().zip(inputs) {
        map[decl.value.index()] = Some(input);
    }
    let mode = |v: Value| match body.def(v) {
        ValueDef::Input(i) => Some(region.params[i]),
        _ => None,
    };
    for node in body.nodes() {
        let data = body.node(node);
        let gather = matches!(data.op, Op::Gather | Op::Scatter);
        if matches!(data.op, Op::Gather)
            && !matches!(mode(data.operands[0]), Some(ParamMode::Whole))
        {
            // A gather inside a row has no op of its own over all rows: a region of one.
            let params = vec![ParamMode::Row; 2];
            let mut one = Graph::with_symbols_of("gather", body);
            let types = body.operand_types(node);
            let a = one.add_input("a", types[0].clone(), None, None);
            let i = one.add_input("i", types[1].clone(), None, None);
            let ty = body.result_types(node).remove(0);
            let r = one.push(Op::Gather, vec![a, i], ty.clone(), Loc::default());
            one.set_outputs(vec![r]);
            let operands: Vec<Value> = data
                .operands
                .iter()
                .map(|&v| widened(graph, body, mode(v), map[v.index()].unwrap(), v, &wide))
                .collect();
            let op = Op::Region(Box::new(Region { over: region.over, params, body: one }));
            let value = graph.push(op, operands, wide(&ty), Loc::default());
            map[data.results[0].index()] = Some(value);
            continue;
        }
        let operands: Vec<Value> = data
            .operands
            .iter()
            .enumerate()
            .map(|(i, &v)| {
                let value = map[v.index()].unwrap();
                if gather && i == 0 {
                    return value;
                }
                widened(graph, body, mode(v), value, v, &wide)
            })
            .collect();
        let op = match &data.op {
            Op::Reduce { op, axes } => {
                Op::Reduce { op: *op, axes: axes.iter().map(|a| a + 1).collect() }
            }
            Op::ArgMax { axis } => Op::ArgMax { axis: axis + 1 },
            Op::TopK { axis } => Op::TopK { axis: axis + 1 },
            Op::Slice { axis, start } => Op::Slice { axis: axis + 1, start: *start },
            Op::Concat { axis } => Op::Concat { axis: axis + 1 },
            Op::Iota { axis } => Op::Iota { axis: axis + 1 },
            Op::Permute { perm } => {
                Op::Permute { perm: [0].into_iter().chain(perm.iter().map(|a| a + 1)).collect() }
            }
            // Rows are outermost, so new axes go behind them.
            Op::Broadcast => {
                let from = body.ty(data.operands[0]);
                let to = body.result_types(node).remove(0);
                let mut shape = vec![Dim::constant(1); to.rank() - from.rank()];
                shape.extend(from.shape.iter().cloned());
                let ones = TensorType { dtype: from.dtype, shape: shape.into_iter().collect() };
                let v = graph.push(Op::Reshape, operands, wide(&ones), Loc::default());
                let v = graph.push(Op::Broadcast, vec![v], wide(&to), Loc::default());
                map[data.results[0].index()] = Some(v);
                continue;
            }
            Op::Literal(literal) => {
                let ty = body.result_types(node).remove(0);
                let op = Op::Literal(literal.clone());
                let v = graph.push(op, vec![], ty.clone(), Loc::default());
                let v = graph.push(Op::Broadcast, vec![v], wide(&ty), Loc::default());
                map[data.results[0].index()] = Some(v);
                continue;
            }
            op => op.clone(),
        };
        let types = body.result_types(node).iter().map(&wide).collect();
        let new = graph.push_node(op, operands, types, Loc::default());
        for (&old, &now) in data.results.iter().zip(&graph.node(new).results.clone()) {
            map[old.index()] = Some(now);
        }
    }
    let outputs = body
        .outputs()
        .iter()
        .map(|&v| widened(graph, body, mode(v), map[v.index()].unwrap(), v, &wide))
        .collect();
    graph.set_outputs(outputs);
}

fn widened(
    graph: &mut Graph,
    body: &Graph,
    mode: Option<ParamMode>,
    value: Value,
    of: Value,
    wide: &impl Fn(&TensorType) -> TensorType,
) -> Value {
    match mode {
        Some(ParamMode::Whole) => {
            graph.push(Op::Broadcast, vec![value], wide(body.ty(of)), Loc::default())
        }
        _ => value,
    }
}
