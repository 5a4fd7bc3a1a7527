//! The HTTP side: endpoints, errors, limits, and the life of the server.

mod access;
mod answer;
mod aside;
mod body;
mod chat_completions;
mod completions;
mod connections;
mod course;
mod descriptors;
mod encoder;
mod error;
mod fields;
mod generation;
mod ids;
mod keys;
mod logprobs;
mod mailbox;
mod models;
mod openapi;
mod operator;
mod origins;
mod params;
mod places;
mod probes;
mod server;
mod sse;
mod state;
mod usage;

pub use encoder::{EncoderKind, Matryoshka, ServedEncoder};
pub use fields::Field;
pub(crate) use fields::field;
pub use keys::ApiKeys;
pub use origins::{AllowedOrigins, check_operator};
pub use server::{Outcome, Server, ServerOptions};
pub use state::{Limits, ServedModel};
