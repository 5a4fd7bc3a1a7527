//! What a request says of sampling reaches the engine, each field as what it is.

use crate::client;
use crate::tiny_engine::tiny_engine;
use piecewise_kernels::sampling::Sampling;
use piecewise_runtime::engine::{Engine, Request, RequestEvent};
use piecewise_testing::DeviceFaults;
use serde_json::{Value, json};

const PROMPT: [u32; 6] = [5, 9, 12, 5, 30, 7];
const LENGTH: u64 = 24;

fn offline(engine: &mut Engine, sampling: Sampling) -> Vec<u32> {
    let request = Request { sampling, ignore_eos: true, ..Request::new(PROMPT, LENGTH) };
    engine.add(request).unwrap();
    let mut events = Vec::new();
    engine.run(&mut events).unwrap();
    let tokens = events.iter().filter_map(|event| match event {
        RequestEvent::Token { id, .. } => Some(*id),
        _ => None,
    });
    tokens.collect()
}

#[test]
fn each_field_of_sampling_is_the_engine_s_own() {
    let [mut alone, served] = [(); 2].map(|()| tiny_engine(DeviceFaults::default(), 4));
    let address = client::serve(served);
    let hot = Sampling { temperature: 1.5, seed: 11, ..Sampling::default() };
    // What was generated comes again, so that penalties tell themselves apart.
    let cool = Sampling { temperature: 0.2, ..hot };
    let mut seen: Vec<Vec<u32>> = Vec::new();
    let token_ids = |fields: &Value| {
        let mut body = json!({
            "prompt": PROMPT, "max_tokens": LENGTH, "ignore_eos": true, "return_token_ids": true,
            "temperature": 1.5, "seed": 11,
        });
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let answer = client::ask(address, "POST /v1/completions", &body.to_string());
        let (_, answer) = answer.split_once("\r\n\r\n").unwrap();
        let answer: Value = serde_json::from_str(answer).unwrap();
        answer["choices"][0]["token_ids"].clone()
    };
    for (fields, sampling) in [
        (json!({"temperature": 0}), Sampling::default()),
        (json!({}), hot),
        (json!({"temperature": 0.8}), Sampling { temperature: 0.8, ..hot }),
        (json!({"seed": 12}), Sampling { seed: 12, ..hot }),
        (json!({"top_k": 5}), Sampling { top_k: 5, ..hot }),
        (json!({"top_p": 0.4}), Sampling { top_p: 0.4, ..hot }),
        (json!({"min_p": 0.3}), Sampling { min_p: 0.3, ..hot }),
        (
            json!({"temperature": 0.2, "presence_penalty": 1.5}),
            Sampling { presence_penalty: 1.5, ..cool },
        ),
        (
            json!({"temperature": 0.2, "frequency_penalty": 1.5}),
            Sampling { frequency_penalty: 1.5, ..cool },
        ),
        (
            json!({"temperature": 0.2, "repetition_penalty": 1.5}),
            Sampling { repetition_penalty: 1.5, ..cool },
        ),
    ] {
        let (found, expected) = (token_ids(&fields), offline(&mut alone, sampling));
        assert_eq!(found, json!(expected), "{fields}");
        assert!(
            !seen.contains(&expected),
            "{fields} changes nothing: the test would see no mistake"
        );
        seen.push(expected);
    }
    assert_eq!(
        token_ids(&json!({"top_p": 0})),
        json!(seen[0]),
        "the likeliest token alone is left"
    );
}
