//! Replies that keep to a structure, a JSON schema, a regular expression, a grammar or a choice, and to
//! some ids.

mod bounds;
mod constraint;
mod ebnf;
mod restraint;
mod structure;
mod thoughts;

pub use bounds::Wanted;
pub use constraint::{StructureError, Structures};
pub use restraint::Restraint;
pub use structure::{FieldError, Structure};
pub use thoughts::Thoughts;
