//! Checks that run with every step, for debugging; see [`crate::model::Checks`].

mod kv_poison;

pub use kv_poison::KvPoison;
