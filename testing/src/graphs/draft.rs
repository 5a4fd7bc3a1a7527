//! A graph under construction: ops pushed with inferred types.

use piecewise_ir::dim::Dim;
use piecewise_ir::dtype::DType;
use piecewise_ir::entity::Value;
use piecewise_ir::graph::{Graph, Loc};
use piecewise_ir::literal::{Literal, Scalar};
use piecewise_ir::op::{BinaryOp, Op, ReduceOp, UnaryOp, infer_type};
use piecewise_ir::random::Rng;
use piecewise_ir::types::{IntoShape, Shape, TensorType};
use piecewise_ir::weight::Recipe;

/// A float matrix of one row for each of a symbol's, and a bound on its elements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows {
    pub(super) value: Value,
    pub(super) width: usize,
    pub(super) dtype: DType,
    pub(super) bound: f64,
}

#[derive(Debug)]
pub(super) struct Draft {
    pub(super) graph: Graph,
    pub(super) rng: Rng,
}

impl Draft {
    pub(super) fn len(&self) -> usize {
        self.graph.node_count()
    }

    pub(super) fn input(
        &mut self,
        name: &str,
        dtype: DType,
        shape: impl IntoShape,
        padding: Option<i64>,
    ) -> Value {
        let padding = padding.map(|p| Scalar::int(dtype, p));
        self.graph.add_input(name, TensorType::new(dtype, shape), padding, None)
    }

    /// A new checkpoint tensor.
    pub(super) fn weight(&mut self, dtype: DType, shape: impl IntoShape) -> Value {
        let ty = TensorType::new(dtype, shape);
        let name = format!("layers.{}.weight", self.graph.weights().len());
        self.graph.add_weight(ty.clone(), Recipe::Checkpoint { name, ty })
    }

    /// Appends `op`, whose type follows from its operands.
    pub(super) fn op(&mut self, op: Op, operands: &[Value]) -> Value {
        let types: Vec<TensorType> = operands.iter().map(|&v| self.graph.ty(v).clone()).collect();
        match infer_type(&op, &types) {
            Ok(Some(ty)) => self.typed(op, operands, ty),
            other => unreachable!("random `{}` has no inferred type: {other:?}", op.mnemonic()),
        }
    }

    pub(super) fn typed(&mut self, op: Op, operands: &[Value], ty: TensorType) -> Value {
        self.graph.push(op, operands.to_vec(), ty, Loc::default())
    }

    pub(super) fn unary(&mut self, op: UnaryOp, a: Value) -> Value {
        self.op(Op::Unary(op), &[a])
    }

    /// Elementwise, after the smaller operand is broadcast and brought to one dtype.
    pub(super) fn binary(&mut self, op: BinaryOp, a: Value, b: Value) -> Value {
        let ty = self.graph.ty(a).clone();
        let b = self.cast(b, ty.dtype);
        let b = self.broadcast(b, &ty);
        self.op(Op::Binary(op), &[a, b])
    }

    pub(super) fn broadcast(&mut self, a: Value, to: &TensorType) -> Value {
        if self.graph.ty(a).shape == to.shape {
            return a;
        }
        let ty = to.with_dtype(self.graph.ty(a).dtype);
        self.typed(Op::Broadcast, &[a], ty)
    }

    pub(super) fn cast(&mut self, a: Value, dtype: DType) -> Value {
        let ty = self.graph.ty(a).clone();
        if ty.dtype == dtype {
            return a;
        }
        self.typed(Op::Cast, &[a], ty.with_dtype(dtype))
    }

    pub(super) fn reshape(&mut self, a: Value, inner: &[usize]) -> Value {
        let ty = self.graph.ty(a);
        let outer = ty.shape[0].clone();
        let inner = inner.iter().map(|&d| Dim::from(d));
        let shape: Shape = std::iter::once(outer).chain(inner).collect();
        let ty = TensorType::new(ty.dtype, shape);
        self.typed(Op::Reshape, &[a], ty)
    }

    pub(super) fn reduce(&mut self, op: ReduceOp, a: Value) -> Value {
        let axes = vec![self.graph.ty(a).rank() - 1];
        self.op(Op::Reduce { op, axes }, &[a])
    }

    pub(super) fn slice(&mut self, a: Value, start: usize, len: usize) -> Value {
        let mut ty = self.graph.ty(a).clone();
        let axis = ty.rank() - 1;
        ty.shape[axis] = len.into();
        self.typed(Op::Slice { axis, start: start as u64 }, &[a], ty)
    }

    /// A scalar constant of `a`'s dtype.
    pub(super) fn scalar_like(&mut self, a: Value, x: f64) -> Value {
        let dtype = self.graph.ty(a).dtype;
        self.typed(Op::Literal(Literal::new(dtype, [x])), &[], TensorType::scalar(dtype))
    }

    /// `a op x` for a constant `x`.
    pub(super) fn with_scalar(&mut self, op: BinaryOp, a: Value, x: f64) -> Value {
        let x = self.scalar_like(a, x);
        self.binary(op, a, x)
    }

    pub(super) fn matmul(&mut self, a: Value, b: Value, transpose_rhs: bool, to: DType) -> Value {
        let (m, n) = (self.graph.ty(a).shape[0].clone(), self.graph.ty(b).shape.clone());
        let n = n[usize::from(!transpose_rhs)].clone();
        let ty = TensorType::new(to, [m, n]);
        self.typed(Op::MatMul { transpose_lhs: false, transpose_rhs }, &[a, b], ty)
    }
}
