//! Configuration: defaults, then `piecewise.toml`, then flags; each value knows where it came
//! from.

mod error;
mod layers;
mod resolve;
mod schema;
mod values;
mod words;

pub use error::{ConfigError, ConfigWarning};
pub use layers::{ConfigEntry, ConfigLayers, Configured, Source};
pub use schema::KeyDoc;
pub use values::{CacheConfig, DumpConfig, RemoteUrl, RuntimeConfig, ShortSizeLists, Sizes};
pub use words::{TheirWord, float_named, their_word};

#[cfg(test)]
mod tests;
