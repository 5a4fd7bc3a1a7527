//! A small builder of graphs for tests, and composites written with it.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]
#![allow(clippy::unwrap_used, reason = "what fails here fails a test")]

/// The dimensions of a shape, from numbers and symbols.
macro_rules! dims {
    ($($d:expr),* $(,)?) => { vec![$(piecewise_ir::dim::Dim::from($d)),*] };
}

pub mod decoder;
pub mod semantics;

use piecewise_ir::custom::{Attrs, CustomCall};
use piecewise_ir::dim::{Dim, SymbolDecl};
use piecewise_ir::dtype::DType;
use piecewise_ir::entity::{Symbol, Value};
use piecewise_ir::graph::{Graph, Loc};
use piecewise_ir::literal::{Literal, Scalar};
use piecewise_ir::module::Module;
use piecewise_ir::op::{BinaryOp, Op, ReduceOp, RowTreatment, UnaryOp, infer_type};
use piecewise_ir::types::TensorType;
use piecewise_ir::weight::Recipe;
use piecewise_passes::{PassContext, PassManager, Pipeline, Registry, RunReport};

pub struct Builder {
    pub graph: Graph,
    scope: String,
}

impl Builder {
    pub fn new() -> Self {
        Self { graph: Graph::new("test"), scope: String::new() }
    }

    pub fn scope(&mut self, scope: impl Into<String>) {
        self.scope = scope.into();
    }

    pub fn symbol(&mut self, name: &str) -> Symbol {
        let name = name.to_owned();
        self.graph.add_symbol(SymbolDecl { name, min: 1, max: 64, role: None })
    }

    pub fn input(&mut self, name: &str, dtype: DType, shape: Vec<Dim>) -> Value {
        let padding =
            dtype.is_index().then(|| Scalar::int(dtype, if name == "slots" { -1 } else { 0 }));
        self.graph.add_input(name, TensorType::new(dtype, shape), padding, None)
    }

    pub fn weight(&mut self, name: &str, dtype: DType, shape: &[u64]) -> Value {
        let ty = TensorType::new(dtype, shape);
        self.graph.add_weight(ty.clone(), Recipe::Checkpoint { name: name.into(), ty })
    }

    pub fn state(&mut self, name: &str, dtype: DType, shape: &[u64]) -> Value {
        self.graph.add_state(name, TensorType::new(dtype, shape), None)
    }

    pub fn ty(&self, v: Value) -> TensorType {
        self.graph.ty(v).clone()
    }

    pub fn typed(&mut self, op: Op, operands: &[Value], ty: TensorType) -> Value {
        let loc = Loc { scope: self.scope.clone(), source: String::new() };
        self.graph.push(op, operands.to_vec(), ty, loc)
    }

    pub fn infer(&mut self, op: Op, operands: &[Value]) -> Value {
        let types: Vec<_> = operands.iter().map(|&v| self.ty(v)).collect();
        let ty = infer_type(&op, &types).unwrap().unwrap();
        self.typed(op, operands, ty)
    }

    pub fn unary(&mut self, op: UnaryOp, a: Value) -> Value {
        self.infer(Op::Unary(op), &[a])
    }

    pub fn binary(&mut self, op: BinaryOp, a: Value, b: Value) -> Value {
        self.infer(Op::Binary(op), &[a, b])
    }

    pub fn add(&mut self, a: Value, b: Value) -> Value {
        self.binary(BinaryOp::Add, a, b)
    }

    pub fn mul(&mut self, a: Value, b: Value) -> Value {
        self.binary(BinaryOp::Mul, a, b)
    }

    pub fn cast(&mut self, a: Value, dtype: DType) -> Value {
        let ty = self.ty(a).with_dtype(dtype);
        self.typed(Op::Cast, &[a], ty)
    }

    pub fn reduce(&mut self, op: ReduceOp, a: Value, axis: usize) -> Value {
        self.infer(Op::Reduce { op, axes: vec![axis] }, &[a])
    }

    pub fn broadcast_like(&mut self, a: Value, like: Value) -> Value {
        let ty = TensorType { dtype: self.ty(a).dtype, shape: self.ty(like).shape };
        self.typed(Op::Broadcast, &[a], ty)
    }

    pub fn reshape(&mut self, a: Value, shape: Vec<Dim>) -> Value {
        let ty = TensorType::new(self.ty(a).dtype, shape);
        self.typed(Op::Reshape, &[a], ty)
    }

    pub fn slice(&mut self, a: Value, axis: usize, start: u64, len: u64) -> Value {
        let mut ty = self.ty(a);
        ty.shape[axis] = len.into();
        self.typed(Op::Slice { axis, start }, &[a], ty)
    }

    pub fn concat(&mut self, parts: &[Value], axis: usize) -> Value {
        self.infer(Op::Concat { axis }, parts)
    }

    pub fn permute(&mut self, a: Value, perm: &[usize]) -> Value {
        self.infer(Op::Permute { perm: perm.to_vec() }, &[a])
    }

    pub fn gather(&mut self, table: Value, indices: Value) -> Value {
        self.infer(Op::Gather, &[table, indices])
    }

    pub fn scatter(&mut self, state: Value, slots: Value, rows: Value) {
        let loc = Loc { scope: self.scope.clone(), source: String::new() };
        self.graph.push_node(Op::Scatter, vec![state, slots, rows], vec![], loc);
    }

    pub fn literal(&mut self, dtype: DType, values: &[f64]) -> Value {
        let literal = Literal::new(dtype, values.iter().copied());
        let ty = TensorType::new(dtype, [values.len()]);
        self.typed(Op::Literal(literal), &[], ty)
    }

    /// `value` as a scalar, repeated to the shape of `like`.
    pub fn splat_like(&mut self, value: f64, like: Value) -> Value {
        let dtype = self.ty(like).dtype;
        let literal = Op::Literal(Literal::new(dtype, [value]));
        let scalar = self.typed(literal, &[], TensorType::scalar(dtype));
        self.broadcast_like(scalar, like)
    }

    /// `x` times the weight `[out, in]`, transposed.
    pub fn linear(&mut self, x: Value, weight: Value) -> Value {
        let mut ty = self.ty(x);
        let last = ty.rank() - 1;
        ty.shape[last] = self.ty(weight).shape[0].clone();
        self.typed(Op::MatMul { transpose_lhs: false, transpose_rhs: true }, &[x, weight], ty)
    }

    /// A custom op that mixes rows, mutates the operands at `mutates`, and has one result.
    pub fn custom(
        &mut self,
        name: &str,
        operands: &[Value],
        mutates: &[usize],
        ty: TensorType,
    ) -> Value {
        let call = CustomCall {
            name: name.into(),
            attrs: Attrs::new(),
            mutates: mutates.to_vec(),
            rows: RowTreatment::Masked,
            splits: true,
            absorbs: vec![],
            scatters: vec![],
        };
        self.typed(Op::Custom(Box::new(call)), operands, ty)
    }

    /// Root-mean-square norm over the last axis, in f32.
    pub fn rms_norm(&mut self, x: Value, weight: Value) -> Value {
        let dtype = self.ty(x).dtype;
        let last = self.ty(x).rank() - 1;
        let wide = self.cast(x, DType::F32);
        let squares = self.mul(wide, wide);
        let mean = self.reduce(ReduceOp::Mean, squares, last);
        let eps = self.splat_like(1e-6, mean);
        let sum = self.add(mean, eps);
        let scale = self.unary(UnaryOp::Rsqrt, sum);
        let scale = self.broadcast_like(scale, wide);
        let normed = self.mul(wide, scale);
        let narrow = self.cast(normed, dtype);
        let weight = self.broadcast_like(weight, narrow);
        self.mul(narrow, weight)
    }

    /// Rotation of the halves of the last axis of `[T, heads, dim]` by rows `[T, dim/2]`.
    pub fn rope(&mut self, x: Value, cos: Value, sin: Value) -> Value {
        let dtype = self.ty(x).dtype;
        let shape = self.ty(x).shape;
        let half = shape[2].as_constant().unwrap() / 2;
        let wide = self.cast(x, DType::F32);
        let a = self.slice(wide, 2, 0, half);
        let b = self.slice(wide, 2, half, half);
        let row = vec![shape[0].clone(), Dim::from(1u64), Dim::from(half)];
        let [cos, sin] = [cos, sin].map(|rows| {
            let rows = self.reshape(rows, row.clone());
            self.broadcast_like(rows, a)
        });
        let (ac, bs) = (self.mul(a, cos), self.mul(b, sin));
        let (bc, asin) = (self.mul(b, cos), self.mul(a, sin));
        let low = self.binary(BinaryOp::Sub, ac, bs);
        let high = self.add(bc, asin);
        let turned = self.concat(&[low, high], 2);
        self.cast(turned, dtype)
    }

    /// `x * 1 / (1 + exp(-x))` in f32.
    pub fn silu(&mut self, x: Value) -> Value {
        let dtype = self.ty(x).dtype;
        let wide = self.cast(x, DType::F32);
        let negative = self.unary(UnaryOp::Neg, wide);
        let exp = self.unary(UnaryOp::Exp, negative);
        let one = self.splat_like(1.0, exp);
        let sum = self.add(exp, one);
        let quotient = self.binary(BinaryOp::Div, wide, sum);
        self.cast(quotient, dtype)
    }

    pub fn finish(mut self, outputs: &[Value]) -> Module {
        self.graph.set_outputs(outputs.to_vec());
        Module::new(self.graph)
    }
}

/// Runs the passes of `pipeline` over `module`.
pub fn run(module: &mut Module, pipeline: &str) -> RunReport {
    let pipeline = Pipeline::parse(pipeline).unwrap();
    let mut manager = PassManager::new(&pipeline, &Registry::standard()).unwrap();
    manager.run(module, &mut PassContext::default()).unwrap()
}

/// The text of the module's graph.
pub fn text(module: &Module) -> String {
    piecewise_ir::text::print_graph(module.graph())
}

/// The number of nodes whose op has the mnemonic `name`.
pub fn count(module: &Module, name: &str) -> usize {
    let graph = module.graph();
    graph.nodes().filter(|&n| graph.node(n).op.mnemonic() == name).count()
}

/// The mnemonics of the nodes in order.
pub fn ops(module: &Module) -> Vec<&'static str> {
    module.graph().nodes().map(|n| module.graph().node(n).op.mnemonic()).collect()
}
