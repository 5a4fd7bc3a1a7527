//! Tools of a request, and how a reply is made to call them.

use serde_json::{Map, Value, json};
use std::sync::Arc;

use crate::structured::{FieldError, Structure};

/// Which tools a reply may call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// The model may not call any.
    #[default]
    None,
    /// Whatever the model writes.
    Auto,
    /// One at least.
    Required,
    /// The function of this name, and no other.
    Named(String),
}

/// The tools of a request.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tools {
    list: Arc<[Value]>,
    choice: ToolChoice,
    pub(super) one_at_most: bool,
}

impl Tools {
    /// Reads `tools`, `tool_choice` and `parallel_tool_calls`.
    ///
    /// # Errors
    /// When a tool is no function, or the choice is not among them.
    pub fn read(mut request: Map<String, Value>) -> Result<Self, FieldError> {
        let list = match request.remove("tools") {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::Array(list)) => list,
            Some(_) => return Err(FieldError::new("tools", "it must be a list")),
        };
        for (place, tool) in list.iter().enumerate() {
            check_tool(tool)
                .map_err(|(field, what)| FieldError::new(format!("tools[{place}]{field}"), what))?;
        }
        let choice = choice(request.get("tool_choice"), &list)?;
        let one_at_most = request.get("parallel_tool_calls") == Some(&Value::Bool(false));
        Ok(Self { list: list.into(), choice, one_at_most })
    }

    /// How many copies of the list are made, for a prompt and for a reply that must call a tool.
    pub fn copies(&self) -> usize {
        match self.choice {
            ToolChoice::None => 0,
            ToolChoice::Auto => 1,
            ToolChoice::Required | ToolChoice::Named(_) => 2,
        }
    }

    /// The tools as the chat template takes them; `None` where no tool may be called.
    pub fn for_template(&self) -> Option<Vec<Value>> {
        (self.choice != ToolChoice::None).then(|| self.list.to_vec())
    }

    /// As the request has them, OpenAI's objects; its replies share them.
    pub fn list(&self) -> &Arc<[Value]> {
        &self.list
    }

    /// Which of them may be called.
    pub fn choice(&self) -> &ToolChoice {
        &self.choice
    }

    /// What a reply keeps to that must call a tool: the arguments of the named one, or a list of
    /// calls.
    pub fn structure(&self) -> Option<Structure> {
        match &self.choice {
            ToolChoice::None | ToolChoice::Auto => None,
            ToolChoice::Named(name) => {
                let tool = self.list.iter().find(|tool| tool["function"]["name"] == **name);
                Some(Structure::JsonSchema(parameters(tool?)))
            }
            ToolChoice::Required => {
                let mut definitions = Map::new();
                let calls: Vec<Value> =
                    self.list.iter().map(|tool| call(tool, &mut definitions)).collect();
                let mut schema = json!({
                    "type": "array", "minItems": 1, "items": {"type": "object", "anyOf": calls},
                });
                if self.one_at_most {
                    schema["maxItems"] = 1.into();
                }
                if !definitions.is_empty() {
                    schema["$defs"] = definitions.into();
                }
                Some(Structure::JsonSchema(schema))
            }
        }
    }
}

fn check_tool(tool: &Value) -> Result<(), (&'static str, &'static str)> {
    if tool["type"] != "function" {
        return Err((".type", "only tools of the type `function` are supported"));
    }
    let name = tool["function"]["name"].as_str();
    if name.is_none_or(str::is_empty) {
        return Err((".function.name", "a function needs a name"));
    }
    match tool["function"].get("parameters") {
        None | Some(Value::Null | Value::Object(_)) => Ok(()),
        Some(_) => Err((".function.parameters", "a JSON schema is an object")),
    }
}

fn choice(given: Option<&Value>, tools: &[Value]) -> Result<ToolChoice, FieldError> {
    let refused = |what: String| Err(FieldError::new("tool_choice", what));
    let choice = match given {
        None | Some(Value::Null) if tools.is_empty() => return Ok(ToolChoice::None),
        None | Some(Value::Null) => ToolChoice::Auto,
        Some(Value::String(word)) => match word.as_str() {
            "none" => ToolChoice::None,
            "auto" if tools.is_empty() => return Ok(ToolChoice::None),
            "auto" => ToolChoice::Auto,
            "required" => ToolChoice::Required,
            other => {
                return refused(format!(
                    "`{other}` is none of `none`, `auto`, `required` and a function by its name"
                ));
            }
        },
        Some(object) if object["type"] == "function" => {
            let name = object["function"]["name"].as_str().unwrap_or_default();
            if !tools.iter().any(|tool| tool["function"]["name"] == *name) {
                return refused(format!("there is no tool `{name}` in `tools`"));
            }
            ToolChoice::Named(name.to_owned())
        }
        Some(object) => {
            let kind = object["type"].as_str().unwrap_or("");
            return refused(format!("the type `{kind}` is not supported; `function` is"));
        }
    };
    match choice {
        ToolChoice::Required if tools.is_empty() => {
            refused("a call is required, but there are no `tools`".to_owned())
        }
        choice => Ok(choice),
    }
}

/// The schema of a tool's arguments.
fn parameters(tool: &Value) -> Value {
    match tool["function"].get("parameters") {
        Some(Value::Object(schema)) if !schema.is_empty() => schema.clone().into(),
        _ => json!({"type": "object", "properties": {}}),
    }
}

/// The schema of a call of a tool; definitions move to the root, where references look for them.
fn call(tool: &Value, definitions: &mut Map<String, Value>) -> Value {
    let mut arguments = parameters(tool);
    if let Some(Value::Object(own)) = arguments.as_object_mut().and_then(|a| a.remove("$defs")) {
        definitions.extend(own);
    }
    json!({
        "properties": {
            "name": {"type": "string", "enum": [tool["function"]["name"]]}, "parameters": arguments,
        },
        "required": ["name", "parameters"],
        "additionalProperties": false,
    })
}
