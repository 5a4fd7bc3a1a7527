//! What a call of attention is made of, and the pages of its pool.

/// Rows of a page of the pool: slot = page * 16 + offset.
pub const PAGE_ROWS: usize = crate::inputs::PAGE_ROWS as usize;

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
