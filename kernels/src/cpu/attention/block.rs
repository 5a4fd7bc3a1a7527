//! One block of work: a few query rows of one sequence, for the heads that share one key head.

use std::ops::Range;

use crate::cpu::FloatSlice;
use crate::cpu::convert::convert_row;
use crate::cpu::dot::{Ahead, dot_tile};
use crate::cpu::element::{Element, FloatAddress, with_address};
use crate::cpu::rows::transcendental::tanh;
use crate::cpu::simd::{Isa, Kernel, MAX_LANES, Simd};

use crate::op::with_elements;

use super::shape::{AttentionShape, PAGE_ROWS};

/// Query vectors (rows times heads of one group) that share a converted tile of keys and values.
const QUERY_VECTORS: usize = 64;

const CACHE_LINE: usize = 64;

/// Where the f32 temporaries of one worker lie in its part of the scratch.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    /// Query rows of a block: a function of the shape alone.
    pub(super) block_rows: usize,
    vectors: usize,
    key_stride: usize,
    value_stride: usize,
}

impl Layout {
    pub(super) fn of(shape: AttentionShape) -> Layout {
        let group = (shape.q_heads / shape.kv_heads.max(1)).max(1);
        let block_rows = (QUERY_VECTORS / group).max(1);
        Layout {
            block_rows,
            vectors: block_rows.saturating_mul(group),
            key_stride: shape.head_dim.div_ceil(MAX_LANES).saturating_mul(MAX_LANES),
            value_stride: shape.value_dim.div_ceil(MAX_LANES).saturating_mul(MAX_LANES),
        }
    }

    /// Bytes of one worker's part: query and output vectors, running maximum and sum of each, a
    /// tile of keys and a tile of values.
    pub(super) fn bytes(self) -> usize {
        let wide = self.key_stride.saturating_add(self.value_stride);
        let rows = self.vectors.saturating_add(PAGE_ROWS).saturating_mul(wide);
        let state = self.vectors.saturating_mul(2).div_ceil(MAX_LANES).saturating_mul(MAX_LANES);
        rows.saturating_add(state).saturating_mul(size_of::<f32>())
    }
}

/// Which keys the rows of a block see.
#[derive(Clone, Copy)]
pub(super) struct Visibility {
    /// Keys of the sequence.
    pub(super) length: usize,
    /// The position of the first row; below 0 where there are more rows than keys.
    pub(super) position: isize,
    pub(super) causal: bool,
    pub(super) window: Option<usize>,
}

impl Visibility {
    /// The keys that row `i` sees.
    #[inline(always)]
    fn of(self, i: usize) -> Range<usize> {
        let position = self.position + i as isize;
        let past = |last: isize| (last + 1).clamp(0, self.length as isize) as usize;
        let mut seen = 0..self.length;
        if self.causal {
            seen.end = past(position);
        }
        if let Some(window) = self.window {
            let window = isize::try_from(window).unwrap_or(isize::MAX / 2).min(isize::MAX / 2);
            seen.end = seen.end.min(past(position + window));
            seen.start = past(position - window - 1).min(seen.end);
        }
        seen
    }
}

pub(super) struct Block<'a> {
    pub(super) shape: AttentionShape,
    pub(super) q: FloatAddress,
    pub(super) k: FloatAddress,
    pub(super) v: FloatAddress,
    pub(super) out: FloatAddress,
    /// The head of k and v, which several heads of q may share.
    pub(super) head: usize,
    /// The rows of q that are computed.
    pub(super) rows: Range<usize>,
    /// The sequence's row of the block table, and what follows it; none if packed.
    pub(super) pages: Option<&'a [i32]>,
    /// The first row of keys of a segment.
    pub(super) first_key: usize,
    pub(super) visibility: Visibility,
    pub(super) scale: f32,
    pub(super) softcap: Option<f32>,
    pub(super) sinks: Option<FloatSlice<'a>>,
}

impl Block<'_> {
    /// # Safety
    /// Rows, pages and lengths lie within the operands; `scratch` is valid for `layout.bytes()`
    /// bytes and aligned; nobody else uses it or the outputs of the block.
    pub(super) unsafe fn run(self, isa: Isa, layout: Layout, scratch: *mut f32) {
        isa.dispatch(Attend { block: self, layout, scratch });
    }
}

struct Attend<'a> {
    block: Block<'a>,
    layout: Layout,
    scratch: *mut f32,
}

impl Kernel for Attend<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Layout { vectors, key_stride, value_stride, .. } = self.layout;
        let Block { shape, head, visibility, .. } = self.block;
        let group = shape.q_heads / shape.kv_heads;
        let rows = self.block.rows.len();
        // Both bounds ascend with the row.
        let (first_seen, seen) = (visibility.of(0).start, visibility.of(rows - 1).end);
        let queries = self.scratch;
        let outputs = queries.wrapping_add(vectors * key_stride);
        let keys = outputs.wrapping_add(vectors * value_stride);
        let values = keys.wrapping_add(PAGE_ROWS * key_stride);
        let maxima = values.wrapping_add(PAGE_ROWS * value_stride);
        let sums = maxima.wrapping_add(vectors);
        // SAFETY: `Block::run` was promised valid operands and a scratch of its own, whose parts
        // are laid out above in the sizes that `Layout::bytes` adds up.
        unsafe {
            // The tails of rows up to whole vectors must be zero; outputs start at zero.
            queries.write_bytes(0, vectors * (key_stride + value_stride));
            keys.write_bytes(0, PAGE_ROWS * (key_stride + value_stride));
            for i in 0..rows * group {
                // A sink is a score of no key, which every row has seen.
                let sink = self.block.sinks.map(|sinks| value(sinks, head * group + i % group));
                *maxima.add(i) = sink.unwrap_or(f32::NEG_INFINITY);
                *sums.add(i) = if sink.is_some() { 1.0 } else { 0.0 };
                let row = (self.block.rows.start + i / group) * shape.q_heads;
                let from = (row + head * group + i % group) * shape.head_dim;
                let to = queries.add(i * key_stride);
                with_address!(self.block.q, q => convert_row(s, q.add(from), to, shape.head_dim));
            }
            for tile in first_seen / PAGE_ROWS..seen.div_ceil(PAGE_ROWS) {
                let start = tile * PAGE_ROWS;
                self.load_tile(s, tile, seen, keys, values);
                for i in 0..rows * group {
                    let visible = visibility.of(i / group);
                    let first = visible.start.saturating_sub(start);
                    let count = visible.end.saturating_sub(start).min(PAGE_ROWS);
                    if first >= count {
                        continue;
                    }
                    let query = queries.add(i * key_stride);
                    let mut scores = self.scores(s, query, keys, count);
                    scores[..first].fill(f32::NEG_INFINITY);
                    let output = outputs.add(i * value_stride);
                    let state = (&mut *maxima.add(i), &mut *sums.add(i));
                    self.accumulate(s, scores, first..count, values, state, output);
                }
            }
            for i in 0..rows * group {
                let output = outputs.add(i * value_stride);
                if visibility.of(i / group).is_empty() {
                    *sums.add(i) = 1.0;
                }
                let sum = s.splat(*sums.add(i));
                for at in (0..value_stride).step_by(S::LANES) {
                    s.store_f32(s.div(s.load_f32(output.add(at)), sum), output.add(at));
                }
                let row = (self.block.rows.start + i / group) * shape.q_heads;
                let to = (row + head * group + i % group) * shape.value_dim;
                let width = shape.value_dim;
                with_address!(self.block.out, out => convert_row(s, output, out.add(to), width));
            }
        }
    }
}

impl Attend<'_> {
    /// First row of k and v of a tile of positions.
    #[inline(always)]
    fn first_row(&self, tile: usize) -> usize {
        match self.block.pages {
            Some(pages) => pages[tile] as usize * PAGE_ROWS,
            None => self.block.first_key + tile * PAGE_ROWS,
        }
    }

    /// Brings the keys and values of a tile, the last at `seen`, into f32 and fetches the next
    /// tile into the cache. Rows past `seen` keep what they held, which no sum reads.
    ///
    /// # Safety
    /// As for [`Block::run`].
    #[inline(always)]
    unsafe fn load_tile<S: Simd>(
        &self,
        s: S,
        tile: usize,
        seen: usize,
        keys: *mut f32,
        values: *mut f32,
    ) {
        let AttentionShape { kv_heads, head_dim, value_dim, .. } = self.block.shape;
        let Layout { key_stride, value_stride, .. } = self.layout;
        let start = tile * PAGE_ROWS;
        let first = self.first_row(tile);
        let next = if start + PAGE_ROWS < seen { self.first_row(tile + 1) } else { first };
        for j in 0..(seen - start).min(PAGE_ROWS) {
            let from = (first + j) * kv_heads + self.block.head;
            let next = (next + j) * kv_heads + self.block.head;
            // SAFETY: the caller's promise.
            unsafe {
                with_address!(self.block.k, k => {
                    prefetch_row(s, k.wrapping_add(next * head_dim), head_dim);
                    convert_row(s, k.add(from * head_dim), keys.add(j * key_stride), head_dim);
                });
                with_address!(self.block.v, v => {
                    prefetch_row(s, v.wrapping_add(next * value_dim), value_dim);
                    convert_row(s, v.add(from * value_dim), values.add(j * value_stride), value_dim);
                });
            }
        }
    }

    /// Scaled scores of one query against a tile; -inf from `count` on.
    ///
    /// # Safety
    /// `query` and the rows of `keys` are valid for `key_stride` elements.
    #[inline(always)]
    unsafe fn scores<S: Simd>(
        &self,
        s: S,
        query: *const f32,
        keys: *const f32,
        count: usize,
    ) -> [f32; PAGE_ROWS] {
        let stride = self.layout.key_stride;
        let mut scores = [f32::NEG_INFINITY; PAGE_ROWS];
        for first in (0..count).step_by(S::KEY_ROWS) {
            let base = keys.wrapping_add(first * stride);
            let to = &mut scores[first..first + S::KEY_ROWS];
            // SAFETY: the caller's promise; KEY_ROWS divides the tile.
            unsafe {
                match S::KEY_ROWS {
                    16 => to.copy_from_slice(&dot_rows::<S, 16>(s, query, base, stride)),
                    8 => to.copy_from_slice(&dot_rows::<S, 8>(s, query, base, stride)),
                    _ => to.copy_from_slice(&dot_rows::<S, 4>(s, query, base, stride)),
                }
            }
        }
        for (j, score) in scores.iter_mut().enumerate() {
            *score = if j < count { *score * self.block.scale } else { f32::NEG_INFINITY };
        }
        if let Some(cap) = self.block.softcap {
            for score in &mut scores[..count] {
                *score = cap * tanh(*score / cap);
            }
        }
        scores
    }

    /// Adds a tile to the running maximum, sum and output of one query.
    ///
    /// # Safety
    /// `output` and the `seen` rows of `values` are valid for `value_stride` elements.
    #[inline(always)]
    unsafe fn accumulate<S: Simd>(
        &self,
        s: S,
        mut scores: [f32; PAGE_ROWS],
        seen: Range<usize>,
        values: *const f32,
        (maximum, sum): (&mut f32, &mut f32),
        output: *mut f32,
    ) {
        let stride = self.layout.value_stride;
        // SAFETY: the scores are a whole number of vectors; the rest is the caller's promise.
        unsafe {
            let mut largest = s.splat(f32::NEG_INFINITY);
            for at in (0..PAGE_ROWS).step_by(S::LANES) {
                largest = s.max(s.load_f32(scores.as_ptr().add(at)), largest);
            }
            let largest = s.max_lane(largest);
            let before = *maximum;
            if largest > before {
                *maximum = largest;
            }
            // With nothing but -inf so far, any finite reference gives the weights 0.
            let reference = if *maximum == f32::NEG_INFINITY { 0.0 } else { *maximum };
            let mut total = s.splat(0.0);
            for at in (0..PAGE_ROWS).step_by(S::LANES) {
                let p = scores.as_mut_ptr().add(at);
                let weights = s.exp(s.sub(s.load_f32(p), s.splat(reference)));
                s.store_f32(weights, p);
                total = s.add(total, weights);
            }
            let kept = s.exp(s.splat(before - reference));
            let mut first = [0.0; MAX_LANES];
            s.store_f32(kept, first.as_mut_ptr());
            *sum = *sum * first[0] + s.sum(total);
            let values = values.add(seen.start * stride);
            let weights = &scores[seen];
            let mut at = 0;
            while at + 4 * S::LANES <= stride {
                add_values::<S, 4>(s, weights, values.add(at), stride, kept, output.add(at));
                at += 4 * S::LANES;
            }
            while at < stride {
                add_values::<S, 1>(s, weights, values.add(at), stride, kept, output.add(at));
                at += S::LANES;
            }
        }
    }
}

fn value(of: FloatSlice<'_>, at: usize) -> f32 {
    with_elements!(FloatSlice, of, of => of[at].to_f32())
}

#[inline(always)]
fn prefetch_row<S: Simd, E>(s: S, row: *const E, len: usize) {
    for at in (0..len).step_by(CACHE_LINE / size_of::<E>()) {
        s.prefetch(row.wrapping_add(at));
    }
}

/// # Safety
/// `query` and `R` rows of `keys` are valid for `stride` elements.
#[inline(always)]
unsafe fn dot_rows<S: Simd, const R: usize>(
    s: S,
    query: *const f32,
    keys: *const f32,
    stride: usize,
) -> [f32; R] {
    let mut rows = [keys; R];
    for (r, row) in rows.iter_mut().enumerate() {
        *row = row.wrapping_add(r * stride);
    }
    // SAFETY: the caller's promise.
    let [sums] =
        unsafe { dot_tile::<S, f32, 1, R, false>(s, query, 0, &rows, Ahead::default(), stride) };
    sums
}

/// `output = output * kept + sum of weights[j] * values[j]`, over `C` vectors.
///
/// # Safety
/// `output` and a row of `values` for each weight are valid for `C` vectors.
#[inline(always)]
unsafe fn add_values<S: Simd, const C: usize>(
    s: S,
    weights: &[f32],
    values: *const f32,
    stride: usize,
    kept: S::V,
    output: *mut f32,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut acc = [kept; C];
        for (c, acc) in acc.iter_mut().enumerate() {
            *acc = s.mul(s.load_f32(output.add(c * S::LANES)), kept);
        }
        for (j, weight) in weights.iter().enumerate() {
            let weight = s.splat(*weight);
            for (c, acc) in acc.iter_mut().enumerate() {
                let value = s.load_f32(values.add(j * stride + c * S::LANES));
                *acc = s.fma(weight, value, *acc);
            }
        }
        for (c, acc) in acc.iter().enumerate() {
            s.store_f32(*acc, output.add(c * S::LANES));
        }
    }
}
