//! The tests of the server as one program.

mod text;
