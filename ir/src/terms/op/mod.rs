//! Operations: what a node computes.

mod class;
mod infer;
#[cfg(test)]
mod row_tests;
mod rows;
pub(crate) mod table;

pub use crate::treatment::RowTreatment;
pub use class::OpClass;
pub use infer::{TypeError, check_narrow, check_types, infer_type};
pub use rows::row_treatment;
pub use table::{BinaryOp, CompareOp, Format, OpInfo, ReduceOp, UnaryOp, op_info, op_table};
pub(crate) use table::{binary_ops, compare_ops, unary_ops};

use crate::custom::CustomCall;
use crate::literal::Literal;
use crate::region::Region;

/// An operation with its attributes. What the result type alone says (the target of a cast, a
/// broadcast or a reshape; the extent of a slice) is not repeated here.
#[derive(Clone, PartialEq, Debug, serde::Serialize, serde::Deserialize)]
pub enum Op {
    /// Elementwise, one operand.
    Unary(UnaryOp),
    /// Elementwise, two operands of one type.
    Binary(BinaryOp),
    /// Elementwise comparison of two operands of equal type; the result is `bool`.
    Compare(CompareOp),
    /// Elementwise choice: operands condition, if true, if false.
    Select,
    /// Rounding to the result's dtype.
    Cast,
    /// Reduction; the axes are ascending and stay with extent 1.
    Reduce {
        /// Sum, mean, largest or smallest.
        op: ReduceOp,
        /// Axes of the operand, ascending.
        axes: Vec<usize>,
    },
    /// Index of the largest element.
    ArgMax {
        /// The axis searched and dropped.
        axis: usize,
    },
    /// The largest elements and their indices.
    TopK {
        /// The axis along which elements are compared.
        axis: usize,
    },
    /// Repetition to the result's shape.
    Broadcast,
    /// The same elements under the result's shape.
    Reshape,
    /// The operand with its axes in another order.
    Permute {
        /// For each axis of the result, the axis of the operand.
        perm: Vec<usize>,
    },
    /// A range of one axis; its extent is the result's.
    Slice {
        /// The axis of which a range is kept.
        axis: usize,
        /// The index along `axis` of the first element that is kept.
        start: u64,
    },
    /// Operands one after the other.
    Concat {
        /// The axis whose extent is the sum of those of the operands.
        axis: usize,
    },
    /// Rows of a table at indices.
    Gather,
    /// Rows written into a state at slots; no result.
    Scatter,
    /// `[.., m, k] x [.., k, n]`, in f32 and rounded once.
    MatMul {
        /// Whether the left operand is stored `[k, m]`.
        transpose_lhs: bool,
        /// Whether the right operand is stored `[n, k]`.
        transpose_rhs: bool,
    },
    /// `[.., m, k] x [n, k]` transposed, where a weight is a narrow code times the scale of its block:
    /// operands rows, codes, scales, and zero points if there are any.
    ScaledMatMul {
        /// Rows and columns of the codes that share a scale; the last blocks may be partial.
        block: [u64; 2],
    },
    /// A tensor whose elements are their index along an axis.
    Iota {
        /// The axis whose index each element is.
        axis: usize,
    },
    /// A constant of static shape, its bytes in the graph.
    Literal(Literal),
    /// Ops fused into one kernel that goes over rows.
    Region(Box<Region>),
    /// An op defined outside the IR.
    Custom(Box<CustomCall>),
}

impl Op {
    /// Its name in text; a custom op's is `custom`.
    pub fn mnemonic(&self) -> &'static str {
        let format = self.format();
        op_table().find(|info| info.format == format).map_or("?", |info| info.mnemonic)
    }

    /// What people call it: its mnemonic, or a custom op's own name.
    pub fn name(&self) -> &str {
        match self {
            Self::Custom(call) => &call.name,
            op => op.mnemonic(),
        }
    }

    /// Whether it only says where elements lie: strides, never a computation.
    pub const fn is_remap(&self) -> bool {
        matches!(self.class(), OpClass::Remap)
    }

    /// Whether it computes something: it is neither a literal nor an index remap.
    pub const fn computes(&self) -> bool {
        !matches!(self, Self::Literal(_)) && !self.is_remap()
    }

    /// The operand positions that it mutates; they are states.
    pub fn mutated_operands(&self) -> Vec<usize> {
        match self.class() {
            OpClass::Scatter => vec![0],
            OpClass::Region(region) => region.mutated_params(),
            OpClass::Custom(call) => call.mutates.clone(),
            OpClass::Elementwise | OpClass::Remap | OpClass::Reduction | OpClass::Search => vec![],
            OpClass::Gather | OpClass::Product { .. } | OpClass::Constant => vec![],
        }
    }

    /// Whether it mutates a state, so that its place in the program order matters.
    pub fn has_effect(&self) -> bool {
        !self.mutated_operands().is_empty()
    }
}
