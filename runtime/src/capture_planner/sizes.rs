//! The lists that a plan chooses.

use serde::{Deserialize, Serialize};

/// Capture sizes, each list ascending and without repeats.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureSizes {
    /// Token counts of mixed steps.
    pub capture_num_tokens: Vec<u32>,
    /// Sequence counts of uniform decodes.
    pub decode_batch_sizes: Vec<u32>,
}

impl CaptureSizes {
    /// Graphs to capture: one for each token size, and one for each decode size and query length.
    pub fn graphs(&self, query_lengths: usize) -> usize {
        self.capture_num_tokens.len() + self.decode_batch_sizes.len() * query_lengths
    }

    /// The two lines of a `piecewise.toml`.
    pub fn to_toml(&self) -> String {
        let list = |sizes: &[u32]| {
            let sizes: Vec<String> = sizes.iter().map(u32::to_string).collect();
            sizes.join(", ")
        };
        format!(
            "capture_num_tokens = [{}]\ndecode_batch_sizes = [{}]\n",
            list(&self.capture_num_tokens),
            list(&self.decode_batch_sizes)
        )
    }

    /// The smallest size of an ascending list that holds `count`.
    pub fn cover(list: &[u32], count: u32) -> Option<u32> {
        list.get(list.partition_point(|size| *size < count)).copied()
    }
}
