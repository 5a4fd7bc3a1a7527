//! Products whose weights are narrow codes times the scales of blocks.
//!
//! A thread makes f32 rows of a few columns of codes, in the cache, and multiplies with them as
//! with any panel, so the guarantee of [`matmul`](super::matmul) holds here too. Up to
//! [`DIRECT_ROWS`] rows those are few, since they are read once or twice only.

use super::blocks::{Columns, DIRECT_ROWS, Destination, StoredMatrix, multiply_panel};
use super::{Operand, Rows, panel_stride, row_panel_bytes};
use crate::cpu::scratch::{self, Shared};
use crate::cpu::simd::{Kernel, Simd, e4m3, i4};
use crate::cpu::{CpuMathError, FloatSlice, FloatSliceMut, Isa, at_least};
use piecewise_ir::dtype::DType;

const CALL: &str = "scaled_matmul";
/// Columns whose weights are made at a time for few rows.
const FEW_COLUMNS: usize = 8;

/// `out[m, n] = x[m, k] * weights[n, k]^T`, over dense buffers, where weight `(i, j)` is
/// `(code - zero) * scale` with the scale and the zero of its block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScaledProblem {
    /// Rows of x and of the output, padding included.
    pub m: usize,
    /// Rows of the codes, columns of the output.
    pub n: usize,
    /// Columns of x and of the codes.
    pub k: usize,
    /// What x is stored as.
    pub x: DType,
    /// What weights are stored as: e4m3 or i4, a line of k from a byte on.
    pub codes: DType,
    /// What the scales are stored as, `[n / block[0], k / block[1]]`, rounded up.
    pub scales: DType,
    /// Rows and columns of the codes that share a scale.
    pub block: [usize; 2],
    /// What the output is rounded to.
    pub out: DType,
}

impl ScaledProblem {
    fn rows(&self) -> Operand {
        let Self { x: dtype, k: row_stride, .. } = *self;
        Operand { dtype, row_stride, batch_stride: 0, transposed: false }
    }

    /// Blocks of scales down and across.
    fn blocks(&self) -> [usize; 2] {
        [self.n.div_ceil(self.block[0].max(1)), self.k.div_ceil(self.block[1].max(1))]
    }

    fn panel_bytes(&self) -> usize {
        self.n.min(super::COLUMN_BLOCK).saturating_mul(panel_stride(self.k)).saturating_mul(4)
    }
}

/// Scratch bytes for [`scaled_matmul`] on up to `threads` threads, for any number of real rows.
///
/// With less, down to what one thread needs, the call uses fewer threads.
pub fn scaled_matmul_scratch_bytes(problem: &ScaledProblem, threads: usize) -> usize {
    let rows = row_panel_bytes(&problem.rows(), problem.k, problem.m);
    rows.saturating_add(problem.panel_bytes().saturating_mul(threads.max(1)))
}

/// What one [`scaled_matmul`] reads and writes.
#[derive(Debug)]
pub struct ScaledArgs<'a> {
    /// Shapes, dtypes and blocks.
    pub problem: ScaledProblem,
    /// Leading rows of x and of the output that are real; the others are neither read nor written.
    pub rows: usize,
    /// The left operand.
    pub x: FloatSlice<'a>,
    /// Lines of narrow numbers, `[n, k]`, each line from a byte on.
    pub codes: &'a [u8],
    /// One factor for each block, row-major.
    pub scales: FloatSlice<'a>,
    /// Codes of i4 that are taken from those of each block, where there are any.
    pub zeros: Option<&'a [u8]>,
    /// The output.
    pub out: FloatSliceMut<'a>,
    /// At least [`scaled_matmul_scratch_bytes`] bytes for as many threads as should work.
    pub scratch: &'a mut [u8],
}

/// Computes the real rows of a product, in f32, rounded once to the output type.
///
/// # Errors
/// If a slice is too short for its shape, a type differs from the problem's, `rows` exceeds `m`,
/// or the scratch does not serve one thread; nothing was written.
pub fn scaled_matmul(isa: Isa, args: ScaledArgs<'_>) -> Result<(), CpuMathError> {
    check(&args)?;
    let ScaledArgs { problem, rows, x, codes, scales, zeros, out, scratch } = args;
    let ScaledProblem { n, k, .. } = problem;
    if rows == 0 || n == 0 {
        return Ok(());
    }
    let weights = Weights { codes, scales, zeros, problem };
    let stored = problem.rows();
    let row_panel = row_panel_bytes(&stored, k, rows);
    let panel_bytes = problem.panel_bytes();
    let served = (scratch.len() - row_panel) / panel_bytes.max(1);
    let panels = Shared(scratch.as_mut_ptr());
    let column_panels = Shared(panels.get().wrapping_add(row_panel));
    let few = if rows <= DIRECT_ROWS { FEW_COLUMNS } else { super::COLUMN_BLOCK };
    let stride = panel_stride(k);
    let rows = Rows { stored: StoredMatrix::new(x, &stored), rows, k, n, is_packed: row_panel > 0 };
    let multiply = |worker: usize, start: usize, tile: Columns, out: Destination<'_>| {
        // SAFETY: `check` proved that the scratch has a panel for each worker.
        let panel = unsafe { column_panels.get().add(worker * panel_bytes) }.cast::<f32>();
        for first in (0..tile.columns).step_by(few) {
            let columns = (tile.columns - first).min(few);
            // SAFETY: the panel holds at least `columns` rows of `stride` and is this worker's; `check`
            // proved that codes, scales and zeros have these columns; the caller vouches for x and for
            // the output.
            unsafe {
                let from = start + first;
                isa.dispatch(Widen { weights, from, columns, to: panel, stride });
                let tile = Columns { columns, ..tile };
                multiply_panel(isa, tile, panel, stride, out.offset(first));
            }
        }
    };
    let out = Destination::new(out, n);
    // SAFETY: `check` proved that x and the output hold the rows, and that the scratch holds the row
    // panel; `multiply` writes the columns that it is given.
    unsafe { rows.multiply(isa, served, panels, out, n, &multiply) };
    Ok(())
}

fn check(args: &ScaledArgs<'_>) -> Result<(), CpuMathError> {
    let ScaledArgs { problem: p, rows, x, codes, scales, zeros, out, scratch } = args;
    let bad = |name, value, rule| Err(CpuMathError::BadShape { call: CALL, name, value, rule });
    if *rows > p.m {
        return bad("rows", *rows, "at most m");
    }
    if p.block.contains(&0) {
        return bad("block", 0, "at least 1");
    }
    if !p.codes.is_narrow() {
        return bad("codes", p.codes.size(), "of a narrow dtype");
    }
    let product = usize::saturating_mul;
    let [down, across] = p.blocks();
    let floats = [
        ("x", p.x, x.dtype(), x.len(), product(*rows, p.k)),
        ("scales", p.scales, scales.dtype(), scales.len(), product(down, across)),
        ("out", p.out, out.dtype(), out.len(), product(*rows, p.n)),
    ];
    for (operand, want, have, elements, need) in floats {
        if have != want {
            return Err(CpuMathError::TypeMismatch { call: CALL, operand, want, have });
        }
        at_least(CALL, operand, elements, need)?;
    }
    let line = |extent: usize| p.codes.line_bytes(extent as u64) as usize;
    at_least(CALL, "codes", codes.len(), product(p.n, line(p.k)))?;
    if let Some(zeros) = zeros {
        at_least(CALL, "zeros", zeros.len(), product(down, line(across)))?;
    }
    let need = row_panel_bytes(&p.rows(), p.k, *rows).saturating_add(p.panel_bytes());
    scratch::check(CALL, scratch, need, "scaled_matmul_scratch_bytes")
}

/// Codes with the scales and the zeros of their blocks.
#[derive(Clone, Copy)]
struct Weights<'a> {
    codes: &'a [u8],
    scales: FloatSlice<'a>,
    zeros: Option<&'a [u8]>,
    problem: ScaledProblem,
}

impl Weights<'_> {
    fn scale(&self, at: usize) -> f32 {
        match self.scales {
            FloatSlice::F32(scales) => scales[at],
            FloatSlice::F16(scales) => scales[at].to_f32(),
            FloatSlice::Bf16(scales) => scales[at].to_f32(),
        }
    }

    /// The code at `column` of a line.
    fn code(&self, line: &[u8], column: usize) -> f32 {
        match self.problem.codes.is_packed() {
            true => i4(line[column / 2] >> (column % 2 * 4)),
            false => e4m3(line[column]),
        }
    }
}

/// Makes f32 rows of the weights of some columns of the output.
struct Widen<'a> {
    weights: Weights<'a>,
    from: usize,
    columns: usize,
    /// Holds `columns` rows of `stride`, at least as many as a row has weights.
    to: *mut f32,
    stride: usize,
}

impl Kernel for Widen<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { weights, from, columns, to, stride } = self;
        let ScaledProblem { k, codes: dtype, block, .. } = weights.problem;
        let [_, across] = weights.problem.blocks();
        let bytes = |elements: usize| dtype.line_bytes(elements as u64) as usize;
        for i in 0..columns {
            let line = &weights.codes[(from + i) * bytes(k)..][..bytes(k)];
            let down = (from + i) / block[0];
            let zeros = weights.zeros.map(|zeros| &zeros[down * bytes(across)..][..bytes(across)]);
            let to = to.wrapping_add(i * stride);
            for group in 0..across {
                let (start, end) = (group * block[1], ((group + 1) * block[1]).min(k));
                let scale = weights.scale(down * across + group);
                let zero = zeros.map_or(0.0, |zeros| weights.code(zeros, group));
                let (scales, zeros) = (s.splat(scale), s.splat(zero));
                // Vectors begin at a byte where the group does.
                let whole = if start % 2 == 0 { (end - start) / S::LANES * S::LANES } else { 0 };
                let mut at = start;
                while at < start + whole {
                    let codes = &line[bytes(at)..][..bytes(S::LANES)];
                    // SAFETY: the codes of a vector lie there; the row of the panel holds `k` elements.
                    unsafe {
                        let codes = match dtype.is_packed() {
                            true => s.load_i4(codes.as_ptr()),
                            false => s.load_e4m3(codes.as_ptr()),
                        };
                        s.store_f32(s.mul(s.sub(codes, zeros), scales), to.add(at));
                    }
                    at += S::LANES;
                }
                for at in at..end {
                    // SAFETY: `at` is below `k`.
                    unsafe { *to.add(at) = (weights.code(line, at) - zero) * scale };
                }
            }
        }
    }
}
