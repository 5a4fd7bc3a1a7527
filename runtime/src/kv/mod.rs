//! The paged KV pool: which pages are free, which sequence owns which, and how many there are.

mod pool;
mod sizing;
mod table;

pub use pool::{Page, PagePool, PoolFull};
pub use sizing::{KvShape, SizingError};
pub use table::PageTable;
