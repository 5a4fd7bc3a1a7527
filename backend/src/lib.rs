//! Compiler and Device: compile, bind, launch, capture, replay, device memory.
