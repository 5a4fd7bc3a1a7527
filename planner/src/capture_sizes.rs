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

    /// The lines of a `piecewise.toml`; a list without sizes is a comment, since the
    /// configuration has no empty lists.
    pub fn to_toml(&self) -> String {
        let line = |key: &str, sizes: &[u32]| {
            if sizes.is_empty() {
                return format!("# {key}: none chosen\n");
            }
            let sizes: Vec<String> = sizes.iter().map(u32::to_string).collect();
            format!("{key} = [{}]\n", sizes.join(", "))
        };
        line("capture_num_tokens", &self.capture_num_tokens)
            + &line("decode_batch_sizes", &self.decode_batch_sizes)
    }

    /// The smallest size of an ascending list that holds `count`.
    pub fn cover(list: &[u32], count: u32) -> Option<u32> {
        list.get(list.partition_point(|size| *size < count)).copied()
    }
}
