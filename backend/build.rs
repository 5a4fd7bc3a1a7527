//! Makes a digest of this crate's sources, as `piecewise-ir` does of its own.

#[path = "../ir/build.rs"]
mod source_digest;

fn main() -> std::io::Result<()> {
    source_digest::main()
}
