//! What is told while a model is built.

/// What happens while a model is built.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// Unique pieces at sizes, compiled or taken from the store.
    Compiling {
        /// So many are there.
        done: usize,
        /// So many there will be.
        total: usize,
    },
    /// Weights made on the device.
    Loading {
        /// So many are there.
        done: usize,
        /// So many there will be.
        total: usize,
    },
    /// Graphs captured.
    Capturing {
        /// So many are there.
        done: usize,
        /// So many there will be.
        total: usize,
    },
}
