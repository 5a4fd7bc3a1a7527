//! What the server understands, for tools and for people.

use super::models::{DETOKENIZE_FIELDS, TOKENIZE_FIELDS};
use super::params;
use super::state::State;
use super::{chat_completions, chat_prompt, completions, encoder, messages};
use crate::field::Field;
use crate::operate::OPERATOR_PATHS;
use axum::Json;
use axum::extract;
use axum::response::Html;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// `/openapi.json`, with the operator's paths where there are any.
pub(crate) async fn document(extract::State(state): extract::State<Arc<State>>) -> Json<Value> {
    let mut document = openapi();
    if state.admin {
        add_operator(&mut document);
    }
    Json(document)
}

/// The document as a page.
pub(crate) async fn page() -> Html<&'static str> {
    Html(include_str!("docs.html"))
}

fn openapi() -> Value {
    let error = json!({"$ref": "#/components/schemas/Error"});
    let post = |summary: &str, fields: &[&[Field]], required: &[&str]| {
        json!({"post": {
            "summary": summary,
            "security": [{"key": []}, {}],
            "requestBody": {"required": true, "content": {"application/json": {"schema": {
                "type": "object",
                "properties": properties(fields),
                "required": required,
                "additionalProperties": false,
            }}}},
            "responses": responses(&error),
        }})
    };
    let of_messages = |summary: &str, fields: &[&[Field]], required: &[&str]| {
        let mut path = post(summary, fields, required);
        let error = json!({"$ref": "#/components/schemas/MessagesError"});
        path["post"]["responses"] = responses(&error);
        path
    };
    let get = |summary: &str| json!({"get": {"summary": summary, "responses": responses(&error)}});
    let score = post(
        "How well texts go together, of an encoder.",
        &[encoder::SCORE_FIELDS, encoder::SHARED_FIELDS],
        &[],
    );
    let rerank = post(
        "Documents by how well they answer a query, of an encoder.",
        &[encoder::RERANK_FIELDS, encoder::SHARED_FIELDS],
        &["query", "documents"],
    );
    let completions =
        post("Go on from a prompt.", &[completions::FIELDS, params::FIELDS], &["prompt"]);
    let chat = post(
        "Reply to messages.",
        &[chat_completions::FIELDS, chat_prompt::FIELDS, params::FIELDS],
        &["messages"],
    );
    let messages_path = of_messages(
        "Reply to messages, by Anthropic's interface.",
        &[messages::SHARED_FIELDS, messages::FIELDS],
        &["messages", "max_tokens"],
    );
    let count_tokens = of_messages(
        "How many tokens the prompt of messages has.",
        &[messages::SHARED_FIELDS],
        &["messages"],
    );
    let embeddings = post(
        "A vector of each text, of a model that is an encoder.",
        &[encoder::EMBEDDINGS_FIELDS, encoder::SHARED_FIELDS],
        &["input"],
    );
    let tokenize = post(
        "The token ids of a text, or of a conversation.",
        &[TOKENIZE_FIELDS, chat_prompt::FIELDS],
        &[],
    );
    let fault = json!({"type": "object", "properties": {
        "message": {"type": "string"},
        "type": {"type": "string"},
        "param": {"type": ["string", "null"], "description": "The field at fault."},
        "code": {"type": ["string", "null"]},
    }});
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "piecewise",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "A server for clients of OpenAI and Anthropic. A field that is not listed is refused by name.",
        },
        "paths": {
            "/v1/completions": completions,
            "/completions": completions,
            "/v1/chat/completions": chat,
            "/chat/completions": chat,
            "/v1/messages": messages_path,
            "/v1/messages/count_tokens": count_tokens,
            "/v1/embeddings": embeddings,
            "/embeddings": embeddings,
            "/v1/score": score,
            "/score": score,
            "/v1/rerank": rerank,
            "/v2/rerank": rerank,
            "/rerank": rerank,
            "/v1/models": get("The served model."),
            "/models": get("The served model."),
            "/v1/models/{model}": get("The served model by its name."),
            "/tokenize": tokenize,
            "/detokenize": post("The text of token ids.", &[DETOKENIZE_FIELDS], &["tokens"]),
            "/load": get("How many requests are there."),
            "/server_info": get("What is served, and what a request may take of it."),
            "/health": get("Whether the process is alive."),
            "/ping": get("Whether the process is alive, too."),
            "/version": get("The program's version."),
            "/ready": get("Whether requests may be sent."),
            "/metrics": get("Metrics in the text format of Prometheus."),
            "/openapi.json": get("This document."),
            "/docs": get("This document as a page."),
        },
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            "schemas": {
                "Error": {"type": "object", "properties": {"error": fault}},
                "MessagesError": {
                    "type": "object",
                    "properties": {"type": {"type": "string", "const": "error"}, "error": fault},
                },
            },
        },
    })
}

/// Lists what an operator may ask, too.
fn add_operator(document: &mut Value) {
    let error = json!({"$ref": "#/components/schemas/Error"});
    for known in OPERATOR_PATHS {
        let parameter = |parameter: &Field| {
            json!({
                "name": parameter.name,
                "in": "query",
                "schema": schema(parameter.schema),
                "description": parameter.help,
            })
        };
        document["paths"][known.path][known.method.to_lowercase()] = json!({
            "summary": known.summary,
            "security": [{"key": []}, {}],
            "parameters": Vec::from_iter(known.parameters.iter().map(parameter)),
            "responses": responses(&error),
        });
    }
}

fn schema(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or(Value::Bool(true))
}

fn properties(fields: &[&[Field]]) -> Map<String, Value> {
    let property = |field: &Field| {
        let mut schema: Map<String, Value> =
            schema(field.schema).as_object().cloned().unwrap_or_default();
        schema.insert("description".to_owned(), field.help.into());
        (field.name.to_owned(), Value::Object(schema))
    };
    fields.iter().flat_map(|fields| fields.iter()).map(property).collect()
}

fn responses(error: &Value) -> Value {
    let refused =
        |why: &str| json!({"description": why, "content": {"application/json": {"schema": error}}});
    json!({
        "200": {"description": "The answer."},
        "400": refused("A field is wrong, unknown or not supported; `param` names it."),
        "401": refused("No valid key."),
        "404": refused("No such model or path."),
        "408": refused("The body did not come in time."),
        "413": refused("The body is too large."),
        "429": refused("The queue is full; Retry-After says when to try again."),
        "500": refused("The engine failed."),
        "503": refused("The model is being loaded or asleep, or the server is shutting down."),
    })
}

#[cfg(test)]
mod tests {
    use super::super::fields::Fields;
    use super::super::params::Params;
    use super::super::server::paths;
    use super::super::state::Limits;
    use super::super::state::ServedModel;
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_path_is_on_the_page_and_no_other() {
        let mut document = openapi();
        for admin in [false, true] {
            if admin {
                add_operator(&mut document);
            }
            let listed = document["paths"].as_object().unwrap();
            let listed =
                BTreeSet::from_iter(listed.keys().map(|path| path.replace("{model}", "{*name}")));
            assert_eq!(listed, BTreeSet::from_iter(paths(admin).map(str::to_owned)));
        }
        let level = &document["paths"]["/sleep"]["post"]["parameters"][0];
        assert_eq!(level["schema"]["enum"], json!([1, 2]));
    }

    #[test]
    fn schemas_are_json_and_each_shared_field_is_taken() {
        let document = openapi();
        let schema = &document["paths"]["/v1/completions"]["post"]["requestBody"];
        let listed = &schema["content"]["application/json"]["schema"]["properties"];
        assert_eq!(listed["min_p"]["maximum"], 1);
        for field in params::FIELDS {
            let schema: Value = serde_json::from_str(field.schema).unwrap();
            let value = match schema["type"].as_str() {
                Some("boolean") => json!(false),
                Some("integer" | "number") => json!(1),
                Some("array") if schema["items"]["type"] == "string" => json!(["x"]),
                Some("array") => json!([1]),
                Some("object") if field.name == "response_format" => json!({"type": "text"}),
                Some("object") => json!({}),
                None if field.name == "guided_json" => json!({}),
                _ => json!("x"),
            };
            let mut body = json!({"stream": field.name == "stream_options"});
            body[field.name] = value;
            if field.name == "stream_options" {
                body[field.name] = json!({"include_usage": true});
            }
            let mut fields = Fields::of(&body);
            let limits = Limits { priorities: true, ..Limits::default() };
            Params::take(&mut fields, &ServedModel::default(), &limits).unwrap();
            drop(fields.finish().unwrap());
        }
    }
}
