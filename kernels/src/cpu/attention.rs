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

use super::element::FloatAddress;
use super::scratch::{self, Shared};
use super::{CpuMathError, FloatSlice, FloatSliceMut, Isa, parallel};
use block::{Block, Layout, Visibility};

/// Rows of a page of the pool: slot = page * 16 + offset.
pub const PAGE_ROWS: usize = 16;

/// Query vectors (rows times heads of one group) that share a converted tile of keys and values.
const QUERY_VECTORS: usize = 64;
/// Multiply-adds below which waking other threads costs more than it saves.
const PARALLEL_WORK: usize = 1 << 16;

/// Heads and widths of an attention call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionShape {
    /// Heads of q and of the output: a multiple of `kv_heads`.
    pub q_heads: usize,
    /// Heads of k and v.
    pub kv_heads: usize,
    /// Width of a head of q and k.
    pub head_dim: usize,
    /// Width of a head of v and of the output.
    pub value_dim: usize,
}

/// Operands of [`paged_attention`]. `T` rows of q, `P` rows in the pool, `S` sequences.
#[derive(Debug)]
pub struct PagedAttention<'a> {
    /// How many heads there are, and how wide their rows are.
    pub shape: AttentionShape,
    /// `[T, q_heads, head_dim]`; row `query_start[s] + j` is query `j` of sequence `s`.
    pub q: FloatSlice<'a>,
    /// `[P, kv_heads, head_dim]`, of any float type.
    pub k: FloatSlice<'a>,
    /// `[P, kv_heads, value_dim]`, of any float type.
    pub v: FloatSlice<'a>,
    /// `[S, max_blocks]`: the page that holds positions `16 * i ..` of sequence `s`. Entries past
    /// its length are not read.
    pub block_table: &'a [i32],
    /// Columns of the block table.
    pub max_blocks: usize,
    /// `[S]`: positions of each sequence, those of this step included; 0 marks padding, whose
    /// rows are left alone.
    pub seq_lens: &'a [i32],
    /// `[S + 1]`: first row of q of each sequence, from 0; rows past the last are padding.
    pub query_start: &'a [i32],
    /// What scores are multiplied by before the softmax.
    pub scale: f32,
    /// Query `j` of `n` sees positions `0 ..= len - n + j` instead of all `len`.
    pub causal: bool,
    /// `[T, q_heads, value_dim]`.
    pub out: FloatSliceMut<'a>,
    /// At least [`attention_scratch_bytes`] bytes for as many threads as should work.
    pub scratch: &'a mut [u8],
}

/// Operands of [`segment_attention`]: the queries of a segment attend to the keys of the same
/// segment, whose last positions are the queries' own.
#[derive(Debug)]
pub struct SegmentAttention<'a> {
    /// How many heads there are, and how wide their rows are.
    pub shape: AttentionShape,
    /// `[T, q_heads, head_dim]`.
    pub q: FloatSlice<'a>,
    /// `[K, kv_heads, head_dim]`, of any float type.
    pub k: FloatSlice<'a>,
    /// `[K, kv_heads, value_dim]`, of any float type.
    pub v: FloatSlice<'a>,
    /// `[S + 1]`: first row of q of each segment, from 0; rows past the last are padding.
    pub query_start: &'a [i32],
    /// `[S]`: first row of k and v of each segment.
    pub key_starts: &'a [i32],
    /// `[S]`: rows of k and v of each segment.
    pub key_lengths: &'a [i32],
    /// What scores are multiplied by before the softmax.
    pub scale: f32,
    /// Query `j` of `n` sees positions `0 ..= len - n + j` instead of all `len`.
    pub causal: bool,
    /// The farthest position that a query sees, on either side of its own.
    pub window: Option<usize>,
    /// `[T, q_heads, value_dim]`; zeros where a query sees nothing.
    pub out: FloatSliceMut<'a>,
    /// At least [`attention_scratch_bytes`] bytes for as many threads as should work.
    pub scratch: &'a mut [u8],
}

/// Scratch bytes for [`paged_attention`] and [`segment_attention`] on up to `threads` threads.
///
/// With less, down to what one thread needs, a call uses fewer threads.
pub fn attention_scratch_bytes(shape: AttentionShape, threads: usize) -> usize {
    Layout::of(shape).bytes().saturating_mul(threads.max(1))
}

/// Attends to keys and values in a paged pool.
///
/// # Errors
/// If a slice is too short, the heads do not divide, lengths, query starts or page ids do not fit,
/// or the scratch does not serve one thread; nothing was written.
pub fn paged_attention(isa: Isa, args: PagedAttention<'_>) -> Result<(), CpuMathError> {
    const CALL: &str = "paged_attention";
    let PagedAttention { shape, q, k, v, seq_lens, max_blocks, .. } = args;
    let sequences = seq_lens.len();
    check_shape(CALL, shape)?;
    at_least(CALL, "query_start", args.query_start.len(), Some(sequences.saturating_add(1)))?;
    at_least(CALL, "block_table", args.block_table.len(), sequences.checked_mul(max_blocks))?;
    let query_start = &args.query_start[..=sequences];
    let rows = q.len() / (shape.q_heads * shape.head_dim);
    check_query_start(CALL, query_start, rows)?;
    let pool = (k.len() / (shape.kv_heads * shape.head_dim))
        .min(v.len() / (shape.kv_heads * shape.value_dim));
    let table = Table { call: CALL, pages: args.block_table, max_blocks, pool };
    for (sequence, length) in seq_lens.iter().enumerate() {
        let queries = (query_start[sequence + 1] - query_start[sequence]) as usize;
        table.check(sequence, *length, queries)?;
    }
    let job = Job {
        call: CALL,
        shape,
        operands: [q, k, v].map(FloatAddress::of),
        keys: Keys::Paged { table: args.block_table, max_blocks, seq_lens },
        query_start,
        scale: args.scale,
        causal: args.causal,
        window: None,
    };
    job.run(isa, args.out, args.scratch)
}

/// Attends within segments of packed rows.
///
/// # Errors
/// As for [`paged_attention`].
pub fn segment_attention(isa: Isa, args: SegmentAttention<'_>) -> Result<(), CpuMathError> {
    const CALL: &str = "segment_attention";
    let SegmentAttention { shape, q, k, v, query_start, key_starts, key_lengths, .. } = args;
    check_shape(CALL, shape)?;
    at_least(CALL, "query_start", query_start.len(), Some(1))?;
    let segments = query_start.len() - 1;
    at_least(CALL, "key_starts", key_starts.len(), Some(segments))?;
    at_least(CALL, "key_lengths", key_lengths.len(), Some(segments))?;
    check_query_start(CALL, query_start, q.len() / (shape.q_heads * shape.head_dim))?;
    let rows = (k.len() / (shape.kv_heads * shape.head_dim))
        .min(v.len() / (shape.kv_heads * shape.value_dim));
    for segment in 0..segments {
        let (start, length) = (key_starts[segment], key_lengths[segment]);
        if start < 0 || length < 0 || start as usize + length as usize > rows {
            return Err(CpuMathError::Segment { call: CALL, segment, start, length, rows });
        }
    }
    let job = Job {
        call: CALL,
        shape,
        operands: [q, k, v].map(FloatAddress::of),
        keys: Keys::Segments { starts: key_starts, lengths: key_lengths },
        query_start,
        scale: args.scale,
        causal: args.causal,
        window: args.window,
    };
    job.run(isa, args.out, args.scratch)
}

fn check_shape(call: &'static str, shape: AttentionShape) -> Result<(), CpuMathError> {
    let AttentionShape { q_heads, kv_heads, head_dim, value_dim } = shape;
    let bad = |name, value, rule| Err(CpuMathError::BadShape { call, name, value, rule });
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

fn at_least(
    call: &'static str,
    operand: &'static str,
    have: usize,
    need: Option<usize>,
) -> Result<(), CpuMathError> {
    let need = need.unwrap_or(usize::MAX);
    if have < need {
        return Err(CpuMathError::OperandTooShort { call, operand, need, have });
    }
    Ok(())
}

fn check_query_start(
    call: &'static str,
    query_start: &[i32],
    rows: usize,
) -> Result<(), CpuMathError> {
    let mut low = 0;
    for (index, value) in query_start.iter().enumerate() {
        let fits = *value >= low && *value as usize <= rows && (index > 0 || *value == 0);
        if !fits {
            return Err(CpuMathError::QueryStart { call, index, value: *value, low, high: rows });
        }
        low = *value;
    }
    Ok(())
}

struct Table<'a> {
    call: &'static str,
    pages: &'a [i32],
    max_blocks: usize,
    pool: usize,
}

impl Table<'_> {
    fn check(&self, sequence: usize, length: i32, queries: usize) -> Result<(), CpuMathError> {
        let Table { call, max_blocks, pool: rows, .. } = *self;
        let capacity = max_blocks.saturating_mul(PAGE_ROWS);
        if length == 0 {
            return Ok(());
        }
        if length < 0 || (length as usize) < queries || length as usize > capacity {
            return Err(CpuMathError::SequenceLength { call, sequence, length, queries, capacity });
        }
        let mut left = length as usize;
        for (entry, page) in self.pages[sequence * max_blocks..].iter().enumerate() {
            let used = left.min(PAGE_ROWS);
            if *page < 0 || *page as usize * PAGE_ROWS + used > rows {
                let page = *page;
                return Err(CpuMathError::PageOutOfPool { call, sequence, entry, page, rows });
            }
            left -= used;
            if left == 0 {
                break;
            }
        }
        Ok(())
    }
}

#[derive(Clone, Copy)]
enum Keys<'a> {
    Paged { table: &'a [i32], max_blocks: usize, seq_lens: &'a [i32] },
    Segments { starts: &'a [i32], lengths: &'a [i32] },
}

/// A call whose indices have been checked.
struct Job<'a> {
    call: &'static str,
    shape: AttentionShape,
    operands: [FloatAddress; 3],
    keys: Keys<'a>,
    query_start: &'a [i32],
    scale: f32,
    causal: bool,
    window: Option<usize>,
}

impl Job<'_> {
    fn run(
        &self,
        isa: Isa,
        out: FloatSliceMut<'_>,
        scratch: &mut [u8],
    ) -> Result<(), CpuMathError> {
        let (call, shape) = (self.call, self.shape);
        let sequences = self.query_start.len() - 1;
        let rows = self.query_start[sequences] as usize;
        let need = rows.checked_mul(shape.q_heads * shape.value_dim);
        at_least(call, "out", out.len(), need)?;
        let layout = Layout::of(shape);
        let need = layout.bytes();
        if !scratch::fits(scratch, need) {
            return Err(CpuMathError::Scratch {
                call,
                need,
                have: scratch.len(),
                align: scratch::alignment_of(scratch),
                size_function: "attention_scratch_bytes",
            });
        }
        let threads = match self.work() < PARALLEL_WORK {
            true => 1,
            false => parallel::pool_threads().min(scratch.len() / need),
        };
        let out = FloatAddress::of_mut(out);
        let scratch = Shared(scratch.as_mut_ptr());
        let blocks = self.first_block(sequences) * shape.kv_heads;
        parallel::for_each_block(threads, blocks, |worker, index| {
            let head = index % shape.kv_heads;
            let Some(block) = self.block(index / shape.kv_heads, head, out) else { return };
            let scratch = scratch.get().wrapping_add(worker * need).cast();
            // SAFETY: the indices were checked, the scratch part is this worker's own, and no two
            // blocks share an output row and head.
            unsafe { block.run(isa, layout, scratch) }
        });
        Ok(())
    }

    fn length(&self, sequence: usize) -> usize {
        match self.keys {
            Keys::Paged { seq_lens, .. } => seq_lens[sequence] as usize,
            Keys::Segments { lengths, .. } => lengths[sequence] as usize,
        }
    }

    fn queries(&self, sequence: usize) -> std::ops::Range<usize> {
        self.query_start[sequence] as usize..self.query_start[sequence + 1] as usize
    }

    /// Multiply-adds of the whole call, saturating.
    fn work(&self) -> usize {
        let AttentionShape { q_heads, head_dim, value_dim, .. } = self.shape;
        (0..self.query_start.len() - 1)
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
            Keys::Paged { table, max_blocks, .. } => (Some(&table[sequence * max_blocks..]), 0),
            Keys::Segments { starts, .. } => (None, starts[sequence] as usize),
        };
        let [q, k, v] = self.operands;
        Some(Block {
            shape: self.shape,
            q,
            k,
            v,
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
        })
    }

    /// The last sequence whose first block number is at most `number`.
    fn owner(&self, number: usize) -> usize {
        let (mut low, mut high) = (0, self.query_start.len() - 1);
        while high - low > 1 {
            let middle = low.midpoint(high);
            if self.first_block(middle) <= number { low = middle } else { high = middle }
        }
        low
    }
}

#[cfg(test)]
mod tests;
