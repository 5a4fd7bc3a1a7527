//! The keys for editors and for people, from the definitions that files are read by.

use super::given::variable;
use super::values::RuntimeConfig;
use super::words::computed_in;
use piecewise_ir::dtype::DType;
use schemars::generate::SchemaSettings;
use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::Value;
use std::sync::LazyLock;

/// A setting as its documentation and its schema have it.
#[derive(Clone, PartialEq, Debug)]
pub struct KeyDoc {
    /// The key; those of tables with a dot.
    pub key: &'static str,
    /// The environment variable that sets it.
    pub variable: String,
    /// What its values look like, in words: `integer`, `string`, `list of integers`.
    pub kind: String,
    /// Its values with what each means, where they are few; the meaning may be empty.
    pub choices: Vec<(String, String)>,
    /// Its value where nobody sets it; `None` for unset.
    pub default: Option<Value>,
    /// What it means: the documentation of its field, in one line.
    pub text: String,
}

static KEYS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let mut keys = Vec::new();
    leaves(&RuntimeConfig::json_schema(), "", &mut keys);
    keys
});

/// The leaves of a schema of tables, by dotted key.
fn leaves(schema: &Value, prefix: &str, found: &mut Vec<String>) {
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let key = format!("{prefix}{name}");
        match property.get("properties") {
            Some(_) => leaves(property, &format!("{key}."), found),
            None => found.push(key),
        }
    }
}

impl RuntimeConfig {
    /// The JSON schema (draft 7, which editors know) of a configuration file.
    pub fn json_schema() -> Value {
        let mut settings = SchemaSettings::draft07();
        settings.inline_subschemas = true;
        settings.into_generator().into_root_schema_for::<Self>().to_value()
    }

    /// Every key, those of tables with a dot, in the order in which they are shown.
    pub fn keys() -> impl Iterator<Item = &'static str> + Clone {
        KEYS.iter().map(String::as_str)
    }

    /// Every key with what it means, in the order of [`Self::keys`].
    pub fn key_docs() -> Vec<KeyDoc> {
        let schema = Self::json_schema();
        Self::keys().map(|key| key_doc(&schema, key)).collect()
    }
}

/// The float types, by name.
pub(super) fn float_types(_: &mut SchemaGenerator) -> Schema {
    let floats = Vec::from_iter(computed_in().map(DType::name));
    json_schema!({"type": "string", "enum": floats})
}

fn key_doc(schema: &Value, key: &'static str) -> KeyDoc {
    let property = key.split('.').fold(schema, |at, part| &at["properties"][part]);
    let text = property["description"].as_str().unwrap_or_default();
    KeyDoc {
        key,
        variable: variable(key),
        kind: kind(property),
        choices: choices(property),
        default: property.get("default").filter(|value| !value.is_null()).cloned(),
        text: text.replace('\n', " "),
    }
}

/// The alternatives of a schema, without that of being unset.
fn alternatives(schema: &Value) -> Vec<&Value> {
    let list = ["anyOf", "oneOf"].into_iter().find_map(|word| schema[word].as_array());
    let is_set = |schema: &&Value| schema["type"] != "null";
    let Some(list) = list else { return vec![schema] };
    list.iter().filter(is_set).flat_map(alternatives).collect()
}

fn kind(schema: &Value) -> String {
    let named = |name: &str, schema: &Value| match name {
        "array" => format!("list of {}s", kind(&schema["items"])),
        "object" => format!("table of {}", kind(&schema["additionalProperties"])),
        name => name.to_owned(),
    };
    let mut kinds: Vec<String> = Vec::new();
    for one in alternatives(schema) {
        let of_one = match &one["type"] {
            Value::String(name) => named(name, one),
            Value::Array(names) => {
                let names = names.iter().filter_map(Value::as_str).filter(|name| *name != "null");
                names.map(|name| named(name, one)).collect::<Vec<_>>().join(" or ")
            }
            _ => "string".to_owned(),
        };
        if !kinds.contains(&of_one) {
            kinds.push(of_one);
        }
    }
    kinds.join(" or ")
}

fn choices(schema: &Value) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for one in alternatives(schema) {
        let meaning = one["description"].as_str().unwrap_or_default();
        if let Some(value) = one["const"].as_str() {
            found.push((value.to_owned(), meaning.to_owned()));
        }
        let values = one["enum"].as_array().into_iter().flatten().filter_map(Value::as_str);
        found.extend(values.map(|value| (value.to_owned(), String::new())));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keys_are_the_fields_in_their_order() {
        let keys: Vec<_> = RuntimeConfig::keys().collect();
        assert_eq!(keys[..3], ["level", "graph_mode", "passes_off"]);
        let of_checks = keys.iter().position(|&key| key == "checks.poison").unwrap();
        assert_eq!(keys[of_checks..][1..3], ["checks.addresses", "checks.compare"]);
        let of_cache = keys.iter().position(|&key| key == "cache.remote_timeout_ms").unwrap();
        assert_eq!(keys[of_cache..][1..4], ["device", "dtype", "quantize"]);
    }

    #[test]
    fn every_key_says_what_it_is() {
        let docs = RuntimeConfig::key_docs();
        for doc in &docs {
            assert!(doc.text.ends_with('.') && doc.text.len() > 10, "{doc:?}");
            assert!(!doc.kind.is_empty(), "{doc:?}");
        }
        let doc = |key: &str| docs.iter().find(|doc| doc.key == key).unwrap();
        assert_eq!(doc("max_num_tokens").kind, "integer");
        assert_eq!(doc("max_num_tokens").default, Some(512.into()));
        assert_eq!(doc("capture_num_tokens").kind, "integer or list of integers");
        assert_eq!(doc("cache.dir").default, None);
        let choices: Vec<_> = doc("tune").choices.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(choices, ["off", "load", "measure"]);
        let floats: Vec<_> = doc("dtype").choices.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(floats, ["f32", "f16", "bf16"]);
    }
}
