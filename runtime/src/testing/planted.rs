//! What the ways of the fake device cost, and which of them fail.

use super::program::FakeProgram;
use piecewise_backend::tuning::LibraryAlgorithm;
use std::sync::Arc;

type Costs = dyn Fn(&[FakeProgram], u64) -> f64 + Send + Sync;
type Allows = dyn Fn(&FakeProgram) -> bool + Send + Sync;

/// Planted ways.
#[derive(Clone)]
pub(crate) struct Planted {
    /// Of each alternative how many ways the two parts of an op have: what reads, and what writes.
    pub alternatives: Vec<[usize; 2]>,
    /// The library that computes the second way of the first part, and its version.
    pub library: Option<&'static str>,
    /// Microseconds of a replay of programs, which is the device's so manieth.
    pub cost: Arc<Costs>,
    pub binds: Arc<Allows>,
    pub captures: Arc<Allows>,
    /// Whether launches follow sizes.
    pub follows_sizes: bool,
    /// Whether launches may read what a step brings on the host.
    pub reads_inputs: bool,
    /// Whether they may once a graph was captured.
    pub captured_read_inputs: bool,
}

/// A microsecond for each program.
impl Default for Planted {
    fn default() -> Self {
        Self {
            alternatives: vec![[1, 1]],
            library: None,
            cost: Arc::new(|programs, _| programs.len() as f64),
            binds: Arc::new(|_| true),
            captures: Arc::new(|_| true),
            follows_sizes: true,
            reads_inputs: false,
            captured_read_inputs: false,
        }
    }
}

impl std::fmt::Debug for Planted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Planted")
            .field("alternatives", &self.alternatives)
            .field("library", &self.library)
            .finish_non_exhaustive()
    }
}

/// The library's algorithms, as it orders them.
pub(crate) const ALGORITHMS: [LibraryAlgorithm; 3] =
    [LibraryAlgorithm([0; 8]), LibraryAlgorithm([1; 8]), LibraryAlgorithm([2; 8])];
