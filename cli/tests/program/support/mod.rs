//! What several tests share.

pub(crate) mod cache;
pub(crate) mod cli;
pub(crate) mod listen;
#[path = "../../../../tests/support/models.rs"]
pub(crate) mod models;
#[path = "../../../../tests/support/nvrtc.rs"]
pub(crate) mod nvrtc;
pub(crate) mod somebody;
