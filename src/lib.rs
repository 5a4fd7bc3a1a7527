//! A graph-compilation framework for transformer inference with a piecewise splitter.

pub mod models;
