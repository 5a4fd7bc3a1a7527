//! The first line of an iteration log: whose steps the others are.

use serde::{Deserialize, Serialize};

/// What a log is of, as far as whoever wrote it knew: the line `{"log": {..}}`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LogHead {
    /// The scheduler's limit of tokens in a step, whether or not a step came to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_num_tokens: Option<u32>,
    /// The scheduler's limit of sequences in a step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_num_seqs: Option<u32>,
    /// The device as it describes itself: by the name that its driver gives it, or a processor by
    /// its own and its threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// What the model is called.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Numbers that its checkpoint has, as far as it reads them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parameters: Option<u64>,
    /// Bytes that they take on the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight_bytes: Option<u64>,
    /// Layers of a decoder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layers: Option<u32>,
}

impl LogHead {
    /// Of two logs behind each other: the larger bounds, and of the rest what the first one says.
    pub(crate) fn merge(self, later: Self) -> Self {
        Self {
            max_num_tokens: self.max_num_tokens.max(later.max_num_tokens),
            max_num_seqs: self.max_num_seqs.max(later.max_num_seqs),
            device: self.device.or(later.device),
            model: self.model.or(later.model),
            parameters: self.parameters.or(later.parameters),
            weight_bytes: self.weight_bytes.or(later.weight_bytes),
            layers: self.layers.or(later.layers),
        }
    }
}
