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

            operators! { $trait, $method, $op, f64 }
            operators! { $trait, $method, $op, i32 }
        )*
    };
    ($trait:ident, $method:ident, $op:ident, $number:ty) => {
        impl<'b> $trait<$number> for Tensor<'b> {
            type Output = Tensor<'b>;
            #[track_caller]
            fn $method(self, other: $number) -> Self {
                self.elementwise(Op::Binary(BinaryOp::$op), self.like(other.into()))
            }
        }

        impl<'b> $trait<Tensor<'b>> for $number {
            type Output = Tensor<'b>;
            #[track_caller]
            fn $method(self, other: Tensor<'b>) -> Tensor<'b> {
                other.like(self.into()).elementwise(Op::Binary(BinaryOp::$op), other)
            }
        }
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
