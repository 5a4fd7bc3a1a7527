//! What a product is of, and how its matrices are stored.

use piecewise_ir::dtype::DType;

/// How one matrix of a product is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operand {
    /// What its elements are stored as.
    pub dtype: DType,
    /// Elements from one stored row to the next.
    pub row_stride: usize,
    /// Elements from one matrix of the batch to the next (0: all share one).
    pub batch_stride: usize,
    /// The stored rows are the columns of the matrix. Weights stored `[n, k]`, as in Hugging Face
    /// checkpoints, are a transposed b.
    pub transposed: bool,
}

/// `out[m, n] = a[m, k] * b[k, n]`, for each matrix of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MatmulProblem {
    /// Rows of a and of the output, padding included.
    pub m: usize,
    /// Columns of b and of the output.
    pub n: usize,
    /// Columns of a and rows of b: how many products each element of the output sums.
    pub k: usize,
    /// How many products of these sizes there are.
    pub batch: usize,
    /// How a, the left operand, is stored.
    pub a: Operand,
    /// How b, the right operand, is stored.
    pub b: Operand,
    /// Output; not transposed, stored rows at least `n` apart.
    pub out: Operand,
}

impl MatmulProblem {
    /// `x[m, k] * w[n, k]^T` over dense row-major buffers: the linear layer of a checkpoint.
    pub fn linear(m: usize, n: usize, k: usize, x: DType, w: DType, y: DType) -> Self {
        let dense = |dtype, row_stride, transposed| Operand {
            dtype,
            row_stride,
            batch_stride: 0,
            transposed,
        };
        let (a, b, out) = (dense(x, k, false), dense(w, k, true), dense(y, n, false));
        MatmulProblem { m, n, k, batch: 1, a, b, out }
    }
}
