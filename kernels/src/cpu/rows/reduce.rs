//! Reductions and searches. The order of a sum is a function of the reduced extents alone: not of
//! the tile, the row count, the thread count, nor of how the operand lies in memory.

// A new op or dtype must not compile before it is here.
#![warn(clippy::wildcard_enum_match_arm)]

use super::elementwise::{larger, smaller};
use super::line::{Cursor, Lane, Line};
use super::walk::{Walk, chunks, each};
use crate::cpu::simd::{Isa, Kernel, Simd};
use crate::lower::LINE;
use piecewise_ir::dtype::DType;
use piecewise_ir::op::ReduceOp;

/// Partial results of a reduction; a divisor of [`LINE`].
const PARTIALS: usize = 32;

/// How reductions combine elements of one type.
trait Reduce: Lane {
    fn identity(op: ReduceOp) -> Self;
    fn combine(op: ReduceOp, a: Self, b: Self) -> Self;
    /// The reduction of no elements.
    fn of_nothing(op: ReduceOp) -> Self;
    fn divide(self, count: u64) -> Self;
}

impl Reduce for f32 {
    #[inline(always)]
    fn identity(op: ReduceOp) -> Self {
        match op {
            ReduceOp::Sum | ReduceOp::Mean => 0.0,
            ReduceOp::Max | ReduceOp::Min => f32::NAN,
        }
    }
    #[inline(always)]
    fn combine(op: ReduceOp, a: Self, b: Self) -> Self {
        match op {
            ReduceOp::Sum | ReduceOp::Mean => a + b,
            ReduceOp::Max => larger(a, b),
            ReduceOp::Min => smaller(a, b),
        }
    }
    #[inline(always)]
    fn of_nothing(op: ReduceOp) -> Self {
        match op {
            ReduceOp::Sum | ReduceOp::Mean => 0.0,
            ReduceOp::Max => f32::NEG_INFINITY,
            ReduceOp::Min => f32::INFINITY,
        }
    }
    #[inline(always)]
    fn divide(self, count: u64) -> Self {
        self / count as f32
    }
}

macro_rules! integer_reduce {
    ($type:ty) => {
        impl Reduce for $type {
            #[inline(always)]
            fn identity(op: ReduceOp) -> Self {
                match op {
                    ReduceOp::Sum | ReduceOp::Mean => 0,
                    ReduceOp::Max => <$type>::MIN,
                    ReduceOp::Min => <$type>::MAX,
                }
            }
            #[inline(always)]
            fn combine(op: ReduceOp, a: Self, b: Self) -> Self {
                match op {
                    ReduceOp::Sum | ReduceOp::Mean => a.wrapping_add(b),
                    ReduceOp::Max => a.max(b),
                    ReduceOp::Min => a.min(b),
                }
            }
            #[inline(always)]
            fn of_nothing(op: ReduceOp) -> Self {
                Self::identity(op)
            }
            #[inline(always)]
            fn divide(self, count: u64) -> Self {
                <$type>::try_from(count).map_or(0, |count| self.wrapping_div(count))
            }
        }
    };
}
integer_reduce!(i32);
integer_reduce!(i64);
integer_reduce!(u8);

struct Accumulator<T> {
    partials: [T; PARTIALS],
    pending: [T; LINE],
    filled: usize,
}

impl<T: Reduce> Accumulator<T> {
    #[inline(always)]
    fn add_block(&mut self, op: ReduceOp, block: &[T]) {
        macro_rules! accumulate {
            ($op:expr) => {{
                let mut chunks = block.chunks_exact(PARTIALS);
                let mut partials = self.partials;
                for chunk in &mut chunks {
                    for i in 0..PARTIALS {
                        partials[i] = T::combine($op, partials[i], chunk[i]);
                    }
                }
                for (p, &x) in partials.iter_mut().zip(chunks.remainder()) {
                    *p = T::combine($op, *p, x);
                }
                self.partials = partials;
            }};
        }
        match op {
            ReduceOp::Sum | ReduceOp::Mean => accumulate!(ReduceOp::Sum),
            ReduceOp::Max => accumulate!(ReduceOp::Max),
            ReduceOp::Min => accumulate!(ReduceOp::Min),
        }
    }

    /// Adds the next elements of the reduced loops in order.
    #[inline(always)]
    fn add(&mut self, op: ReduceOp, line: Line<'_, T>, n: usize) {
        // Whole blocks go straight on; only a line that ends inside a block waits for the next.
        if self.filled == 0
            && n.is_multiple_of(PARTIALS)
            && let Line::Each(slice) = line
        {
            self.add_block(op, slice);
            return;
        }
        for i in 0..n {
            self.pending[self.filled] = line.at(i);
            self.filled += 1;
            if self.filled == LINE {
                self.flush(op);
            }
        }
    }

    #[inline(always)]
    fn flush(&mut self, op: ReduceOp) {
        let pending = self.pending;
        self.add_block(op, &pending[..self.filled]);
        self.filled = 0;
    }

    #[inline(always)]
    fn finish(mut self, op: ReduceOp) -> T {
        if self.filled > 0 {
            self.flush(op);
        }
        let mut width = PARTIALS / 2;
        while width > 0 {
            for i in 0..width {
                self.partials[i] = T::combine(op, self.partials[i], self.partials[i + width]);
            }
            width /= 2;
        }
        self.partials[0]
    }
}

/// Adds the elements of one line.
///
/// # Safety
/// All elements must be valid.
#[inline(always)]
unsafe fn add_line<T: Reduce>(
    op: ReduceOp,
    line: Cursor,
    extent: usize,
    accumulator: &mut Accumulator<T>,
    buffer: &mut [T; LINE],
) {
    chunks(extent, |at, n| {
        // SAFETY: the caller vouches for all elements of the line.
        let elements = unsafe { T::load(line.advanced(at), n, buffer) };
        accumulator.add(op, elements, n);
    });
}

/// Reduces the elements of `inner` from `from` on into the one element of `to`.
///
/// # Safety
/// All elements must be valid; nobody else may use that of `to`.
#[inline(always)]
unsafe fn reduce_lane<T: Reduce>(op: ReduceOp, from: Cursor, inner: Walk<'_>, to: Cursor) {
    let mut accumulator = Accumulator {
        partials: [T::identity(op); PARTIALS],
        pending: [T::default(); LINE],
        filled: 0,
    };
    let mut buffer = [T::default(); LINE];
    let last = inner.extents.len() - 1;
    let extent = inner.extents[last] as usize;
    let from = Cursor { stride: inner.strides[last] as usize, ..from };
    each(&inner.extents[..last], |at| {
        let offset: u64 = at.iter().zip(inner.strides).map(|(i, s)| i * s).sum();
        let line = from.moved(offset as usize);
        // SAFETY: the caller vouches for all elements of the loops.
        unsafe { add_line(op, line, extent, &mut accumulator, &mut buffer) };
    });
    let mut result = accumulator.finish(op);
    if inner.extents.contains(&0) {
        result = T::of_nothing(op);
    }
    if op == ReduceOp::Mean {
        result = result.divide(inner.extents.iter().product());
    }
    // SAFETY: the caller vouches for the element of `to`.
    unsafe { T::store(Cursor { stride: 1, ..to }, 1, &mut buffer, |out| out[0] = result) };
}

/// A reduction as a kernel, so that it is compiled for each instruction set.
struct ReduceLoops<'a> {
    op: ReduceOp,
    from: Cursor,
    inner: Walk<'a>,
    to: Cursor,
}

impl Kernel for ReduceLoops<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let Self { op, from, inner, to } = self;
        // SAFETY: the promise of the caller of `reduce`.
        unsafe {
            match from.dtype {
                DType::F32 | DType::F16 | DType::BF16 => reduce_lane::<f32>(op, from, inner, to),
                DType::I32 => reduce_lane::<i32>(op, from, inner, to),
                DType::I64 => reduce_lane::<i64>(op, from, inner, to),
                DType::U8 | DType::Bool | DType::E4M3 | DType::I4 => {
                    reduce_lane::<u8>(op, from, inner, to)
                }
            }
        }
    }
}

/// Reduces with the arithmetic of the dtype.
///
/// # Safety
/// All elements must be valid; nobody else may use that of `to`.
#[inline(always)]
pub(super) unsafe fn reduce(isa: Isa, op: ReduceOp, from: Cursor, inner: Walk<'_>, to: Cursor) {
    isa.dispatch(ReduceLoops { op, from, inner, to });
}

/// Finds the `k` largest elements of a line of `extent`, in descending order with ties in the
/// order of indices and NaNs last; `best` and `at` hold k elements each.
///
/// # Safety
/// All elements must be valid, `best` of the lane's own type; nobody else may use those of `best`
/// and `at`.
#[inline(always)]
unsafe fn top_k_lane<T: Lane>(from: Cursor, extent: usize, k: usize, best: Cursor, at: Cursor) {
    // SAFETY: the caller vouches for k elements of each.
    let (best, indices) = unsafe {
        let best = std::slice::from_raw_parts_mut(best.address.cast::<T>(), k);
        (best, std::slice::from_raw_parts_mut(at.address.cast::<i32>(), k))
    };
    let beats = |x: T, y: T| x > y || (y.is_nan() && !x.is_nan());
    let mut found = 0;
    let mut buffer = [T::default(); LINE];
    chunks(extent, |start, n| {
        // SAFETY: the caller vouches for the line's elements.
        let line = unsafe { T::load(from.advanced(start), n, &mut buffer) };
        for i in 0..n {
            let x = line.at(i);
            if found == k && !beats(x, best[k - 1]) {
                continue;
            }
            let mut slot = if found < k { found } else { k - 1 };
            while slot > 0 && beats(x, best[slot - 1]) {
                (best[slot], indices[slot]) = (best[slot - 1], indices[slot - 1]);
                slot -= 1;
            }
            (best[slot], indices[slot]) = (x, (start + i) as i32);
            found = (found + 1).min(k);
        }
    });
}

/// A search as a kernel, so that it is compiled for each instruction set.
struct Search {
    from: Cursor,
    extent: usize,
    k: usize,
    best: Cursor,
    at: Cursor,
}

impl Kernel for Search {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let Self { from, extent, k, best, at } = self;
        // SAFETY: the promise of the caller of `top_k`.
        unsafe {
            match from.dtype {
                DType::F32 | DType::F16 | DType::BF16 => {
                    top_k_lane::<f32>(from, extent, k, best, at);
                }
                DType::I32 => top_k_lane::<i32>(from, extent, k, best, at),
                DType::I64 => top_k_lane::<i64>(from, extent, k, best, at),
                DType::U8 | DType::Bool | DType::E4M3 | DType::I4 => {
                    top_k_lane::<u8>(from, extent, k, best, at)
                }
            }
        }
    }
}

/// Finds the `k` largest elements of the line at `from`.
///
/// # Safety
/// As for the lanes.
#[inline(always)]
pub(super) unsafe fn top_k(
    isa: Isa,
    from: Cursor,
    extent: usize,
    k: usize,
    best: Cursor,
    at: Cursor,
) {
    isa.dispatch(Search { from, extent, k, best, at });
}
