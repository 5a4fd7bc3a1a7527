//! Checks that run with every step, for debugging; see [`crate::words::Checks`].

mod kv_poison;
mod pages;

pub use kv_poison::KvPoison;
pub use pages::PagesOfStep;
