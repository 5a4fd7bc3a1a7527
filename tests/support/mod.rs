//! What several tests share.

pub(crate) mod counting_allocator;
pub(crate) mod models;
pub(crate) mod nvrtc;
pub(crate) mod safetensors_file;
pub(crate) mod tree;
