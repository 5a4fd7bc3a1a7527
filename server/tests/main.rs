//! The tests of the server as one program.

mod chat_templates;
mod generation_defaults;
mod structured;
mod text;
