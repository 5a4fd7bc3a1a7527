//! From the rows of a text to one vector.

use super::super::op_builders::{KernelOps, Segments};
use piecewise_ir::builder::Tensor;

/// Which rows of a text make its embedding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pooling {
    /// The mean over all rows.
    Mean,
    /// The first row: `[CLS]`.
    First,
    /// The last row.
    Last,
}

impl Pooling {
    /// One row for each item, of `rows f32 [T, width]`: `f32 [items, width]`. What an item of no
    /// rows gets has no meaning.
    pub(super) fn of<'b>(self, rows: Tensor<'b>, items: Segments<'b>) -> Tensor<'b> {
        match self {
            Self::Mean => rows.segment_mean(items),
            Self::First => rows.gather(items.starts),
            Self::Last => rows.gather((items.starts + items.lengths - 1.0).maximum(0.0)),
        }
    }
}

/// Each row of `x f32 [N, width]` divided by its Euclidean norm, or by 1e-12 where that is larger.
pub(super) fn normalize(x: Tensor<'_>) -> Tensor<'_> {
    let norm = (x * x).reduce_sum([1]).sqrt();
    x / norm.maximum(1e-12)
}
