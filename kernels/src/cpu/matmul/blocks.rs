//! The two halves of a block of a product: bringing rows into f32, and multiplying.

use std::marker::PhantomData;

use crate::cpu::convert::convert_row;
use crate::cpu::dot::{Ahead, dot_tile};
use crate::cpu::element::{Element, FloatAddress, with_address};
use crate::cpu::scratch::Shared;
use crate::cpu::simd::{Isa, Kernel, Simd};
use crate::op::{FloatSlice, FloatSliceMut};

use super::problem::Operand;

/// Up to this many rows the weights are converted in registers instead of in a panel.
pub(super) const DIRECT_ROWS: usize = 12;

/// Rows `first..first + count` of a matrix, to be written as f32 rows of `k` at `stride`.
pub(super) struct PackRows {
    pub(super) first: usize,
    pub(super) count: usize,
    pub(super) k: usize,
    pub(super) to: *mut f32,
    pub(super) stride: usize,
}

/// f32 rows of x, to be multiplied with `columns` columns.
#[derive(Clone, Copy)]
pub(super) struct Columns {
    pub(super) x: *const f32,
    pub(super) x_stride: usize,
    pub(super) rows: usize,
    pub(super) k: usize,
    pub(super) columns: usize,
}

/// The address and layout of an input matrix; only read through.
#[derive(Clone, Copy)]
pub(super) struct StoredMatrix<'a> {
    start: FloatAddress,
    row_stride: usize,
    transposed: bool,
    borrow: PhantomData<FloatSlice<'a>>,
}

impl<'a> StoredMatrix<'a> {
    pub(super) fn new(values: FloatSlice<'a>, stored: &Operand) -> Self {
        let start = FloatAddress::of(values);
        let Operand { row_stride, transposed, .. } = *stored;
        StoredMatrix { start, row_stride, transposed, borrow: PhantomData }
    }

    pub(super) fn offset(self, elements: usize) -> Self {
        StoredMatrix { start: self.start.offset(elements), ..self }
    }

    /// The rows from `first` on of a matrix stored as f32 rows, read in place.
    pub(super) fn f32_rows(self, first: usize) -> (Shared<f32>, usize) {
        match self.offset(first * self.row_stride).start {
            FloatAddress::F32(rows) => (rows, self.row_stride),
            FloatAddress::F16(_) | FloatAddress::Bf16(_) => {
                unreachable!("only f32 rows need no panel")
            }
        }
    }

    /// # Safety
    /// The matrix holds the rows, `pack.to` is valid for writing them.
    pub(super) unsafe fn pack(self, isa: Isa, pack: PackRows) {
        // SAFETY: the caller's promise; rows are contiguous unless the matrix is transposed.
        unsafe { self.pack_lines(isa, pack, !self.transposed) }
    }

    /// # Safety
    /// The matrix holds the columns, `pack.to` is valid for writing them as rows.
    pub(super) unsafe fn pack_columns(self, isa: Isa, pack: PackRows) {
        // SAFETY: the caller's promise; columns are contiguous if the matrix is transposed.
        unsafe { self.pack_lines(isa, pack, self.transposed) }
    }

    unsafe fn pack_lines(self, isa: Isa, pack: PackRows, contiguous: bool) {
        let stride = self.row_stride;
        with_address!(self.start, from => {
            if contiguous {
                isa.dispatch(PackContiguous { from: from.cast_const(), from_stride: stride, pack });
            } else {
                // SAFETY: the caller's promise.
                unsafe { pack_strided(from, stride, pack) }
            }
        });
    }

    /// Multiplies with the stored rows of a transposed matrix from row `first` on.
    ///
    /// # Safety
    /// `tile` is valid, the matrix holds its columns, `out` is valid for its outputs.
    pub(super) unsafe fn multiply(
        self,
        isa: Isa,
        tile: Columns,
        first: usize,
        out: Destination<'_>,
    ) {
        let w_stride = self.row_stride;
        with_address!(self.offset(first * w_stride).start, w => {
            let w = w.cast_const();
            isa.dispatch(Multiply { tile, w, w_stride, out });
        });
    }
}

/// # Safety
/// `tile` is valid, `panel` holds its columns as rows of `stride`, `out` is valid for its outputs.
pub(super) unsafe fn multiply_panel(
    isa: Isa,
    tile: Columns,
    panel: *const f32,
    stride: usize,
    out: Destination<'_>,
) {
    isa.dispatch(Multiply { tile, w: panel, w_stride: stride, out });
}

/// The address and layout of the output.
#[derive(Clone, Copy)]
pub(super) struct Destination<'a> {
    start: FloatAddress,
    row_stride: usize,
    borrow: PhantomData<&'a ()>,
}

impl<'a> Destination<'a> {
    pub(super) fn new(values: FloatSliceMut<'a>, row_stride: usize) -> Self {
        let start = FloatAddress::of_mut(values);
        Destination { start, row_stride, borrow: PhantomData }
    }

    pub(super) fn offset(self, elements: usize) -> Self {
        Destination { start: self.start.offset(elements), ..self }
    }

    /// # Safety
    /// The output holds `values` at `(row, column)`.
    #[inline(always)]
    unsafe fn store(self, row: usize, column: usize, values: &[f32]) {
        let at = row * self.row_stride + column;
        with_address!(self.start, p => {
            for (i, value) in values.iter().enumerate() {
                // SAFETY: the caller's promise.
                unsafe { *p.add(at + i) = Element::from_f32(*value) };
            }
        });
    }
}

struct PackContiguous<E> {
    from: *const E,
    from_stride: usize,
    pack: PackRows,
}

impl<E: Element> Kernel for PackContiguous<E> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let PackRows { first, count, k, to, stride } = self.pack;
        for i in 0..count {
            // SAFETY: `pack_lines` was promised `count` lines of `k` on both sides.
            unsafe {
                let from = self.from.add((first + i) * self.from_stride);
                convert_row(s, from, to.add(i * stride), k);
            }
        }
    }
}

/// # Safety
/// `from` holds `k` stored rows with elements `first..first + count`, `to` is valid for writing.
unsafe fn pack_strided<E: Element>(from: *const E, from_stride: usize, pack: PackRows) {
    let PackRows { first, count, k, to, stride } = pack;
    for j in 0..k {
        for i in 0..count {
            // SAFETY: the caller's promise.
            unsafe {
                *to.add(i * stride + j) = (*from.add(j * from_stride + first + i)).to_f32();
            }
        }
    }
}

struct Multiply<'a, W> {
    tile: Columns,
    w: *const W,
    w_stride: usize,
    out: Destination<'a>,
}

impl<W: Element> Kernel for Multiply<'_, W> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Columns { rows, columns, .. } = self.tile;
        // SAFETY (all tiles): `dispatch` is only reached through `multiply` and `multiply_panel`,
        // whose callers promise the operands and the output.
        if rows == 1 {
            let ahead = Ahead { start: self.w_stride.wrapping_mul(8), share: 1 };
            for column in (0..columns).step_by(8) {
                // SAFETY: as above.
                unsafe { self.tile::<S, 1, 8, true>(s, 0, column, ahead) };
            }
        } else if rows <= DIRECT_ROWS {
            // Tiles of even height; each pass over four columns fetches its share of the next four.
            let passes = rows.div_ceil(S::TILE_ROWS);
            let height = rows.div_ceil(passes);
            for column in (0..columns).step_by(4) {
                for pass in 0..rows.div_ceil(height) {
                    let row = pass * height;
                    let start = self.w_stride.wrapping_mul(4);
                    let start = start.wrapping_add(pass * (self.tile.k / passes));
                    let ahead = Ahead { start, share: passes };
                    // SAFETY: as above.
                    unsafe {
                        self.rows_from::<S, true>(s, row, column, height.min(rows - row), ahead);
                    }
                }
            }
        } else {
            // A block of weights is larger than the first cache: each tile fetches the next one's.
            let ahead = Ahead { start: self.w_stride.wrapping_mul(4), share: 1 };
            for row in (0..rows).step_by(S::TILE_ROWS) {
                let height = S::TILE_ROWS.min(rows - row);
                for column in (0..columns).step_by(4) {
                    // SAFETY: as above.
                    unsafe { self.rows_from::<S, true>(s, row, column, height, ahead) };
                }
            }
        }
    }
}

impl<W: Element> Multiply<'_, W> {
    /// One tile of four columns and `height` rows from `row` on.
    ///
    /// # Safety
    /// The rows and `column` lie within the block, whose operands and output are valid; `height`
    /// is 1 to `S::TILE_ROWS`.
    #[inline(always)]
    unsafe fn rows_from<S: Simd, const AHEAD: bool>(
        &self,
        s: S,
        row: usize,
        column: usize,
        height: usize,
        ahead: Ahead,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            match height {
                1 => self.tile::<S, 1, 4, AHEAD>(s, row, column, ahead),
                2 => self.tile::<S, 2, 4, AHEAD>(s, row, column, ahead),
                3 => self.tile::<S, 3, 4, AHEAD>(s, row, column, ahead),
                4 if S::TILE_ROWS > 3 => self.tile::<S, 4, 4, AHEAD>(s, row, column, ahead),
                5 if S::TILE_ROWS > 3 => self.tile::<S, 5, 4, AHEAD>(s, row, column, ahead),
                _ if S::TILE_ROWS > 3 => self.tile::<S, 6, 4, AHEAD>(s, row, column, ahead),
                _ => unreachable!("a tile is at most TILE_ROWS high"),
            }
        }
    }

    /// # Safety
    /// `row + M` rows and `column` lie within the block, whose operands and output are valid.
    #[inline(always)]
    unsafe fn tile<S: Simd, const M: usize, const R: usize, const AHEAD: bool>(
        &self,
        s: S,
        row: usize,
        column: usize,
        ahead: Ahead,
    ) {
        let Columns { x, x_stride, k, columns, .. } = self.tile;
        let width = (columns - column).min(R);
        let mut w = [self.w; R];
        for (r, w) in w.iter_mut().enumerate() {
            // Past the last column the last one is computed again and not stored.
            *w = w.wrapping_add((column + r.min(width - 1)) * self.w_stride);
        }
        // SAFETY: the caller's promise.
        unsafe {
            let sums =
                dot_tile::<S, W, M, R, AHEAD>(s, x.add(row * x_stride), x_stride, &w, ahead, k);
            for (i, sums) in sums.iter().enumerate() {
                self.out.store(row + i, column, &sums[..width]);
            }
        }
    }
}
