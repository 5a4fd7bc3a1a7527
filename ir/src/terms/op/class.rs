//! Classes of ops: what most questions about ops have one answer for.

use super::Op;
use crate::custom::CustomCall;
use crate::region::Region;

/// What kind of computation an op is.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum OpClass<'a> {
    /// An element of the result is a function of the elements at its place.
    Elementwise,
    /// It only says where elements lie: strides, never a computation.
    Remap,
    /// Elements along axes become one.
    Reduction,
    /// The largest elements along an axis are looked for.
    Search,
    /// Rows of a table at indices.
    Gather,
    /// Rows written into a state at slots.
    Scatter,
    /// A matrix product.
    Product {
        /// Whether the left operand is stored `[k, m]`.
        transpose_lhs: bool,
    },
    /// Elements that nothing is read for.
    Constant,
    /// Ops fused into one kernel.
    Region(&'a Region),
    /// An op defined outside the IR.
    Custom(&'a CustomCall),
}

impl Op {
    /// What it does to elements, by which passes and backends treat ops alike.
    pub const fn class(&self) -> OpClass<'_> {
        match self {
            Self::Unary(_) | Self::Binary(_) | Self::Compare(_) => OpClass::Elementwise,
            Self::Select | Self::Cast => OpClass::Elementwise,
            Self::Broadcast | Self::Reshape | Self::Permute { .. } => OpClass::Remap,
            Self::Slice { .. } | Self::Concat { .. } => OpClass::Remap,
            Self::Reduce { .. } => OpClass::Reduction,
            Self::ArgMax { .. } | Self::TopK { .. } => OpClass::Search,
            Self::Gather => OpClass::Gather,
            Self::Scatter => OpClass::Scatter,
            Self::MatMul { transpose_lhs, .. } => {
                OpClass::Product { transpose_lhs: *transpose_lhs }
            }
            Self::ScaledMatMul { .. } => OpClass::Product { transpose_lhs: false },
            Self::Iota { .. } | Self::Literal(_) => OpClass::Constant,
            Self::Region(region) => OpClass::Region(region),
            Self::Custom(call) => OpClass::Custom(call),
        }
    }
}
