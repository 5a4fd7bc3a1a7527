//! What a server says before it has a model.

use crate::client::{ask, bind};
use serde_json::Value;

/// It is alive and not ready, and whoever asks is told to come back.
#[test]
fn while_the_model_is_loaded_a_server_is_alive_and_not_ready() {
    let server = bind();
    let address = server.address();
    assert!(address.ip().is_loopback());
    assert!(ask(address, "GET /health", "").starts_with("HTTP/1.1 200 "));
    let ready = ask(address, "GET /ready", "");
    assert!(ready.starts_with("HTTP/1.1 503 "), "{ready}");
    assert!(ready.ends_with("the model is being loaded\n"), "{ready}");
    for request in ["POST /v1/completions", "POST /v1/chat/completions", "GET /metrics"] {
        let answer = ask(address, request, "{}").to_lowercase();
        assert!(answer.starts_with("http/1.1 503 "), "{request}: {answer}");
        assert!(answer.contains("\r\nretry-after: 2\r\n"), "{request}: {answer}");
        assert!(answer.contains("\"service_unavailable\""), "{request}: {answer}");
    }
}

/// Each path takes the method that the page says, and no other.
#[test]
fn methods_are_those_of_the_openapi_page() {
    let server = bind();
    let address = server.address();
    let document = ask(address, "GET /openapi.json", "");
    let document: Value = serde_json::from_str(document.split_once("\r\n\r\n").unwrap().1).unwrap();
    let paths = document["paths"].as_object().unwrap();
    assert!(paths.len() > 15, "{paths:?}");
    for (path, methods) in paths {
        let path = path.replace("{model}", "tiny");
        for method in ["get", "post"] {
            let answer = ask(address, &format!("{} {path}", method.to_uppercase()), "{}");
            let status = &answer[9..12];
            match methods.get(method) {
                Some(_) => assert!(!["404", "405"].contains(&status), "{method} {path}: {answer}"),
                None => assert_eq!(status, "405", "{method} {path}: {answer}"),
            }
        }
    }
}
