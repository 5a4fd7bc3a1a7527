//! Matrix products of any float types with f32 accumulation.
//!
//! **Guarantee.** For one instruction set, output `(i, j)` depends on row `i` of a, column `j` of
//! b and `k` alone: not on `m`, `rows`, `n`, the batch, the thread count, the path, nor on whether
//! an operand is transposed or already f32. So padded equals unpadded bit for bit, and every
//! capture size gives a row the same bits.
//!
//! Both paths run the one tile of `dot`, which reads rows contiguous in k; they differ only in where
//! the rows come from:
//! - the direct one streams weights stored `[n, k]` once from memory, converted in registers;
//! - the other first converts a block of columns to a panel of f32 rows in scratch, which many rows
//!   of a reuse.
//!
//! The left operand is converted to f32 rows in scratch unless it already is.

mod blocks;
mod problem;
mod scaled;

use super::scratch;
use super::{CpuMathError, FloatSlice, FloatSliceMut, Isa, at_least, parallel};
use blocks::{Columns, DIRECT_ROWS, Destination, PackRows, StoredMatrix};
use piecewise_ir::dtype::DType;
pub use problem::{MatmulProblem, Operand};
pub use scaled::{ScaledArgs, ScaledProblem, scaled_matmul, scaled_matmul_scratch_bytes};

const CALL: &str = "matmul";

/// Rows of a that are converted at a time: bounds the scratch, a multiple of every tile height.
const ROW_BLOCK: usize = 240;
/// Columns of b in one block, the unit of work of a thread.
const COLUMN_BLOCK: usize = 32;
/// Multiply-adds below which waking other threads costs more than it saves.
const PARALLEL_WORK: usize = 1 << 16;

/// Scratch bytes for [`matmul`] on up to `threads` threads, for any number of real rows.
///
/// With less, down to what one thread needs, the call uses fewer threads.
pub fn matmul_scratch_bytes(problem: &MatmulProblem, threads: usize) -> usize {
    let panel = column_panel_bytes(problem, problem.m).saturating_mul(threads.max(1));
    row_panel_bytes(&problem.a, problem.k, problem.m).saturating_add(panel)
}

/// Elements from one panel row to the next: whole vectors, and an odd number of cache lines so
/// that rows do not fall into the same cache set.
fn panel_stride(k: usize) -> usize {
    (k.div_ceil(16) | 1).saturating_mul(16)
}

fn row_panel_bytes(a: &Operand, k: usize, rows: usize) -> usize {
    if a.dtype == DType::F32 && !a.transposed {
        return 0;
    }
    rows.min(ROW_BLOCK).saturating_mul(panel_stride(k)).saturating_mul(4)
}

fn column_panel_bytes(problem: &MatmulProblem, rows: usize) -> usize {
    let reused = rows > DIRECT_ROWS && problem.b.dtype != DType::F32;
    if !reused && problem.b.transposed {
        return 0;
    }
    problem.n.min(COLUMN_BLOCK).saturating_mul(panel_stride(problem.k)).saturating_mul(4)
}

/// What one [`matmul`] reads and writes.
#[derive(Debug)]
pub struct MatmulArgs<'a> {
    /// Shapes, dtypes and strides, of which the first axis may have more rows than are real.
    pub problem: MatmulProblem,
    /// Leading rows of a and of the output that are real; the others are neither read nor written.
    pub rows: usize,
    /// The left operand, stored as the problem's `a`.
    pub a: FloatSlice<'a>,
    /// The right operand, stored as the problem's `b`.
    pub b: FloatSlice<'a>,
    /// The output, stored as the problem's `out`.
    pub out: FloatSliceMut<'a>,
    /// At least [`matmul_scratch_bytes`] bytes for as many threads as should work.
    pub scratch: &'a mut [u8],
}

/// Computes the real rows of a matrix product, in f32, rounded once to the output type.
///
/// # Errors
/// If a slice is too short for its shape, a type differs from the problem's, `rows` exceeds `m`,
/// output rows overlap, or the scratch does not serve one thread; nothing was written.
pub fn matmul(isa: Isa, args: MatmulArgs<'_>) -> Result<(), CpuMathError> {
    check(&args)?;
    let MatmulArgs { problem, rows, a, b, out, scratch } = args;
    let MatmulProblem { n, k, .. } = problem;
    if rows == 0 || n == 0 {
        return Ok(());
    }
    let row_panel = row_panel_bytes(&problem.a, k, rows);
    let column_panel = column_panel_bytes(&problem, rows);
    let served = (scratch.len() - row_panel).checked_div(column_panel).unwrap_or(usize::MAX);
    let stride = panel_stride(k);
    let panels = scratch::Shared(scratch.as_mut_ptr());
    let column_panels = scratch::Shared(panels.get().wrapping_add(row_panel));
    let a = StoredMatrix::new(a, &problem.a);
    let b = StoredMatrix::new(b, &problem.b);
    let out = Destination::new(out, problem.out.row_stride);

    for batch in 0..problem.batch {
        let a = a.offset(batch * problem.a.batch_stride);
        let b = b.offset(batch * problem.b.batch_stride);
        let out = out.offset(batch * problem.out.batch_stride);
        let rows = Rows { stored: a, rows, k, n, is_packed: row_panel > 0 };
        let multiply = |worker: usize, start: usize, tile: Columns, out: Destination<'_>| {
            // SAFETY: `check` proved that b holds these columns and that the scratch has a column panel
            // for each worker when the path needs one; the caller vouches for x and for the output.
            unsafe {
                if column_panel == 0 {
                    b.multiply(isa, tile, start, out);
                } else {
                    let panel = column_panels.get().add(worker * column_panel).cast::<f32>();
                    let (count, to) = (tile.columns, panel);
                    b.pack_columns(isa, PackRows { first: start, count, k, to, stride });
                    blocks::multiply_panel(isa, tile, panel, stride, out);
                }
            }
        };
        // SAFETY: `check` proved that a holds these rows, that out holds `rows` rows that do not overlap,
        // and that the scratch holds the row panel; `multiply` writes the columns that it is given.
        unsafe { rows.multiply(isa, served, panels, out, problem.out.row_stride, &multiply) };
    }
    Ok(())
}

/// The real rows of a left operand, to be multiplied with `n` columns of `k`.
struct Rows<'a> {
    stored: StoredMatrix<'a>,
    rows: usize,
    k: usize,
    n: usize,
    /// Whether they become f32 rows in scratch first.
    is_packed: bool,
}

impl Rows<'_> {
    /// Calls `multiply` for blocks of columns on up to `served` threads: with the thread, the first
    /// column, the f32 rows to multiply and where the products of the block go.
    ///
    /// # Safety
    /// The matrix holds the rows, `out` is valid for `rows` rows at `out_stride` that do not overlap,
    /// `panels` for the bytes of [`row_panel_bytes`]; `multiply` writes the columns that it is given.
    unsafe fn multiply(
        &self,
        isa: Isa,
        served: usize,
        panels: scratch::Shared<u8>,
        out: Destination<'_>,
        out_stride: usize,
        multiply: &(impl Fn(usize, usize, Columns, Destination<'_>) + Sync),
    ) {
        let &Self { stored, rows, k, n, is_packed } = self;
        let small = rows.saturating_mul(n).saturating_mul(k) < PARALLEL_WORK;
        let threads = if small { 1 } else { parallel::pool_threads().min(served) };
        let stride = panel_stride(k);
        for first in (0..rows).step_by(ROW_BLOCK) {
            let count = (rows - first).min(ROW_BLOCK);
            let (x, x_stride) = if is_packed {
                let panel = scratch::Shared(panels.get().cast::<f32>());
                let packers = if count <= DIRECT_ROWS { 1 } else { threads };
                parallel::for_each_block(packers, count.div_ceil(16), |_, block| {
                    let start = block * 16;
                    let to = panel.get().wrapping_add(start * stride);
                    let (count, first) = ((count - start).min(16), first + start);
                    // SAFETY: the matrix holds these rows and the row panel min(rows, ROW_BLOCK) rows of
                    // `stride`, by the caller's promise; each block has rows of its own.
                    unsafe { stored.pack(isa, PackRows { first, count, k, to, stride }) }
                });
                (panel, stride)
            } else {
                stored.f32_rows(first)
            };
            let out = out.offset(first * out_stride);
            parallel::for_each_block(threads, n.div_ceil(COLUMN_BLOCK), |worker, block| {
                let start = block * COLUMN_BLOCK;
                let columns = (n - start).min(COLUMN_BLOCK);
                let tile = Columns { x: x.get(), x_stride, rows: count, k, columns };
                multiply(worker, start, tile, out.offset(start));
            });
        }
    }
}

fn check(args: &MatmulArgs<'_>) -> Result<(), CpuMathError> {
    let MatmulArgs { problem: p, rows, a, b, out, scratch } = args;
    let bad = |name, value, rule| Err(CpuMathError::BadShape { call: CALL, name, value, rule });
    if *rows > p.m {
        return bad("rows", *rows, "at most m");
    }
    if p.out.transposed {
        return bad("out.transposed", 1, "false");
    }
    if *rows > 1 && p.out.row_stride < p.n {
        return bad("out.row_stride", p.out.row_stride, "at least n");
    }
    let shapes = [
        ("a", p.a, a.dtype(), a.len(), *rows, p.k),
        ("b", p.b, b.dtype(), b.len(), p.k, p.n),
        ("out", p.out, out.dtype(), out.len(), *rows, p.n),
    ];
    for (operand, stored, dtype, elements, rows, columns) in shapes {
        let (want, have) = (stored.dtype, dtype);
        if have != want {
            return Err(CpuMathError::TypeMismatch { call: CALL, operand, want, have });
        }
        at_least(CALL, operand, elements, extent(&stored, p.batch, rows, columns))?;
    }
    let need = row_panel_bytes(&p.a, p.k, *rows).saturating_add(column_panel_bytes(p, *rows));
    scratch::check(CALL, scratch, need, "matmul_scratch_bytes")
}

/// Elements from the first to the last one that a logical `[rows, columns]` batch touches.
fn extent(stored: &Operand, batch: usize, rows: usize, columns: usize) -> usize {
    let (major, minor) = if stored.transposed { (columns, rows) } else { (rows, columns) };
    let last = (batch.saturating_sub(1))
        .checked_mul(stored.batch_stride)
        .zip(major.saturating_sub(1).checked_mul(stored.row_stride))
        .and_then(|(a, b)| a.checked_add(b)?.checked_add(minor));
    match last {
        Some(_) if batch == 0 || major == 0 || minor == 0 => 0,
        Some(last) => last,
        None => usize::MAX,
    }
}

#[cfg(test)]
mod scaled_tests;
#[cfg(test)]
mod tests;
