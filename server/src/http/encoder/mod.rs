//! What a server of an encoder answers: embeddings, scores of pairs, and documents by their relevance.

mod embeddings;
mod items;
mod rerank;
mod score;
mod served;
mod similarity;

pub(crate) use embeddings::{FIELDS as EMBEDDINGS_FIELDS, handle as embeddings};
pub(crate) use items::FIELDS as SHARED_FIELDS;
pub(crate) use rerank::{FIELDS as RERANK_FIELDS, handle as rerank};
pub(crate) use score::{FIELDS as SCORE_FIELDS, handle as score};
pub(crate) use served::EncoderState;
pub use served::{EncoderKind, Matryoshka, ServedEncoder};
