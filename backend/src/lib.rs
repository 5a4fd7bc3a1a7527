//! Compiler and Device: compile, bind, launch, capture, replay and device memory.
#![allow(unsafe_code, reason = "devices work on raw addresses; every block states why it is sound")]

pub mod artifact;
pub mod compiler;
pub mod cpu;
pub mod cuda;
pub mod device;
mod lowering;
mod mapped_file;
pub mod measure;
pub mod weights;

pub use mapped_file::MappedFile;
