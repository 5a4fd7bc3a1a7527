//! What bodies and queries may have, as the OpenAPI document tells it.

/// A field of a body or a parameter of a query, for the OpenAPI document.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// What it is called.
    pub name: &'static str,
    /// Its type, as a JSON schema.
    pub schema: &'static str,
    /// What it does, in a sentence.
    pub help: &'static str,
}

pub(crate) const fn field(name: &'static str, schema: &'static str, help: &'static str) -> Field {
    Field { name, schema, help }
}
