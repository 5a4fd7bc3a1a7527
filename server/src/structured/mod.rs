//! Replies that keep to a structure: a JSON schema, a regular expression, a grammar, or a choice.

mod constraint;
mod structure;

pub use constraint::{StructureError, Structures};
pub use structure::{FieldError, Structure};
