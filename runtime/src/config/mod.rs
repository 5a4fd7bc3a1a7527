//! Configuration: defaults, then `piecewise.toml`, then environment variables, then flags; each value knows
//! where it came from.

mod error;
mod given;
mod layers;
mod resolve;
mod schema;
mod server;
mod values;
mod words;

pub use error::{ConfigError, ConfigWarning};
pub use layers::{ConfigEntry, ConfigLayers, Configured, Source};
pub use schema::KeyDoc;
pub use server::{GenerationConfig, SchedulingPolicy, ServerConfig};
pub use values::{
    CacheConfig, CudaConfig, DumpConfig, RemoteUrl, RuntimeConfig, ShortSizeLists, Sizes,
};
pub use words::{TheirWord, float_named, their_word};

#[cfg(test)]
mod tests;
