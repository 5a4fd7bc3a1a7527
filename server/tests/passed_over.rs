//! What clients of other servers send and ask for: fields that nobody knows, and fields and paths that others
//! have.

use crate::client::{ask, ask_with, bind_as, serve_at};
use crate::tiny_engine::{folder, golden, tiny_engine};
use piecewise::models::TextTokenizer;
use piecewise_server::chat::{ChatTemplate, ReplyFormat};
use piecewise_server::{Limits, ServedModel};
use piecewise_testing::DeviceFaults;
use serde_json::{Map, Value, json};
use std::net::SocketAddr;
use std::sync::Arc;

const TEMPLATE: &str = "{{ reasoning_effort if reasoning_effort is defined }}\
    {% for message in messages %}{{ message.content }}{% endfor %}";

fn serve(ignores_unknown_fields: bool) -> SocketAddr {
    serve_with(|limits| limits.ignores_unknown_fields = ignores_unknown_fields)
}

fn serve_with(change: impl FnOnce(&mut Limits)) -> SocketAddr {
    serve_as(change, "none")
}

/// With replies whose thoughts this parser reads.
fn serve_as(change: impl FnOnce(&mut Limits), reasoning: &str) -> SocketAddr {
    let server = bind_as(|options| change(&mut options.limits));
    let model = ServedModel {
        tokenizer: Some(Arc::new(TextTokenizer::load(&folder(), 2048).unwrap())),
        template: Some(ChatTemplate::parse(TEMPLATE, Map::new()).unwrap()),
        end_ids: vec![0],
        format: ReplyFormat::new(Some(reasoning), Some("none"), "").unwrap(),
        ..ServedModel::default()
    };
    serve_at(server, tiny_engine(DeviceFaults::default(), 4), model).0
}

/// Status, head and body of an answer.
fn post(address: SocketAddr, path: &str, body: &Value) -> (u16, String, Value) {
    let answer = ask(address, &format!("POST {path}"), &body.to_string());
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head[9..12].parse().unwrap();
    (status, head.to_ascii_lowercase(), serde_json::from_str(body).unwrap_or(json!(body)))
}

fn get(address: SocketAddr, path: &str) -> (u16, Value) {
    let answer = ask(address, &format!("GET {path}"), "");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head[9..12].parse().unwrap(), serde_json::from_str(body).unwrap_or(json!(body)))
}

#[test]
fn fields_that_nobody_knows_are_refused_or_passed_over_and_named() {
    let body = json!({"prompt": [5, 6], "max_tokens": 1, "chat_id": "a", "cache_prompt": true});
    let (status, head, answer) = post(serve(false), "/v1/completions", &body);
    assert_eq!((status, &answer["error"]["code"]), (400, &json!("unknown_parameter")), "{answer}");
    assert!(!head.contains("x-ignored-fields"), "{head}");
    let lenient = serve(true);
    let (status, head, answer) = post(lenient, "/v1/completions", &body);
    assert_eq!(status, 200, "{answer}");
    assert!(head.contains("\r\nx-ignored-fields: chat_id, cache_prompt"), "{head}");
    // What is known and wrong, or not supported, is refused all the same.
    for more in [json!({"temperature": "hot"}), json!({"use_beam_search": true})] {
        let mut body = body.clone();
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        assert_eq!(post(lenient, "/v1/completions", &body).0, 400, "{more}");
    }
    let plain = json!({"prompt": [5, 6], "max_tokens": 1});
    assert!(!post(lenient, "/v1/completions", &plain).1.contains("x-ignored-fields"));
}

#[test]
fn fields_within_others_are_refused_or_passed_over_by_their_path() {
    let (strict, lenient) = (serve(false), serve(true));
    let user = json!([{"role": "user", "content": "x"}]);
    for (path, body, field) in [
        (
            "/v1/completions",
            json!({"prompt": [5], "max_tokens": 1, "stream": true, "stream_options": {"include_usage": true, "pace": 1}}),
            "stream_options.pace",
        ),
        (
            "/v1/completions",
            json!({"prompt": [5], "max_tokens": 1, "structured_outputs": {"regex": "a+", "flavor": 1}}),
            "structured_outputs.flavor",
        ),
        (
            "/v1/messages",
            json!({"messages": user, "max_tokens": 1, "output_config": {"effort": "low", "tone": 1}}),
            "output_config.tone",
        ),
    ] {
        let (status, _, answer) = post(strict, path, &body);
        assert_eq!((status, &answer["error"]["param"]), (400, &json!(field)), "{answer}");
        let (status, head, answer) = post(lenient, path, &body);
        assert_eq!(status, 200, "{answer}");
        let header = format!("x-ignored-fields: {field}");
        assert!(head.lines().any(|line| line == header), "{head}");
    }
    // What is known there and not supported is refused all the same.
    let body =
        json!({"prompt": [5], "structured_outputs": {"regex": "a", "whitespace_pattern": " "}});
    assert_eq!(post(lenient, "/v1/completions", &body).0, 400);
    let body = json!({"prompt": [5], "stream": true, "stream_options": {"include_usage": 1}});
    assert_eq!(post(lenient, "/v1/completions", &body).0, 400);
}

#[test]
fn a_conversation_has_the_fields_of_other_servers_too() {
    let address = serve_as(|_| {}, "deepseek_r1");
    let chat = |more: Value| {
        let messages = json!([{"role": "user", "content": "def f(x):"}]);
        let mut body = json!({"messages": messages, "max_tokens": 3, "temperature": 0});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let (status, _, answer) = post(address, "/v1/chat/completions", &body);
        assert_eq!(status, 200, "{more}: {answer}");
        answer
    };
    // A reply of this parser begins with thoughts.
    let shown = chat(json!({"include_reasoning": true}));
    assert_eq!(shown["choices"][0]["message"], chat(json!({}))["choices"][0]["message"]);
    let thoughts = shown["choices"][0]["message"]["reasoning_content"].as_str().unwrap();
    assert!(!thoughts.is_empty(), "{shown}");
    assert_eq!(shown["choices"][0]["message"]["reasoning"], thoughts, "{shown}");
    let hidden = chat(json!({"include_reasoning": false}));
    assert!(!hidden.to_string().contains(&json!(thoughts).to_string()), "{hidden}");
    assert_eq!(hidden["usage"]["completion_tokens"], shown["usage"]["completion_tokens"]);
    let stream = |hides: bool| {
        let options = json!({"include_obfuscation": true, "include_usage": true});
        let more = json!({"stream": true, "stream_options": options, "include_reasoning": !hides});
        chat(more).as_str().unwrap().to_owned()
    };
    let (shown, hidden) = (stream(false), stream(true));
    assert!(
        shown.contains("\"reasoning_content\":\"") && !shown.contains("obfuscation"),
        "{shown}"
    );
    assert!(!hidden.contains("\"reasoning_content\":\""), "{hidden}");
    // Tokens by their ids.
    let more = json!({"logprobs": true, "top_logprobs": 1, "return_token_ids": true});
    let named = chat(
        json!({"return_tokens_as_token_ids": true, "logprobs": true, "top_logprobs": 1, "return_token_ids": true}),
    );
    let (ids, plain) = (&named["choices"][0]["token_ids"], chat(more));
    for (content, id) in named["choices"][0]["logprobs"]["content"]
        .as_array()
        .unwrap()
        .iter()
        .zip(ids.as_array().unwrap())
    {
        assert_eq!(content["token"], json!(format!("token_id:{id}")));
        let top = content["top_logprobs"][0]["token"].as_str().unwrap();
        assert!(top.starts_with("token_id:"), "{content}");
    }
    assert!(!plain.to_string().contains("token_id:"), "{plain}");
    // The last tokens of a prompt.
    let whole = chat(json!({"return_token_ids": true}))["prompt_token_ids"].clone();
    let whole = whole.as_array().unwrap();
    let cut = chat(json!({"return_token_ids": true, "truncate_prompt_tokens": 2}));
    assert_eq!(cut["prompt_token_ids"], json!(whole[whole.len() - 2..]));
}

#[test]
fn what_other_servers_do_and_this_one_does_not_is_refused_with_a_reason() {
    let address = serve(true);
    let completion = json!({"prompt": [5], "max_tokens": 1});
    let user = json!([{"role": "user", "content": "x"}]);
    let chat = json!({"messages": user, "max_tokens": 1});
    let everywhere = [
        ("kv_transfer_params", json!({"do_remote_decode": true})),
        ("mm_processor_kwargs", json!({"num_crops": 4})),
        ("structural_tag", json!("{}")),
        ("vllm_xargs", json!({"a": 1})),
    ];
    let of_chat = [("chat_template", json!("{{ messages }}"))];
    let paths = [("/v1/completions", completion), ("/v1/chat/completions", chat)];
    for (number, (path, body)) in paths.into_iter().enumerate() {
        for (field, value) in everywhere.iter().chain(of_chat.iter().take(number)) {
            let mut body = body.clone();
            body[field] = value.clone();
            let (status, _, answer) = post(address, path, &body);
            let error = &answer["error"];
            assert_eq!((status, &error["param"]), (400, &json!(field)), "{path} {answer}");
            assert_eq!(error["code"], "unsupported_parameter", "{path} {answer}");
            body[field] = Value::Null;
            assert_eq!(post(address, path, &body).0, 200, "{path} {field}");
        }
    }
    let document = get(address, "/openapi.json").1.to_string();
    assert!(document.contains("include_obfuscation"), "{document}");
}

#[test]
fn lists_of_a_request_are_as_long_as_the_operator_lets_them_be() {
    let narrow = serve_with(|limits| {
        (limits.choices, limits.stop_ids, limits.stop_texts) = (2, 2, 2);
        limits.logprobs = 4;
    });
    let usual = serve(false);
    for (field, whole, too_many, setting) in [
        ("n", json!(2), json!(3), "--max-choices"),
        // A token of the answer and two of the prompt.
        ("logprobs", json!(3), json!(4), "--max-logprobs"),
        ("prompt_logprobs", json!(1), json!(2), "--max-logprobs"),
        ("stop_token_ids", json!([7, 8]), json!([7, 8, 9]), "--max-stop-ids"),
        ("stop", json!(["ab", "cd"]), json!(["ab", "cd", "ef"]), "--max-stop-texts"),
        ("bad_words", json!(["ab"]), json!(["a".repeat(129)]), "--max-stop-texts"),
    ] {
        let asks = |address, value: &Value| {
            let mut body = json!({"prompt": [5, 6], "max_tokens": 1});
            body[field] = value.clone();
            post(address, "/v1/completions", &body)
        };
        assert_eq!(asks(narrow, &whole).0, 200, "{field}");
        let (status, _, answer) = asks(narrow, &too_many);
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(status == 400 && message.contains(setting), "{field}: {answer}");
        assert_eq!(asks(usual, &too_many).0, 200, "{field}");
    }
}

/// What streams is gone as it comes.
#[test]
fn whole_answers_take_memory_for_their_log_probabilities() {
    let address = serve_with(|limits| limits.bodies_bytes = 1 << 20);
    let ask = |more: Value| {
        let mut body = json!({"prompt": [5, 6], "max_tokens": 60, "logprobs": 20, "n": 6});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        post(address, "/v1/completions", &body)
    };
    let (status, _, answer) = ask(json!({}));
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(status == 413 && message.contains("--max-body-memory"), "{answer}");
    assert_eq!(ask(json!({"n": 1})).0, 200);
    let chat = json!({"messages": [], "logprobs": true});
    assert_ne!(post(address, "/v1/chat/completions", &chat).0, 503);
}

/// Whoever takes none of them keeps them for long.
#[test]
fn answers_take_memory_until_they_are_sent() {
    let address = serve_with(|limits| limits.bodies_bytes = 1 << 17);
    let ask = |more: Value| {
        let mut body = json!({"prompt": vec![1024; 60], "max_tokens": 1, "return_token_ids": true});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        post(address, "/v1/completions", &body)
    };
    assert_eq!(ask(json!({"n": 2})).0, 200);
    let prompts = json!(vec![vec![1024; 60]; 16]);
    for more in
        [json!({"prompt": prompts, "n": 64}), json!({"prompt": prompts, "n": 64, "echo": true})]
    {
        let (status, _, answer) = ask(more);
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(status == 413 && message.contains("--max-body-memory"), "{answer}");
    }
    assert_eq!(ask(json!({"n": 2})).0, 200);
}

#[test]
fn fields_of_other_servers_mean_here_what_they_mean_there() {
    let address = serve(false);
    let complete = |more: Value| {
        let mut body = json!({"max_tokens": 2, "temperature": 0, "return_token_ids": true});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let (status, _, answer) = post(address, "/v1/completions", &body);
        assert_eq!(status, 200, "{more}: {answer}");
        answer["choices"][0].clone()
    };
    let ids = golden()[0]["ids"].as_array().unwrap().clone();
    let last = complete(json!({"prompt": ids[ids.len() - 3..], "echo": true}));
    let cut = complete(json!({"prompt": ids, "truncate_prompt_tokens": 3, "echo": true}));
    for name in ["prompt_token_ids", "token_ids", "text"] {
        assert_eq!(cut[name], last[name], "{name}");
    }
    let whole = complete(json!({"prompt": ids, "truncate_prompt_tokens": -1, "best_of": 1}));
    assert_eq!(whole["prompt_token_ids"], json!(ids));
    let named = complete(json!({
        "prompt": ids, "logprobs": 1, "return_tokens_as_token_ids": true, "request_id": "a",
        "prompt_cache_retention": "24h", "cache_salt": null, "kv_transfer_params": null,
    }));
    let first = &named["token_ids"][0];
    assert_eq!(named["logprobs"]["tokens"][0], json!(format!("token_id:{first}")));
    for (field, value) in [
        ("best_of", json!(2)),
        ("prompt_embeds", json!("x")),
        ("thinking_token_budget", json!(5)),
        ("truncation_side", json!("right")),
        ("vllm_xargs", json!({"a": 1})),
    ] {
        let body = json!({"prompt": [5], field: value});
        let (status, _, answer) = post(address, "/v1/completions", &body);
        assert_eq!((status, &answer["error"]["param"]), (400, &json!(field)), "{answer}");
        assert_eq!(answer["error"]["code"], "unsupported_parameter", "{answer}");
    }
}

#[test]
fn a_conversation_is_counted_as_it_is_replied_to() {
    let address = serve(false);
    let tokenizer = TextTokenizer::load(&folder(), 2048).unwrap();
    let user = json!([{"role": "user", "content": "def f(x):"}]);
    let (status, _, counted) =
        post(address, "/tokenize", &json!({"messages": user, "return_token_strs": true}));
    assert_eq!(status, 200, "{counted}");
    assert_eq!(counted["tokens"], json!(tokenizer.encode("def f(x):").unwrap()));
    let spelled = counted["token_strs"].as_array().unwrap().iter().map(|s| s.as_str().unwrap());
    assert_eq!(String::from_iter(spelled), "def f(x):");
    for (more, text) in [
        (json!({"reasoning_effort": "low"}), "lowdef f(x):"),
        (
            json!({"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "high"}}),
            "highdef f(x):",
        ),
    ] {
        let mut body = json!({"messages": user, "max_tokens": 1, "return_token_ids": true});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let (status, _, answer) = post(address, "/v1/chat/completions", &body);
        assert_eq!(status, 200, "{answer}");
        assert_eq!(answer["prompt_token_ids"], json!(tokenizer.encode(text).unwrap()), "{more}");
    }
}

/// Those that a template and a structure get, and what is JSON within a text.
#[test]
fn copies_of_a_request_take_memory_as_it_does() {
    let address = serve_with(|limits| limits.bodies_bytes = 1 << 17);
    let ask = |body: Value| {
        let (status, _, answer) = post(address, "/v1/chat/completions", &body);
        (status, answer["error"]["message"].to_string())
    };
    let parameters = json!({"type": "object", "examples": vec![0; 550]});
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": parameters}}]);
    let messages = json!([{"role": "user", "content": "x"}]);
    let chosen = |choice: &str| {
        ask(json!({"messages": messages, "tools": tools, "tool_choice": choice, "max_tokens": 1}))
    };
    assert_eq!(chosen("none").0, 200);
    let (status, message) = chosen("required");
    assert!(status == 413 && message.contains("--max-body-memory"), "{message}");
    let called = |zeros: usize| {
        let arguments = json!({"a": vec![0; zeros]}).to_string();
        let call = json!({"type": "function", "function": {"name": "f", "arguments": arguments}});
        let message = json!({"role": "assistant", "content": "x", "tool_calls": [call]});
        ask(json!({"messages": [message], "max_tokens": 1}))
    };
    assert_eq!(called(10).0, 200);
    let (status, message) = called(2000);
    assert!(status == 413 && message.contains("--max-body-memory"), "{message}");
}

#[test]
fn more_messages_than_tokens_are_not_rendered() {
    let address = serve(false);
    let most = get(address, "/server_info").1["max_model_len"].as_u64().unwrap();
    let message = json!({"role": "user", "content": ""});
    let messages = vec![message; most as usize + 1];
    let body = json!({"messages": messages});
    for path in ["/v1/chat/completions", "/tokenize"] {
        let (status, _, answer) = post(address, path, &body);
        assert_eq!((status, &answer["error"]["code"]), (400, &json!("context_length_exceeded")));
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains(&format!("{} messages leave no room", most + 1)), "{message}");
    }
}

#[test]
fn heads_are_as_long_as_the_operator_lets_them_be() {
    let address = serve_with(|limits| limits.head_bytes = 128 << 10);
    let headers = format!("Host: localhost\r\nx-long: {}\r\n", "x".repeat(100 << 10));
    let answer = ask_with(address, "GET /version", &headers, "");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[test]
fn paths_of_other_servers_lead_to_the_same() {
    let address = serve(false);
    let body = json!({"prompt": [5, 6], "max_tokens": 1});
    assert_eq!(post(address, "/completions", &body).0, 200);
    let chat = json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 1});
    assert_eq!(post(address, "/chat/completions", &chat).0, 200);
    assert_eq!(get(address, "/models").1, get(address, "/v1/models").1);
    assert_eq!(get(address, "/ping"), get(address, "/health"));
    assert_eq!(get(address, "/version").1, json!({"version": env!("CARGO_PKG_VERSION")}));
    assert_eq!(get(address, "/load").1, json!({"server_load": 0}));
    let info = get(address, "/server_info").1;
    for (name, value) in [
        ("models", json!(["tiny"])),
        ("max_body", json!(8 << 20)),
        ("max_body_memory", json!(256 << 20)),
        ("max_waiting_texts", json!(64)),
        ("max_connections_per_address", json!(3072)),
    ] {
        assert_eq!(info[name], value, "{name} {info}");
    }
    // What prompts left is forgotten.
    let ids = golden()[0]["ids"].as_array().unwrap().clone();
    let prompt = json!({"prompt": Vec::from_iter(ids.iter().cycle().take(40)), "max_tokens": 1});
    let cached = || {
        let answer = post(address, "/v1/completions", &prompt).2;
        answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0)
    };
    assert_eq!(cached(), 0);
    assert!(cached() > 0, "the prompt has a page");
    assert_eq!(post(address, "/reset_prefix_cache", &json!({})).2, json!({"success": true}));
    assert_eq!(cached(), 0);
}
