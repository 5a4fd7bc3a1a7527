//! What keys of `quantization_config` may be, whatever its method.

use crate::models::config::error::ConfigError;
use crate::models::config::fields::Fields;
use crate::models::config::options::asks_for_nothing;
use std::ops::RangeInclusive;

/// Columns or rows that may share a scale.
pub(super) const GROUP: RangeInclusive<usize> = 1..=1 << 20;

/// Refuses keys that nothing here knows and that ask for something.
pub(super) fn known(fields: &Fields<'_>, read: &[&str], more: &[&str]) -> Result<(), ConfigError> {
    for (key, value) in fields.iter() {
        if !read.contains(&key) && !more.contains(&key) && !asks_for_nothing(value) {
            let known = "remove it if it does not say how weights are kept";
            return Err(fields.unsupported(key, known));
        }
    }
    Ok(())
}
