//! KV events for routers, as vLLM publishes them: which blocks of ids can be found here. Each message
//! has a topic, a number that counts up by one, and a batch of events in msgpack; who has missed some
//! asks for them by number on a second socket.

mod encode;
mod log;
mod publisher;
#[cfg(test)]
mod tests;
mod wishes;

pub use publisher::{KvPublisher, KvPublisherOptions};
#[cfg(test)]
pub(crate) use wishes::Wishes;
