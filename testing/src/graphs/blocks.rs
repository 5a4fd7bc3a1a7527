//! The building blocks of random graphs: small row programs as models have them.

use super::draft::{Draft, Rows};
use super::mix::MixOp;
use piecewise_ir::custom::{Attr, CustomCall, CustomOpDef};
use piecewise_ir::dtype::DType;
use piecewise_ir::entity::Value;
use piecewise_ir::graph::Loc;
use piecewise_ir::literal::Literal;
use piecewise_ir::op::{BinaryOp, CompareOp, Op, ReduceOp, UnaryOp};
use piecewise_ir::types::TensorType;

/// Elements are kept below this bound, so that f16 never overflows and exponentials stay small.
const BOUND: f64 = 8.0;

impl Draft {
    /// `a` squashed if its elements may be large.
    fn tamed(&mut self, a: Rows) -> Rows {
        if a.bound <= BOUND {
            return a;
        }
        Rows { value: self.unary(UnaryOp::Tanh, a.value), bound: 1.0, ..a }
    }

    fn rows(&mut self, value: Value, like: Rows, bound: f64) -> Rows {
        self.tamed(Rows { value, bound, ..like })
    }

    /// `b` brought to `a`'s width by a slice or by repeated concatenation.
    pub(super) fn fitted(&mut self, b: Rows, width: usize) -> Rows {
        let mut b = b;
        while b.width < width {
            let value = self.op(Op::Concat { axis: 1 }, &[b.value, b.value]);
            b = Rows { value, width: 2 * b.width, ..b };
        }
        if b.width > width {
            let start = self.rng.below(b.width - width + 1);
            b = Rows { value: self.slice(b.value, start, width), width, ..b };
        }
        b
    }

    pub(super) fn elementwise(&mut self, a: Rows) -> Rows {
        let x = a.value;
        match self.rng.below(9) {
            0 => {
                let y = self.unary(UnaryOp::Tanh, x);
                self.rows(y, a, 1.0)
            }
            1 => {
                let op = self.rng.pick(&[UnaryOp::Sin, UnaryOp::Cos, UnaryOp::Erf]);
                let y = self.unary(op, x);
                self.rows(y, a, 1.0)
            }
            2 => {
                let op = self.rng.pick(&[UnaryOp::Neg, UnaryOp::Abs]);
                let y = self.unary(op, x);
                self.rows(y, a, a.bound)
            }
            3 => {
                let magnitude = self.unary(UnaryOp::Abs, x);
                let negative = self.unary(UnaryOp::Neg, magnitude);
                let y = self.unary(UnaryOp::Exp, negative);
                self.rows(y, a, 1.0)
            }
            4 => {
                let magnitude = self.unary(UnaryOp::Abs, x);
                let positive = self.with_scalar(BinaryOp::Add, magnitude, 0.5);
                let op = self.rng.pick(&[UnaryOp::Log, UnaryOp::Sqrt, UnaryOp::Rsqrt]);
                let y = self.unary(op, positive);
                self.rows(y, a, a.bound.max(2.0))
            }
            5 => {
                // A leaky rectifier: continuous, so that rounding can't choose another branch.
                let zero = self.scalar_like(x, 0.0);
                let ty = self.graph.ty(x).clone();
                let zeros = self.broadcast(zero, &ty);
                let positive = self.op(Op::Compare(CompareOp::Gt), &[x, zeros]);
                let small = self.with_scalar(BinaryOp::Mul, x, 0.125);
                let y = self.op(Op::Select, &[positive, x, small]);
                self.rows(y, a, a.bound)
            }
            6 => {
                let elements: Vec<f64> = (0..a.width).map(|_| self.rng.symmetric(1.0)).collect();
                let ty = TensorType::new(a.dtype, [a.width]);
                let row = self.typed(Op::Literal(Literal::new(a.dtype, elements)), &[], ty);
                let y = self.binary(BinaryOp::Add, x, row);
                self.rows(y, a, a.bound + 1.0)
            }
            7 => {
                let ty = self.graph.ty(x).with_dtype(DType::F32);
                let columns = self.typed(Op::Iota { axis: 1 }, &[], ty);
                let small = self.with_scalar(BinaryOp::Mul, columns, 1.0 / a.width as f64);
                let y = self.binary(BinaryOp::Add, x, small);
                self.rows(y, a, a.bound + 1.0)
            }
            _ => {
                let low = self.with_scalar(BinaryOp::Max, x, -0.75);
                let y = self.with_scalar(BinaryOp::Min, low, 0.75);
                self.rows(y, a, 0.75)
            }
        }
    }

    /// `a * (b + 1)`, or `a` plus or minus half of `b`: shifted, so that chains of products do not
    /// underflow; halved, so that values that differ by rounding alone do not cancel to nothing
    /// but their rounding errors.
    pub(super) fn combined(&mut self, a: Rows, b: Rows) -> Rows {
        let b = self.fitted(b, a.width);
        if self.rng.one_in(3) {
            let factor = self.with_scalar(BinaryOp::Add, b.value, 1.0);
            let y = self.binary(BinaryOp::Mul, a.value, factor);
            return self.rows(y, a, a.bound * (b.bound + 1.0));
        }
        let half = self.with_scalar(BinaryOp::Mul, b.value, 0.5);
        let op = self.rng.pick(&[BinaryOp::Add, BinaryOp::Sub]);
        let y = self.binary(op, a.value, half);
        self.rows(y, a, a.bound + b.bound)
    }

    /// `x / sqrt(mean(x^2) + eps)` in f32 over the innermost axis. The eps is large enough that
    /// rounding errors of small rows are not blown up.
    fn normalized(&mut self, x: Value) -> Value {
        let dtype = self.graph.ty(x).dtype;
        let wide = self.cast(x, DType::F32);
        let square = self.op(Op::Binary(BinaryOp::Mul), &[wide, wide]);
        let mean = self.reduce(ReduceOp::Mean, square);
        let positive = self.with_scalar(BinaryOp::Add, mean, 0.01);
        let factor = self.unary(UnaryOp::Rsqrt, positive);
        let y = self.binary(BinaryOp::Mul, wide, factor);
        self.cast(y, dtype)
    }

    pub(super) fn rms_norm(&mut self, a: Rows) -> Rows {
        let y = self.normalized(a.value);
        let gain = self.weight(a.dtype, [a.width]);
        let y = self.binary(BinaryOp::Mul, y, gain);
        self.rows(y, a, (a.width as f64).sqrt())
    }

    pub(super) fn softmax(&mut self, a: Rows) -> Rows {
        let wide = self.cast(a.value, DType::F32);
        let largest = self.reduce(ReduceOp::Max, wide);
        let shifted = self.binary(BinaryOp::Sub, wide, largest);
        let exponential = self.unary(UnaryOp::Exp, shifted);
        let sum = self.reduce(ReduceOp::Sum, exponential);
        let y = self.binary(BinaryOp::Div, exponential, sum);
        let y = self.cast(y, a.dtype);
        self.rows(y, a, 1.0)
    }

    /// `silu(a) * (b + 1)`.
    pub(super) fn gated(&mut self, a: Rows, b: Rows) -> Rows {
        let b = self.fitted(b, a.width);
        let negative = self.unary(UnaryOp::Neg, a.value);
        let exponential = self.unary(UnaryOp::Exp, negative);
        let denominator = self.with_scalar(BinaryOp::Add, exponential, 1.0);
        let silu = self.op(Op::Binary(BinaryOp::Div), &[a.value, denominator]);
        let factor = self.with_scalar(BinaryOp::Add, b.value, 1.0);
        let y = self.binary(BinaryOp::Mul, silu, factor);
        self.rows(y, a, a.bound * (b.bound + 1.0))
    }

    /// Heads normalized one by one, then transposed or with their halves rotated.
    pub(super) fn heads(&mut self, a: Rows) -> Rows {
        let heads = 2;
        let dim = a.width / heads;
        let x = self.reshape(a.value, &[heads, dim]);
        let x = self.normalized(x);
        let x = if self.rng.one_in(2) {
            self.op(Op::Permute { perm: vec![0, 2, 1] }, &[x])
        } else {
            let (low, high) = (self.slice(x, 0, dim / 2), self.slice(x, dim / 2, dim / 2));
            let high = self.unary(UnaryOp::Neg, high);
            self.op(Op::Concat { axis: 2 }, &[high, low])
        };
        let y = self.reshape(x, &[a.width]);
        self.rows(y, a, (dim as f64).sqrt())
    }

    /// A table of a weight at `indices`, one row for each row.
    pub(super) fn embedding(&mut self, indices: Value, width: usize, dtype: DType) -> Rows {
        let entries = 8 + self.rng.below(24);
        let table = self.weight(dtype, [entries, width]);
        let value = self.op(Op::Gather, &[table, indices]);
        Rows { value, width, dtype, bound: 1.0 }
    }

    /// One to three products of `a` with weights.
    pub(super) fn projected(&mut self, a: Rows, dtypes: &[DType]) -> Vec<Rows> {
        let a = self.tamed(a);
        let siblings = 1 + self.rng.below(3);
        let to = self.rng.pick(dtypes);
        let transpose = self.rng.one_in(2);
        (0..siblings)
            .map(|_| {
                let width = self.rng.pick(&[8, 16, 32]);
                let shape = if transpose { [width, a.width] } else { [a.width, width] };
                let weight = self.weight(a.dtype, shape);
                let value = self.matmul(a.value, weight, transpose, to);
                let bound = a.bound * (a.width as f64).sqrt();
                self.tamed(Rows { value, width, dtype: to, bound })
            })
            .collect()
    }

    /// Writes `a` into `state`, of the same width and dtype.
    pub(super) fn scattered(&mut self, a: Rows, state: Rows, slots: Value) {
        let a = self.fitted(a, state.width);
        let a = self.tamed(a);
        let x = self.cast(a.value, state.dtype);
        self.graph.push_node(Op::Scatter, vec![state.value, slots, x], vec![], Loc::default());
    }

    /// [`MixOp`] of `a` and `state`.
    pub(super) fn mixed(&mut self, a: Rows, state: Rows, slots: Value) -> Rows {
        let a = self.fitted(a, state.width);
        let a = self.tamed(a);
        let x = self.cast(a.value, state.dtype);
        let call = CustomCall {
            name: MixOp::NAME.to_owned(),
            attrs: [("scale".to_owned(), Attr::Float(0.25))].into(),
            mutates: MixOp.mutates(),
            rows: MixOp.rows(),
            splits: MixOp.splits(),
            absorbs: MixOp.absorbs(),
            scatters: MixOp.scatters(),
        };
        let ty = self.graph.ty(x).clone();
        let y = self.typed(Op::Custom(Box::new(call)), &[x, state.value, slots], ty);
        Rows { value: y, width: state.width, dtype: state.dtype, bound: a.bound.max(BOUND) }
    }
}
