//! Anthropic's Messages: requests in blocks, replies in blocks, whole and event by event.

use crate::client::{PATIENCE, ask_with, bind_as, serve_at};
use crate::overflowing::overflowing_model;
use crate::tiny_engine::{engine_of, folder, golden, tiny_engine};
use piecewise::models::TextTokenizer;
use piecewise_runtime::engine::Engine;
use piecewise_server::chat::{ChatTemplate, ReplyFormat};
use piecewise_server::{ApiKeys, ServedModel, ServerOptions};
use piecewise_testing::{DeviceFaults, FaultPoint};
use serde_json::{Map, Value, json};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

/// Shows roles and what each turn has; a reply begins behind `A:`.
const TEMPLATE: &str = "{% if enable_thinking is defined %}[{{ enable_thinking }}]{% endif %}\
    {% if reasoning_effort is defined %}[{{ reasoning_effort }}]{% endif %}\
    {% for tool in tools or [] %}{{ tool.function.name }}={{ tool.function.parameters.type }};{% endfor %}\
    {% for message in messages %}{{ message.role[0] | upper }}:{{ message.reasoning_content }}{{ message.content }}\
    {% for call in message.tool_calls or [] %}<{{ call.function.name }} {{ call.function.arguments.a }}>{% endfor %}\
    {{ message.tool_call_id }}{% endfor %}{% if add_generation_prompt %}A:{% endif %}";

fn serve_as(engine: Engine, change: impl FnOnce(&mut ServerOptions)) -> SocketAddr {
    let server = bind_as(change);
    let model = ServedModel {
        tokenizer: Some(Arc::new(TextTokenizer::load(&folder(), 2048).unwrap())),
        template: Some(ChatTemplate::parse(TEMPLATE, Map::new()).unwrap()),
        format: ReplyFormat::new(Some("qwen3"), Some("hermes"), "").unwrap(),
        end_ids: vec![0],
        ..ServedModel::default()
    };
    serve_at(server, engine, model).0
}

fn serve() -> SocketAddr {
    serve_as(tiny_engine(DeviceFaults::default(), 4), |_| {})
}

/// Status, head and body of an answer to a request with this header.
fn raw(address: SocketAddr, request: &str, header: &str, body: &Value) -> (u16, String, String) {
    let headers = format!("Host: localhost\r\n{header}");
    let answer = ask_with(address, request, &headers, &body.to_string());
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head[9..12].parse().unwrap(), head.to_ascii_lowercase(), body.to_owned())
}

fn post(address: SocketAddr, path: &str, body: &Value) -> (u16, Value) {
    let (status, _, text) = raw(address, &format!("POST {path}"), "", body);
    (status, serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}")))
}

fn with(body: &Value, more: &Value) -> Value {
    let mut body = body.clone();
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn message(address: SocketAddr, more: &Value) -> Value {
    let body = json!({
        "model": "tiny", "max_tokens": 200, "temperature": 0,
        "messages": [{"role": "user", "content": "def f(x):"}],
    });
    let body = with(&body, more);
    let (status, whole) = post(address, "/v1/messages", &body);
    assert_eq!(status, 200, "{body}: {whole}");
    let streamed = streamed(address, &with(&body, &json!({"stream": true})));
    // Ids and signatures are of each reply, and the second one finds what the first has left.
    let shown = |mut message: Value| {
        let usage = message["usage"].take();
        let input = ["input_tokens", "cache_read_input_tokens"].map(|name| usage[name].as_u64());
        message["usage"] = json!({
            "input": input.into_iter().flatten().sum::<u64>(), "output": usage["output_tokens"],
        });
        assert!(message["id"].take().as_str().unwrap().starts_with("msg"));
        for block in message["content"].as_array_mut().unwrap() {
            for own in ["signature", "id"] {
                if let Some(own) = block.as_object_mut().unwrap().remove(own) {
                    assert!(!own.as_str().unwrap().is_empty());
                }
            }
        }
        message
    };
    assert_eq!(shown(streamed), shown(whole.clone()), "{body}");
    whole
}

/// What a client makes of the events of a stream.
fn streamed(address: SocketAddr, body: &Value) -> Value {
    let (status, head, text) = raw(address, "POST /v1/messages", "", body);
    assert_eq!(status, 200, "{text}");
    assert!(head.contains("content-type: text/event-stream"), "{head}");
    assert!(!text.contains("[DONE]"), "{text}");
    let lines =
        text.lines().filter(|line| line.starts_with("event: ") || line.starts_with("data: "));
    let lines = Vec::from_iter(lines);
    let (mut message, mut names, mut open) = (Value::Null, Vec::new(), None);
    for pair in lines.chunks(2) {
        let name = pair[0].strip_prefix("event: ").unwrap_or_else(|| panic!("{text}"));
        let mut event: Value =
            serde_json::from_str(pair[1].strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(event["type"], name);
        names.push(name);
        let index = event["index"].as_u64();
        match name {
            "message_start" => message = event["message"].take(),
            "content_block_start" => {
                let content = message["content"].as_array_mut().unwrap();
                assert_eq!((open, index), (None, Some(content.len() as u64)), "{text}");
                content.push(event["content_block"].take());
                open = index;
            }
            "content_block_delta" => {
                assert_eq!((open, index.is_some()), (index, true), "{text}");
                let block = message["content"].as_array_mut().unwrap().last_mut().unwrap();
                let delta = &event["delta"];
                let (from, to) = match delta["type"].as_str().unwrap() {
                    "text_delta" => ("text", "text"),
                    "thinking_delta" => ("thinking", "thinking"),
                    "signature_delta" => ("signature", "signature"),
                    "input_json_delta" => ("partial_json", "written"),
                    other => panic!("{other}"),
                };
                let known = block[to].as_str().unwrap_or_default();
                block[to] = format!("{known}{}", delta[from].as_str().unwrap()).into();
            }
            "content_block_stop" => {
                assert_eq!((open, index.is_some()), (index, true), "{text}");
                open = None;
                let block = message["content"].as_array_mut().unwrap().last_mut().unwrap();
                if let Some(written) = block.as_object_mut().unwrap().remove("written") {
                    let read = serde_json::from_str(written.as_str().unwrap());
                    block["input"] = read.unwrap_or(json!({}));
                }
            }
            "message_delta" => {
                for name in ["stop_reason", "stop_sequence"] {
                    message[name] = event["delta"][name].take();
                }
                message["usage"] = event["usage"].take();
            }
            "ping" | "message_stop" => {}
            other => panic!("{other}"),
        }
    }
    assert_eq!(names[..2], ["message_start", "ping"], "{text}");
    assert_eq!(names[names.len() - 2..], ["message_delta", "message_stop"], "{text}");
    message
}

fn tools() -> Value {
    let schema = json!({
        "type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["a"], "additionalProperties": false,
    });
    let clock = json!({"type": "object", "properties": {}, "additionalProperties": false});
    json!([
        {"name": "add", "description": "Adds.", "input_schema": schema},
        {"type": "custom", "name": "clock", "input_schema": clock},
    ])
}

/// A reply of this text.
fn said(text: &str) -> Value {
    json!({"structured_outputs": {"choice": [text]}})
}

#[test]
fn a_reply_is_blocks_whole_and_event_by_event() {
    let address = serve();
    let found = message(address, &said("yes"));
    assert_eq!(found["content"], json!([{"type": "text", "text": "yes"}]), "{found}");
    let named = json!({"type": "message", "role": "assistant", "model": "tiny",
        "stop_reason": "end_turn", "stop_sequence": null});
    for (name, value) in named.as_object().unwrap() {
        assert_eq!(found.get(name), Some(value), "{found}");
    }
    let found = message(address, &with(&said("yes"), &json!({"max_tokens": 1})));
    assert_eq!(found["stop_reason"], "max_tokens", "{found}");
    assert_eq!(found["usage"]["output_tokens"], 1);
    let found =
        message(address, &with(&said("one two three"), &json!({"stop_sequences": ["!", "two"]})));
    assert_eq!(found["content"], json!([{"type": "text", "text": "one "}]), "{found}");
    assert_eq!(
        (&found["stop_reason"], &found["stop_sequence"]),
        (&json!("stop_sequence"), &json!("two"))
    );
    // A call that is cut off is not to be made.
    let call = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 7}}\n</tool_call>";
    let cut = json!({"tools": tools(), "stop_sequences": ["7}"]});
    let found = message(address, &with(&said(call), &cut));
    let why = (&found["stop_reason"], &found["content"][0]["input"]);
    assert_eq!(why, (&json!("stop_sequence"), &json!({})), "{found}");
    // Thoughts, a word, and the use of a tool.
    let reply = said(&format!("<think>\nhm\n</think>\n\nI add.\n{call}"));
    let found = message(address, &with(&reply, &json!({"tools": tools()})));
    let content = found["content"].as_array().unwrap();
    let kinds = Vec::from_iter(content.iter().map(|block| block["type"].as_str().unwrap()));
    assert_eq!(kinds, ["thinking", "text", "tool_use"], "{found}");
    assert_eq!(content[0]["thinking"].as_str().unwrap().trim(), "hm");
    assert_eq!(content[1]["text"].as_str().unwrap().trim(), "I add.");
    assert_eq!((&content[2]["name"], &content[2]["input"]), (&json!("add"), &json!({"a": 7})));
    assert_eq!(found["stop_reason"], "tool_use");
    let hidden = json!({"tools": tools(), "thinking": {"type": "adaptive", "display": "omitted"}});
    let found = message(address, &with(&reply, &hidden));
    assert_eq!(found["content"][0]["type"], "text", "{found}");
}

/// A stream that has nothing to say for a while says that it is there.
#[test]
fn a_stream_is_never_silent_for_long() {
    let faults = DeviceFaults::default();
    let address = serve_as(tiny_engine(faults.clone(), 4), |options| {
        options.limits.silence = Duration::from_millis(1);
    });
    // The engine is kept in its third step, until three have come.
    let (_, release) = faults.hold(FaultPoint::Replay, 2);
    let body = json!({
        "max_tokens": 20, "temperature": 0, "stream": true,
        "messages": [{"role": "user", "content": "def f(x):"}],
    });
    let body = body.to_string();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let head = "POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n";
    write!(stream, "{head}Content-Length: {}\r\n\r\n{body}", body.len()).unwrap();
    let mut lines = Vec::new();
    let mut release = Some(release);
    for line in BufReader::new(stream).lines() {
        lines.extend(line.unwrap().strip_prefix("event: ").map(str::to_owned));
        // One follows the beginning.
        if lines.iter().filter(|name| *name == "ping").count() > 3 {
            release = None;
        }
    }
    assert!(release.is_none(), "{lines:?}");
    lines.retain(|name| name != "ping");
    assert_eq!(lines.first().unwrap(), "message_start");
    assert_eq!(lines.last().unwrap(), "message_stop");
}

#[test]
fn a_choice_of_tools_and_a_schema_force_a_reply() {
    let address = serve();
    for (choice, names) in [
        (json!({"type": "tool", "name": "add"}), &["add"][..]),
        (json!({"type": "any", "disable_parallel_tool_use": true}), &["add", "clock"]),
    ] {
        let found = message(address, &json!({"tools": tools(), "tool_choice": choice}));
        let content = found["content"].as_array().unwrap();
        assert_eq!((content.len(), &found["stop_reason"]), (1, &json!("tool_use")), "{found}");
        assert!(names.contains(&content[0]["name"].as_str().unwrap()), "{found}");
        let input = content[0]["input"].as_object().unwrap();
        assert!(content[0]["name"] == "clock" || input["a"].is_u64(), "{found}");
    }
    let call = said("<tool_call>\n{\"name\": \"clock\", \"arguments\": {}}\n</tool_call>");
    let none = json!({"tools": tools(), "tool_choice": {"type": "none"}});
    assert_eq!(message(address, &with(&call, &none))["content"][0]["type"], "text");
    let schema = json!({"type": "object", "properties": {"a": {"type": "boolean"}},
        "required": ["a"], "additionalProperties": false});
    let format = json!({"output_config": {"format": {"type": "json_schema", "schema": schema}},
        "thinking": {"type": "disabled"}});
    let found = message(address, &format);
    let text = found["content"][0]["text"].as_str().unwrap();
    assert!(serde_json::from_str::<Value>(text).unwrap()["a"].is_boolean(), "{found}");
}

/// The prompt is what the chat makes of the same conversation, and is counted alike.
#[test]
fn a_conversation_in_blocks_is_one_of_the_chat() {
    let address = serve();
    let tokenizer = TextTokenizer::load(&folder(), 2048).unwrap();
    let user = |content: Value| json!({"role": "user", "content": content});
    let text =
        |text: &str| json!({"type": "text", "text": text, "cache_control": {"type": "ephemeral"}});
    let result =
        |content: Value| json!({"type": "tool_result", "tool_use_id": "t1", "content": content});
    let asked = json!({"role": "assistant", "content": [
        {"type": "thinking", "thinking": "hm", "signature": "s"}, text("so"),
        {"type": "redacted_thinking", "data": "x"},
        {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 3}},
    ]});
    for (body, prompt) in [
        (json!({"messages": [user(json!("hi"))]}), "U:hiA:"),
        (json!({"system": "be", "messages": [user(json!("hi"))]}), "S:beU:hiA:"),
        (
            json!({
                "system": [text("x-anthropic-billing-header: 1"), text("be"), text(" it")],
                "messages": [user(json!([text("h"), text("i")])), user(json!("!"))],
            }),
            "S:be itU:hi!A:",
        ),
        (
            json!({"tools": tools(), "messages": [
                user(json!("hi")), asked, user(json!([result(json!([text("1"), text("2")])), text("so?")])),
            ]}),
            "add=object;clock=object;U:hiA:hmso<add 3>T:12t1U:so?A:",
        ),
        (
            json!({"messages": [user(json!("hi")), user(json!([result(Value::Null)]))]}),
            "U:hiT:t1A:",
        ),
        // What is put into its mouth.
        (
            json!({"messages": [user(json!("hi")), {"role": "assistant", "content": "yes"}]}),
            "U:hiA:yes",
        ),
        (
            json!({"thinking": {"type": "enabled", "budget_tokens": 1024},
                "output_config": {"effort": "low"}, "messages": [user(json!("hi"))]}),
            "[True][low]U:hiA:",
        ),
        (
            json!({"thinking": {"type": "disabled"}, "chat_template_kwargs": {"enable_thinking": 1},
                "messages": [user(json!("hi"))]}),
            "[1]U:hiA:",
        ),
    ] {
        let tokens = tokenizer.encode(prompt).unwrap().len();
        let (status, counted) = post(address, "/v1/messages/count_tokens", &body);
        assert_eq!((status, &counted), (200, &json!({"input_tokens": tokens})), "{prompt}");
        let (status, reply) =
            post(address, "/v1/messages", &with(&body, &json!({"max_tokens": 1})));
        assert_eq!(status, 200, "{reply}");
        let usage = &reply["usage"];
        let cached = usage["cache_read_input_tokens"].as_u64().unwrap();
        assert_eq!(usage["input_tokens"], tokens as u64 - cached, "{prompt}");
    }
}

#[test]
fn what_is_wrong_is_told_in_their_form() {
    let address = serve();
    let plain = json!({"max_tokens": 2, "messages": [{"role": "user", "content": "x"}]});
    let block = |kind: &str| json!({"messages": [{"role": "user", "content": [{"type": kind}]}]});
    for (more, status, kind, part) in [
        (json!({"max_tokens": null}), 400, "invalid_request_error", "`max_tokens`: is missing"),
        (json!({"chat_id": 1}), 400, "invalid_request_error", "`chat_id`"),
        (json!({"n": 2}), 400, "invalid_request_error", "`n`"),
        (json!({"model": "claude"}), 404, "not_found_error", "claude"),
        (json!({"stop_sequences": 5}), 400, "invalid_request_error", "`stop_sequences`"),
        (json!({"stop_sequences": [""]}), 400, "invalid_request_error", "`stop_sequences`"),
        (json!({"messages": []}), 400, "invalid_request_error", "`messages`"),
        (json!({"messages": [{"role": "x"}]}), 400, "invalid_request_error", "`messages[0].role`"),
        (block("image"), 400, "invalid_request_error", "images are not read here"),
        (block("tool_use"), 400, "invalid_request_error", "for the role `assistant`"),
        (block("odd"), 400, "invalid_request_error", "`messages[0].content[0]`"),
        (
            json!({"tools": [{"name": "a"}]}),
            400,
            "invalid_request_error",
            "`tools[0].input_schema`",
        ),
        (
            json!({"tools": [{"type": "web_search_1"}]}),
            400,
            "invalid_request_error",
            "web_search_1",
        ),
        (json!({"tool_choice": {"type": "any"}}), 400, "invalid_request_error", "`tool_choice`"),
        (json!({"tool_choice": {"type": "x"}}), 400, "invalid_request_error", "`tool_choice.type`"),
        (json!({"thinking": {"type": "x"}}), 400, "invalid_request_error", "`thinking.type`"),
        (json!({"output_config": {"x": 1}}), 400, "invalid_request_error", "`output_config.x`"),
        (
            json!({"output_config": {"format": {"type": "json_schema", "schema": 5}}}),
            400,
            "invalid_request_error",
            "`output_config.format.schema`",
        ),
        (json!({"container": "x"}), 400, "invalid_request_error", "`container`"),
        (json!({"cache_salt": ""}), 400, "invalid_request_error", "`cache_salt`"),
    ] {
        let (found, answer) = post(address, "/v1/messages", &with(&plain, &more));
        assert_eq!((found, &answer["type"]), (status, &json!("error")), "{more}: {answer}");
        assert_eq!(answer["error"]["type"], kind, "{more}: {answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains(part), "{more}: {answer}");
    }
    let (status, _, text) = raw(address, "GET /v1/messages", "", &json!({}));
    assert!(status == 405 && text.starts_with("{\"type\":\"error\""), "{status} {text}");
    let (_, _, text) = raw(address, "GET /v1/message", "", &json!({}));
    assert!(text.starts_with("{\"error\""), "elsewhere it is OpenAI's: {text}");
}

#[test]
fn what_nobody_knows_is_passed_over_where_a_server_does_so() {
    let engine = tiny_engine(DeviceFaults::default(), 4);
    let address = serve_as(engine, |options| options.limits.ignores_unknown_fields = true);
    let body = json!({"max_tokens": 1, "messages": [{"role": "user", "content": "x"}], "n": 2});
    let (status, head, text) = raw(address, "POST /v1/messages", "", &body);
    assert_eq!(status, 200, "{text}");
    assert!(head.contains("\r\nx-ignored-fields: n\r\n"), "{head}");
}

#[test]
fn what_fails_within_a_stream_is_an_event_of_it() {
    let model = overflowing_model(&folder());
    let engine = engine_of(model.path(), "f16", DeviceFaults::default(), 4);
    let address = serve_as(engine, |_| {});
    let body = json!({"max_tokens": 4, "messages": [{"role": "user", "content": "x"}]});
    let (status, whole) = post(address, "/v1/messages", &body);
    assert_eq!((status, &whole["error"]["type"]), (500, &json!("api_error")), "{whole}");
    let body = with(&body, &json!({"stream": true}));
    let (status, _, text) = raw(address, "POST /v1/messages", "", &body);
    let lines =
        text.lines().filter(|line| line.starts_with("event: ") || line.starts_with("data: "));
    let [.., name, data] = Vec::from_iter(lines)[..] else { panic!("{text}") };
    assert_eq!((status, name), (200, "event: error"), "{text}");
    let told: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
    assert_eq!(told, whole);
}

#[test]
fn a_key_comes_by_either_header() {
    let engine = tiny_engine(DeviceFaults::default(), 4);
    let address = serve_as(engine, |options| options.keys = ApiKeys::of_lines("secret").unwrap());
    let body = json!({"messages": [{"role": "user", "content": "x"}]});
    for (header, status) in [
        ("", 401),
        ("x-api-key: secret\r\nanthropic-version: 2023-06-01\r\n", 200),
        ("x-api-key: other\r\n", 401),
        ("Authorization: Bearer secret\r\n", 200),
        ("Authorization: Bearer other\r\nx-api-key: secret\r\n", 401),
    ] {
        let (found, _, text) = raw(address, "POST /v1/messages/count_tokens", header, &body);
        assert_eq!(found, status, "{header}: {text}");
        assert!(status == 200 || text.contains("\"authentication_error\""), "{text}");
    }
}

#[test]
fn a_salt_of_a_client_has_pages_of_its_own() {
    let address = serve();
    let ids = golden()[0]["ids"].as_array().unwrap().clone();
    let prompt = Vec::from_iter(ids.iter().cycle().take(40));
    let cached = |salt: Value| {
        let body = json!({"prompt": prompt, "max_tokens": 1, "cache_salt": salt});
        let (status, answer) = post(address, "/v1/completions", &body);
        assert_eq!(status, 200, "{answer}");
        answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    };
    let salts = [json!("a"), Value::Null, json!("b"), json!("a"), Value::Null];
    assert_eq!(salts.map(cached), [0, 0, 0, 32, 32]);
    let turn =
        json!([{"role": "user", "content": "def f(x): return x + 1 # and so on ".repeat(5)}]);
    let read = |salt: &str| {
        let body = json!({"messages": turn, "max_tokens": 1, "cache_salt": salt});
        let (status, answer) = post(address, "/v1/messages", &body);
        assert_eq!(status, 200, "{answer}");
        answer["usage"]["cache_read_input_tokens"].as_u64().unwrap()
    };
    assert_eq!([read("a"), read("b")], [0, 0]);
    assert!(read("a") >= 16);
    for bad in [json!(""), json!("s".repeat(1025)), json!(5)] {
        let (status, answer) =
            post(address, "/v1/completions", &json!({"prompt": [5], "cache_salt": bad}));
        assert_eq!((status, &answer["error"]["param"]), (400, &json!("cache_salt")), "{answer}");
    }
}
