//! What sequences own of the states: pages of the KV pool and slots, which are free, and how many
//! there are.

mod pool;
mod sizing;
mod slots;
mod table;

pub use pool::{Page, PagePool, PoolFull};
pub use sizing::{KvShape, SizingError};
pub use slots::{SlotPool, StateKind, StateSlot};
pub use table::PageTable;
