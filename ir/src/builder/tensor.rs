//! Tensors of the builder: primitives as methods.

use super::Builder;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::entity::Value;
use crate::literal::Scalar;
use crate::op::{BinaryOp, CompareOp, Op, ReduceOp, UnaryOp, binary_ops, compare_ops, unary_ops};
use crate::types::{IntoShape, Shape, TensorType};
use std::ops::Range;

/// What an elementwise op takes beside a tensor: another one, or a number, which takes the tensor's
/// dtype.
pub trait Operand<'b> {
    /// The tensor that it stands for.
    #[track_caller]
    fn beside(self, tensor: Tensor<'b>) -> Tensor<'b>;

    /// The tensor that it is; `None` of a number, which has no dtype by itself.
    fn tensor(&self) -> Option<Tensor<'b>> {
        None
    }
}

impl<'b> Operand<'b> for Tensor<'b> {
    fn beside(self, _: Tensor<'b>) -> Tensor<'b> {
        self
    }

    fn tensor(&self) -> Option<Tensor<'b>> {
        Some(*self)
    }
}

impl<'b, N: Into<f64>> Operand<'b> for N {
    #[track_caller]
    fn beside(self, tensor: Tensor<'b>) -> Tensor<'b> {
        tensor.like(self.into())
    }
}

/// A value under construction. Poisoned after a mistake: what follows from it is swallowed.
///
/// Operators and the elementwise methods broadcast as numpy does, and take numbers on either side:
///
/// ```
/// use piecewise_ir::builder::{Builder, Tensor};
/// use piecewise_ir::dtype::DType;
///
/// fn leaky<'b>(x: Tensor<'b>) -> Tensor<'b> {
///     x.greater(0).select(x, 0.1 * x).minimum(6)
/// }
///
/// let b = Builder::new("leaky");
/// let rows = b.symbol("T", 1, 8);
/// let x = b.input("x", DType::F32, (rows, 4));
/// let graph = b.finish([1.0 - leaky(x)])?;
/// assert_eq!(graph.outputs().len(), 1);
/// # Ok::<(), piecewise_ir::builder::BuildErrors>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'b> {
    builder: &'b Builder,
    value: Option<Value>,
}

macro_rules! unary_methods {
    ([] $($op:ident = $mnemonic:literal as $method:ident { $($line:tt)* } $help:literal;)*) => {
        $(#[doc = concat!("Of each element: ", $help, ".")] #[track_caller]
        pub fn $method(self) -> Self {
            self.builder.node(Op::Unary(UnaryOp::$op), &[self], None)
        })*
    };
}

macro_rules! binary_methods {
    ([$kind:ident $family:ident]
    $($op:ident = $mnemonic:literal $(as $method:ident)? { $($line:tt)* } $help:literal;)*) => {
        $($(#[doc = concat!("Of each two elements: ", $help, ".")] #[track_caller]
        pub fn $method(self, other: impl Operand<'b>) -> Self {
            self.elementwise(Op::$kind($family::$op), other.beside(self))
        })?)*
    };
}

macro_rules! reduce_methods {
    ($($method:ident = $op:ident, $help:literal;)*) => {
        $(#[doc = $help] #[track_caller]
        pub fn $method(self, axes: impl IntoIterator<Item = usize>) -> Self {
            let mut axes: Vec<_> = axes.into_iter().collect();
            axes.sort_unstable();
            self.builder.node(Op::Reduce { op: ReduceOp::$op, axes }, &[self], None)
        })*
    };
}

impl<'b> Tensor<'b> {
    pub(crate) fn new(builder: &'b Builder, value: Value) -> Self {
        Self { builder, value: Some(value) }
    }

    pub(crate) fn poison(builder: &'b Builder) -> Self {
        Self { builder, value: None }
    }

    /// The builder that it belongs to.
    pub fn builder(self) -> &'b Builder {
        self.builder
    }

    /// Its value in the graph; `None` after a mistake, and once the graph is finished.
    #[track_caller]
    pub fn value(self) -> Option<Value> {
        // Every use asks here, also one that comes to nothing: after a mistake, or a cast to the
        // dtype that it has.
        self.builder.use_scopes();
        if self.value.is_some() && !self.builder.is_open() { None } else { self.value }
    }

    /// Its type; `None` after a mistake.
    #[track_caller]
    pub fn ty(self) -> Option<TensorType> {
        self.value().map(|v| self.builder.ty(v))
    }

    /// Its dtype; f32 after a mistake.
    #[track_caller]
    pub fn dtype(self) -> DType {
        self.ty().map_or(DType::F32, |ty| ty.dtype)
    }

    /// Its dimensions; none after a mistake.
    #[track_caller]
    pub fn shape(self) -> Shape {
        self.ty().map_or_else(Shape::new, |ty| ty.shape)
    }

    /// Its number of dimensions; 0 after a mistake.
    #[track_caller]
    pub fn rank(self) -> usize {
        self.shape().len()
    }

    /// Gives an input or a state its role: what the runtime puts there, or does with it.
    #[track_caller]
    pub fn role(self, role: &str) -> Self {
        let Some(value) = self.value() else { return self };
        let taken = self.builder.state.borrow_mut().graph.set_role(value, role);
        match taken {
            true => self,
            false => self.builder.fail(format!("role {role} for what is no input and no state")),
        }
    }

    /// Says what the padding rows of an input hold, rounded to its dtype. An input of indices
    /// needs one that is safe to use.
    #[track_caller]
    pub fn padding(self, padding: impl Into<f64>) -> Self {
        let Some(value) = self.value() else { return self };
        let padding = Scalar::new(self.dtype(), padding.into());
        let taken = self.builder.state.borrow_mut().graph.set_padding(value, padding);
        if taken { self } else { self.builder.fail("padding for what is no input".to_owned()) }
    }

    unary_ops! { unary_methods }
    binary_ops! { binary_methods Binary BinaryOp }
    compare_ops! { binary_methods Compare CompareOp }

    reduce_methods! {
        reduce_sum = Sum, "The sum over `axes`, which stay with extent 1.";
        reduce_mean = Mean, "The mean over `axes`, which stay with extent 1.";
        reduce_max = Max, "The largest over `axes`, which stay with extent 1.";
        reduce_min = Min, "The smallest over `axes`, which stay with extent 1.";
    }

    /// Elements of `a` where `self` is true, of `b` elsewhere. One of them may be a number.
    #[track_caller]
    pub fn select(self, a: impl Operand<'b>, b: impl Operand<'b>) -> Self {
        let Some(like) = a.tensor().or(b.tensor()) else {
            let why = "a select between two numbers has no dtype: give one of them by `scalar`";
            return self.builder.fail(why.to_owned());
        };
        let (a, b) = (a.beside(like), b.beside(like));
        let Some(shape) = self.common_shape(&[self, a, b]) else {
            return Self::poison(self.builder);
        };
        // Not `map`: a closure would lose the author's line.
        let operands = [
            self.broadcast_to(shape.clone()),
            a.broadcast_to(shape.clone()),
            b.broadcast_to(shape),
        ];
        self.builder.node(Op::Select, &operands, None)
    }

    /// Each element rounded to `dtype`; itself where it has that dtype.
    #[track_caller]
    pub fn cast(self, dtype: DType) -> Self {
        match self.ty() {
            Some(ty) if ty.dtype != dtype => {
                self.builder.node(Op::Cast, &[self], Some(ty.with_dtype(dtype)))
            }
            _ => self,
        }
    }

    /// The i32 index of the largest element along `axis`, which is dropped.
    #[track_caller]
    pub fn argmax(self, axis: usize) -> Self {
        self.builder.node(Op::ArgMax { axis }, &[self], None)
    }

    /// The `k` largest elements along `axis`, in descending order, and their i32 indices.
    #[track_caller]
    pub fn top_k(self, axis: usize, k: u64) -> (Self, Self) {
        let poison = Self::poison(self.builder);
        let Some(mut ty) = self.ty() else { return (poison, poison) };
        if axis < ty.rank() {
            ty.shape[axis] = k.into();
        }
        let indices = ty.with_dtype(DType::I32);
        match self.builder.try_node(Op::TopK { axis }, &[self], Some(vec![ty, indices])) {
            Some(results) => (results[0], results[1]),
            None => (poison, poison),
        }
    }

    /// Repeated to `shape`: axes of extent 1 grow and outer axes are added.
    #[track_caller]
    pub fn broadcast_to(self, shape: impl IntoShape) -> Self {
        let shape = shape.into_shape();
        match self.ty() {
            Some(ty) if ty.shape != shape => {
                let target = TensorType { dtype: ty.dtype, shape };
                self.builder.node(Op::Broadcast, &[self], Some(target))
            }
            _ => self,
        }
    }

    /// The same elements in row-major order under `shape`.
    #[track_caller]
    pub fn reshape(self, shape: impl IntoShape) -> Self {
        let Some(ty) = self.ty() else { return self };
        let target = TensorType::new(ty.dtype, shape);
        if target == ty { self } else { self.builder.node(Op::Reshape, &[self], Some(target)) }
    }

    /// Axis `i` of the result is axis `perm[i]`.
    #[track_caller]
    pub fn permute(self, perm: impl IntoIterator<Item = usize>) -> Self {
        let perm = perm.into_iter().collect();
        self.builder.node(Op::Permute { perm }, &[self], None)
    }

    /// The elements of `range` along `axis`.
    #[track_caller]
    pub fn slice(self, axis: usize, range: Range<u64>) -> Self {
        let Some(mut ty) = self.ty() else { return self };
        if axis < ty.rank() {
            ty.shape[axis] = range.end.saturating_sub(range.start).into();
        }
        self.builder.node(Op::Slice { axis, start: range.start }, &[self], Some(ty))
    }

    /// The rows of `self` at `indices`.
    #[track_caller]
    pub fn gather(self, indices: Self) -> Self {
        self.builder.node(Op::Gather, &[self, indices], None)
    }

    /// Writes `rows` into the state `self` at `slots`; a slot of -1 writes nowhere. Rows of one step have
    /// slots of their own: an input that names one twice is refused, and of rows whose slots are computed
    /// it is not said which stays.
    #[track_caller]
    pub fn scatter(self, slots: Self, rows: Self) {
        let _ = self.builder.try_node(Op::Scatter, &[self, slots, rows], Some(Vec::new()));
    }

    /// `self [.., m, k] x rhs [.., k, n]`, rounded to `dtype`.
    #[track_caller]
    pub fn matmul(self, rhs: Self, dtype: DType) -> Self {
        self.product(rhs, false, dtype)
    }

    /// `self [.., m, k] x rhs [.., n, k]` transposed, rounded to `dtype`: the layout of
    /// checkpoint linears.
    #[track_caller]
    pub fn matmul_transposed(self, rhs: Self, dtype: DType) -> Self {
        self.product(rhs, true, dtype)
    }

    #[track_caller]
    fn product(self, rhs: Self, transpose_rhs: bool, dtype: DType) -> Self {
        let (Some(mut ty), Some(right)) = (self.ty(), rhs.ty()) else {
            return Self::poison(self.builder);
        };
        let op = Op::MatMul { transpose_lhs: false, transpose_rhs };
        if ty.rank() >= 2 && right.rank() >= 2 {
            let n = right.rank() - if transpose_rhs { 2 } else { 1 };
            let last = ty.rank() - 1;
            ty.shape[last] = right.shape[n].clone();
        }
        self.builder.node(op, &[self, rhs], Some(ty.with_dtype(dtype)))
    }

    /// `self [.., m, k] x codes [n, k]` transposed, rounded to `dtype`: the weights of a checkpoint of
    /// narrow codes, each times the scale of its block of `block` rows and columns; `zeros`, where
    /// codes have some, are taken from them first.
    #[track_caller]
    pub fn scaled_matmul(
        self,
        codes: Self,
        scales: Self,
        zeros: Option<Self>,
        block: [u64; 2],
        dtype: DType,
    ) -> Self {
        let (Some(mut ty), Some(right)) = (self.ty(), codes.ty()) else {
            return Self::poison(self.builder);
        };
        if let (Some(last), Some(columns)) = (ty.shape.last_mut(), right.shape.first()) {
            *last = columns.clone();
        }
        let operands = Vec::from_iter([self, codes, scales].into_iter().chain(zeros));
        let op = Op::ScaledMatMul { block };
        self.builder.node(op, &operands, Some(ty.with_dtype(dtype)))
    }

    /// An elementwise op on operands broadcast to their common shape.
    #[track_caller]
    pub(crate) fn elementwise(self, op: Op, other: Self) -> Self {
        let Some(shape) = self.common_shape(&[self, other]) else {
            return Self::poison(self.builder);
        };
        let operands = [self.broadcast_to(shape.clone()), other.broadcast_to(shape)];
        self.builder.node(op, &operands, None)
    }

    /// A scalar of this dtype.
    #[track_caller]
    pub(crate) fn like(self, value: f64) -> Self {
        if self.value().is_none() { self } else { self.builder.scalar(self.dtype(), value) }
    }

    /// The shape that all of `tensors` broadcast to, aligned at the innermost axis: numpy's rule.
    #[track_caller]
    fn common_shape(self, tensors: &[Self]) -> Option<Shape> {
        self.builder.values(tensors)?;
        let shapes =
            tensors.iter().map(|t| t.ty().map(|ty| ty.shape)).collect::<Option<Vec<_>>>()?;
        let rank = shapes.iter().map(|s| s.len()).max()?;
        let mut common: Shape = (0..rank).map(|_| Dim::constant(1)).collect();
        for shape in &shapes {
            for (i, dim) in shape.iter().enumerate() {
                let axis = rank - shape.len() + i;
                if common[axis].as_constant() == Some(1) {
                    common[axis] = dim.clone();
                } else if *dim != common[axis] && dim.as_constant() != Some(1) {
                    let shown: Vec<_> = shapes.iter().map(|s| self.builder.show_shape(s)).collect();
                    self.builder.fail(format!("shapes {} don't broadcast", shown.join(" and ")));
                    return None;
                }
            }
        }
        Some(common)
    }
}
