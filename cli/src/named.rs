//! Values of flags by the names that configuration has for them.

use piecewise_ir::dtype::DType;
use piecewise_runtime::config::float_named;
use serde::de::value::{Error, StrDeserializer};
use serde::de::{DeserializeOwned, IntoDeserializer};

/// Reads a value by its name; what is wrong is said with the names that there are.
pub(crate) fn named<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let text: StrDeserializer<'_, Error> = text.into_deserializer();
    T::deserialize(text).map_err(|error| error.to_string())
}

/// Reads a float type by its name.
pub(crate) fn float(text: &str) -> Result<DType, String> {
    float_named(text).ok_or_else(|| format!("`{text}` is no float type; write f32, bf16 or f16"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use piecewise_planner::Objective;

    #[test]
    fn values_are_read_by_their_names() {
        assert_eq!(named("padding"), Ok(Objective::Padding));
        let wrong = named::<Objective>("speed").unwrap_err();
        assert!(
            wrong.contains("unknown variant `speed`, expected") && wrong.contains("`time`"),
            "{wrong}"
        );
        assert_eq!(float("bf16"), Ok(DType::BF16));
        assert_eq!(float("bfloat16"), Ok(DType::BF16), "as PyTorch has it");
        assert!(float("i32").unwrap_err().contains("f16"), "integers are no activations");
    }
}
