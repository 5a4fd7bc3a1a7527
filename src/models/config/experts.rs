//! Experts as a configuration has them.

use super::error::ConfigError;
use super::fields::Fields;

/// The experts of a decoder's sparse layers: feed-forwards, of which each token goes through a few.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpertsConfig {
    /// Experts of a layer.
    pub count: usize,
    /// Experts of a token, at most as many as there are.
    pub per_token: usize,
    /// Width of an expert's gate and up projections.
    pub intermediate_size: usize,
    /// Whether the weights of a token's experts add up to 1.
    pub renormalize: bool,
    /// The layers that have a feed-forward for all tokens instead, ascending.
    pub dense_layers: Vec<usize>,
}

impl ExpertsConfig {
    /// How many experts there are and how many a token takes, by the names of fields that families share.
    pub(in crate::models) fn counts(
        root: &Fields<'_>,
        [count, per_token]: [usize; 2],
    ) -> Result<[usize; 2], ConfigError> {
        const NAMES: [&str; 2] = ["num_local_experts", "num_experts"];
        const PER_TOKEN: &str = "num_experts_per_tok";
        let [newer, older] = NAMES.map(|key| root.count(key, 1..=1 << 12));
        let count = match (newer?, older?) {
            (Some(one), Some(other)) if one != other => {
                return Err(root.conflict(NAMES[0], root, NAMES[1]));
            }
            (newer, older) => newer.or(older).unwrap_or(count),
        };
        let per_token = root.count(PER_TOKEN, 1..=1 << 12)?.unwrap_or(per_token);
        if per_token > count {
            let reason = format!("a token can't go through {per_token} experts of {count}");
            return Err(root.bad_value(PER_TOKEN, reason));
        }
        Ok([count, per_token])
    }
}
