//! Every test of the library from outside, in one program: each further one would be linked anew.
//! The device suite is apart, because what runs on a GPU machine takes it along alone.

#![allow(clippy::unwrap_used, reason = "what fails here fails a test")]

mod architecture;
mod bisect;
#[allow(dead_code, reason = "the program's tests use more of it")]
#[path = "support/bounded.rs"]
mod bounded;
mod checkpoint_bad_input;
mod checks;
mod compile_cache;
mod cuda_compile;
mod cuda_ways;
mod documents;
mod encoder_folders;
mod encoder_paths;
mod encoder_thread;
mod examples;
mod experts;
mod families;
#[allow(dead_code, unreachable_pub, reason = "a package of its own has it as its crate")]
#[path = "../examples/outside/src/gated.rs"]
mod gated;
mod image_processor;
mod layer_count;
mod model_folder_bad_input;
mod model_folders;
mod op_check;
#[allow(dead_code, unreachable_pub, reason = "a package of its own has it as its crate")]
#[path = "../examples/outside/src/model.rs"]
mod outside;
mod planted_faults;
mod quantization_bad_input;
mod quantized_pieces;
mod reading;
mod segment_means;
mod sentence_folders;
mod step_allocations;

#[allow(dead_code, reason = "the device suite uses more of it")]
#[path = "device_suite/sequences.rs"]
mod sequences;
#[path = "support/skip.rs"]
mod skip;
#[allow(dead_code, reason = "the device suite uses more of it")]
#[path = "device_suite/small_decoder.rs"]
mod small_decoder;
mod support;
#[allow(dead_code, reason = "the device suite uses more of it")]
#[path = "device_suite/target.rs"]
mod target;
mod text_encoders;
#[path = "support/turned.rs"]
mod turned;
mod vision_encoders;
mod vision_language;

/// Counters are of each thread, so that tests beside each other do not disturb them.
#[global_allocator]
static ALLOCATOR: support::counting_allocator::CountingAllocator =
    support::counting_allocator::CountingAllocator;
