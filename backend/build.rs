//! Makes a digest of this crate's sources: a compiled piece is a function of them.

fn main() -> std::io::Result<()> {
    piecewise_source_digest::emit()
}
