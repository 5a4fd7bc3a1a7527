//! What several integration tests share.

pub(crate) mod counting_allocator;
pub(crate) mod safetensors_file;
