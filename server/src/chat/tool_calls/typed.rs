//! The JSON of values that a model writes as bare text, by the schema of what takes them.

use serde_json::Value;

/// The types that a schema lets a value have; none where it does not say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Types(Vec<String>);

impl Types {
    pub(super) fn of(schema: &Value) -> Self {
        let mut types = Vec::new();
        add(schema, 0, &mut types);
        Self(types)
    }

    /// Of what is text, whatever it looks like.
    pub(super) fn text() -> Self {
        Self(vec!["string".to_owned()])
    }

    /// Whether the value is its text as it stands, which then needs not be known to its end.
    pub(super) fn is_text(&self) -> bool {
        self.0.iter().all(|known| known == "string") && !self.0.is_empty()
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|known| known == name)
    }

    /// The value of a type that it may have, as JSON; where none fits, its text.
    pub(super) fn json(&self, text: &str) -> String {
        let trimmed = text.trim();
        let is = |word: &str, kind: &str| self.has(kind) && trimmed.eq_ignore_ascii_case(word);
        // Python's words beside those of JSON.
        let plain = match trimmed {
            "True" => "true",
            "False" => "false",
            "None" => "null",
            _ if is("true", "boolean") => "true",
            _ if is("false", "boolean") => "false",
            _ if is("null", "null") => "null",
            other => other,
        };
        let parsed = serde_json::from_str::<Value>(plain).ok().filter(|value| self.takes(value));
        match parsed {
            _ if self.is_text() => string(text),
            // An element without one is an empty list as well.
            None if trimmed.is_empty() && self.has("array") => "[]".to_owned(),
            None if trimmed.is_empty() && self.has("object") => "{}".to_owned(),
            // Its own text: numbers stay as exact as they are.
            Some(_) => plain.to_owned(),
            None => string(text),
        }
    }

    fn takes(&self, value: &Value) -> bool {
        let name = match value {
            Value::Null => "null",
            Value::Bool(_) => "boolean",
            Value::Number(number) if number.is_f64() => "number",
            Value::Number(_) => "integer",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        };
        self.0.is_empty()
            || (self.has(name) && name != "string")
            || (name == "integer" && self.has("number"))
    }
}

fn add(schema: &Value, depth: usize, types: &mut Vec<String>) {
    let named = |value: &Value| {
        // Not all who describe a tool use JSON schema's words.
        let name = match value.as_str()? {
            "int" => "integer",
            "float" | "double" => "number",
            "bool" => "boolean",
            "str" => "string",
            "list" => "array",
            "dict" => "object",
            other => other,
        };
        Some(name.to_owned())
    };
    match &schema["type"] {
        Value::Array(several) => types.extend(several.iter().filter_map(named)),
        one => types.extend(named(one)),
    }
    if types.is_empty() && schema["enum"].as_array().is_some_and(|e| e.iter().all(Value::is_string))
    {
        types.push("string".to_owned());
    }
    let branches = ["anyOf", "oneOf", "allOf"].into_iter().filter_map(|key| schema[key].as_array());
    for branch in branches.flatten().filter(|_| depth < 8 && schema["type"].is_null()) {
        add(branch, depth + 1, types);
    }
}

/// A string of JSON with this text.
pub(super) fn string(text: &str) -> String {
    Value::from(text).to_string()
}

/// The schema of a field of an object.
pub(super) fn field<'a>(schema: &'a Value, name: &str) -> &'a Value {
    &schema["properties"][name]
}

/// The text as it stands between the quotes of a string.
pub(super) fn inside(text: &str) -> String {
    let quoted = string(text);
    quoted[1..quoted.len() - 1].to_owned()
}
