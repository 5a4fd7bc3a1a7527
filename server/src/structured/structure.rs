//! What a request asks of the structure of its reply.

use serde_json::{Map, Value, json};

/// What a reply keeps to.
#[derive(Debug, Clone, PartialEq)]
pub enum Structure {
    /// A value by a JSON schema.
    JsonSchema(Value),
    /// A text that the regular expression matches from its beginning to its end.
    Regex(String),
    /// A text of a grammar, in EBNF (`root ::= ..`) or in llguidance's form of Lark (`start: ..`).
    Grammar(String),
    /// One of some texts.
    Choice(Vec<String>),
}

/// A field of a request that can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct FieldError {
    /// The field by its path, such as `response_format.json_schema`.
    pub field: String,
    /// Why it can't be used.
    pub message: String,
}

impl FieldError {
    pub(crate) fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { field: field.into(), message: message.into() }
    }
}

/// Bytes of a schema that is a text, with white space that does not count later: its values are no values of
/// the request before it is read.
const LONGEST_WRITTEN: usize = 512 << 10;

/// Fields of vLLM's older interface, with their names in `structured_outputs`.
const GUIDED: [(&str, &str); 5] = [
    ("guided_json", "json"),
    ("guided_json_object", "json_object"),
    ("guided_regex", "regex"),
    ("guided_choice", "choice"),
    ("guided_grammar", "grammar"),
];

impl Structure {
    /// What vLLM's `structured_outputs` has, whether it can be asked for here or is refused.
    pub(crate) const OUTPUTS: [&str; 10] = [
        "json",
        "json_object",
        "regex",
        "grammar",
        "choice",
        "structural_tag",
        "whitespace_pattern",
        "disable_any_whitespace",
        "disable_additional_properties",
        "disable_fallback",
    ];

    /// The structure that any JSON object keeps to.
    pub fn json_object() -> Self {
        Self::JsonSchema(json!({"type": "object"}))
    }

    /// Reads `response_format` of OpenAI's interface, and `structured_outputs` and `guided_*` of
    /// vLLM's, of which a request may have one; with the name of the field that it had.
    ///
    /// # Errors
    /// When a field is not of the right shape, asks for what there is not, or there are several.
    pub fn read(request: &Map<String, Value>) -> Result<Option<(String, Self)>, FieldError> {
        let mut found: Option<(String, Self)> = None;
        let mut add = |field: String, structure: Self| match &found {
            Some((other, _)) => Err(FieldError::new(
                field,
                format!("only one structure can be asked for, and `{other}` asks for one too"),
            )),
            None => {
                found = Some((field, structure));
                Ok(())
            }
        };
        if let Some(format) = given(request, "response_format")
            && let Some(structure) = response_format(format)?
        {
            add("response_format".to_owned(), structure)?;
        }
        for (field, kind) in GUIDED {
            if let Some(value) = given(request, field)
                && let Some(structure) = one(field, kind, value)?
            {
                add(field.to_owned(), structure)?;
            }
        }
        if let Some(outputs) = given(request, "structured_outputs") {
            let Some(fields) = outputs.as_object() else {
                return Err(FieldError::new("structured_outputs", "it must be an object"));
            };
            for (kind, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
                let field = format!("structured_outputs.{kind}");
                if let Some(structure) = one(&field, kind, value)? {
                    add(field, structure)?;
                }
            }
        }
        Ok(found)
    }
}

fn given<'a>(request: &'a Map<String, Value>, field: &str) -> Option<&'a Value> {
    request.get(field).filter(|value| !value.is_null())
}

fn response_format(format: &Value) -> Result<Option<Structure>, FieldError> {
    match format["type"].as_str() {
        Some("text") => Ok(None),
        Some("json_object") => Ok(Some(Structure::json_object())),
        Some("json_schema") => {
            let schema = format.pointer("/json_schema/schema").filter(|schema| !schema.is_null());
            let field = "response_format.json_schema.schema";
            let schema = schema.ok_or_else(|| FieldError::new(field, "a schema is needed"))?;
            json_schema(field, schema.clone()).map(Some)
        }
        Some(other) => {
            let message =
                format!("`{other}` is not supported; `text`, `json_object` and `json_schema` are");
            Err(FieldError::new("response_format.type", message))
        }
        None => {
            let message = "one of `text`, `json_object` and `json_schema` is needed";
            Err(FieldError::new("response_format.type", message))
        }
    }
}

fn json_schema(field: &str, schema: Value) -> Result<Structure, FieldError> {
    match schema {
        Value::Object(_) | Value::Bool(_) => Ok(Structure::JsonSchema(schema)),
        _ => Err(FieldError::new(field, "a JSON schema is an object")),
    }
}

fn one(field: &str, kind: &str, value: &Value) -> Result<Option<Structure>, FieldError> {
    let text = || match value.as_str() {
        Some("") | None => Err(FieldError::new(field, "it must be a text, not an empty one")),
        Some(text) => Ok(text.to_owned()),
    };
    let flag = || value.as_bool().ok_or_else(|| FieldError::new(field, "it must be true or false"));
    match kind {
        "json" => match value {
            Value::String(written) => {
                if written.len() > LONGEST_WRITTEN {
                    let has = written.len();
                    let message =
                        format!("the schema has {has} bytes; at most {LONGEST_WRITTEN} are taken");
                    return Err(FieldError::new(field, message));
                }
                let schema: Value = serde_json::from_str(written)
                    .map_err(|error| FieldError::new(field, format!("not JSON: {error}")))?;
                json_schema(field, schema).map(Some)
            }
            schema => json_schema(field, schema.clone()).map(Some),
        },
        "json_object" => Ok(flag()?.then(Structure::json_object)),
        "regex" => text().map(|regex| Some(Structure::Regex(regex))),
        "grammar" => text().map(|grammar| Some(Structure::Grammar(grammar))),
        "choice" => {
            let texts: Option<Vec<String>> = value.as_array().and_then(|list| {
                list.iter().map(|text| text.as_str().map(str::to_owned)).collect()
            });
            let texts =
                texts.filter(|texts| !texts.is_empty() && texts.iter().all(|t| !t.is_empty()));
            let texts = texts.ok_or_else(|| {
                FieldError::new(field, "it must be a list of texts, none of them empty")
            })?;
            Ok(Some(Structure::Choice(texts)))
        }
        // How masks are computed elsewhere; nothing is asked for by a false one.
        "disable_any_whitespace" | "disable_additional_properties" if !flag()? => Ok(None),
        other => {
            let message = format!(
                "`{other}` is not supported; `json`, `json_object`, `regex`, `grammar` and \
                 `choice` are"
            );
            Err(FieldError::new(field, message))
        }
    }
}
