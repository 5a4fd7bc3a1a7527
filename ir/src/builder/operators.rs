//! Arithmetic operators on tensors; a number takes the tensor's dtype.

use super::Tensor;
use crate::op::{BinaryOp, Op};
use std::ops::{Add, Div, Mul, Neg, Sub};

macro_rules! operators {
    ($($trait:ident, $method:ident, $op:ident;)*) => {
        $(
            impl<'b> $trait for Tensor<'b> {
                type Output = Tensor<'b>;
                #[track_caller]
                fn $method(self, other: Self) -> Self {
                    self.elementwise(Op::Binary(BinaryOp::$op), other)
                }
            }

            impl<'b> $trait<f64> for Tensor<'b> {
                type Output = Tensor<'b>;
                #[track_caller]
                fn $method(self, other: f64) -> Self {
                    self.elementwise(Op::Binary(BinaryOp::$op), self.like(other))
                }
            }

            impl<'b> $trait<Tensor<'b>> for f64 {
                type Output = Tensor<'b>;
                #[track_caller]
                fn $method(self, other: Tensor<'b>) -> Tensor<'b> {
                    other.like(self).elementwise(Op::Binary(BinaryOp::$op), other)
                }
            }
        )*
    };
}

operators! {
    Add, add, Add;
    Sub, sub, Sub;
    Mul, mul, Mul;
    Div, div, Div;
}

impl<'b> Neg for Tensor<'b> {
    type Output = Tensor<'b>;
    #[track_caller]
    fn neg(self) -> Self {
        self.negate()
    }
}
