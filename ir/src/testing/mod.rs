//! Random graphs and arrays for property tests.
