//! The lists that a plan chooses.

use serde::{Deserialize, Serialize};

/// The most graphs that can be asked for.
pub const MAX_GRAPHS: usize = 4096;

/// Capture sizes, each list ascending and without repeats.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureSizes {
    /// What mixed steps are padded to, in tokens.
    pub capture_num_tokens: Vec<u32>,
    /// What uniform decodes are padded to, in sequences.
    pub decode_batch_sizes: Vec<u32>,
}

/// Which list a size is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ListKind {
    /// Sizes in tokens, which any step may replay.
    Tokens,
    /// Sizes in sequences, which only uniform decodes replay.
    Decode,
}

impl ListKind {
    /// Tokens come first in every report.
    pub const ALL: [Self; 2] = [Self::Tokens, Self::Decode];

    /// What a configuration file calls the list.
    pub fn key(self) -> &'static str {
        match self {
            Self::Tokens => "capture_num_tokens",
            Self::Decode => "decode_batch_sizes",
        }
    }
}

impl CaptureSizes {
    /// Ascending; empty where no graph of that kind is captured.
    pub fn list(&self, list: ListKind) -> &[u32] {
        match list {
            ListKind::Tokens => &self.capture_num_tokens,
            ListKind::Decode => &self.decode_batch_sizes,
        }
    }

    /// Both lists, made one by one.
    pub(crate) fn of(mut sizes: impl FnMut(ListKind) -> Vec<u32>) -> Self {
        let capture_num_tokens = sizes(ListKind::Tokens);
        Self { capture_num_tokens, decode_batch_sizes: sizes(ListKind::Decode) }
    }

    /// Every size with its list, tokens first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (ListKind, u32)> + '_ {
        ListKind::ALL
            .into_iter()
            .flat_map(|list| self.list(list).iter().map(move |size| (list, *size)))
    }

    /// Graphs to capture: one for each token size, and one for each decode size and query length.
    pub fn graphs(&self, query_lengths: usize) -> usize {
        self.capture_num_tokens.len() + self.decode_batch_sizes.len() * query_lengths
    }

    /// The lines of a `piecewise.toml`; a list without sizes is a comment, since the
    /// configuration has no empty lists.
    pub fn to_toml(&self) -> String {
        let line = |list: ListKind| {
            let (key, sizes) = (list.key(), self.list(list));
            if sizes.is_empty() {
                return format!("# {key}: none chosen\n");
            }
            let sizes: Vec<String> = sizes.iter().map(u32::to_string).collect();
            format!("{key} = [{}]\n", sizes.join(", "))
        };
        ListKind::ALL.map(line).concat()
    }

    /// The smallest size of an ascending list that holds `count`.
    pub fn cover(list: &[u32], count: u32) -> Option<u32> {
        list.get(list.partition_point(|size| *size < count)).copied()
    }
}
