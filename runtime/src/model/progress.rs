//! What is told while a model is built.

use std::time::Duration;

/// What happens while a model is built.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// Unique pieces at sizes, compiled or taken from the store.
    Compiling {
        /// Pieces at sizes so far.
        done: usize,
        /// Pieces at sizes in all.
        total: usize,
    },
    /// Weights made on the device.
    Loading {
        /// Tensors that are on the device.
        done: usize,
        /// Tensors in all.
        total: usize,
    },
    /// Steps in whose captured graph ways were chosen by measurement.
    Measuring {
        /// Steps so far.
        done: usize,
        /// Steps in all.
        total: usize,
        /// How long measuring may take; what is not reached by then is left out. [`Duration::MAX`]
        /// where it goes to its end.
        budget: Duration,
    },
    /// Graphs captured.
    Capturing {
        /// Captures so far.
        done: usize,
        /// Captures in all.
        total: usize,
    },
}
