//! The `piecewise` command line.

fn main() {}
