//! What sequences own of the states: pages of the KV pool and slots, which are free, which are found
//! by what they hold, and how many there are.

mod embeddings;
mod poison;
mod pool;
mod prefix;
mod sample_states;
mod sizing;
mod slots;
mod table;

pub(crate) use embeddings::EmbeddingPool;
pub use embeddings::{RowsError, RowsId};
pub use piecewise_kernels::attention::PAGE_ROWS;
pub use poison::KvPoison;
pub use pool::{Page, PagePool, PoolFull};
pub use prefix::{KvEvent, KvObserver, PageHash};
pub(crate) use sample_states::{SampleStates, sample_blocks};
pub use sizing::{KvShape, SizingError};
pub use slots::{SlotPool, StateKind, StateSlot};
pub use table::PageTable;
