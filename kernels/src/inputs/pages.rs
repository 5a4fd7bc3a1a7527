//! How the rows of a paged state lie in its pages.

/// Rows of a KV page: slot = page * [`PAGE_ROWS`] + offset.
pub const PAGE_ROWS: u64 = 16;
