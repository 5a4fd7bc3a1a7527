//! What clients may ask of texts and of their ends: usage in each event, why an answer stopped, special
//! tokens.

use crate::client;
use crate::tiny_engine::{folder, golden, tiny_engine};
use piecewise::models::TextTokenizer;
use piecewise_server::ServedModel;
use piecewise_server::chat::ChatTemplate;
use piecewise_testing::DeviceFaults;
use serde_json::{Map, Value, json};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

/// The id that stands for `<|end|>` here, a special token; the model gives it second.
const SPECIAL: u32 = 807;

/// The tiny model's tokenizer with a special token more, and one that begins every text.
fn tokenizer() -> TextTokenizer {
    let text = std::fs::read(folder().join("tokenizer.json")).unwrap();
    let mut file: Value = serde_json::from_slice(&text).unwrap();
    let words = file["model"]["vocab"].as_object_mut().unwrap();
    let word = words.iter().find(|(_, id)| **id == SPECIAL).unwrap().0.clone();
    words.remove(&word);
    words.insert("<|end|>".to_owned(), SPECIAL.into());
    let makes = |merge: &Value| {
        let parts = match merge {
            Value::String(parts) => parts.split(' ').map(str::to_owned).collect(),
            parts => Vec::from_iter(
                parts.as_array().unwrap().iter().map(|p| p.as_str().unwrap().to_owned()),
            ),
        };
        parts.contains(&word) || parts.concat() == word
    };
    file["model"]["merges"].as_array_mut().unwrap().retain(|merge| !makes(merge));
    let mut added = file["added_tokens"][0].clone();
    (added["id"], added["content"]) = (SPECIAL.into(), "<|end|>".into());
    file["added_tokens"].as_array_mut().unwrap().push(added);
    let begin = json!({"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}});
    let text = |id: &str| json!({"Sequence": {"id": id, "type_id": 0}});
    file["post_processor"] = json!({
        "type": "TemplateProcessing", "single": [begin, text("A")],
        "pair": [begin, text("A"), text("B")],
        "special_tokens": {
            "<|endoftext|>": {"id": "<|endoftext|>", "ids": [0], "tokens": ["<|endoftext|>"]},
        },
    });
    TextTokenizer::parse(file.to_string().as_bytes(), 2048, Path::new("tokenizer.json")).unwrap()
}

fn serve() -> SocketAddr {
    let template = "{% for message in messages %}{{ message.content }}{% endfor %}";
    let template = ChatTemplate::parse(template, Map::new()).unwrap();
    let model = ServedModel {
        tokenizer: Some(Arc::new(tokenizer())),
        template: Some(template),
        end_ids: vec![265],
        ..ServedModel::default()
    };
    client::serve_model(tiny_engine(DeviceFaults::default(), 4), model)
}

/// The JSON of an answer to a body with more fields in it.
fn ask(address: SocketAddr, path: &str, body: Value, more: &Value) -> Value {
    let text = text_of(address, path, body, more);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn with(mut body: Value, more: &Value) -> Value {
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn text_of(address: SocketAddr, path: &str, body: Value, more: &Value) -> String {
    let answer = client::ask(address, &format!("POST {path}"), &with(body, more).to_string());
    answer.split_once("\r\n\r\n").unwrap().1.to_owned()
}

/// The one choice of a streamed answer that says why it ended; those before say nothing of it.
fn streamed_end(address: SocketAddr, path: &str, body: Value, more: &Value) -> Value {
    let text = text_of(address, path, with(body, &json!({"stream": true})), more);
    let events = text.lines().filter_map(|line| line.strip_prefix("data: "));
    let events = events.filter(|event| *event != "[DONE]");
    let events = events.map(|event| serde_json::from_str::<Value>(event).unwrap());
    let mut choices = Vec::from_iter(events.map(|mut event| event["choices"][0].take()));
    let end = choices.pop().unwrap();
    let is_open = |choice: &Value| choice["finish_reason"].is_null();
    assert!(
        choices.iter().all(|choice| is_open(choice) && choice["stop_reason"].is_null()),
        "{text}"
    );
    assert!(!is_open(&end), "{text}");
    end
}

/// A prompt whose answer begins with 12, [`SPECIAL`], 324, 265.
fn completion(address: SocketAddr, more: &Value) -> Value {
    let ids = &golden()[0]["ids"];
    let body = json!({"prompt": ids, "max_tokens": 4, "temperature": 0, "return_token_ids": true});
    ask(address, "/v1/completions", body, more)["choices"][0].clone()
}

#[test]
fn an_answer_says_which_stop_of_the_client_s_ended_it() {
    let address = serve();
    let string = tokenizer().decode(&[324]).unwrap();
    for (fields, ids, finish, stop) in [
        (json!({"max_tokens": 2}), 2, "length", json!(null)),
        (json!({}), 4, "stop", json!(null)),
        (json!({"stop_token_ids": [265]}), 4, "stop", json!(null)),
        (json!({"stop_token_ids": [265], "ignore_eos": true}), 4, "stop", json!(265)),
        (json!({"stop_token_ids": [9, 324]}), 3, "stop", json!(324)),
        (json!({"stop": [string]}), 3, "stop", json!(string)),
    ] {
        let choice = completion(address, &fields);
        assert_eq!(choice["token_ids"].as_array().unwrap().len(), ids, "{fields}: {choice}");
        assert_eq!(choice["finish_reason"], finish, "{fields}: {choice}");
        assert_eq!(choice.get("stop_reason"), Some(&stop), "{fields}: {choice}");
        let body = json!({"prompt": golden()[0]["ids"], "max_tokens": 4, "temperature": 0});
        let end = streamed_end(address, "/v1/completions", body, &fields);
        assert_eq!(end["finish_reason"], finish, "{fields}: {end}");
        assert_eq!(end.get("stop_reason"), Some(&stop), "{fields}: {end}");
    }
    let chat = json!({"messages": [{"role": "user", "content": golden()[0]["prompt"]}],
        "max_tokens": 4, "temperature": 0});
    for (fields, stop) in [
        (json!({"stop_token_ids": [324]}), json!(324)),
        (json!({"stop": [string]}), json!(string)),
        (json!({}), json!(null)),
    ] {
        let answer = ask(address, "/v1/chat/completions", chat.clone(), &fields);
        assert_eq!(answer["choices"][0].get("stop_reason"), Some(&stop), "{answer}");
        let end = streamed_end(address, "/v1/chat/completions", chat.clone(), &fields);
        assert_eq!(end.get("stop_reason"), Some(&stop), "{fields}: {end}");
    }
}

#[test]
fn special_tokens_have_text_where_a_client_asks_for_it() {
    let address = serve();
    let plain = completion(address, &json!({}));
    let shown = completion(address, &json!({"skip_special_tokens": false}));
    assert!(!plain["text"].as_str().unwrap().contains("<|end|>"), "{plain}");
    assert!(shown["text"].as_str().unwrap().contains("<|end|>"), "{shown}");
    assert_eq!(plain["token_ids"], shown["token_ids"]);
    let stop = json!({"stop": ["<|end|>"]});
    assert_eq!(completion(address, &stop)["token_ids"], plain["token_ids"], "nobody sees it");
    let stop = json!({"stop": ["<|end|>"], "skip_special_tokens": false});
    let stopped = completion(address, &stop);
    assert_eq!(stopped["token_ids"], json!([12, SPECIAL]));
    assert_eq!(
        (&stopped["stop_reason"], &stopped["finish_reason"]),
        (&"<|end|>".into(), &"stop".into())
    );
    let named = json!({"stop_token_ids": [SPECIAL], "skip_special_tokens": false});
    let without = completion(address, &named)["text"].clone();
    assert_eq!(without, stopped["text"], "what ended it is not part of it");
    let kept = with(named, &json!({"include_stop_str_in_output": true}));
    let kept = completion(address, &kept)["text"].clone();
    assert_eq!(kept, format!("{}<|end|>", without.as_str().unwrap()));
    let chat = json!({"messages": [{"role": "user", "content": golden()[0]["prompt"]}],
        "max_tokens": 3, "temperature": 0, "skip_special_tokens": false});
    let answer = ask(address, "/v1/chat/completions", chat, &json!({}));
    let content = answer["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(content.contains("<|end|>"), "{answer}");
    for (fields, expected) in
        [(json!({}), "("), (json!({"skip_special_tokens": false}), "(<|end|>")]
    {
        let text = ask(address, "/detokenize", json!({"tokens": [8, SPECIAL]}), &fields);
        assert_eq!(text["prompt"], expected, "{fields}");
    }
}

#[test]
fn the_tokenizer_s_special_tokens_are_added_or_not_as_a_client_says() {
    let address = serve();
    let ids = golden()[0]["ids"].as_array().unwrap().clone();
    let begun = Vec::from_iter([json!(0)].into_iter().chain(ids.clone()));
    let text = &golden()[0]["prompt"];
    let chat = json!([{"role": "user", "content": text}]);
    for (fields, completions, chats) in [
        (json!({}), &begun, &ids),
        (json!({"add_special_tokens": true}), &begun, &begun),
        (json!({"add_special_tokens": false}), &ids, &ids),
    ] {
        let found = completion(address, &with(json!({"prompt": text}), &fields));
        assert_eq!(found["prompt_token_ids"], json!(completions), "{fields}");
        let body = json!({"messages": chat, "max_tokens": 1, "return_token_ids": true});
        let found = ask(address, "/v1/chat/completions", body, &fields);
        assert_eq!(found["prompt_token_ids"], json!(chats), "{fields}: {found}");
        let found = ask(address, "/tokenize", json!({"prompt": text}), &fields);
        assert_eq!(found["tokens"], json!(completions), "{fields}: {found}");
    }
}

#[test]
fn each_event_says_what_its_answer_took_where_a_client_asks_for_it() {
    let address = serve();
    let usage = |options: Value, path: &str, body: Value| {
        let fields = json!({"stream": true, "stream_options": options, "max_tokens": 3,
            "temperature": 0, "ignore_eos": true, "n": 2});
        let text = text_of(address, path, body, &fields);
        let events = text.lines().filter_map(|line| line.strip_prefix("data: "));
        let events = events.filter(|event| *event != "[DONE]");
        Vec::from_iter(events.map(|event| {
            let event: Value = serde_json::from_str(event).unwrap();
            (event["choices"].clone(), event.get("usage").cloned())
        }))
    };
    let prompt = json!({"prompt": golden()[0]["ids"]});
    let chat = json!({"messages": [{"role": "user", "content": golden()[0]["prompt"]}]});
    for (path, body) in [("/v1/completions", prompt), ("/v1/chat/completions", chat)] {
        let each = json!({"include_usage": true, "continuous_usage_stats": true});
        let mut events = usage(each, path, body.clone());
        let (_, last) = events.pop().unwrap();
        let last = last.unwrap();
        assert_eq!((&last["prompt_tokens"], &last["completion_tokens"]), (&5.into(), &6.into()));
        let mut so_far = [0, 0];
        for (choices, usage) in events {
            let (index, usage) = (choices[0]["index"].as_u64().unwrap() as usize, usage.unwrap());
            let count = usage["completion_tokens"].as_u64().unwrap();
            assert!(count >= so_far[index] && usage["prompt_tokens"] == 5, "{path}: {usage}");
            assert_eq!(usage["total_tokens"], count + 5);
            so_far[index] = count;
        }
        assert_eq!(so_far, [3, 3], "{path}");
        let mut events = usage(json!({"include_usage": true}), path, body.clone());
        assert!(events.pop().unwrap().1.is_some_and(|usage| usage["completion_tokens"] == 6));
        assert!(events.iter().all(|(_, usage)| *usage == Some(Value::Null)), "{events:?}");
        for off in [json!({}), json!({"continuous_usage_stats": true})] {
            let events = usage(off, path, body.clone());
            assert!(events.iter().all(|(_, usage)| usage.is_none()), "{events:?}");
        }
    }
}

#[test]
fn no_likeliest_ids_may_be_asked_for_without_log_probabilities() {
    let address = serve();
    let body = json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 1});
    for fields in [json!({"logprobs": false, "top_logprobs": 0}), json!({"top_logprobs": 0})] {
        let answer = ask(address, "/v1/chat/completions", body.clone(), &fields);
        assert_eq!(answer["choices"][0]["logprobs"], Value::Null, "{fields}: {answer}");
    }
    let fields = json!({"logprobs": false, "top_logprobs": 1});
    let answer = ask(address, "/v1/chat/completions", body, &fields);
    assert_eq!(answer["error"]["param"], "top_logprobs", "{answer}");
}
