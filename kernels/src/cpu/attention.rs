//! Attention of variable-length sequences over a paged pool or over segments of packed rows,
//! grouped-query, causal or not, with values of their own width.
//!
//! **Guarantee.** The output of one query row and head depends on that row, the keys and values
//! it sees and their number alone: keys are taken from the first in tiles of [`PAGE_ROWS`], with
//! an online softmax in f32 (Milakov and Gimelshein 2018, arXiv 1805.02867; Dao et al. 2022, arXiv
//! 2205.14135). So the bits are the same for any thread count, padded size and batch, paged or
//! packed, prefilled at once or in chunks.
//!
//! Keys and values past what a row sees enter no sum, not even times zero, and none past the
//! sequence's length is read.

mod block;
mod shape;

use super::element::FloatAddress;
use super::scratch::{self, Shared};
use super::{CpuMathError, FloatSlice, FloatSliceMut, Isa, at_least, parallel};
use block::{Block, Layout, Visibility};
pub use shape::{AttentionShape, PAGE_ROWS};

const CALL: &str = "attention";

/// Multiply-adds below which waking other threads costs more than it saves.
const PARALLEL_WORK: usize = 1 << 16;

/// Where the keys of each of `S` sequences lie in k and v.
#[derive(Debug, Clone, Copy)]
pub enum Keys<'a> {
    /// In pages of a pool.
    Paged {
        /// `[S, max_blocks]`: the page that holds positions `16 * i ..` of sequence `s`. Entries
        /// past its length are not read.
        block_table: &'a [i32],
        /// Columns of the block table.
        max_blocks: usize,
        /// `[S]`: positions of each sequence, those of this step included; 0 marks padding, whose
        /// rows are left alone.
        lengths: &'a [i32],
    },
    /// Segments one after another in k and v, which are packed.
    Segments {
        /// `[S]`: the first row of k and v of each segment.
        starts: &'a [i32],
        /// `[S]`: rows of k and v of each segment.
        lengths: &'a [i32],
    },
}

impl<'a> Keys<'a> {
    fn lengths(self) -> &'a [i32] {
        match self {
            Self::Paged { lengths, .. } | Self::Segments { lengths, .. } => lengths,
        }
    }
}

/// What is read for attention: the queries of a sequence see keys of the same sequence, whose last
/// positions are the queries' own.
#[derive(Debug, Clone, Copy)]
pub struct Attention<'a> {
    /// How many heads there are, and how wide their rows are.
    pub shape: AttentionShape,
    /// `[T, q_heads, head_dim]`; row `query_start[s] + j` is query `j` of sequence `s`.
    pub q: FloatSlice<'a>,
    /// `[K, kv_heads, head_dim]`, of any float type.
    pub k: FloatSlice<'a>,
    /// `[K, kv_heads, value_dim]`, of any float type.
    pub v: FloatSlice<'a>,
    /// `[S + 1]`: first row of q of each sequence, from 0; rows past the last are padding.
    pub query_start: &'a [i32],
    /// Which rows of k and v each sequence has.
    pub keys: Keys<'a>,
    /// What scores are multiplied by before the softmax.
    pub scale: f32,
    /// Query `j` of `n` sees positions `0 ..= len - n + j` instead of all `len`.
    pub causal: bool,
    /// The farthest position that a query sees, on either side of its own.
    pub window: Option<usize>,
    /// Scaled scores are `softcap * tanh(score / softcap)` before the softmax.
    pub softcap: Option<f32>,
    /// `[q_heads]`: a score of each head that joins the softmax of its rows, of a key without a value.
    pub sinks: Option<FloatSlice<'a>>,
}

/// Scratch bytes for [`attention`] on up to `threads` threads.
///
/// With less, down to what one thread needs, a call uses fewer threads.
pub fn attention_scratch_bytes(shape: AttentionShape, threads: usize) -> usize {
    Layout::of(shape).bytes().saturating_mul(threads.max(1))
}

/// Attends: `out` is `[T, q_heads, value_dim]`, zeros where a query of a segment sees nothing, and
/// `scratch` at least [`attention_scratch_bytes`] for as many threads as should work.
///
/// # Errors
/// If a slice is too short, the heads do not divide, lengths, query starts, key starts or page ids
/// do not fit, or the scratch does not serve one thread; nothing was written.
pub fn attention(
    isa: Isa,
    call: &Attention<'_>,
    out: FloatSliceMut<'_>,
    scratch: &mut [u8],
) -> Result<(), CpuMathError> {
    let shape = call.shape;
    check_shape(shape)?;
    call.check()?;
    let sequences = call.keys.lengths().len();
    let rows = call.query_start[sequences] as usize;
    at_least(CALL, "out", out.len(), rows.saturating_mul(shape.q_heads * shape.value_dim))?;
    let layout = Layout::of(shape);
    let need = layout.bytes();
    scratch::check(CALL, scratch, need, "attention_scratch_bytes")?;
    let threads = match call.work() < PARALLEL_WORK {
        true => 1,
        false => parallel::pool_threads().min(scratch.len() / need),
    };
    let out = FloatAddress::of_mut(out);
    let scratch = Shared(scratch.as_mut_ptr());
    let blocks = call.first_block(sequences) * shape.kv_heads;
    parallel::for_each_block(threads, blocks, |worker, index| {
        let head = index % shape.kv_heads;
        let Some(block) = call.block(index / shape.kv_heads, head, out) else { return };
        let scratch = scratch.get().wrapping_add(worker * need).cast();
        // SAFETY: the indices were checked, the scratch part is this worker's own, and no two
        // blocks share an output row and head.
        unsafe { block.run(isa, layout, scratch) }
    });
    Ok(())
}

fn check_shape(shape: AttentionShape) -> Result<(), CpuMathError> {
    let AttentionShape { q_heads, kv_heads, head_dim, value_dim } = shape;
    let bad = |name, value, rule| Err(CpuMathError::BadShape { call: CALL, name, value, rule });
    const LIMIT: usize = 1 << 20;
    for (name, value) in [
        ("q_heads", q_heads),
        ("kv_heads", kv_heads),
        ("head_dim", head_dim),
        ("value_dim", value_dim),
    ] {
        if value == 0 || value > LIMIT {
            return bad(name, value, "in 1..=1048576");
        }
    }
    if q_heads % kv_heads != 0 {
        return bad("q_heads", q_heads, "a multiple of kv_heads");
    }
    Ok(())
}

impl Attention<'_> {
    /// Holds the indices against what they point into.
    fn check(&self) -> Result<(), CpuMathError> {
        let AttentionShape { q_heads, kv_heads, head_dim, value_dim } = self.shape;
        let sequences = self.keys.lengths().len();
        let query_start = self.query_start;
        at_least(CALL, "query_start", query_start.len(), sequences.saturating_add(1))?;
        let high = self.q.len() / (q_heads * head_dim);
        let mut low = 0;
        for (index, &value) in query_start[..=sequences].iter().enumerate() {
            if value < low || value as usize > high || (index == 0 && value != 0) {
                return Err(CpuMathError::QueryStart { call: CALL, index, value, low, high });
            }
            low = value;
        }
        if let Some(sinks) = self.sinks {
            at_least(CALL, "sinks", sinks.len(), q_heads)?;
        }
        let rows =
            (self.k.len() / (kv_heads * head_dim)).min(self.v.len() / (kv_heads * value_dim));
        match self.keys {
            Keys::Paged { block_table, max_blocks, .. } => {
                let need = sequences.saturating_mul(max_blocks);
                at_least(CALL, "block_table", block_table.len(), need)?;
                (0..sequences).try_for_each(|sequence| {
                    let table = &block_table[sequence * max_blocks..][..max_blocks];
                    self.check_pages(sequence, table, rows)
                })
            }
            Keys::Segments { starts, lengths } => {
                at_least(CALL, "key_starts", starts.len(), sequences)?;
                for (segment, (&start, &length)) in starts.iter().zip(lengths).enumerate() {
                    if start < 0 || length < 0 || start as usize + length as usize > rows {
                        let call = CALL;
                        return Err(CpuMathError::Segment { call, segment, start, length, rows });
                    }
                }
                Ok(())
            }
        }
    }

    /// Holds the pages of a sequence against a pool of `rows`.
    fn check_pages(&self, sequence: usize, table: &[i32], rows: usize) -> Result<(), CpuMathError> {
        let (call, length) = (CALL, self.keys.lengths()[sequence]);
        let (queries, capacity) = (self.queries(sequence).len(), table.len() * PAGE_ROWS);
        if length == 0 {
            return Ok(());
        }
        if length < 0 || (length as usize) < queries || length as usize > capacity {
            return Err(CpuMathError::SequenceLength { call, sequence, length, queries, capacity });
        }
        let length = length as usize;
        for (entry, &page) in table[..length.div_ceil(PAGE_ROWS)].iter().enumerate() {
            let used = (length - entry * PAGE_ROWS).min(PAGE_ROWS);
            if page < 0 || page as usize * PAGE_ROWS + used > rows {
                return Err(CpuMathError::PageOutOfPool { call, sequence, entry, page, rows });
            }
        }
        Ok(())
    }

    fn length(&self, sequence: usize) -> usize {
        self.keys.lengths()[sequence] as usize
    }

    fn queries(&self, sequence: usize) -> std::ops::Range<usize> {
        self.query_start[sequence] as usize..self.query_start[sequence + 1] as usize
    }

    /// Multiply-adds of the whole call, saturating.
    fn work(&self) -> usize {
        let AttentionShape { q_heads, head_dim, value_dim, .. } = self.shape;
        (0..self.keys.lengths().len())
            .map(|s| self.queries(s).len().saturating_mul(self.length(s)))
            .fold(0, usize::saturating_add)
            .saturating_mul(q_heads * (head_dim + value_dim))
    }

    /// Number of the first block of query rows of a sequence. Each sequence owns at least as many
    /// numbers as it has blocks, which makes the owner of a number a binary search.
    fn first_block(&self, sequence: usize) -> usize {
        self.query_start[sequence] as usize / Layout::of(self.shape).block_rows + sequence
    }

    fn block(&self, number: usize, head: usize, out: FloatAddress) -> Option<Block<'_>> {
        let sequence = self.owner(number);
        let block_rows = Layout::of(self.shape).block_rows;
        let queries = self.queries(sequence);
        let first = queries.start + (number - self.first_block(sequence)) * block_rows;
        let length = self.length(sequence);
        // A sequence of the pool without keys is padding.
        let padding = length == 0 && matches!(self.keys, Keys::Paged { .. });
        if first >= queries.end || padding {
            return None;
        }
        let last = (first + block_rows).min(queries.end);
        let (pages, first_key) = match self.keys {
            Keys::Paged { block_table, max_blocks, .. } => {
                (Some(&block_table[sequence * max_blocks..]), 0)
            }
            Keys::Segments { starts, .. } => (None, starts[sequence] as usize),
        };
        Some(Block {
            shape: self.shape,
            q: FloatAddress::of(self.q),
            k: FloatAddress::of(self.k),
            v: FloatAddress::of(self.v),
            out,
            head,
            rows: first..last,
            pages,
            first_key,
            visibility: Visibility {
                length,
                position: length as isize - (queries.end - first) as isize,
                causal: self.causal,
                window: self.window,
            },
            scale: self.scale,
            softcap: self.softcap,
            sinks: self.sinks,
        })
    }

    /// The last sequence whose first block number is at most `number`.
    fn owner(&self, number: usize) -> usize {
        let (mut low, mut high) = (0, self.keys.lengths().len());
        while high - low > 1 {
            let middle = low.midpoint(high);
            if self.first_block(middle) <= number { low = middle } else { high = middle }
        }
        low
    }
}

#[cfg(test)]
mod tests;
