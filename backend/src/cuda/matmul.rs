//! Matrix products as the library takes them: row-major operands seen as column-major ones.

use crate::matmul::Matmul;
use piecewise_ir::dtype::DType;
use serde::{Deserialize, Serialize};

/// A matrix product of known sizes: the key of its algorithm. Products and sums are in f32; with
/// f32 operands nothing is rounded to less.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct MatmulProblem {
    /// How many rows the result has, as we store it.
    pub m: u64,
    /// How many columns the result has, as we store it.
    pub n: u64,
    /// Products that are summed for each element.
    pub k: u64,
    /// Products one after the other.
    pub batch: u64,
    /// Whether the left operand is `[k, m]`.
    pub transpose_lhs: bool,
    /// Whether the right operand is `[n, k]`.
    pub transpose_rhs: bool,
    /// Whether every product of the batch has the same right operand.
    pub shared_rhs: bool,
    /// The element type of both operands.
    pub operands: DType,
    /// The element type of the result.
    pub out: DType,
}

/// A column-major matrix: `columns` columns of `rows` elements, `rows` apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ColumnMajor {
    pub(super) rows: u64,
    pub(super) columns: u64,
    /// Whether the library transposes it.
    pub(super) transpose: bool,
    pub(super) dtype: DType,
    /// Elements from one product of the batch to the next.
    pub(super) batch_stride: u64,
}

/// The problem as the library sees it: the transposed result is the transposed right operand
/// times the transposed left one, since a row-major matrix is its column-major transpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LibraryView {
    /// What is the right operand to us.
    pub(super) a: ColumnMajor,
    /// What is the left operand to us.
    pub(super) b: ColumnMajor,
    /// What is the result to us.
    pub(super) d: ColumnMajor,
}

impl Matmul {
    /// Checks types: those of the op, of one float type on both sides, with a result of that type
    /// or f32. Others must be cast before.
    ///
    /// # Errors
    /// A sentence that says what does not fit.
    pub fn check(&self) -> Result<(), String> {
        self.check_types()?;
        let (lhs, rhs, out) = (self.lhs.dtype, self.rhs.dtype, self.out.dtype);
        if lhs != rhs || !lhs.is_float() {
            return Err(format!(
                "cuBLASLt multiplies operands of one float type, not {lhs} by {rhs}; cast one"
            ));
        }
        if out != lhs && out != DType::F32 {
            return Err(format!(
                "cuBLASLt makes {lhs} or f32 of {lhs}, not {out}; cast the result"
            ));
        }
        Ok(())
    }

    /// The problem at these padded sizes by symbol.
    ///
    /// # Errors
    /// A sentence, when a dimension is 0 or larger than the library takes.
    pub fn problem(&self, sizes: &[u64]) -> Result<MatmulProblem, String> {
        let (lhs, rhs) = (self.lhs.dims(sizes), self.rhs.dims(sizes));
        let (l, r) = (lhs.len(), rhs.len());
        if l < 2 || r < 2 {
            return Err(format!("a product of ranks {l} and {r}"));
        }
        let (m, k) = match self.transpose_lhs {
            true => (lhs[l - 1], lhs[l - 2]),
            false => (lhs[l - 2], lhs[l - 1]),
        };
        let n = if self.transpose_rhs { rhs[r - 2] } else { rhs[r - 1] };
        let batch = lhs[..l - 2].iter().fold(1u64, |b, &d| b.saturating_mul(d));
        let shared_rhs = r == 2;
        // One matrix on the right for dense rows on the left: the batch is more rows.
        let (m, batch) = match shared_rhs && !self.transpose_lhs {
            true => (m.saturating_mul(batch), 1),
            false => (m, batch),
        };
        for (what, extent) in [("m", m), ("n", n), ("k", k), ("the batch", batch)] {
            if extent == 0 || extent > i32::MAX as u64 {
                return Err(format!("{what} is {extent}; 1 to {} fit", i32::MAX));
            }
        }
        Ok(MatmulProblem {
            m,
            n,
            k,
            batch,
            transpose_lhs: self.transpose_lhs,
            transpose_rhs: self.transpose_rhs,
            shared_rhs,
            operands: self.lhs.dtype,
            out: self.out.dtype,
        })
    }
}

impl MatmulProblem {
    pub(super) fn library_view(&self) -> LibraryView {
        let Self { m, n, k, .. } = *self;
        let matrix = |rows, columns, transpose, dtype, shared| ColumnMajor {
            rows,
            columns,
            transpose,
            dtype,
            batch_stride: if shared { 0 } else { rows * columns },
        };
        // `[n, k]` row-major has columns of k; the library wants n by k, so it transposes.
        let a = match self.transpose_rhs {
            true => matrix(k, n, true, self.operands, self.shared_rhs),
            false => matrix(n, k, false, self.operands, self.shared_rhs),
        };
        let b = match self.transpose_lhs {
            true => matrix(m, k, true, self.operands, false),
            false => matrix(k, m, false, self.operands, false),
        };
        LibraryView { a, b, d: matrix(n, m, false, self.out, false) }
    }
}

impl std::fmt::Display for MatmulProblem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { m, n, k, batch, operands, out, .. } = self;
        write!(f, "[{m}, {k}] x [{k}, {n}] of {operands} to {out}")?;
        if *batch > 1 { write!(f, ", {batch} times") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use piecewise_ir::types::TensorType;
    use proptest::prelude::*;

    fn product(ta: bool, tb: bool, lhs: &[u64], rhs: &[u64], out: &[u64]) -> Matmul {
        let ty = |shape: &[u64]| TensorType::new(DType::F32, shape);
        Matmul { transpose_lhs: ta, transpose_rhs: tb, lhs: ty(lhs), rhs: ty(rhs), out: ty(out) }
    }

    /// What the library would compute, in column-major terms.
    fn library(view: &LibraryView, k: u64, batch: u64, a: &[f64], b: &[f64]) -> Vec<f64> {
        let at = |m: &ColumnMajor, data: &[f64], row: u64, column: u64, batch: u64| {
            let (row, column) = if m.transpose { (column, row) } else { (row, column) };
            assert!(row < m.rows && column < m.columns);
            data[(batch * m.batch_stride + column * m.rows + row) as usize]
        };
        let mut out = Vec::new();
        for z in 0..batch {
            for column in 0..view.d.columns {
                for row in 0..view.d.rows {
                    let terms =
                        (0..k).map(|i| at(&view.a, a, row, i, z) * at(&view.b, b, i, column, z));
                    out.push(terms.sum());
                }
            }
        }
        out
    }

    proptest! {
        #[test]
        fn the_column_major_view_gives_the_row_major_product(
            (m, n, k, z) in (1u64..4, 1u64..4, 1u64..4, 1u64..3),
            (ta, tb, shared) in any::<(bool, bool, bool)>(),
        ) {
            let l = if ta { [z, k, m] } else { [z, m, k] };
            let r = if tb { [z, n, k] } else { [z, k, n] };
            let r = if shared { &r[1..] } else { &r[..] };
            let matmul = product(ta, tb, &l, r, &[z, m, n]);
            prop_assert_eq!(matmul.check(), Ok(()));
            let problem = matmul.problem(&[]).unwrap();
            let a: Vec<f64> = (0..z * m * k).map(|i| (i * i % 7) as f64 - 3.0).collect();
            let b: Vec<f64> = (0..z * n * k).map(|i| (i * 5 % 11) as f64 - 5.0).collect();
            let mut want = Vec::new();
            for z in 0..z {
                for i in 0..m {
                    for j in 0..n {
                        want.push((0..k).map(|p| {
                            let x = if ta { p * m + i } else { i * k + p };
                            let y = if tb { j * k + p } else { p * n + j };
                            let zb = if shared { 0 } else { z };
                            a[(z * m * k + x) as usize] * b[(zb * n * k + y) as usize]
                        }).sum::<f64>());
                    }
                }
            }
            let view = problem.library_view();
            prop_assert_eq!(library(&view, problem.k, problem.batch, &b, &a), want);
        }
    }

    #[test]
    fn what_the_library_does_not_multiply_is_refused() {
        let mut mixed = product(false, true, &[2, 3], &[4, 3], &[2, 4]);
        mixed.rhs.dtype = DType::BF16;
        insta::assert_snapshot!(mixed.check().unwrap_err());
        let mut narrow = product(false, true, &[2, 3], &[4, 3], &[2, 4]);
        narrow.out.dtype = DType::BF16;
        insta::assert_snapshot!(narrow.check().unwrap_err());
        let empty = product(false, true, &[0, 3], &[4, 3], &[0, 4]);
        assert_eq!(empty.problem(&[]), Err("m is 0; 1 to 2147483647 fit".to_owned()));
    }
}
