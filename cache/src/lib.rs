//! Content-addressed artifact store: bytes and keys, no graphs.
