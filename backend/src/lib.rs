//! Compiler and Device: compile, bind, launch, capture, replay, device memory.

mod mapped_file;

pub use mapped_file::MappedFile;
